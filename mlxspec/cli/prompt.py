"""Where a prompt comes from: arguments, --prompt, --file, or stdin. Knows no model.

stdin that is piped is the prompt where there is no other one, and else a document: it is appended after a blank line.
"""

import io
import os
import select
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mlxspec.cli.terminal import input_encodings
from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError

PATIENCE = 2.0  # seconds of a silent stdin before we say what we wait for


def gather(words: Sequence[str], prompt: str | None, file: str | None, say: Callable[[str], None]) -> str:
    """The prompt, or a UsageError where there is none, more than one, or nothing in it."""
    given = [name for name, there in (("the arguments", bool(words)), ("--prompt", prompt is not None), ("--file", file is not None)) if there]
    if len(given) > 1:
        raise UsageError(f"The prompt is given twice, by {' and '.join(given)}: give one of them.")
    if words:
        text = " ".join(words)
    elif prompt is not None:
        text = prompt
    elif file is not None:
        text = "-" if file == "-" else read_file(Path(file))
    elif piped():
        text = "-"
    else:
        raise UsageError('There is no prompt: give it as an argument (mlxspec generate "What is gravity?"), by --prompt, --file, or on stdin.')
    if text == "-" and sys.stdin is not None:
        text = read_stdin()
    elif piped():
        document = read_stdin(lambda: say("Reading stdin as a document for the prompt (< /dev/null gives none)."))
        text = f"{argument(text)}\n\n{document}" if document.strip() else argument(text)
    else:
        text = argument(text)
    if "\0" in text:
        raise UsageError(f"The prompt holds a NUL byte (character {text.index(chr(0)) + 1}): give text.")
    if not text.strip():
        raise UsageError("The prompt is empty: give some text.")
    return text.rstrip("\r\n")


def argument(text: str) -> str:
    """An argument of the command line; bytes that the system could not decode are decoded as stdin's are."""
    return decode(os.fsencode(text), "the prompt") if _surrogates(text) else text


def read_file(path: Path) -> str:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"The prompt file {path} cannot be read ({error.strerror}): give --file a readable text file.") from None


def read_stdin(wait: Callable[[], None] | None = None) -> str:
    """All of stdin. ``wait`` is called where nothing has come for a while."""
    try:
        if wait is not None and not _ready(PATIENCE):
            wait()
        return decode(sys.stdin.buffer.read(), "stdin")
    except (OSError, ValueError) as error:
        raise MlxspecError(f"stdin cannot be read ({one_line(str(error))}): pipe some text in, or give the prompt as an argument.") from None


def piped() -> bool:
    """Whether stdin is a pipe, a file or a socket: something that was put there. A terminal, /dev/null or nothing at all are not."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, io.UnsupportedOperation):
        return isinstance(sys.stdin, io.TextIOWrapper)
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def decode(data: bytes, source: str) -> str:
    """UTF-8, else the encoding the locale asks for (cp1252 and the like), else an error that names the byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
    for encoding in input_encodings(os.environ):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise MlxspecError(f"{source} is not UTF-8: byte {place + 1} is 0x{data[place]:02x}. Convert it (iconv -t UTF-8), or set LANG to its encoding.")


def _surrogates(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _ready(seconds: float) -> bool:
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], seconds)[0])
    except (OSError, ValueError, io.UnsupportedOperation):
        return True
