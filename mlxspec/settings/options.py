"""Every option once, with its help: the command line, the API and the screen read them from here. Imports no mlx.

``Options`` checks itself: a value that makes no sense, or two that contradict each other, raise UsageError in one line.
"""

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mlxspec.errors import UsageError

ACCEPT = ("coupled", "ratio", "mirror", "pcg")
DTYPES = ("float32", "float16", "bfloat16")
NEAR_ZERO = 1e-4  # a temperature below it cannot be divided by
HIGHEST, LEAST = 1e30, 1e-30  # sampling is done in float32: within these it stays finite and above 0, with the logits it meets


def option(default: Any, help: str, *flags: str, when: str, metavar: str | None = None, choices: tuple[str, ...] | None = None) -> Any:
    """A field of Options. ``when`` is load (fixed for a model), reply (may differ per reply) or speech."""
    return field(default=default, metadata={"help": help, "flags": flags, "when": when, "metavar": metavar, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that shapes a reply. Fields with ``when="load"`` are fixed once the model is in memory."""

    model: str = option("smollm2-135m", "built-in name, local folder, .gguf file or hub repo id", "-m", when="load", metavar="MODEL")
    drafter: str = option("auto", "who drafts: a kind, or KIND:MODEL", when="load", metavar="DRAFTER")
    dtype: str | None = option(None, "dtype of the weights (default: the file's; float32 on the CPU)", when="load", choices=DTYPES)
    max_kv_size: int | None = option(None, "keep at most N tokens of context in the cache (the first 4 stay)", when="load", metavar="N")
    kv_bits: int | None = option(None, "quantise the KV cache to 4 or 8 bits", when="load", metavar="BITS")
    offline: bool = option(False, "touch no network", when="load")
    yes: bool = option(False, "answer yes to a large download", "-y", when="load")
    force: bool = option(False, "go on where a check would refuse", when="load")

    draft_tokens: int | None = option(None, "tokens drafted ahead in a round, or auto", when="reply", metavar="N")
    draft_width: int | None = option(None, "alternatives a drafter may offer at one place", when="reply", metavar="N")
    draft_rows: int | None = option(None, "rows of a proposal in all", when="reply", metavar="N")
    accept: str | Callable[..., Any] = option("coupled", "rule that judges drafts", when="reply", choices=ACCEPT)  # noqa: RUF009 - a name, or a Policy
    require_spec: bool = option(False, "fail (exit 3) where speculation is off", when="reply")
    strict: bool = option(False, "exit 3 where the reply was cut at the token limit or the context", when="reply")
    system_prompt: str | None = option(None, "system message of the chat template", "-s", when="reply", metavar="TEXT")
    chat_template_config: str | None = option(
        None, 'extra arguments for the chat template, as JSON: {"chat_template": "NAME"} chooses one of several', when="reply", metavar="JSON"
    )
    max_tokens: int = option(512, "tokens of the reply at most (-1: no limit but the context)", "-n", when="reply", metavar="N")
    temperature: float = option(0.7, "0 picks the likeliest token", "--temp", when="reply", metavar="T")
    top_p: float = option(1.0, "nucleus: keep the likeliest tokens up to this mass", when="reply", metavar="P")
    top_k: int = option(0, "keep the K likeliest tokens (0: all)", when="reply", metavar="K")
    min_p: float = option(0.0, "drop tokens below this share of the likeliest one", when="reply", metavar="P")
    repetition_penalty: float = option(1.0, "divide the logits of tokens seen lately (1: off)", when="reply", metavar="X")
    repetition_context_size: int = option(20, "how many tokens back the repetition penalty looks (0: all)", when="reply", metavar="N")
    logit_bias: Mapping[int, float] | None = option(None, 'added to logits, as JSON: {"TOKEN": BIAS}', when="reply", metavar="JSON")
    seed: int | None = option(None, "same seed, same text (default: a fresh one, reported)", when="reply", metavar="N")
    stop: tuple[str, ...] = option((), r"end the reply at this string (may be repeated; \n, \t and \\ are escapes)", when="reply", metavar="STRING")

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for item in fields(self):
            _of_its_kind(item.name, getattr(self, item.name), item.type)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                reach = f"from {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
                raise UsageError(f"{_flag(name)} {value} makes no sense: give a number {reach}.")
        if 0 < self.temperature < NEAR_ZERO:
            raise UsageError(f"--temperature {self.temperature} is too near 0 to divide by: give 0, or at least {NEAR_ZERO}.")
        if self.accept in ("ratio", "pcg") and (self.draft_width or 1) > 1:
            raise UsageError(f"--accept {self.accept} judges chains, and --draft-width above 1 makes trees: leave one of them out.")
        if self.accept in ("mirror", "pcg") and self.temperature == 0:
            raise UsageError(f"--accept {self.accept} draws at random and --temperature 0 draws nothing: give a temperature, or --accept coupled.")
        if self.top_p < LEAST:
            raise UsageError(f"--top-p {self.top_p} leaves no token: give a mass above 0 (at least {LEAST:g}), up to 1.")
        if self.repetition_penalty < LEAST:
            raise UsageError(f"--repetition-penalty {self.repetition_penalty} would divide by zero: give a number above 0 (1 is off).")
        if self.kv_bits not in (None, 4, 8):
            raise UsageError(f"--kv-bits {self.kv_bits} is not offered: give 4 or 8.")
        if self.kv_bits is not None and self.max_kv_size is not None:
            raise UsageError("--kv-bits and --max-kv-size exclude each other (mlx-lm cannot quantise a rotating cache): give one of them.")
        for item in fields(self):
            value, choices = getattr(self, item.name), item.metadata["choices"]
            if choices and isinstance(value, str) and value not in choices:
                raise UsageError(f"{_flag(item.name)} {value} is unknown: give one of {', '.join(choices)}.")
        for token, bias in (self.logit_bias or {}).items():
            whole = isinstance(token, int) and not isinstance(token, bool) and token >= 0
            if not whole or not isinstance(bias, int | float) or not bias <= HIGHEST:
                what = f"give token numbers and biases up to {HIGHEST:g} (or -inf), as JSON"
                raise UsageError(f"--logit-bias {{{token!r}: {bias!r:.60}}} makes no sense: {what}.")
        if self.chat_template_config is not None:
            try:
                if not isinstance(json.loads(self.chat_template_config), dict):
                    raise ValueError("not an object")
            except ValueError as error:
                raise UsageError(f"--chat-template-config is no JSON object ({error}): give one, such as '{{\"enable_thinking\": false}}'.") from None
        if "" in self.stop:
            raise UsageError("--stop '' would end every reply at once: give a string of at least one character.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions(Options):
    """Options of a piece of speech. ``early`` lets sound out while its segment is being drawn; else a segment that goes wrong is drawn afresh."""

    group_size: float | None = option(None, "mean size of acoustic groups (default: the voice's own)", when="speech", metavar="X")
    group_source: str | None = option(
        None, "where groups come from: head, input or codebook (default: the voice's own)", when="speech", metavar="SOURCE"
    )
    capped: float | None = option(None, "judge exactly where the two differ more than this inside a group", when="speech", metavar="D")
    early: bool = option(True, "let sound out before its sentence is drawn", when="speech")

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.capped is not None and not 0 <= self.capped <= 1:
            raise UsageError(f"--capped {self.capped} makes no sense: give a distance from 0 to 1.")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", -1, math.inf),
    ("temperature", 0, HIGHEST),
    ("top_p", 0, 1),
    ("top_k", 0, math.inf),
    ("min_p", 0, 1),
    ("repetition_penalty", 0, HIGHEST),
    ("repetition_context_size", 0, math.inf),
    ("seed", 0, 2**64 - 1),
    ("draft_tokens", 0, math.inf),
    ("draft_width", 1, math.inf),
    ("draft_rows", 1, math.inf),
    ("max_kv_size", 8, math.inf),
)


def names(when: str | None = None) -> tuple[str, ...]:
    """Names of the options, all or those of one kind."""
    return tuple(f.name for f in fields(Options) if when in (None, f.metadata["when"]))


def known(options: dict[str, Any], when: str) -> dict[str, Any]:
    """The options themselves; an unknown one, or one of the other kind, is an error that names the nearest."""
    for name in options:
        if name not in names(when):
            near = difflib.get_close_matches(name, names(when), n=1)
            other = "give it to load()" if name in names("load") else "give it with the prompt" if name in names("reply") else "leave it out"
            raise UsageError(f"Unknown option {name}: {f'did you mean {near[0]}?' if near and name not in names() else f'{other}.'}")
    return options


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _of_its_kind(name: str, value: Any, kind: Any) -> None:
    """Raise unless a value is of its field's type. Whole numbers pass for numbers, truth values for neither."""
    if name == "logit_bias":
        fits, wanted = value is None or isinstance(value, Mapping), "token numbers with biases"
    elif name == "accept":
        fits, wanted = isinstance(value, str) or callable(value), f"one of {', '.join(ACCEPT)}"
    elif name == "stop":
        fits, wanted = isinstance(value, tuple | list) and all(isinstance(text, str) for text in value), "strings"
    else:
        allowed = set(getattr(kind, "__args__", (kind,)))
        fits = any(isinstance(value, one) for one in allowed | ({int} if float in allowed else set()))
        fits = fits and (not isinstance(value, bool) or bool in allowed) and not (isinstance(value, float) and not math.isfinite(value))
        words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "none"}
        wanted = " or ".join(word for one, word in words.items() if one in allowed and one is not type(None))
    if not fits:
        raise UsageError(f"{_flag(name)} {value!r:.60} makes no sense: give {wanted}.")
