"""A message of the chat, and small things the conversation is made with. Plain; knows no screen and no thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlxspec import Proposal
from mlxspec.core.events import Text
from mlxspec.sessions.store import Turn
from mlxspec.settings.config import converted
from mlxspec.settings.options import Options, names


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
class ChatMessage:
    """A message as it stands. ``pieces`` are the events of a reply of this run, for the views by origin and by round."""

    role: str
    text: str
    finish: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    pieces: list[Text] = field(default_factory=list)
    spelling: Mapping[int, str] = field(default_factory=dict)  # texts of the tokens in ``pieces``, for origin.spans and origin.round_of
    runs: tuple[tuple[int, int], ...] = ()  # the jobs that said it, and the piece each began with
    chances: dict[int, tuple[float, ...]] = field(default_factory=dict)  # by round: how likely the model held its rows, where that was looked at

    @property
    def stopped(self) -> bool:
        """Whether it can be gone on with: the user stopped it, or it met the limit."""
        return self.role == "assistant" and self.finish in (None, "interrupted", "length")

    def round(self, number: int) -> tuple[int, list[int], Proposal]:
        """A round of it, counted from 0: the job it belongs to, the tokens of that job before it, and what was drafted."""
        steps = [(at, piece.step) for at, piece in enumerate(self.pieces) if piece.step is not None]
        at, proposal = [(at, step.proposal) for at, step in steps if step.proposal is not None][number]
        job, begin = [run for run in self.runs if run[1] <= at][-1]
        return job, [token for place, step in steps if begin <= place < at for token in step.tokens], proposal

    def turn(self) -> Turn:
        return Turn(self.role, self.text, self.finish, self.about)


def stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a session keeps them; ``restored`` reads them back."""
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}


def restored(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a session as reply options. Raises UsageError where they make no sense."""
    found: dict[str, Any] = {name: value if value is None else converted(name, value) for name, value in kept.items() if name in names("reply")}
    Options(**found)
    return found
