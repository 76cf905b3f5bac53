"""A text in the user's own editor. The screen must have let go of the terminal before."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError

DEFAULTS = ("nano", "vi")


def command(environ: Mapping[str, str]) -> list[str]:
    """$VISUAL, $EDITOR, or an editor that is there."""
    for name in ("VISUAL", "EDITOR"):
        if words := environ.get(name, "").strip():
            try:
                return shlex.split(words)
            except ValueError as error:
                raise UsageError(f"${name} is {one_line(words)!r:.60}, which is no command ({error}): set it to an editor.") from None
    found = next((path for name in DEFAULTS if (path := shutil.which(name, path=environ.get("PATH")))), None)
    if found is None:
        raise UsageError("There is no editor: set $EDITOR to one.")
    return [found]


def edit(text: str, environ: Mapping[str, str], run: Callable[..., "subprocess.CompletedProcess[Any]"] = subprocess.run) -> str:
    """The text as the user leaves it, without line ends at its end. Raises, and the text is as it was, where the editor fails."""
    words = command(environ)
    handle, name = tempfile.mkstemp(prefix="mlxspec-", suffix=".md")  # 0600
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        try:
            code = run([*words, str(path)], check=False).returncode
        except OSError as error:
            raise MlxspecError(f"The editor {one_line(words[0])} cannot be started ({error.strerror}): set $EDITOR to another.") from None
        if code:
            raise MlxspecError(f"The editor {one_line(words[0])} ended with {code}: the text is as it was.")
        try:
            return path.read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise MlxspecError(f"What the editor wrote cannot be read ({type(error).__name__}): the text is as it was.") from None
    finally:
        path.unlink(missing_ok=True)
