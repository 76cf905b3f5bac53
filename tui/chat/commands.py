"""Slash commands: one table with their help, a parser, and the step from words to methods. Knows what a command is called, not what it does.

>>> parse("/k 4")
Call(name='k', text='4')
>>> parse("/usr/bin is a folder") is None and parse("//k") is None    # text to send; the second without its first slash
True
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlxspec.display import one_line
from mlxspec.drafters.kinds import spellings
from mlxspec.errors import UsageError

ON, OFF = ("on", "yes", "true", "1"), ("off", "no", "false", "0")
YES, MIRROR = "-y", "--mirror"


class Actions(Protocol):
    """What the commands do. ``None`` for what was left out: then the face shows what there is, or lets the user choose."""

    def model(self, name: str | None, yes: bool) -> None: ...
    def draft(self, name: str | None) -> None: ...
    def draft_tokens(self, number: int | None) -> None: ...
    def speculate(self, on: bool | None) -> None: ...
    def system(self, text: str | None) -> None: ...
    def set(self, name: str | None, value: str | None) -> None: ...
    def stats(self) -> None: ...
    def context(self) -> None: ...
    def baseline(self) -> None: ...
    def regenerate(self) -> None: ...
    def undo(self) -> None: ...
    def edit(self, text: str | None) -> None: ...
    def proceed(self) -> None: ...
    def clear(self) -> None: ...
    def save(self, title: str | None) -> None: ...
    def load(self, word: str | None) -> None: ...
    def search(self, words: str) -> None: ...
    def export(self, path: str | None) -> None: ...
    def copy(self, what: str | None) -> None: ...
    def compare(self) -> None: ...
    def speak(self, what: str | None, mirror: bool) -> None: ...
    def help(self, name: str | None) -> None: ...
    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A command as it was written: its name, and what stands behind it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``run`` is given the actions and what stands behind the name, stripped; it raises UsageError where that makes no sense."""

    name: str
    arguments: str
    help: str
    run: Callable[[Actions, str], None]
    aliases: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.arguments}".rstrip()


def _model(do: Actions, text: str) -> None:
    words = text.split()
    yes = YES in words
    names = [word for word in words if word != YES]
    if len(names) > 1 and not text.startswith(("/", ".", "~")):
        raise UsageError(f"/model takes one name, and {one_line(text)!r:.80} has {len(names)} words: give a name, a folder or a repo id.")
    do.model(" ".join(names) or None, yes)


def _number(do: Actions, text: str) -> None:
    if text.lower() == "auto":
        return do.draft_tokens(None)
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise UsageError(f"/k {one_line(text)!r:.40} is no number of draft tokens: give one from 0, or auto.")
    return do.draft_tokens(int(text))


def _switch(do: Actions, text: str) -> None:
    if text.lower() not in ("", *ON, *OFF):
        raise UsageError(f"/spec {one_line(text)!r:.40} is neither on nor off: give one of them.")
    do.speculate(text.lower() in ON if text else None)


def _set(do: Actions, text: str) -> None:
    name, _, value = text.replace("=", " ", 1).partition(" ") if re.match(r"[\w-]+\s*=", text) else text.partition(" ")
    do.set(name or None, value.strip() or None)


def _search(do: Actions, text: str) -> None:
    if not text:
        raise UsageError("/search needs something to look for: /search WORDS.")
    do.search(text)


def _copy(do: Actions, text: str) -> None:
    if text not in ("", "code", "all"):
        raise UsageError(f"/copy {one_line(text)!r:.40} is unknown: give code, all, or nothing for the last reply.")
    do.copy(text or None)


def _speak(do: Actions, text: str) -> None:
    mirror = MIRROR in text.split()
    what = text.replace(MIRROR, "").strip()
    if mirror and what.lower() in (*ON, *OFF):
        raise UsageError(f"/speak {what} is for all replies, and {MIRROR} for one speech: give one of them.")
    do.speak(what or None, mirror)


def _bare(name: str, run: Callable[[Actions], None]) -> Callable[[Actions, str], None]:
    def call(do: Actions, text: str) -> None:
        if text:
            raise UsageError(f"/{name} takes nothing, and {one_line(text)!r:.40} was given: leave it out.")
        run(do)

    return call


