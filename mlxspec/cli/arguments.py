"""The command line's parsers, one a verb, made from the fields of Options. Knows what a flag is called; knows no model.

A flag counts once: given twice with two values it is an error, as is every flag a verb does not know. Words that are no flags are handed
back in order, so that they may stand anywhere.
"""

import argparse
import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field
from typing import Any, NoReturn

from mlxspec.drafters.kinds import spellings
from mlxspec.errors import UsageError
from mlxspec.settings.values import FIELDS, flag, read_value

GROUPS = {
    "model": ("model", "dtype", "max_kv_size", "kv_bits", "offline", "yes", "force"),
    "speculation": ("drafter", "draft_tokens", "draft_width", "draft_rows", "accept", "require_spec", "strict"),
    "reply": ("system_prompt", "chat_template_config", "max_tokens", "seed", "stop"),
    "sampling": ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "repetition_context_size", "logit_bias"),
}


class Once(argparse.Action):
    """A flag that may be given once (or again with the same value); ``--no-NAME`` is the opposite of a switch."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        value = not (option_string or "").startswith("--no-") if self.nargs == 0 else values
        flags: dict[str, str] = namespace.__dict__.setdefault("flags", {})
        if self.dest in flags and getattr(namespace, self.dest) != value:
            raise UsageError(f"{flags[self.dest]} and {option_string} contradict each other: give one of them.")
        flags[self.dest] = str(option_string)
        setattr(namespace, self.dest, value)


class Each(argparse.Action):
    """A flag that may be repeated: tuples are strung together, mappings are merged."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        if before is None:
            setattr(namespace, self.dest, values)
        elif isinstance(values, tuple):
            setattr(namespace, self.dest, before + values)
        else:
            for token in before.keys() & values.keys():
                if before[token] != values[token]:
                    raise UsageError(f"{option_string} gives token {token} two values, {before[token]:g} and {values[token]:g}: give one of them.")
            setattr(namespace, self.dest, {**before, **values})


