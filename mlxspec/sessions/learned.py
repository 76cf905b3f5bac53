"""Answers kept to train drafters on (``generate --learn``): one private file an answer, in the data folder, until it is deleted. Knows no model.

A file holds the request with all that came before it, the answer, the model's name and digest, and the time; nothing leaves the machine.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.paths import data_dir, put

NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9]{6}")


@dataclass(frozen=True, slots=True)
class Learned:
    """An answer with its request. ``digest`` is the model's."""

    id: str
    created: float
    model: str
    digest: str
    messages: list[dict[str, str]]


def folder() -> Path:
    return data_dir() / "learned"


def add(messages: Sequence[dict[str, str]], model: str, digest: str) -> str:
    """Keep an answer; returns its id. May raise OSError."""
    now = time.time()
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + f"-{round(now % 1 * 999_999):06}"
    put(_path(name), {"created": now, "model": model, "digest": digest, "messages": list(messages)})
    return name


def entries() -> list[Learned]:
    """All answers, the oldest first. One that cannot be read is a MlxspecError: deleting it is the remedy."""
    return [read(name) for name in names()]


def read(name: str) -> Learned:
    """An answer by its id."""
    try:
        value: Any = json.loads(_path(_known(name)).read_text("utf-8"))
        messages = [{"role": str(message["role"]), "content": str(message["content"])} for message in value["messages"]]
        return Learned(name, float(value["created"]), str(value["model"]), str(value["digest"]), messages)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MlxspecError(f"The answer {_path(name)} cannot be read ({type(error).__name__}): mlxspec learned rm {name} deletes it.") from error


def delete(names: Sequence[str]) -> list[str]:
    """Delete answers; all of them are there, or none goes."""
    found = [_known(name) for name in dict.fromkeys(names)]
    for name in found:
        try:
            _path(name).unlink()
        except OSError as error:
            raise MlxspecError(f"The answer {_path(name)} cannot be deleted ({error.strerror}): make its folder writable.") from error
    return found


def names() -> list[str]:
    return [path.stem for path in sorted(folder().glob("*.json")) if NAME.fullmatch(path.stem)]


def _known(name: str) -> str:
    if not NAME.fullmatch(name) or not _path(name).is_file():
        raise UsageError(f"There is no kept answer {one_line(name)!r:.40}: mlxspec learned lists them.")
    return name


def _path(name: str) -> Path:
    return folder() / f"{name}.json"
