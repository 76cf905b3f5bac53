"""Keeps a conversation on the disk while it is talked: a session's log that is made when there is something to save, or nothing at all."""

from collections.abc import Callable
from typing import Any

from mlxspec.errors import UsageError
from mlxspec.sessions.store import Session, Store


class Autosave:
    """``store`` None keeps nothing; ``about`` says what the conversation is when its log is made; ``tell`` hears what cannot be saved."""

    def __init__(self, store: Store | None, about: Callable[[], Session], tell: Callable[[str], None]) -> None:
        self.store = store
        self._about = about
        self._tell = tell
        self._log: Any = None
        self._told: str | None = None  # the failure that was told last

    @property
    def id(self) -> str | None:
        """The id of the session, once there is one."""
        return self._log.id if self._log is not None else None

    @property
    def needed(self) -> Store:
        """The store, for what makes no sense without one."""
        if self.store is None:
            raise UsageError("Nothing is saved in this run (--no-save): start mlxspec chat without it.")
        return self.store

    @property
    def record(self) -> Any:
        """The session's log (session_log.SessionLog), or one that forgets."""
        if self.store is None:
            return Unsaved()
        if self._log is None:
            now = self._about()
            self._log = self.store.create(model=now.model, drafter=now.drafter, system=now.system, settings=now.settings, title=now.title)
        return self._log

    def change(self, **about: Any) -> None:
        """Another title, model, drafter, system prompt, or other settings; a log that is not made yet begins with them."""
        if self._log is not None:
            self._log.set(**about)

    def open(self, word: str) -> Session:
        """Go on with a saved conversation, in place of the one there is."""
        store = self.needed
        if self._log is not None and store.resolve(word) == self._log.id:
            raise UsageError("This conversation is that session already.")
        session, log, fault = store.open(word)
        self.leave()
        self._log = log
        if fault is not None:
            self._tell(fault)
        return session

    def tick(self) -> None:
        """Write what is due, and say once where that fails, and once where it works again."""
        if self._log is None:
            return
        self._log.tick()
        if self._log.failure != self._told:
            self._told = self._log.failure
            self._tell(self._told or "The session is saved again.")

    def leave(self) -> None:
        """End the session; the next record begins another one."""
        if self._log is not None and not self._log.close():
            self._tell(self._log.failure or "The session is not saved.")
        self._log = self._told = None


class Unsaved:
    """The log of a conversation that is not saved."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **about: None
