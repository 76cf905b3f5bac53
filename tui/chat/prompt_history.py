"""What the user has typed, over all chats: one JSON string a line, appended as it is sent. Knows no conversation.

Several chats may write at once: a line is one write. What cannot be written is still known until the end of the run; ``failure`` says so.
"""

import json
import os
from pathlib import Path

from mlxspec.paths import private, state_dir

KEPT = 1000  # prompts that are read back
LONG = 20_000  # characters from which a prompt is not kept: it was pasted


def history_file() -> Path:
    return state_dir() / "prompts.jsonl"


class History:
    """``path`` None keeps nothing beyond this run."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.failure: str | None = None
        self._all = self._read()

    def prompts(self) -> list[str]:
        """All of them, the oldest first; none twice in a row."""
        return self._all

    def add(self, text: str) -> None:
        """Remember a prompt."""
        text = text.strip("\n")
        if not text.strip() or (self._all and self._all[-1] == text):
            return
        self._all.append(text)
        if self.path is None or len(text) > LONG:
            return
        try:
            private(self.path.parent)
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, (json.dumps(text) + "\n").encode())
            finally:
                os.close(file)
        except OSError as error:
            self.failure = f"Prompts are not kept for the next run ({error.strerror}: {self.path}): make room, or make it writable."

    def _read(self) -> list[str]:
        """The prompts of earlier runs; lines that are damaged are left out."""
        if self.path is None:
            return []
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError:
            return []
        found: list[str] = []
        for line in lines[-KEPT - 1 :]:
            try:
                text = json.loads(line)
            except ValueError:
                continue
            if isinstance(text, str) and text.strip() and text != (found[-1] if found else None):
                found.append(text)
        self._shorten(lines)
        return found

    def _shorten(self, lines: list[bytes]) -> None:
        """A file that has grown long is cut to what is read of it."""
        if self.path is None or len(lines) <= 4 * KEPT:
            return
        fresh = self.path.with_suffix(f".{os.getpid()}")
        try:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(file, "wb") as out:
                out.write(b"\n".join(lines[-KEPT - 1 :]))
            os.replace(fresh, self.path)
        except OSError:  # it stays long
            fresh.unlink(missing_ok=True)
