"""What the records of a session's file say: a conversation, as far as it can be read. Pure; knows no disk.

>>> # {"is": "head", "id": …, "format": 1, "created": …, "model": …, "system": …, "settings": {…}}
>>> # {"is": "turn", "role": "user", "text": …}    {"is": "reply"} {"is": "text", "text": …} … {"is": "end", "finish": "stop", "about": {…}}
>>> # {"is": "cut", "to": 2}   {"is": "turns", "turns": […]}   {"is": "set", "title": …}   {"is": "mark", …}   {"is": "closed"}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlxspec.errors import MlxspecError
from mlxspec.sessions.log import named

FORMAT = 1
SETTABLE = ("title", "model", "drafter", "system", "settings")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message. ``finish`` says why a reply ended (None: it was cut off, or is the user's); ``about`` what made it: model, seed, stats …"""

    role: str
    text: str
    finish: str | None = None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as it was saved."""

    id: str
    created: float
    title: str | None = None  # given by the user; ``name`` says what it is called where there is none
    model: str | None = None
    drafter: str | None = None
    system: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()

    @property
    def name(self) -> str:
        """The title, or the beginning of the first message."""
        return named(self.title, next((turn.text for turn in self.turns if turn.role == "user"), ""))


def replay(name: str, data: bytes) -> tuple[Session, int, str | None]:
    """What a file says, how many of its bytes are whole records, and its first fault if it has one. An unfinished last line is none."""
    session = Session(name, 0.0)
    turns: list[Turn] = []
    whole = 0
    lines = data.split(b"\n")
    fault = "it is empty" if len(lines) < 2 else None
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            if number == 1:
                if record["is"] != "head":
                    raise ValueError("no head")
                if record["format"] != FORMAT:
                    raise MlxspecError(
                        f"The session {name} was written by another version of mlxspec (format {record['format']}): read it with that."
                    )
                session = replace(session, created=float(record["created"]), **_settable(record))
            else:
                session = _apply(record, session, turns)
        except MlxspecError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            fault = f"line {number} is no record of ours"
            break
        whole += len(line) + 1
    return replace(session, turns=tuple(turns)), whole, fault


def _apply(record: Mapping[str, Any], session: Session, turns: list[Turn]) -> Session:
    """One record. Raises where it is none."""
    kind = record["is"]
    if kind == "turn":
        turns.append(_turn(record))
    elif kind == "reply":
        if not record.get("more"):
            turns.append(Turn("assistant", ""))
    elif kind == "text":
        turns[-1] = replace(turns[-1], text=turns[-1].text + _string(record["text"]))
    elif kind == "end":
        turns[-1] = replace(turns[-1], finish=_string(record["finish"]), about=dict(record.get("about", {})))
    elif kind == "cut":
        del turns[int(record["to"]) :]
    elif kind == "turns":
        turns[:] = [_turn(turn) for turn in record["turns"]]
    elif kind == "set":
        return replace(session, **_settable(record))
    elif kind not in ("mark", "closed"):
        raise ValueError(kind)
    return session


def _turn(record: Mapping[str, Any]) -> Turn:
    finish = record.get("finish")
    return Turn(_string(record["role"]), _string(record["text"]), finish if finish is None else _string(finish), dict(record.get("about", {})))


def _settable(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: record[name] for name in SETTABLE if name in record}
    for name, value in found.items():
        if not isinstance(value, dict if name == "settings" else str | None):
            raise TypeError(name)
    return found


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def head(session: Session) -> dict[str, Any]:
    about = {name: getattr(session, name) for name in SETTABLE}
    return {"is": "head", "format": FORMAT, "id": session.id, "created": session.created, **about}
