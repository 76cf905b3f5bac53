"""Where mlxspec keeps its files: the XDG folders, on macOS too; and how a small one is put there. Knows no model; makes no folder unasked."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).parent / "models" / "weights"  # the trained drafters and voices that come with the package


def config_dir() -> Path:
    """Settings: ``~/.config/mlxspec``, or below XDG_CONFIG_HOME."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def data_dir() -> Path:
    """What the user made and would miss, such as trained drafters and sessions: ``~/.local/share/mlxspec``, or below XDG_DATA_HOME."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """What a run leaves for the next one, such as measurements of this machine: ``~/.local/state/mlxspec``, or below XDG_STATE_HOME."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """What can be fetched again: ``~/.cache/mlxspec``, or below XDG_CACHE_HOME."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def config_file() -> Path:
    """The settings file (it need not exist)."""
    return config_dir() / "config.toml"


def models_dir() -> Path:
    """The folder that holds the built-in models."""
    return cache_dir() / "models"


def private(folder: Path) -> Path:
    """Make a folder with its parents; what is newly made is open to its owner alone (0700)."""
    for part in reversed([folder, *folder.parents]):
        part.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to stand at ``path``: it appears there whole, in one step, or the old file stays."""
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def put(path: Path, value: Any) -> None:
    """Write JSON over what stands at ``path``, in one step, open to its owner alone. May raise OSError: then the old file stays."""
    private(path.parent)
    with replacing(path) as draft, os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(value, file)


def _xdg(variable: str, below_home: str) -> Path:
    value = os.environ.get(variable, "")
    base = Path(value) if value and Path(value).is_absolute() else Path.home() / below_home  # the XDG rule: relative values are ignored
    return base / "mlxspec"
