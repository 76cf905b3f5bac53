"""``mlxspec models`` and ``mlxspec paths``: what is on this disk, and where. Loads no model and touches no network."""

from collections.abc import Sequence
from pathlib import Path

from mlxspec import paths as places
from mlxspec.cli.arguments import Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.display import in_bytes, one_line
from mlxspec.errors import UsageError
from mlxspec.loading.catalog import built_in, hub_cache, in_hub_cache, with_the_package


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


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
