"""Groups kept on disk, by what they were built from. Knows files, not how groups are built.

A file says in its header which settings it holds groups for, and their digest: one of another model, or a damaged one, is never taken for good.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlxspec.audio.codes.groups import Groups
from mlxspec.errors import AudioError
from mlxspec.paths import replacing

FORMAT = 1


def cached(folder: Path, settings: Mapping[str, Any], build: Callable[[], Groups], say: Callable[[str], None]) -> Groups:
    """The groups of these settings: from the disk, or built and kept. A damaged file is built anew, and that is said."""
    path = place(folder, settings)
    if path.exists():
        try:
            return load(path, settings)
        except AudioError as error:
            say(f"{error} They are built anew.")
    groups = build()
    try:
        save(path, groups, settings)
    except OSError as error:
        say(f"The groups are not kept: {path.parent} cannot be written ({error.strerror or error}). They will be built again next time.")
    return groups


def place(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Where the groups of some settings are kept."""
    return folder / f"{hashlib.sha256(_text(settings).encode()).hexdigest()[:24]}.npz"


def save(path: Path, groups: Groups, settings: Mapping[str, Any]) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"format": FORMAT, "settings": _text(settings), "vocab_size": groups.vocab_size, "digest": groups.digest()})
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, header=header, seeds=groups.seeds, offsets=groups.offsets, members=groups.members, home=groups.home)


def load(path: Path, settings: Mapping[str, Any]) -> Groups:
    """Read a file. Raises AudioError where it is damaged, or holds groups of other settings."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            groups = Groups(int(header["vocab_size"]), file["seeds"], file["offsets"], file["members"], file["home"])
        groups.check()
        sound = header["format"] == FORMAT and header["settings"] == _text(settings) and header["digest"] == groups.digest()
    except (OSError, ValueError, KeyError, TypeError, EOFError, IndexError, zipfile.BadZipFile, zlib.error) as error:
        raise AudioError(f"The groups in {path} cannot be read ({type(error).__name__}).") from error
    if not sound:
        raise AudioError(f"The groups in {path} are damaged, or of another model.")
    return groups


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
