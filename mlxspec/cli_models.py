"""``mlxspec models`` and ``mlxspec paths``: what is on this disk, and where. Loads no model and touches no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxspec import paths as places
from mlxspec.arguments import Parser
from mlxspec.errors import UsageError
from mlxspec.terminal import Terminal, in_bytes, one_line


def parsed(verb: str, description: str, argv: list[str]) -> bool:
    """Whether --json was given; these verbs take nothing else."""
    parser = Parser(verb, "", description)
    parser.switch("--json", help="print one JSON object")
    parser.switch("--debug", help="show a traceback where something fails")
    given, words = parser.read(argv)
    if words:
        raise UsageError(f"{verb} takes no arguments, and {words[0]!r} was given: leave it out.")
    return bool(getattr(given, "json", False))


def models(argv: list[str], terminal: Terminal) -> int:
    """The verb ``models``."""
    what = "List the built-in models, the drafters that come with them, and the models in the hub's cache that can be loaded."
    as_json = parsed("models", what, argv)
    found = built_in() + with_the_package() + in_hub_cache()
    if as_json:
        terminal.json({"models": found})
        return 0
    rows = [("NAME", "SIZE", "HERE", "SOURCE")]
    rows += [(one_line(row["name"]), in_bytes(row["size_bytes"]), "yes" if row["cached"] else "no", one_line(row["source"])) for row in found]
    for line in table(rows):
        terminal.print(line)
    return 0


def built_in() -> list[dict[str, Any]]:
    """Models by name, and whether their file is here (by its size; loading checks the checksum)."""
    from mlxspec.fetch import BUILT_IN

    rows = []
    for entry in BUILT_IN.values():
        here = entry.path.is_file() and entry.path.stat().st_size == entry.size
        source = f"package {entry.package} {entry.version}"
        path = str(entry.path) if here else None
        rows.append({"name": entry.name, "kind": "built-in", "size_bytes": entry.size, "source": source, "cached": here, "path": path})
    return rows


def with_the_package() -> list[dict[str, Any]]:
    """Trained drafters that ship, under the names --drafter takes while their target is loaded."""
    from mlxspec.choose import trained_drafters

    rows = []
    for kind, folder, record in trained_drafters():
        held = sum(file.stat().st_size for file in folder.iterdir())
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


def paths(argv: list[str], terminal: Terminal) -> int:
    """The verb ``paths``."""
    as_json = parsed("paths", "Say where mlxspec keeps its files, and which of them exist.", argv)
    found = all_paths()
    if as_json:
        terminal.json({name: {"path": str(path), "exists": path.exists()} for name, path in found.items()})
        return 0
    for line in table([(name, "exists" if path.exists() else "absent", one_line(str(path))) for name, path in found.items()]):
        terminal.print(line)
    return 0


def all_paths() -> dict[str, Path]:
    """Every place we read or write, by name."""
    found = {
        "config": places.config_file(),
        "data": places.data_dir(),
        "state": places.state_dir(),
        "cache": places.cache_dir(),
        "models": places.models_dir(),
    }
    if (hub := hub_cache()) is not None:
        found["hub"] = hub
    return found


def hub_cache() -> Path | None:
    """The hub's cache, where its package is installed."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    return Path(constants.HF_HUB_CACHE)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
