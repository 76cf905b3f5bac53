"""Where a verb's words go: the answer to stdout, everything else to stderr. Knows no model."""

import codecs
import contextlib
import io
import json
import locale
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from mlxspec.display import Cleaner, one_line
from mlxspec.errors import MlxspecError


def charset(environ: Mapping[str, str]) -> str | None:
    """The encoding the environment asks for (``LANG=de_DE.CP1252``), None where it names none.

    Python writes LC_CTYPE=C.UTF-8 into the environment where it was started under the C locale, so that value alone says nothing.
    """
    asked = environ.get("LC_ALL") or environ.get("LC_CTYPE", "")
    if not asked or asked == "C.UTF-8":
        asked = environ.get("LC_ALL") or environ.get("LANG") or ""
    _, _, name = asked.partition("@")[0].partition(".")
    if asked.upper().replace("-", "") == "UTF8":  # macOS: LC_CTYPE=UTF-8
        name = asked
    try:
        return codecs.lookup(name).name if name else None
    except LookupError:
        return None


def input_encodings(environ: Mapping[str, str]) -> list[str]:
    """Encodings to try on bytes that are not UTF-8, best first: what stdin was set to, what the locale says."""
    asked = [getattr(sys.stdin, "encoding", None), charset(environ), locale.getencoding()]
    names = [codecs.lookup(name).name for name in asked if name]
    return [name for name in dict.fromkeys(names) if name not in ("utf-8", "ascii")]


class Terminal:
    """The two streams of a run, and what each can show."""

    def __init__(self, out: TextIO | None, err: TextIO | None, environ: Mapping[str, str] | None = None, quiet: bool = False) -> None:
        environ = os.environ if environ is None else environ
        self.out = out if out is not None else open(os.devnull, "w")  # noqa: SIM115 - stdout was closed; lives as long as the process
        self.err = err
        self.quiet = quiet
        self.out_tty = _tty(out)
        self.err_tty = _tty(err)
        self.dumb = environ.get("TERM", "") == "dumb"
        self.colours = not environ.get("NO_COLOR") and not self.dumb
        self.unicode = (charset(environ) or "").startswith("utf")
        self._cleaner = Cleaner()
        self._last = ""
        self._progress = 0  # columns the progress bar holds
        if hasattr(self.out, "reconfigure"):  # a character the terminal cannot show is no reason to lose the answer
            encoding = "utf-8" if codecs.lookup(self.out.encoding or "utf-8").name == "ascii" else None
            self.out.reconfigure(encoding=encoding, errors="replace")

    @property
    def mid_line(self) -> bool:
        """Whether the answer stands in the middle of a line."""
        return self._last not in ("", "\n")

    @property
    def dot(self) -> str:
        """Stands between the parts of a line."""
        return " · " if self.unicode else " | "

    def answer(self, text: str) -> None:
        """Text of the reply, as it comes: cleaned where a terminal reads it, untouched in a pipe or file."""
        self.clear_progress()
        self._write(self._cleaner.feed(text) if self.out_tty else text)

    def end_answer(self) -> None:
        """Ends the reply's last line."""
        self.clear_progress()
        self._write(self._cleaner.flush())
        if self.mid_line:
            self._write("\n")

    def print(self, text: str) -> None:
        """Whole lines of our own making (tables, JSON)."""
        self._write(text + "\n")

    def json(self, value: Any) -> None:
        """One JSON object on a line of its own. Nothing in it drives a terminal; a number that is none becomes null."""
        text = json.dumps(_finite(value), ensure_ascii=not self.unicode)
        self.print(re.sub(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text))

    def bar(self, share: float) -> str:
        """A bar of up to twenty cells."""
        return ("█" if self.unicode else "#") * round(20 * share)

    @contextlib.contextmanager
    def stdout_guarded(self) -> Iterator[None]:
        """What libraries print on stdout goes to stderr: stdout is for the answer."""
        with contextlib.redirect_stdout(self.err or io.StringIO()):
            yield

    def notice(self, text: str) -> None:
        """A line on stderr; with --quiet only where it asks something."""
        if not self.quiet or text.endswith("[y/N]"):
            self.error(text)

    def error(self, text: str) -> None:
        """A line on stderr."""
        self.clear_progress()
        self._to_err(one_line(text) + "\n")

    def progress(self, label: str, done: int, total: int) -> None:
        """A bar on stderr, drawn over itself, where stderr is a terminal that can."""
        if self.quiet or not self.err_tty or self.dumb:
            return
        full, empty = ("█", "░") if self.unicode else ("#", ".")
        cells = 20 * done // max(total, 1)
        line = f"{label} {full * cells}{empty * (20 - cells)} {done}/{total}"[: shutil.get_terminal_size().columns - 1]
        self._to_err("\r" + line.ljust(self._progress))
        self._progress = max(len(line), self._progress)

    def clear_progress(self) -> None:
        if self._progress:
            self._to_err("\r" + " " * self._progress + "\r")
            self._progress = 0

    def paint(self, text: str, style: str) -> str:
        """The text in a style (``32`` green, ``2`` dim, …) where stdout is a terminal with colours."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.out_tty and self.colours else text

    def _write(self, text: str) -> None:
        if text:
            self._last = text[-1]
            try:
                self.out.write(text)
                self.out.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise MlxspecError(f"stdout cannot be written ({error.strerror}): send it to another place.") from None

    def _to_err(self, text: str) -> None:
        if self.err is None:
            return
        try:
            self.err.write(text)
            self.err.flush()
        except (OSError, ValueError):  # nobody reads it; that must not end the answer
            self.err = None


def _tty(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
