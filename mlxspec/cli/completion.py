"""``mlxspec completion``: prints a script that completes verbs and flags in a shell, made from the parsers. Knows no option by name."""

import argparse
import importlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from mlxspec.cli.arguments import Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag in all its spellings. ``values``: those it takes, where they are a few; ``takes``: whether it takes one at all."""

    spellings: tuple[str, ...]
    help: str
    takes: bool
    values: tuple[str, ...]


def parser() -> Parser:
    return Parser(
        "completion",
        "{bash,zsh,fish}",
        "Print a script that completes mlxspec in a shell.",
        epilog='bash, zsh: eval "$(mlxspec completion bash)" in ~/.bashrc (zsh in ~/.zshrc, behind compinit).\n'
        "fish: mlxspec completion fish > ~/.config/fish/completions/mlxspec.fish",
        first=SHELLS,
    )


def completion(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb."""
    _, words = parser().read(argv)
    if len(words) != 1 or words[0] not in SHELLS:
        told = f"{' '.join(words)!r:.60} was given" if words else "nothing was given"
        raise UsageError(f"completion takes the name of a shell, {', '.join(SHELLS)}, and {told}.")
    terminal.print({"bash": bash, "zsh": zsh, "fish": fish}[words[0]](parsers()))
    return 0


def parsers() -> dict[str, Parser]:
    """The parser of each verb."""
    from mlxspec.cli.main import VERBS

    return {verb: importlib.import_module(f"mlxspec.cli.{verb}").parser() for verb in VERBS}


def flags_of(parser: Parser) -> list[Flag]:
    """What a parser lists in its help."""
    found = []
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            shown = action.metavar if isinstance(action.metavar, str) else ""
            values = [word for word in shown[1:-1].split(",") if not word.isupper()] if shown.startswith("{") else []
            found.append(Flag(tuple(action.option_strings), (action.help or "").replace("%%", "%"), action.nargs != 0, tuple(values)))
    return found


def bash(parsers: dict[str, Parser]) -> str:
    """A file is offered where nothing else is known."""
    cases = []
    for verb, parser in parsers.items():
        flags = flags_of(parser)
        after = [f"{'|'.join(flag.spellings)}) words={shlex.quote(' '.join(flag.values))};;" for flag in flags if flag.takes]
        words = shlex.quote(" ".join(spelling for flag in flags for spelling in flag.spellings))
        first = shlex.quote(" ".join(parser.first))
        otherwise = f"*) if [[ $cur == -* ]]; then words={words}; elif (( COMP_CWORD == 2 )); then words={first}; fi;;"
        cases.append(f"    {verb}) case $prev in {' '.join([*after, otherwise])} esac;;")
    return "\n".join(
        [
            "_mlxspec() {",
            "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=",
            f"  if (( COMP_CWORD == 1 )); then words={shlex.quote(' '.join([*parsers, '--help', '--version']))}; else case ${{COMP_WORDS[1]}} in",
            *cases,
            "  esac; fi",
            '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
            "}",
            "complete -o default -F _mlxspec mlxspec",
        ]
    )


def zsh(parsers: dict[str, Parser]) -> str:
    from mlxspec.cli.main import VERBS

    cases = []
    for verb, parser in parsers.items():
        specs = []
        for flag in flags_of(parser):
            value = f":value:({' '.join(flag.values)})" if flag.values else ":value:_files" if flag.takes else ""
            specs += [f"{spelling}[{_plain(flag.help)}]{value}" for spelling in flag.spellings]
        first = f"1:what:({' '.join(parser.first)})" if parser.first else "1:file:_files"
        cases.append(f"    {verb}) _arguments {' '.join(map(shlex.quote, [*specs, first, '*:file:_files']))};;")
    verbs = " ".join(shlex.quote(f"{verb}:{_plain(VERBS[verb])}") for verb in parsers)
    return "\n".join(
        [
            "#compdef mlxspec",
            "_mlxspec() {",
            "  local -a verbs",
            f"  verbs=({verbs})",
            "  if (( CURRENT == 2 )); then _describe verb verbs; return; fi",
            "  shift words; (( CURRENT-- ))",
            "  case $words[1] in",
            *cases,
            "  esac",
            "}",
            'if [[ $funcstack[1] == _mlxspec ]]; then _mlxspec "$@"; else compdef _mlxspec mlxspec; fi',
        ]
    )


def fish(parsers: dict[str, Parser]) -> str:
    from mlxspec.cli.main import VERBS

    lines = []
    for verb, parser in parsers.items():
        lines.append(f"complete -c mlxspec -n __fish_use_subcommand -f -a {verb} -d {_fished(VERBS[verb])}")
        here = f"complete -c mlxspec -n '__fish_seen_subcommand_from {verb}'"
        if parser.first:
            none_yet = f"'__fish_seen_subcommand_from {verb}; and not __fish_seen_subcommand_from {' '.join(parser.first)}'"
            lines.append(f"complete -c mlxspec -n {none_yet} -f -a {_fished(' '.join(parser.first))}")
        for flag in flags_of(parser):
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.spellings)
            value = f" -x -a {_fished(' '.join(flag.values))}" if flag.values else " -r" if flag.takes else ""
            lines.append(f"{here} {names}{value} -d {_fished(flag.help)}")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Help without the characters that zsh reads as its own."""
    return "".join(f"\\{character}" if character in "[]:\\" else character for character in text)


def _fished(text: str) -> str:
    """A text in fish's quotes, which know \\\\ and \\'."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
