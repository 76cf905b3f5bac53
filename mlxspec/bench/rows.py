"""What runs one prompt for one row of the benchmark: our engine with some drafter, or mlx-lm's own loop. One clock for all of them.

A clock is read when a token reaches the consumer: for our engine when its Text event arrives, for mlx-lm when its response does.
Knows no prompt file and computes no statistics.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten

from mlxspec.core.events import Done, Text
from mlxspec.errors import MlxspecError, ModelError
from mlxspec.settings.options import Options, names

MLX_LM_DRAFT_TOKENS = 3  # what mlx_lm.generate drafts where it is not told
LEFT_OUT = {"strict", "require_spec", "system_prompt", "chat_template_config"}  # of a reply's options: these shape the prompt or the exit code


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt, once. ``tokens`` includes the first one and a final EOS.

    ``decode_seconds`` go from the first token to the last, ``prefill_seconds`` from the start to the first. ``host_seconds`` are those of
    ``decode_seconds`` that this thread computed (not waited for the device), spread over ``host_rounds`` rounds. ``emitted`` are the tokens
    that ``rounds`` gave: for our engine all but the first; mlx-lm's draft loop takes its first token from a round too.
    """

    tokens: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    host_seconds: float
    host_rounds: int
    rounds: int
    emitted: int
    drafted: int
    accepted: int
    peak_memory_bytes: int
    drafter: str | None = None
    speculation: str | None = None
    reason: str | None = None


class Row(Protocol):
    """A named way to answer a prompt. ``promises`` says that its text must equal plain decoding's."""

    name: str
    promises: bool

    def run(self, prompt: Sequence[int], max_tokens: int) -> Run: ...


class Stopwatch:
    """Reads the clocks as tokens arrive."""

    def __init__(self) -> None:
        mx.synchronize()
        mx.reset_peak_memory()
        self.start = time.perf_counter()
        self.first: float | None = None
        self.last = self.start
        self.first_host = self.last_host = 0.0

    def token(self) -> None:
        """A token (or several at once) is here."""
        self.last = time.perf_counter()
        self.last_host = time.thread_time()
        if self.first is None:
            self.first, self.first_host = self.last, self.last_host

    def times(self) -> dict[str, Any]:
        """The fields of a Run that clocks fill in."""
        first = self.last if self.first is None else self.first
        return {
            "prefill_seconds": first - self.start,
            "decode_seconds": self.last - first,
            "host_seconds": self.last_host - self.first_host,
            "peak_memory_bytes": mx.get_peak_memory(),
        }


class EngineRow:
    """Our engine with one drafter."""

    def __init__(self, name: str, engine: Any, options: Options, seed: int) -> None:
        self.name = name
        self.promises = options.accept == "coupled"
        self.engine = engine
        self.reply = {key: getattr(options, key) for key in names("reply") if key not in LEFT_OUT} | {"seed": seed}

    def run(self, prompt: Sequence[int], max_tokens: int) -> Run:
        done: Done | None = None
        watch = Stopwatch()
        for event in self.engine.stream(list(prompt), **self.reply | {"max_tokens": max_tokens}):
            if isinstance(event, Text) and event.step is not None and event.step.tokens:
                watch.token()
            elif isinstance(event, Done):
                done = event
        if done is None:
            raise MlxspecError(f"The row {self.name} ended without a result: this is a bug in the engine, please report it.")
        if done.finish_reason == "interrupted":
            raise KeyboardInterrupt
        stats = done.stats
        return Run(
            tokens=tuple(done.tokens),
            **watch.times(),
            host_rounds=stats["rounds"],
            rounds=stats["rounds"],
            emitted=stats["emitted"],
            drafted=stats["drafted"],
            accepted=stats["accepted"],
            drafter=done.drafter,
            speculation=stats["speculation"],
            reason=stats["reason"],
        )


