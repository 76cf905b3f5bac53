"""The file of one conversation while it is written: append-only, locked, and never the reason why something said is lost. Knows no model.

Text of a reply is written about once a second, everything else at once. What cannot be written (a full disk) stays in memory and is tried again;
``failure`` says so in one line. A write that came through in part is cut off again, so that the file always ends with a whole record.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.paths import private

EVERY = 0.5  # seconds between writes of a reply's text
TITLE = 60  # characters of a title that is taken from the first message
RETRY = 5.0  # seconds before a failed write is tried again


class SessionLog:
    """Writes one session. Nothing here raises for the disk's sake once the log is made."""

    def __init__(self, name: str, path: Path, head: Mapping[str, Any], clock: Callable[[], float]) -> None:
        self.id = name
        self.path = path
        self.failure: str | None = None
        self._clock = clock
        self._file: int | None = None
        self._size = 0
        self._pending = bytearray()  # records that are not on the disk yet
        self._text: list[str] = []  # of the reply that is coming
        self._due = clock()
        self._marked: dict[str, Any] = {
            "title": head.get("title"),
            "first": "",
            "created": head.get("created", 0.0),
            "model": head.get("model"),
            "turns": 0,
        }
        self._put(head)

    @classmethod
    def reopen(cls, name: str, path: Path, clock: Callable[[], float]) -> "SessionLog":
        """Take up a file that is there. Raises where it is open elsewhere or cannot be written."""
        log = cls(name, path, {}, clock)
        log._pending.clear()
        try:
            log._file = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise MlxspecError(f"The session {path} cannot be opened ({error.strerror}): make it readable and writable.") from None
        if not _lock(log._file):
            os.close(log._file)
            raise UsageError(f"The session {name} is open in another mlxspec: leave it there first, or export it.")
        log._size = os.fstat(log._file).st_size
        return log

    def keep(self, size: int) -> None:
        """Cut off what stands behind the last whole record."""
        if self._file is not None and size < self._size:
            with suppress(OSError):
                os.ftruncate(self._file, size)
                self._size = size

    def note(self, session: Any) -> None:
        """Know what a session holds already, for the marks."""
        first = next((turn.text for turn in session.turns if turn.role == "user"), "")
        self._marked |= {"title": session.title, "first": first, "created": session.created, "model": session.model, "turns": len(session.turns)}

    # ---- Records -------------------------------------------------------------------------------------------------------------------------

    def user(self, text: str) -> None:
        """The user said something."""
        if not self._marked["turns"]:
            self._marked["first"] = text
        self._marked["turns"] += 1
        self._put({"is": "turn", "role": "user", "text": text})
        self._mark()

    def reply(self, more: bool = False) -> None:
        """A reply begins (or goes on, with ``more``); its text comes by ``text``."""
        self._marked["turns"] += not more
        self._put({"is": "reply", "more": True} if more else {"is": "reply"})
        self.flush()

    def text(self, piece: str) -> None:
        """A piece of the reply."""
        if piece:
            self._text.append(piece)
        self.tick()

    def end(self, finish: str, about: Mapping[str, Any]) -> None:
        """The reply is over."""
        self._put({"is": "end", "finish": finish, "about": dict(about)})
        self._mark()

    def cut(self, turns: int) -> None:
        """Only the first so many turns count from here on."""
        self._marked["turns"] = turns
        self._put({"is": "cut", "to": turns})
        self._mark()

    def set(self, **about: Any) -> None:
        """Another title, model, drafter, system prompt, or other settings."""
        self._marked |= {name: about[name] for name in ("title", "model") if name in about}
        self._put({"is": "set", **about})
        self._mark()

    def rewrite(self, session: Any) -> None:
        """All turns anew, in place of what the file says so far."""
        turns = [{"role": turn.role, "text": turn.text, "finish": turn.finish, "about": turn.about} for turn in session.turns]
        self.note(session)
        self._put({"is": "turns", "turns": turns})
        self._mark()

    # ---- The file ------------------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Write what is due. Call it now and then."""
        if (self._text or self._pending) and self._clock() >= self._due:
            self.flush()

    def flush(self) -> bool:
        """Write all there is; whether it is on the disk."""
        self._gather()
        if not self._pending:
            return self.failure is None
        try:
            if self._file is None:
                self._create()
            assert self._file is not None
            if os.fstat(self._file).st_nlink == 0:
                raise OSError(0, "somebody deleted it")
            _write(self._file, self._pending)
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
            self.failure = f"The session is not saved ({error.strerror}: {self.path}): make room, or /export it to another place."
            self._due = self._clock() + RETRY
            return False
        self._size += len(self._pending)
        self._pending.clear()
        self.failure = None
        self._due = self._clock() + EVERY
        return True

    def close(self, mark: bool = True) -> bool:
        """End the session and let go of the file; whether all of it is on the disk. One from which everything was taken back is deleted."""
        if mark and self._file is not None and not self._marked["turns"]:
            self._pending.clear()
            with suppress(OSError):
                self.path.unlink()
        elif mark and (self._file is not None or self._marked["turns"]):
            self._mark()
            self._put({"is": "closed"})
            self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        return self.failure is None

    def _gather(self) -> None:
        if self._text:
            text, self._text = "".join(self._text), []
            self._pending += encoded({"is": "text", "text": text})

    def _put(self, record: Mapping[str, Any]) -> None:
        self._gather()
        self._pending += encoded(record)

    def _mark(self) -> None:
        marked = self._marked
        title = named(marked["title"], marked["first"])
        self._put({"is": "mark", "title": title, "created": marked["created"], "model": marked["model"], "turns": marked["turns"]})
        self.flush()

    def _create(self) -> None:
        private(self.path.parent)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        _lock(self._file)
        self._size = 0


def named(title: str | None, first: str) -> str:
    """What a conversation is called: its title, or the beginning of the first message."""
    return one_line(title) if title else one_line(first[: 20 * TITLE])[:TITLE] or "(empty)"


def encoded(record: Mapping[str, Any]) -> bytes:
    """A record as a line. Characters that are no text (lone surrogates) are escaped."""
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def locked(path: Path) -> bool:
    """Whether another process (or another log of this one) writes to a file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(file: int, data: bytearray) -> None:
    done = 0
    while done < len(data):
        done += os.write(file, memoryview(data)[done:])