COMMANDS: tuple[Command, ...] = (
    Command("model", "[NAME] [-y]", "choose a model (-y allows a large download)", _model),
    Command("draft", "[NAME]", f"choose a drafter: {spellings()}", lambda do, text: do.draft(text or None)),
    Command("k", "N|auto", "tokens drafted ahead in a round", _number),
    Command("spec", "[on|off]", "turn speculation on or off", _switch),
    Command("system", "[TEXT|-]", "show the system prompt, set it, or take it away (-)", lambda do, text: do.system(text or None)),
    Command("set", "[NAME [VALUE]]", "show the parameters, or set one (default: as it was)", _set),
    Command("stats", "", "numbers of the last reply and of speculation", _bare("stats", lambda do: do.stats())),
    Command("context", "", "how full the context is", _bare("context", lambda do: do.context())),
    Command("baseline", "", "measure plain decoding on this machine anew", _bare("baseline", lambda do: do.baseline())),
    Command("compare", "", "answer the last message twice, plain and speculative", _bare("compare", lambda do: do.compare())),
    Command("regen", "", "another reply to the last message", _bare("regen", lambda do: do.regenerate()), ("regenerate", "retry")),
    Command("continue", "", "go on with the last reply where it stopped", _bare("continue", lambda do: do.proceed()), ("go",)),
    Command("edit", "[TEXT]", "change the last message and answer it again", lambda do, text: do.edit(text or None)),
    Command("undo", "", "take back the last message and its reply", _bare("undo", lambda do: do.undo())),
    Command("clear", "", "begin a new conversation (the old one stays saved)", _bare("clear", lambda do: do.clear()), ("new",)),
    Command("save", "[TITLE]", "name this conversation (it is saved as it goes)", lambda do, text: do.save(text or None)),
    Command("load", "[ID]", "go on with a saved conversation", lambda do, text: do.load(text or None), ("sessions",)),
    Command("search", "WORDS", "find words in the saved conversations", _search),
    Command("export", "[FILE]", "write the conversation to FILE.md or FILE.json", lambda do, text: do.export(text or None)),
    Command("copy", "[code|all]", "copy the last reply, its last code, or everything", _copy),
    Command("speak", "[VOICE|on|off] [--mirror]", "say the last reply aloud, or every reply (on)", _speak, ("say",)),
    Command("help", "[COMMAND]", "this list, or one command", lambda do, text: do.help(text.lstrip("/") or None), ("?",)),
    Command("exit", "", "leave", _bare("exit", lambda do: do.leave()), ("quit", "bye")),
)


def parse(text: str) -> Call | None:
    """A command, or None where the text is to be sent. A path is no command, and ``//`` at the start sends a slash."""
    found = re.match(r"/([A-Za-z?][\w-]*|\?)(?:\s+|\Z)", text)
    return Call(found[1].lower(), text[found.end() :].strip()) if found else None


def plain_text(text: str) -> str:
    """What is sent of a text that is no command."""
    return text[1:] if text.startswith("//") else text


def find(name: str, commands: Sequence[Command] = COMMANDS) -> Command:
    """The command of a name, an alias or an unmistakable beginning; UsageError with the nearest one where there is none."""
    name = name.lower().lstrip("/")
    named = {word: command for command in commands for word in (command.name, *command.aliases)}
    if name in named:
        return named[name]
    begun = {command.name: command for command in commands if len(name) > 1 and command.name.startswith(name)}
    if len(begun) == 1:
        return next(iter(begun.values()))
    near = difflib.get_close_matches(name, named, n=1, cutoff=0.5)
    hint = f"did you mean /{near[0]}?" if near else "/help lists the commands; // at the start sends the text as it is."
    raise UsageError(f"/{one_line(name)[:40]} is unknown: {hint}")


def run(text: str, actions: Actions, commands: Sequence[Command] = COMMANDS) -> bool:
    """Do what a text says where it is a command; False where it is a message to send (``plain_text``)."""
    call = parse(text)
    if call is None:
        return False
    find(call.name, commands).run(actions, call.text)
    return True


def complete(text: str, commands: Sequence[Command] = COMMANDS) -> list[str]:
    """What a beginning may become."""
    return [f"/{command.name}" for command in commands if f"/{command.name}".startswith(text)] if text.startswith("/") else []


def help_lines(commands: Sequence[Command] = COMMANDS) -> list[str]:
    """The table, one command a line."""
    width = max(len(command.usage) for command in commands)
    return [f"{command.usage.ljust(width)}  {command.help}" for command in commands]


def help_of(name: str, commands: Sequence[Command] = COMMANDS) -> str:
    """One command, with its other names."""
    command = find(name, commands)
    also = f" (also {', '.join(f'/{alias}' for alias in command.aliases)})" if command.aliases else ""
    return f"{command.usage}  {command.help}{also}"