class MlxLmRow:
    """``mlx_lm.stream_generate`` on an unwrapped model, plain or with a draft model."""

    def __init__(self, name: str, model: Any, tokenizer: Any, options: Options, seed: int, draft_model: Any = None) -> None:
        self.name = name
        # the same cache contents too: mlx-lm reads another chunk before it quantises, or drops, what a bounded cache holds
        self.promises = options.temperature == 0 and options.kv_bits is None and options.max_kv_size is None
        self.model, self.tokenizer, self.draft_model, self.options, self.seed = model, tokenizer, draft_model, options, seed
        self.draft_tokens = options.draft_tokens or MLX_LM_DRAFT_TOKENS
        if draft_model is not None and options.max_kv_size is not None:
            raise MlxspecError("mlx-lm's draft loop ignores --max-kv-size: leave out one of the baseline mlx-lm-draft and the flag.")

    def run(self, prompt: Sequence[int], max_tokens: int) -> Run:
        from mlx_lm.generate import generation_stream, stream_generate

        tokens: list[int] = []
        drafted: list[bool] = []
        mx.random.seed(self.seed)
        arguments = self._arguments(max_tokens)
        watch = Stopwatch()
        for response in stream_generate(self.model, self.tokenizer, list(prompt), **arguments):
            watch.token()
            tokens.append(response.token)
            drafted.append(response.from_draft)
        mx.synchronize(generation_stream)  # it has queued one forward more than it shows
        if self.draft_model is None:
            after = len(tokens) - 1
            return Run(tuple(tokens), **watch.times(), host_rounds=after, rounds=after, emitted=after, drafted=0, accepted=0)
        rounds, proposed = draft_rounds(drafted, max_tokens, self.draft_tokens)
        return Run(
            tuple(tokens),
            **watch.times(),
            host_rounds=rounds - 1,
            rounds=rounds,
            emitted=len(tokens),
            drafted=proposed,
            accepted=sum(drafted),
            drafter="mlx-lm",
        )

    def _arguments(self, max_tokens: int) -> dict[str, Any]:
        from mlx_lm.sample_utils import make_logits_processors, make_sampler

        options = self.options
        processors = make_logits_processors(
            logit_bias=dict(options.logit_bias) if options.logit_bias else None,
            repetition_penalty=options.repetition_penalty if options.repetition_penalty != 1 else None,
            repetition_context_size=options.repetition_context_size,
        )
        arguments: dict[str, Any] = {
            "max_tokens": max_tokens,
            "sampler": make_sampler(temp=options.temperature, top_p=options.top_p, min_p=options.min_p, top_k=options.top_k),
            "logits_processors": processors or None,
        }
        if options.kv_bits is not None:
            arguments |= {"kv_bits": options.kv_bits, "quantized_kv_start": 0}
        if self.draft_model is not None:
            return arguments | {"draft_model": self.draft_model, "num_draft_tokens": self.draft_tokens}
        return arguments | {"max_kv_size": options.max_kv_size}


def draft_rounds(from_draft: Sequence[bool], max_tokens: int, draft_tokens: int) -> tuple[int, int]:
    """How many rounds mlx-lm's draft loop took, and how many tokens they drafted, read from which tokens came from the draft.

    A round is a run of drafted tokens and one of the target's own; the last one may be cut.
    >>> draft_rounds([True, True, False, False, True], 5, 2)
    (3, 5)
    """
    rounds = drafted = 0
    at_start = True
    for place, from_it in enumerate(from_draft):
        if at_start:
            rounds += 1
            drafted += min(max_tokens - place, draft_tokens)
        at_start = not from_it
    return rounds, drafted


def plain_twin(model: Any, config: Mapping[str, Any]) -> Any:
    """A second, untouched model object of the class mlx-lm gives this config, with the very same weight arrays (no copy).

    Quantised modules are found in ``model`` by path and quantised alike. Nothing is evaluated: the twin's own random weights never exist.
    """
    from mlx_lm.utils import _get_classes

    try:
        model_class, args_class = _get_classes(config=dict(config))
        twin = model_class(args_class.from_dict(dict(config)))
        spec = {path: _quantisation(module) for path, module in model.named_modules() if "scales" in module}
        if spec:
            quantize(twin, class_predicate=lambda path, module: spec.get(path, False))
        weights = _weights(model)
        twin.load_weights(list(weights.items()), strict=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"mlx-lm cannot hold this model a second time ({error}): leave the baselines out with --baselines ''.") from None
    twin.eval()
    if any(weights[name] is not array for name, array in _weights(twin).items()):
        raise ModelError("mlx-lm's second model would copy the weights instead of sharing them: leave the baselines out with --baselines ''.")
    return twin


def weight_dtype(model: Any) -> mx.Dtype:
    """The coarsest floating dtype among the weights: it bounds how exactly the logits can be known."""
    found = {array.dtype for array in _weights(model).values() if mx.issubdtype(array.dtype, mx.floating)}
    return max(found, key=lambda dtype: float(mx.finfo(dtype).eps), default=mx.float32)


def _weights(model: Any) -> dict[str, mx.array]:
    """Every weight by its path."""
    weights: dict[str, mx.array] = {}
    tree_flatten(model.parameters(), destination=weights)
    return weights


def _quantisation(module: Any) -> dict[str, Any]:
    kept = {key: getattr(module, key, None) for key in ("group_size", "bits", "mode")}
    return {key: value for key, value in kept.items() if value is not None}
