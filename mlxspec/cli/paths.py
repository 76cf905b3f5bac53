"""``mlxspec paths``: where mlxspec keeps its files. Makes none of them."""

from collections.abc import Mapping
from pathlib import Path

from mlxspec import paths as places
from mlxspec.cli.arguments import Parser, parsed, plain_parser
from mlxspec.cli.terminal import Terminal
from mlxspec.display import one_line, table
from mlxspec.loading.catalog import hub_cache


def parser() -> Parser:
    return plain_parser("paths", "Say where mlxspec keeps its files, and which of them exist.")


def paths(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb ``paths``."""
    as_json = parsed(parser(), argv)
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
