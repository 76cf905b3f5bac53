"""The models and drafters that are on this disk or built in, as plain rows. Looks at files; loads nothing and asks no network."""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxspec.loading.fetch import BUILT_IN
from mlxspec.paths import WEIGHTS


def built_in() -> list[dict[str, Any]]:
    """Models by name, and whether their file is here (by its size; loading checks the checksum)."""
    rows = []
    for entry in BUILT_IN.values():
        here = size_of(entry.path) == entry.size
        source = f"package {entry.package} {entry.version}"
        path = str(entry.path) if here else None
        rows.append({"name": entry.name, "kind": "built-in", "size_bytes": entry.size, "source": source, "cached": here, "path": path})
    return rows


def with_the_package() -> list[dict[str, Any]]:
    """Trained drafters that ship, under the names --drafter takes while their target is loaded."""
    rows = []
    for kind, folder, record in trained_drafters():
        held = sum(size_of(file) or 0 for file in folder.iterdir())
        target = record.get("target")
        row = {"name": f"{kind}:{target}", "kind": f"drafter ({kind})", "size_bytes": held, "source": f"mlxspec, for {target}"}
        rows.append({**row, "cached": True, "path": str(folder), "figures": record.get("figures", {})})
    return rows


def in_hub_cache() -> list[dict[str, Any]]:
    """Models of the hub's cache that have a config and weights. A cache that is missing or odd has none."""
    try:
        from huggingface_hub import scan_cache_dir

        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except Exception:  # no such folder, no such package, not readable
        return []
    rows = []
    for repo in repos:
        names = {file.file_name for revision in repo.revisions for file in revision.files}
        if repo.repo_type == "model" and "config.json" in names and any(name.endswith(".safetensors") for name in names):
            row = {"name": repo.repo_id, "kind": "hub", "size_bytes": repo.size_on_disk, "source": "the hub's cache"}
            rows.append({**row, "cached": True, "path": str(repo.repo_path)})
    return rows


def hub_cache() -> Path | None:
    """The hub's cache, where its package is installed."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    return Path(constants.HF_HUB_CACHE)


def looks_like_path(name: str) -> bool:
    """Whether ``--model`` can only mean something on this disk.

    >>> [looks_like_path(name) for name in ("./model", "~/m", "/m", "owner/m.gguf", "owner/name")]
    [True, True, True, True, False]
    """
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.lower().endswith(".gguf") or (name != "" and os.path.exists(name))


def lasting(name: str) -> str:
    """What ``--model`` says in words that mean the same in another folder: the whole path of what is on this disk. For names that are kept."""
    return name if name in BUILT_IN or not looks_like_path(name) else os.path.abspath(os.path.expanduser(name))


def lasting_drafter(wish: str) -> str:
    """The same for what ``--drafter`` says."""
    kind, _, name = wish.partition(":")
    return f"{kind}:{lasting(name)}" if name else wish


def trained_drafters() -> list[tuple[str, Path, dict[str, Any]]]:
    """The drafters that come with the package: kind, folder, and what their training recorded."""
    found = []
    for config in sorted(WEIGHTS.glob("*/config.json")):
        found.append((config.parent.name.rpartition("-")[2], config.parent, record_of(config.parent)))
    return found


def record_of(folder: Path) -> dict[str, Any]:
    """What mlxspec train wrote about a drafter; empty for a folder from elsewhere."""
    try:
        record = json.loads((folder / "config.json").read_text("utf-8")).get("mlxspec", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return record if isinstance(record, dict) else {}


def in_folders(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """MLX folders and GGUF files that stand in a folder."""
    rows = []
    for folder in folders:
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        rows += [row for row in map(_local, entries) if row is not None]
    return rows


def in_place(name: str) -> dict[str, Any] | None:
    """The MLX folder or GGUF file at a path, None where there is none."""
    return _local(Path(name).expanduser())


def _local(path: Path) -> dict[str, Any] | None:
    weights = [path] if path.suffix == ".gguf" else sorted(path.glob("model*.safetensors")) if (path / "config.json").is_file() else []
    sizes = [size_of(file) for file in weights]
    if not sizes or None in sizes:
        return None
    total = sum(size for size in sizes if size is not None)
    return {"name": str(path), "kind": "folder", "size_bytes": total, "source": "a local folder", "cached": True, "path": str(path)}


def size_of(path: Path) -> int | None:
    """Bytes of a file; None where there is none (any more)."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
