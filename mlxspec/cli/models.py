"""``mlxspec models``: what is on this disk. Loads no model; only ``pull`` touches the network."""

import sys
from collections.abc import Mapping

from mlxspec.cli.arguments import Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.display import in_bytes, one_line, table
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.loading.catalog import built_in, in_hub_cache, in_place, with_the_package
from mlxspec.loading.fetch import BUILT_IN, BuiltIn, obtain

WHAT = ("list", "pull", "rm", "show")


def parser() -> Parser:
    result = Parser(
        "models",
        "[list | pull NAME | rm NAME | show NAME]",
        "The built-in models, the drafters that come with them, and the models in the hub's cache that can be loaded. "
        "pull and rm are for built-in models; show is for folders and GGUF files too.",
        epilog="mlxspec generate -m OWNER/NAME fetches a model from the hub; hf cache rm deletes it.",
        first=WHAT,
    )
    result.switch("-y", "--yes", help="rm: do not ask")
    result.switch("--json", help="print one JSON object")
    result.common()
    return result


def models(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb ``models``."""
    given, words = parser().read(argv)
    what, rest = (words[0], words[1:]) if words else ("list", [])
    flags = vars(given)
    terminal.quiet, as_json = flags.get("quiet", False), flags.get("json", False)
    if what not in WHAT:
        raise UsageError(f"models {one_line(what)} is unknown: give one of {', '.join(WHAT)}.")
    if "yes" in flags and what != "rm":
        raise UsageError(f"--yes has no effect with models {what}: leave it out.")
    if what == "list":
        if rest:
            raise UsageError(f"models list takes nothing more, and {one_line(rest[0])!r:.40} was given: leave it out.")
        _list(terminal, as_json)
        return 0
    if len(rest) != 1:
        raise UsageError(f"models {what} takes one NAME, and {len(rest)} were given: mlxspec models lists them.")
    if what == "show":
        _show(rest[0], terminal, as_json)
    elif what == "pull":
        entry = _ours(what, rest[0])
        path, source = obtain(entry, offline=False, say=terminal.notice)
        _told({"name": entry.name, "path": str(path), "source": source}, f"{entry.name} is here: {path} (from {source}).", terminal, as_json)
    else:
        entry = _ours(what, rest[0])
        _delete(entry, flags.get("yes", False), terminal)
        _told({"deleted": entry.name, "path": str(entry.path)}, f"Deleted: {entry.path}.", terminal, as_json)
    return 0


def _list(terminal: Terminal, as_json: bool) -> None:
    found = built_in() + with_the_package() + in_hub_cache()
    if as_json:
        terminal.json({"models": found})
        return
    rows = [("NAME", "SIZE", "HERE", "SOURCE")]
    rows += [(one_line(row["name"]), in_bytes(row["size_bytes"]), "yes" if row["cached"] else "no", one_line(row["source"])) for row in found]
    for line in table(rows):
        terminal.print(line)


def _show(name: str, terminal: Terminal, as_json: bool) -> None:
    row = next((row for row in built_in() + with_the_package() + in_hub_cache() if row["name"] == name), None) or in_place(name)
    if row is None:
        raise UsageError(f"There is no model {one_line(name)!r:.80} here: mlxspec models lists them; folders and .gguf files go by their path.")
    if as_json:
        terminal.json(row)
        return
    shown = {**row, "size": in_bytes(row["size_bytes"]), "here": "yes" if row["cached"] else "no, mlxspec models pull fetches it"}
    for line in table([(key, one_line(str(shown[key]))) for key in ("name", "kind", "size", "here", "source", "path") if shown.get(key) is not None]):
        terminal.print(line)


def _ours(what: str, name: str) -> BuiltIn:
    """The built-in model of a name: of others we keep no files."""
    if (entry := BUILT_IN.get(name)) is not None:
        return entry
    other = "mlxspec generate -m fetches what is on the hub" if what == "pull" else "hf cache rm deletes what is from the hub, and rm other files"
    raise UsageError(f"models {what} is for built-in models ({', '.join(BUILT_IN)}), and {one_line(name)!r:.80} is none: {other}.")


def _delete(entry: BuiltIn, yes: bool, terminal: Terminal) -> None:
    if not entry.path.exists():
        raise UsageError(f"{entry.name} is not here ({entry.path}): there is nothing to delete.")
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(f"{entry.path} would be deleted, and there is no terminal to ask on: pass -y.")
        terminal.notice(f"Delete {entry.path} ({in_bytes(entry.size)})? [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError(f"{entry.name} was not deleted: answer y, or pass -y.")
    try:
        entry.path.unlink()
    except OSError as error:
        raise MlxspecError(f"{entry.path} cannot be deleted ({error.strerror}): make its folder writable.") from None


def _told(value: dict[str, str], text: str, terminal: Terminal, as_json: bool) -> None:
    if as_json:
        terminal.json(value)
    else:
        terminal.notice(text)
