"""The benchmark: several drafters and mlx-lm's own loops over the same prompts, interleaved, on one model in memory.

Every round of prompts runs all rows one after the other (A B C, then B C A, …), so that a machine that warms up or throttles
does so for all of them. Clocks are in ``bench_rows``, the statistics in ``bench_stats``.
"""

import gc
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxspec.bench.prompts import BenchPrompt, read_prompts, select
from mlxspec.bench.table import format_table
from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.settings.options import Options

__all__ = ["BASELINES", "BenchOptions", "format_table", "run_bench"]

BASELINES = ("mlx-lm", "mlx-lm-draft")
WARM_UP_TOKENS = 16
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to compare, on what. ``options`` shapes the replies (every row gets the same); ``limit`` counts prompts in all, spread over the tasks."""

    options: Options
    drafters: tuple[str, ...]
    baselines: tuple[str, ...]
    prompts: Path
    tasks: tuple[str, ...] = ()
    per_task: int | None = None
    limit: int | None = None
    repeats: int = 1
    draft_model: str | None = None
    plot: Path | None = None

    def __post_init__(self) -> None:
        for name in self.baselines:
            if name not in BASELINES:
                raise UsageError(f"--baselines {one_line(name)} is unknown: give mlx-lm, mlx-lm-draft, both, or ''.")
        if "mlx-lm-draft" in self.baselines and self.small is None:
            raise UsageError("The baseline mlx-lm-draft needs a small model: give --draft-model MODEL, or --drafters with small or small:MODEL.")
        for flag, value in (("--per-task", self.per_task), ("--limit", self.limit), ("--repeats", self.repeats)):
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value} makes no sense: give a whole number from 1.")
        if 0 <= self.options.max_tokens < 2:
            raise UsageError(f"--max-tokens {self.options.max_tokens} leaves nothing to time: speed counts the tokens after the first.")
        if self.options.max_tokens < 0:
            raise UsageError(f"--max-tokens {self.options.max_tokens} sets no limit: a benchmark needs one.")
        if self.options.stop and self.baselines:
            raise UsageError("--stop and the mlx-lm baselines exclude each other, as mlx-lm knows no stop strings: give --baselines ''.")
        if self.options.strict or self.options.require_spec:
            flag = "--strict" if self.options.strict else "--require-spec"
            raise UsageError(f"{flag} has no meaning for bench: each row says whether it speculated. Leave it out.")

    @property
    def small(self) -> str | None:
        """The drafter whose model the baseline mlx-lm-draft drafts with: that of --draft-model, else of the first such row of ours."""
        if self.draft_model:
            return f"small:{self.draft_model}"
        return next((name for name in self.drafters if name.partition(":")[0] == "small"), None)


@dataclass(slots=True)
class _Row:
    """A row in the making. A failure during the run keeps what was done before."""

    name: str
    runner: Any = None
    error: str | None = None
    runs: dict[tuple[int, int], Any] = field(default_factory=dict)


def run_bench(bench: BenchOptions, say: Say) -> dict[str, Any]:
    """Load the model, run everything, and return the object of ``bench --json``. ``say`` gets one-line notices.

    Ctrl-C ends the run early: the result holds what is complete, with ``interrupted`` true. A row that fails carries an ``error``.
    """
    from mlxspec.bench.plot import check_plot, write_plot

    if bench.plot is not None:
        check_plot(bench.plot)
    prompts = select(read_prompts(bench.prompts), bench.tasks, bench.per_task, bench.limit)
    from mlxspec.drafters.kinds import check_name
    from mlxspec.llm.engine import load

    for name in bench.drafters:
        check_name(name)
    options = bench.options
    engine = load(
        options.model,
        drafter="none",
        dtype=options.dtype,
        max_kv_size=options.max_kv_size,
        kv_bits=options.kv_bits,
        offline=options.offline,
        yes=options.yes,
        force=options.force,
        say=say,
    )
    result = bench_engine(engine, prompts, bench, say)
    if bench.plot is not None:
        try:
            write_plot(result, bench.plot)
        except Exception as error:  # the figures are worth more than their picture
            result["plot_error"] = _message(error)
            say(f"There is no plot: {result['plot_error']}")
    return result


def bench_engine(engine: Any, prompts: Sequence[BenchPrompt], bench: BenchOptions, say: Say) -> dict[str, Any]:
    """The benchmark on a loaded engine."""
    from mlxspec.bench.rows import weight_dtype
    from mlxspec.machine import machine

    seed = bench.options.seed if bench.options.seed is not None else secrets.randbits(32)
    kept, tokens, skipped = _encode(engine, prompts, bench.options, say)
    rows = _rows(engine, bench, seed)
    interrupted = False
    try:
        _measure(rows, kept, tokens, bench, say)
    except KeyboardInterrupt:
        interrupted = True
        say("Interrupted: these figures are of the prompts that every row had finished.")
    dtype = str(weight_dtype(engine.target.model)).rsplit(".", 1)[-1]
    options = bench.options
    return {
        "model": engine.model_name,
        "machine": machine(dtype),
        "settings": {
            "accept": options.accept,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "top_k": options.top_k,
            "min_p": options.min_p,
            "repetition_penalty": options.repetition_penalty,
            "max_tokens": options.max_tokens,
            "repeats": bench.repeats,
            "seed": seed,
            "prompts": len(kept),
            "tasks": list(dict.fromkeys(prompt.task for prompt in kept)),
        },
        "skipped": skipped,
        "interrupted": interrupted,
        "rows": _report(rows, engine, kept, tokens, options, seed),
    }


def _encode(
    engine: Any, prompts: Sequence[BenchPrompt], options: Options, say: Say
) -> tuple[list[BenchPrompt], list[list[int]], list[dict[str, Any]]]:
    """Token ids of each prompt, once for all rows. A prompt that leaves no room for the reply is left out, and said to be."""
    kept: list[BenchPrompt] = []
    tokens: list[list[int]] = []
    skipped: list[dict[str, Any]] = []
    room = engine.target.context_length
    for prompt in prompts:
        try:
            ids = engine.prompt_tokens(prompt.text, options)
            if room is not None and len(ids) + options.max_tokens > room:
                raise UsageError(
                    f"Its {len(ids)} tokens and a reply of {options.max_tokens} exceed the context of {room}: give a smaller --max-tokens."
                )
        except UsageError as error:
            skipped.append({"prompt": prompt.id, "task": prompt.task, "reason": str(error)})
        else:
            kept.append(prompt)
            tokens.append(ids)
    if skipped:
        first = f"prompt {one_line(str(skipped[0]['prompt']))}: {skipped[0]['reason']}"
        if not kept:
            raise UsageError(f"None of the {len(prompts)} prompts can be run. {first[0].upper()}{first[1:]}")
        say(f"Left out {len(skipped)} of {len(prompts)} prompts; {first}")
    return kept, tokens, skipped


def _rows(engine: Any, bench: BenchOptions, seed: int) -> list[_Row]:
    """All rows, ``none`` first: every speedup is against it. One that cannot be built is refused before anything is timed."""
    from mlxspec.bench.rows import EngineRow, MlxLmRow, plain_twin

    small = bench.small
    drafters = [small if name == "small" and bench.draft_model and small else name for name in bench.drafters]
    rows = [_Row(name) for name in dict.fromkeys(("none", *drafters))]
    engines: dict[str, Any] = {}
    twin: list[Any] = []

    def ours(name: str) -> EngineRow:
        engines[name] = engine.with_drafter(name)
        return EngineRow(name, engines[name], bench.options, seed)

    def theirs(name: str) -> MlxLmRow:
        if not twin:
            twin.append(plain_twin(engine.target.model, engine.loaded.config))
        draft = None
        if name == "mlx-lm-draft":
            assert small is not None  # checked with the options
            draft = (engines.get(small) or engine.with_drafter(small)).drafting.drafter.model
            draft = twin[0] if draft is engine.target.model else draft
        return MlxLmRow(name, twin[0], engine.tokenizer, bench.options, seed, draft)

    for row in rows:
        _build(row, ours)
    for row in (baselines := [_Row(name) for name in dict.fromkeys(bench.baselines)]):
        _build(row, theirs)
    return rows + baselines


def _build(row: _Row, build: Callable[[str], Any]) -> None:
    try:
        row.runner = build(row.name)
    except Exception as error:
        raise UsageError(f"The row {row.name} cannot run. {_message(error)}") from error


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, MlxspecError) else f"{type(error).__name__}: {error}"


def _measure(rows: Sequence[_Row], prompts: Sequence[BenchPrompt], tokens: Sequence[list[int]], bench: BenchOptions, say: Say) -> None:
    """Warm up, then run all rows on each prompt before the next prompt. A prompt counts once all rows are through with it."""
    import mlx.core as mx

    def run(row: _Row, place: int, max_tokens: int) -> Any:
        gc.collect()
        mx.clear_cache()
        try:
            return row.runner.run(tokens[place], max_tokens)
        except Exception as error:  # a row that fails must not take the others with it
            row.error = _message(error)
            return None

    say(f"Warming up {sum(row.error is None for row in rows)} rows.")
    for row in rows:
        if row.error is None:
            run(row, 0, min(WARM_UP_TOKENS, bench.options.max_tokens))
    start, done, total = time.monotonic(), 0, bench.repeats * len(prompts)
    for repeat in range(bench.repeats):
        for place, prompt in enumerate(prompts):
            left = f", about {(time.monotonic() - start) / done * (total - done):.0f} s left" if done else ""
            say(f"Prompt {done + 1} of {total} ({one_line(prompt.task)}){left}.")
            turn = (place + repeat) % len(rows)
            found = [(row, run(row, place, bench.options.max_tokens)) for row in [*rows[turn:], *rows[:turn]] if row.error is None]
            for row, one in found:
                if one is not None:
                    row.runs[place, repeat] = one
            done += 1


def _report(
    rows: Sequence[_Row], engine: Any, prompts: Sequence[BenchPrompt], tokens: Sequence[list[int]], options: Options, seed: int
) -> list[dict[str, Any]]:
    from mlxspec.bench.stats import row_numbers
    from mlxspec.bench.ties import identity

    plain = rows[0].runs
    report = []
    for row in rows:
        numbers = row_numbers(row.runs, plain, prompts)
        compared = identity(row.runs if row.runner.promises else {}, plain, engine, prompts, tokens, options, seed)
        last = next(reversed(row.runs.values()), None)
        said = {key: getattr(last, key, None) for key in ("drafter", "speculation", "reason")}
        report.append({"name": row.name, "error": row.error, **numbers, **compared, **said})
    return report