class Parser(argparse.ArgumentParser):
    """Raises UsageError in place of printing; no prefixes of flags; only what was given is in the namespace.

    ``first``: what the first word may be, where that is one of a few.
    """

    def __init__(self, verb: str, words: str, description: str, epilog: str | None = None, first: Sequence[str] = ()) -> None:
        super().__init__(
            prog=f"mlxspec {verb}".rstrip(),
            usage=f"mlxspec {verb} [options] {words}".rstrip(),
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.first = tuple(first)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}. {self.prog} --help lists the options.")

    def read(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The flags that were given, and the words between them."""
        argv = list(argv)
        end = argv.index("--") if "--" in argv else len(argv)
        namespace, rest = self.parse_known_args(normalise(argv[:end]))
        for word in rest:
            if len(word) > 1 and word.startswith("-") and " " not in word and not re.fullmatch(r"-\.?\d.*", word):
                raise UsageError(f"Unknown option {word}: {self._hint(word)}")
        return namespace, rest + argv[end + 1 :]

    def one(
        self, *flags: str, help: str, kind: Callable[[str], Any] = str, dest: str | None = None, metavar: str | None = None, to: Any = None
    ) -> None:
        """A flag with one value."""
        extra: dict[str, Any] = {"dest": dest} if dest else {}
        (to or self).add_argument(*flags, action=Once, type=converter(kind), help=escaped(help), metavar=metavar, **extra)

    def switch(self, *flags: str, help: str, negative: bool = False, to: Any = None) -> None:
        """A flag without a value; ``negative`` shows its ``--no-`` twin in the help."""
        group = to or self
        dest = flags[-1].lstrip("-").replace("-", "_")
        off = [f"--no-{flags[-1].lstrip('-')}"]
        group.add_argument(*flags, *(off if negative else []), action=Once, nargs=0, dest=dest, help=escaped(help))
        if not negative:
            group.add_argument(*off, action=Once, nargs=0, dest=dest, help=argparse.SUPPRESS)

    def common(self, to: Any = None) -> None:
        """What every verb has that runs a model."""
        self.switch("-q", "--quiet", help="errors only on stderr", to=to)
        self.switch("--debug", help="show a traceback where something fails", to=to)

    def options(self, leave_out: Iterable[str] = (), defaults: dict[str, Any] | None = None) -> None:
        """Flags for the fields of Options, but for those the verb has no use for."""
        defaults = defaults or {}
        for title, names in GROUPS.items():
            group = self.add_argument_group(title)
            for name in names:
                if name not in leave_out:
                    self._option(group, FIELDS[name], defaults.get(name, FIELDS[name].default))

    def _option(self, group: Any, field: Field[Any], default: Any) -> None:
        flags = sorted([*field.metadata["flags"], flag(field.name)], key=lambda name: name.startswith("--"))
        help = field.metadata["help"]
        if field.default is not MISSING and default is not None and default is not False and default != () and "default" not in help:
            help += f" (default: {default})"
        if field.type is bool:
            self.switch(*flags, help=help, to=group)
            return
        choices = field.metadata["choices"]
        metavar = "{" + ",".join(choices) + "}" if choices else field.metadata["metavar"]
        metavar = "{N,auto}" if field.name == "draft_tokens" else metavar
        if field.name == "drafter":
            help = f"{spellings()} (default: {default})"
        if field.name == "logit_bias":
            help += ", or TOKEN=BIAS (may be repeated)"
        action = Each if field.name in ("logit_bias", "stop") else Once
        kind = converter(lambda text: read_value(field.name, text))
        group.add_argument(*flags, action=action, dest=field.name, type=kind, help=escaped(help), metavar=metavar)

    def _hint(self, word: str) -> str:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        close = difflib.get_close_matches(word.partition("=")[0], known, n=1)
        return f"did you mean {close[0]}?" if close else f"{self.prog} --help lists the options; text that starts with - goes after --."


def normalise(argv: Sequence[str]) -> list[str]:
    """Other tools' spellings in ours: ``--top_p`` is ``--top-p``, a lone ``--verbose`` is ``--verbose=True``."""
    result: list[str] = []
    words = list(argv)
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if re.fullmatch(r"-m=?\d+", word) or (word == "-m" and re.fullmatch(r"-?\d+", following)):
            number = following if word == "-m" else word.lstrip("-m=")
            raise UsageError(f"-m is the model, and {number} looks like a number of tokens (mlx-lm's -m): give -n {number}, or --model {number}.")
        if re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word, re.DOTALL):
            name, equals, value = word.partition("=")
            word = name.replace("_", "-") + equals + value
        if result and result[-1] == "--verbose" and word.lower() in ("true", "false"):
            result[-1] = f"--verbose={word}"
        else:
            result.append(word)
    return ["--verbose=True" if word == "--verbose" else word for word in result]


def converter(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse whose own complaints come through word for word."""

    def convert(text: str) -> Any:
        return kind(text)

    convert.__name__ = {"int": "whole number", "float": "number"}.get(getattr(kind, "__name__", ""), "value")
    return convert


def whole(name: str, low: int = 1) -> Callable[[str], int]:
    """A whole number of at least ``low``, for a flag that is no field of Options."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise UsageError(f"{name} {text} makes no sense: give a whole number from {low}.")
        return number

    return convert


def above_zero(name: str) -> Callable[[str], float]:
    """A number above 0, for a flag that is no field of Options."""
    return _real(name, lambda value: 0 < value < 1e9, "above 0")


def share(name: str) -> Callable[[str], float]:
    """A number from 0 to 1."""
    return _real(name, lambda value: 0 <= value <= 1, "from 0 to 1")


def _real(name: str, fits: Callable[[float], bool], reach: str) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not fits(number):
            raise UsageError(f"{name} {text} makes no sense: give a number {reach}.")
        return number

    return convert


def escaped(help: str) -> str:
    """argparse formats help with %."""
    return help.replace("%", "%%")


def plain_parser(verb: str, description: str) -> Parser:
    """The parser of a verb that takes --json and nothing else."""
    parser = Parser(verb, "", description)
    parser.switch("--json", help="print one JSON object")
    parser.switch("--debug", help="show a traceback where something fails")
    return parser


def parsed(parser: Parser, argv: list[str]) -> bool:
    """Whether --json was given to such a verb."""
    given, words = parser.read(argv)
    if words:
        raise UsageError(f"{parser.prog.rpartition(' ')[2]} takes no arguments, and {words[0]!r} was given: leave it out.")
    return bool(getattr(given, "json", False))
