"""``mlxspec learned``: list, show and delete the answers that ``generate --learn`` has kept to train drafters on. Loads no model."""

from collections.abc import Mapping
from dataclasses import asdict

from mlxspec.cli.arguments import Parser
from mlxspec.cli.sessions import when
from mlxspec.cli.terminal import Terminal
from mlxspec.display import clean, one_line, table
from mlxspec.errors import UsageError
from mlxspec.sessions import learned as store

WHAT = ("list", "show", "rm")


def parser() -> Parser:
    result = Parser(
        "learned",
        "[list | show ID | rm ID ... | rm --all]",
        "The answers that generate --learn has kept, as text for training drafters. They stay on this machine until they are deleted.",
        epilog="mlxspec train redrafter --learned --from DRAFTER --out DIR trains on them; mlxspec paths says where they are.",
        first=WHAT,
    )
    result.switch("--all", help="rm: delete all of them")
    result.switch("--json", help="print one JSON object")
    result.switch("--debug", help="show a traceback where something fails")
    return result


def learned(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb. Returns the exit code."""
    given, words = parser().read(argv)
    what, rest = (words[0], words[1:]) if words else ("list", [])
    flags = vars(given)
    as_json, everything = flags.get("json", False), flags.get("all", False)
    if what not in WHAT:
        raise UsageError(f"learned {one_line(what)} is unknown: give one of {', '.join(WHAT)}.")
    if everything and what != "rm":
        raise UsageError(f"--all has no effect with learned {what}: leave it out.")
    if what == "rm":
        if bool(rest) == everything:
            raise UsageError("learned rm takes the ids of answers, or --all.")
        gone = store.delete(store.names() if everything else rest)
        if as_json:
            terminal.json({"deleted": gone})
        else:
            terminal.notice(f"Deleted: {', '.join(gone) or 'nothing was there'}.")
    elif what == "show":
        if len(rest) != 1:
            raise UsageError(f"learned show takes one ID, and {len(rest)} were given: mlxspec learned lists them.")
        one = store.read(rest[0])
        if as_json:
            terminal.json(asdict(one))
        else:
            text = "\n\n".join(f"{message['role']}: {message['content']}" for message in one.messages)
            terminal.answer(clean(text) if terminal.out_tty else text)
            terminal.end_answer()
    else:
        if rest:
            raise UsageError(f"learned list takes nothing more, and {one_line(rest[0])!r:.40} was given: leave it out.")
        _list(terminal, as_json)
    return 0


def _list(terminal: Terminal, as_json: bool) -> None:
    found = store.entries()
    if as_json:
        terminal.json({"folder": str(store.folder()), "learned": [asdict(one) for one in found]})
        return
    if not found:
        terminal.notice(f"No answers are kept in {one_line(str(store.folder()))}: mlxspec generate --learn keeps one.")
        return
    rows = [("ID", "KEPT", "CHARACTERS", "MODEL", "REQUEST")]
    for one in found:
        asked = next((message["content"] for message in reversed(one.messages) if message["role"] == "user"), "")
        rows.append((one.id, when(one.created), str(len(one.messages[-1]["content"])), one_line(one.model), f"{one_line(asked):.60}"))
    for line in table(rows):
        terminal.print(line)
