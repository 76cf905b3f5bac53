"""``mlxspec sessions``: list, show, search, export and delete saved conversations. Loads no model and no screen."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxspec.cli.arguments import Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.display import clean, one_line, table
from mlxspec.errors import UsageError
from mlxspec.sessions.export import as_markdown, as_object, export
from mlxspec.sessions.store import Hit, Store, Summary

WHAT = ("list", "show", "search", "export", "rm")


def parser() -> Parser:
    result = Parser(
        "sessions",
        "[list | show ID | search WORDS | export ID | rm ID ...]",
        "The conversations that mlxspec chat has saved. An ID may be shortened as long as only one begins so.",
        epilog="mlxspec chat -c ID goes on with one; mlxspec paths says where they are.",
        first=WHAT,
    )
    result.one("-o", "--output", help="export: the file, FILE.md or FILE.json (default: Markdown on stdout)", kind=Path, metavar="FILE")
    result.one("-n", "--limit", help="list, search: at most so many", kind=_count, metavar="N")
    result.switch("--force", help="export: replace a file that is there")
    result.switch("--json", help="print one JSON object")
    result.switch("--debug", help="show a traceback where something fails")
    return result


def sessions(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb. Returns the exit code."""
    given, words = parser().read(argv)
    what, rest = (words[0], words[1:]) if words else ("list", [])
    if what not in WHAT:
        raise UsageError(f"sessions {one_line(what)} is unknown: give one of {', '.join(WHAT)}.")
    flags = vars(given)
    for name, verbs in (("output", ("export",)), ("force", ("export",)), ("limit", ("list", "search"))):
        if name in flags and what not in verbs:
            raise UsageError(f"--{name} has no effect with sessions {what}: leave it out.")
    store, as_object_wanted = Store(), flags.get("json", False)
    if what == "list":
        _nothing_more(what, rest)
        _list(store, terminal, flags.get("limit"), as_object_wanted)
    elif what == "search":
        _search(store, " ".join(rest), terminal, flags.get("limit"), as_object_wanted)
    elif what == "show":
        _show(store, _one(what, rest), terminal, as_object_wanted)
    elif what == "export":
        _export(store, _one(what, rest), terminal, flags.get("output"), flags.get("force", False), as_object_wanted)
    else:
        _remove(store, rest, terminal, as_object_wanted)
    return 0


def _list(store: Store, terminal: Terminal, limit: int | None, as_json: bool) -> None:
    found = store.summaries()[:limit]
    if as_json:
        terminal.json({"sessions": [row(summary) for summary in found]})
        return
    if not found:
        terminal.notice("There are no saved conversations: mlxspec chat makes them.")
        return
    rows = [("ID", "CHANGED", "MESSAGES", "MODEL", "TITLE")]
    for one in found:
        state = "(damaged)" if one.damaged else "(cut off)" if one.cut_off else ""
        rows.append((one.id, when(one.updated), str(one.turns), one_line(one.model or "-"), f"{one_line(one.title)} {state}".strip()))
    for line in table(rows):
        terminal.print(line)


def _search(store: Store, words: str, terminal: Terminal, limit: int | None, as_json: bool) -> None:
    found: list[Hit] = []
    for hit in store.search(words):
        if limit is not None and len(found) >= limit:
            break
        found.append(hit)
    if as_json:
        hits = [{"id": hit.id, "title": hit.title, "message": hit.turn, "role": hit.role, "excerpt": hit.excerpt} for hit in found]
        terminal.json({"hits": hits})
        return
    for hit in found:
        terminal.print(f"{hit.id}  {hit.role} {hit.turn}: {hit.excerpt}" if hit.turn else f"{hit.id}  title: {hit.excerpt}")
    if not found:
        terminal.notice("Nothing was found.")


def _show(store: Store, word: str, terminal: Terminal, as_json: bool) -> None:
    session, fault = store.read(word)
    if fault is not None:
        terminal.notice(f"The session {session.id} is damaged ({fault}): this is what stands before it.")
    if as_json:
        terminal.json(as_object(session))
    else:
        text = as_markdown(session)
        terminal.answer(clean(text) if terminal.out_tty else text)
        terminal.end_answer()


def _export(store: Store, word: str, terminal: Terminal, path: Path | None, force: bool, wants_json: bool) -> None:
    if path is None:
        _show(store, word, terminal, wants_json)
        return
    if wants_json and path.suffix != ".json":
        raise UsageError(f"--output {one_line(str(path))}: give a name that ends in .json.")
    session, fault = store.read(word)
    if fault is not None:
        terminal.notice(f"The session {session.id} is damaged ({fault}): what stands before it is exported.")
    export(session, path, force, "give another name, or --force")
    terminal.notice(f"Written: {one_line(str(path))}.")


def _remove(store: Store, words: list[str], terminal: Terminal, as_json: bool) -> None:
    if not words:
        raise UsageError("sessions rm needs an ID: mlxspec sessions lists them.")
    names = [store.resolve(word) for word in words]  # all of them are there, or none goes
    gone = [store.delete(name) for name in dict.fromkeys(names)]
    if as_json:
        terminal.json({"deleted": gone})
    else:
        terminal.notice(f"Deleted: {', '.join(gone)}.")


def row(summary: Summary) -> dict[str, Any]:
    """A session as an entry of ``sessions --json``."""
    return {
        "id": summary.id,
        "title": summary.title,
        "created": summary.created,
        "updated": summary.updated,
        "model": summary.model,
        "messages": summary.turns,
        "cut_off": summary.cut_off,
        "damaged": summary.damaged,
    }


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _one(what: str, words: list[str]) -> str:
    if len(words) != 1:
        raise UsageError(f"sessions {what} takes one ID, and {len(words)} were given: mlxspec sessions lists them.")
    return words[0]


def _nothing_more(what: str, words: list[str]) -> None:
    if words:
        raise UsageError(f"sessions {what} takes nothing more, and {one_line(words[0])!r:.40} was given: leave it out.")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--limit {one_line(text)} makes no sense: give a whole number from 1.")
    return int(text)
