"""A conversation as a document: Markdown to read, JSON to work with. The texts are as they were said; only titles and names are cleaned."""

import json
import time
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.sessions.replay import Session

FINISHES = {"length": "cut at the token limit or the context", "interrupted": "stopped", None: "cut off"}


def as_object(session: Session) -> dict[str, Any]:
    """The object of ``sessions show --json`` and of an export."""
    return {
        "id": session.id,
        "title": session.name,
        "created": session.created,
        "model": session.model,
        "drafter": session.drafter,
        "system": session.system,
        "settings": session.settings,
        "messages": [
            {"role": turn.role, "content": turn.text, **({"finish_reason": turn.finish, **turn.about} if turn.role == "assistant" else {})}
            for turn in session.turns
        ],
    }


def as_json(session: Session) -> str:
    return json.dumps(as_object(session), ensure_ascii=False, indent=2) + "\n"


def as_markdown(session: Session) -> str:
    """A heading for each message, what shaped the conversation at the top."""
    front = {"title": session.name, "id": session.id, "created": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(session.created))}
    front |= {name: value for name in ("model", "drafter") if (value := getattr(session, name))}
    parts = ["---\n" + "".join(f"{name}: {json.dumps(one_line(value), ensure_ascii=False)}\n" for name, value in front.items()) + "---\n"]
    if session.system:
        parts.append(f"## System\n\n{session.system}\n")
    for turn in session.turns:
        who = "You" if turn.role == "user" else one_line(str(turn.about.get("model") or session.model or "Model"))
        note = f"\n*({FINISHES[turn.finish]})*\n" if turn.role == "assistant" and turn.finish in FINISHES else ""
        parts.append(f"## {who}\n\n{turn.text.rstrip()}\n{note}")
    return "\n".join(parts)


def export(session: Session, path: Path, force: bool = False, remedy: str = "give another name") -> None:
    """Write a session to a .md or .json file. Raises MlxspecError where it cannot be written, or is there already and not to be replaced."""
    name = one_line(str(path))
    if path.suffix not in (".md", ".json"):
        raise UsageError(f"{name}: give a name that ends in .md or .json.")
    text = as_json(session) if path.suffix == ".json" else as_markdown(session)
    try:
        with path.open("w" if force else "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{name} is there already: {remedy}.") from None
    except OSError as error:
        raise MlxspecError(f"{name} cannot be written ({error.strerror}): give a file in a folder of yours.") from None
