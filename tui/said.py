"""A message of the chat, and small things the conversation is made with. Plain; knows no screen and no thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlxspec.config import converted
from mlxspec.events import Text
from mlxspec.options import Options, names
from mlxspec.sessions import Turn


class Awakener(Protocol):
    """Keeps the machine from sleeping while it is on."""

    def on(self) -> None: ...
    def off(self) -> None: ...


class Asleep:
    """Lets the machine sleep."""

    def on(self) -> None:
        pass

    def off(self) -> None:
        pass


@dataclass(slots=True)
class Said:
    """A message as it stands. ``pieces`` are the events of a reply of this run, for the views by origin and by round."""

    role: str
    text: str
    finish: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    pieces: list[Text] = field(default_factory=list)
    spelling: Mapping[int, str] = field(default_factory=dict)  # texts of the tokens in ``pieces``, for origin.spans and origin.round_of

    @property
    def stopped(self) -> bool:
        """Whether it can be gone on with: the user stopped it, or it met the limit."""
        return self.role == "assistant" and self.finish in (None, "interrupted", "length")

    def turn(self) -> Turn:
        return Turn(self.role, self.text, self.finish, self.about)


def restored(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a session as reply options. Raises UsageError where they make no sense."""
    found: dict[str, Any] = {name: value if value is None else converted(name, value) for name, value in stored.items() if name in names("reply")}
    Options(**found)
    return found
