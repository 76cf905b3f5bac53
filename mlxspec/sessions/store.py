"""Saved conversations: one append-only JSONL file each, in the data folder. Knows no model and no screen.

A conversation is the replay of its records (replay.py), so a process that is killed loses at most what it had not written yet
(log.py). Whoever writes to a file holds its lock, so two processes never write to one. Every turn ends with a ``mark``, from which a list
is made without reading the rest. A file that is damaged is kept aside when it is opened, and what stands before the damage goes on.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.paths import data_dir
from mlxspec.sessions.log import SessionLog, locked
from mlxspec.sessions.replay import FORMAT, Session, Turn, head, replay

__all__ = ["Hit", "Session", "Store", "Summary", "Turn"]
TAIL = 4096  # bytes at the end of a file in which its last mark is looked for
NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")


@dataclass(frozen=True, slots=True)
class Summary:
    """A line of the list. ``cut_off``: the process that wrote it is gone and did not end it."""

    id: str
    title: str
    created: float
    updated: float
    model: str | None
    turns: int
    cut_off: bool = False
    damaged: bool = False

    @property
    def used(self) -> bool:
        """Whether anything was said in it, as far as can be known."""
        return self.turns > 0 or self.damaged


@dataclass(frozen=True, slots=True)
class Hit:
    """A turn that holds what was searched, with the text around it."""

    id: str
    title: str
    turn: int
    role: str
    excerpt: str


class Store:
    """The folder of the sessions."""

    def __init__(self, folder: Path | None = None, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder or data_dir() / "sessions"
        self.now = now
        self.clock = clock

    # ---- Writing -------------------------------------------------------------------------------------------------------------------------

    def create(self, **about: Any) -> SessionLog:
        """A new session; ``about`` has model, drafter, system and settings. Its file is made with the first record."""
        created = self.now()
        name = time.strftime("%Y%m%d-%H%M%S", time.localtime(created)) + "-" + secrets.token_hex(3)
        first = {"is": "head", "format": FORMAT, "id": name, "created": created, **about}
        return SessionLog(name, self._path(name), first, self.clock)

    def open(self, word: str) -> tuple[Session, SessionLog, str | None]:
        """Go on with a session: what it holds, its log, and a line for the user where something was wrong with the file."""
        name = self.resolve(word)
        path = self._path(name)
        log = SessionLog.reopen(name, path, self.clock)
        try:
            session, whole, fault = replay(name, path.read_bytes())
        except MlxspecError:
            log.close(mark=False)
            raise
        except OSError as error:  # somebody deleted or moved it meanwhile
            log.close(mark=False)
            raise MlxspecError(f"The session {path} cannot be read ({error.strerror}): mlxspec sessions lists those that can.") from None
        if fault is None:
            log.keep(whole)
            log.note(session)
            return session, log, None
        log.close(mark=False)
        aside = _free(path.with_suffix(".damaged"))
        try:
            path.rename(aside)
        except OSError as error:
            raise MlxspecError(f"The session {path} is damaged and cannot be kept aside ({error.strerror}): make its folder writable.") from None
        kept = f"the {len(session.turns)} messages before it go on" if session.turns else "nothing before it could be read"
        log = SessionLog(name, path, {**head(session), "damaged": aside.name}, self.clock)
        log.note(session)
        log.rewrite(session)
        return session, log, f"The session {name} is damaged ({fault}): it was kept aside as {aside}, and {kept}."

    def delete(self, word: str) -> str:
        """Delete a session for good; its id. Raises where it is open elsewhere."""
        name = self.resolve(word)
        path = self._path(name)
        if locked(path):
            raise UsageError(f"The session {name} is open in another mlxspec: leave it there first.")
        try:
            path.unlink()
        except OSError as error:
            raise MlxspecError(f"The session {path} cannot be deleted ({error.strerror}): make its folder writable.") from None
        return name

    # ---- Reading -------------------------------------------------------------------------------------------------------------------------

    def summaries(self) -> list[Summary]:
        """All sessions in which something was said, the latest first. Reads only the end of each file."""
        return [summary for changed, name, path in self._files() if (summary := self._summary(name, path, changed)).used]

    def latest(self) -> Summary | None:
        """The session that was written last, in which something was said, and which is not open elsewhere."""
        free = (self._summary(name, path, changed) for changed, name, path in self._files() if not locked(path))
        return next((summary for summary in free if summary.used), None)

    def cut_off(self, among: int = 20) -> Summary | None:
        """The latest session whose process was killed, if it is one of the last few. Told once: from then on it counts as ended.

        One in which nothing was said is deleted, as its own process would have done.
        """
        for changed, name, path in self._files()[:among]:
            summary = self._summary(name, path, changed)
            if summary.cut_off and not summary.damaged and not locked(path):
                with suppress(MlxspecError, OSError):  # it counts as ended where it can be opened, and one without a message is deleted
                    self.open(name)[1].close()
                    if summary.used:
                        os.utime(path, (changed, changed))
                if summary.used and path.exists():
                    return summary
        return None

    def read(self, word: str) -> tuple[Session, str | None]:
        """A session as far as it can be read, and what is wrong with its file, if anything. Changes nothing."""
        name = self.resolve(word)
        try:
            session, _, fault = replay(name, self._path(name).read_bytes())
        except OSError as error:
            raise MlxspecError(f"The session {self._path(name)} cannot be read ({error.strerror}): make it readable.") from None
        return session, fault

    def search(self, words: str) -> Iterator[Hit]:
        """Turns and titles that hold a text, whatever its case; the latest sessions first."""
        wanted = words.casefold()
        if not wanted.strip():
            raise UsageError("There is nothing to search for: give some text.")
        for summary in self.summaries():
            with suppress(MlxspecError):
                session, _ = self.read(summary.id)
                if session.title and wanted in session.title.casefold():
                    yield Hit(session.id, session.name, 0, "title", session.name)
                for number, turn in enumerate(session.turns, 1):
                    if (at := turn.text.casefold().find(wanted)) >= 0:
                        yield Hit(session.id, session.name, number, turn.role, excerpt(turn.text, at, len(words)))

    def resolve(self, word: str) -> str:
        """The id that a word means: an id, or a beginning that only one has."""
        word = word.strip()
        if NAME.fullmatch(word) and self._path(word).is_file():
            return word
        found = [name for _, name, _ in self._files() if name.startswith(word)] if NAME.fullmatch(word) else []
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{len(found)} sessions begin with {word}, such as {found[0]} and {found[1]}: give more of the id.")
        raise UsageError(f"There is no session {one_line(word)!r:.80}: mlxspec sessions lists them.")

    def _summary(self, name: str, path: Path, changed: float) -> Summary:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read().split(b"\n")
            records = [json.loads(line) for line in lines[1 if size > TAIL else 0 : -1] if line.startswith(b'{"is": "mark"') or line == lines[-2]]
            mark = next(record for record in reversed(records) if record.get("is") == "mark")
            if not mark["turns"] and records[-1].get("is") not in ("mark", "closed"):
                raise ValueError("something was said after the mark")
            cut_off = (records[-1].get("is") != "closed" or lines[-1] != b"") and not locked(path)
            return Summary(name, one_line(str(mark["title"])), float(mark["created"]), changed, mark["model"], int(mark["turns"]), cut_off)
        except OSError:
            return Summary(name, "(unreadable)", changed, changed, None, 0, damaged=True)
        except (ValueError, StopIteration, KeyError, TypeError, AttributeError, IndexError):  # no mark near the end: read the whole file
            pass
        try:
            session, fault = self.read(name)
        except MlxspecError:
            return Summary(name, "(unreadable)", changed, changed, None, 0, damaged=True)
        title = session.name if fault is None else f"(damaged) {session.name}"
        return Summary(name, title, session.created or changed, changed, session.model, len(session.turns), not locked(path), fault is not None)

    def _files(self) -> list[tuple[float, str, Path]]:
        """Time of the last change, id and path of every session, the latest first."""
        found: list[tuple[float, str, Path]] = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl"):
                        with suppress(FileNotFoundError):  # somebody deleted it meanwhile
                            found.append((entry.stat().st_mtime, entry.name[:-6], Path(entry.path)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MlxspecError(f"The sessions in {self.folder} cannot be listed ({error.strerror}): make the folder readable.") from None
        return sorted((item for item in found if NAME.fullmatch(item[1])), reverse=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


def _free(path: Path) -> Path:
    """A path that nothing has yet."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in range(2, 1000))
    return path if not path.exists() else next(other for other in numbered if not other.exists())


def excerpt(text: str, at: int, length: int, around: int = 40) -> str:
    """The text about a place, on one line."""
    start, end = max(0, at - around), min(len(text), at + length + around)
    return ("…" if start else "") + one_line(text[start:end]) + ("…" if end < len(text) else "")
