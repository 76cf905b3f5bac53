"""The last exchange, for ``generate -c``: messages and the settings that shaped them, in one private file of the state folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.errors import MlxspecError, UsageError
from mlxspec.paths import put, state_dir
from mlxspec.settings.config import converted
from mlxspec.settings.options import Options
from mlxspec.settings.values import FIELDS

NOT_KEPT = ("offline", "yes", "force", "require_spec", "strict", "system_prompt")  # of one run only; the system prompt is among the messages
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages so far, with the system message first where there is one, and settings by option name."""

    messages: tuple[Message, ...]
    settings: dict[str, Any]


def exchange_file() -> Path:
    return state_dir() / "last.json"


def save(messages: Sequence[Message], settings: Mapping[str, Any]) -> None:
    """Replace the last exchange in one step; open to its owner alone. May raise OSError."""
    from mlxspec.loading.catalog import lasting, lasting_drafter

    kept = {name: value for name, value in settings.items() if name in FIELDS and name not in NOT_KEPT}
    kept |= {name: whole(kept[name]) for name, whole in (("model", lasting), ("drafter", lasting_drafter)) if name in kept}
    put(exchange_file(), {"messages": list(messages), "settings": kept})


def load() -> Exchange:
    """The last exchange; an error where there is none, or none that can be read."""
    path = exchange_file()
    try:
        stored = json.loads(path.read_text("utf-8"))
        messages = tuple({"role": str(message["role"]), "content": str(message["content"])} for message in stored["messages"])
        settings: dict[str, Any] = {
            name: value if value is None else converted(name, value) for name, value in stored["settings"].items() if name in FIELDS
        }
        Options(**settings)
    except FileNotFoundError:
        raise UsageError("-c continues the last exchange, and there is none yet: run generate once without -c.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise MlxspecError(f"The last exchange in {path} cannot be read ({type(error).__name__}): run generate once without -c.") from None
    return Exchange(messages, settings)
