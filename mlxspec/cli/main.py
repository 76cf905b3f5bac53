"""The command ``mlxspec``: finds the verb and runs it. Whatever fails ends here, as one line and an exit code. Imports no mlx.

Exit codes: 0 done, 1 failed, 2 usage, 3 incomplete, 130 interrupted.
"""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from mlxspec.cli.terminal import Terminal
from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.settings.values import FIELDS, flag

VERBS = {  # each is a function of a module of its name, which has its ``parser`` too
    "generate": "answer a prompt, streaming",
    "chat": "talk with a model, and see what drafting gains",
    "sessions": "list, show, search, export or delete saved chats",
    "speak": "say a text aloud, or write it to a sound file",
    "bench": "compare drafters, plain decoding and mlx-lm on a file of prompts",
    "train": "train a drafter for a model, by distillation from the model itself",
    "learned": "list, show or delete the answers kept by generate --learn",
    "groups": "build, show and try the acoustic groups of a voice",
    "models": "list the models that are here or built in; fetch, show or delete one",
    "paths": "say where mlxspec keeps its files",
    "doctor": "check this machine: chip, memory, BLAS, audio, terminal",
    "inspect": "print a trace that generate --trace wrote",
    "completion": "print a script that completes mlxspec in bash, zsh or fish",
}
HELP = """usage: mlxspec VERB [options]

Local language models on MLX that answer faster by speculative decoding, without changing what they would have said.

verbs:
{verbs}

mlxspec VERB --help lists a verb's options; mlxspec --version says the version.
Try: mlxspec generate "What is gravity?"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own where none is given) and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = argv[: argv.index("--")] if "--" in argv else argv
    terminal = Terminal(sys.stdout, sys.stderr, os.environ)
    try:
        code = run(argv, terminal)
        terminal.out.flush()
        return code
    except SystemExit as end:  # argparse, after it printed its help
        return _flushed(terminal, int(end.code or 0))
    except BrokenPipeError:  # `| head`: nobody reads on, and that is no failure
        _let_go(terminal)
        return 0
    except KeyboardInterrupt:
        return _failed(terminal, "Interrupted", "interrupted", 130, flags)
    except MlxspecError as error:
        return _failed(terminal, type(error).__name__, as_typed(str(error), flags), error.exit_code, flags)
    except Exception as error:
        text = f"{type(error).__name__}: {error}{_unnamed(error)} (this should not happen; --debug shows where it did)"
        return _failed(terminal, type(error).__name__, text, 1, flags)


def run(argv: Sequence[str], terminal: Terminal) -> int:
    """Dispatch to a verb."""
    verb, rest = (argv[0], list(argv[1:])) if argv else ("--help", [])
    if verb in ("-h", "--help"):
        terminal.print(HELP.format(verbs="\n".join(f"  {name:<11}{text}" for name, text in VERBS.items())).rstrip())
    elif verb == "--version":
        from mlxspec.version import __version__

        terminal.print(f"mlxspec {__version__}")
    elif verb in VERBS:
        code: int = getattr(import_module(f"mlxspec.cli.{verb}"), verb)(rest, terminal, os.environ)
        return code
    else:
        raise UsageError(_no_verb(verb))
    return 0


def as_typed(text: str, flags: Sequence[str]) -> str:
    """A message with the options in the spelling that was typed: ``--temp`` in place of ``--temperature``.

    >>> as_typed("--temperature -1 makes no sense.", ["generate", "hi", "--temp", "-1"])
    '--temp -1 makes no sense.'
    """
    typed = {word.partition("=")[0].replace("_", "-") if word.startswith("--") else word[:2] for word in flags}
    for name, field in FIELDS.items():
        for other in field.metadata["flags"]:
            if other in typed and flag(name) not in typed and not re.search(rf"(?<![\w-]){other}(?![\w-])", text):
                text = re.sub(rf"{flag(name)}(?![\w-])", other, text)
    return text


def _unnamed(error: Exception) -> str:
    """Of an error of the system that names no file: what it was about, as far as can be told."""
    if not isinstance(error, OSError) or error.filename is not None:
        return ""
    try:
        os.getcwd()
    except OSError:
        return ": the current folder is gone, so cd to one that exists"
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _no_verb(word: str) -> str:
    verbs = f"the verbs are {', '.join(VERBS)}"
    if word.startswith("-"):
        return f"Options follow the verb, and {word} stands before it: {verbs}."
    if not word or " " in word:
        return f'{word!r} is no verb: for an answer, mlxspec generate "...".'
    near = difflib.get_close_matches(word, VERBS, n=1)
    return f"{word} is no verb: did you mean {near[0]}?" if near else f"{word} is no verb: {verbs}."


def _failed(terminal: Terminal, kind: str, text: str, code: int, flags: Sequence[str]) -> int:
    """One line on stderr, and with --json an object on stdout."""
    try:
        terminal.end_answer()
        if "--json" in flags:
            terminal.json({"error": {"type": kind, "message": one_line(text)}})
    except (OSError, MlxspecError):
        _let_go(terminal)
    terminal.error(f"mlxspec: {text}")
    if "--debug" in flags and terminal.err is not None:
        traceback.print_exc(file=terminal.err)
    return code


def _flushed(terminal: Terminal, code: int) -> int:
    try:
        terminal.out.flush()
    except OSError:
        _let_go(terminal)
    return code


def _let_go(terminal: Terminal) -> None:
    """Nothing that is still buffered may fail once more when the process ends."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, terminal.out.fileno())
        os.close(descriptor)
    except (OSError, ValueError):  # not a file of the system
        pass


if __name__ == "__main__":
    sys.exit(main())
