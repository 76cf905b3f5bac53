"""Numbers out of runs: paired ratios, medians, bootstrap intervals. Pure; knows no engine and reads no clock.

Conventions. Speed is tokens after the first / seconds from the first to the last. ``speedup`` is the median over prompts of the ratio
to plain decoding; a prompt's ratio is the median over its repeats, each against the plain run of the same repeat. Its interval is a 95 %
bootstrap over prompts, seeded, and None for a single prompt. ``tokens_per_round`` counts the bonus token and leaves out the prefill's.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlxspec.bench.prompts import BenchPrompt
from mlxspec.bench.rows import Run

RESAMPLES = 2000
Runs = Mapping[tuple[int, int], Run]  # (place of the prompt, repeat)


def row_numbers(runs: Runs, plain: Runs, prompts: Sequence[BenchPrompt]) -> dict[str, Any]:
    """All of a row's figures that need no second look at the model."""
    tasks = list(dict.fromkeys(prompt.task for prompt in prompts))
    all_runs = list(runs.values())
    speeds = [speed for speed in _by_prompt({key: run_speed(run) for key, run in runs.items()}).values() if speed is not None]
    ratios = prompt_ratios(runs, plain)
    host_rounds = sum(run.host_rounds for run in all_runs)
    drafted, accepted = sum(run.drafted for run in all_runs), sum(run.accepted for run in all_runs)
    return {
        **_group(runs, ratios),
        "spread": {"tokens_per_second": quartiles(speeds), "speedup": quartiles(list(ratios.values()))},
        "tokens": sum(len(run.tokens) for run in all_runs),
        "rounds": sum(run.rounds for run in all_runs),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": _over(accepted, drafted),
        "host_seconds_per_round": _over(sum(run.host_seconds for run in all_runs), host_rounds),
        "prefill_seconds": statistics.median(run.prefill_seconds for run in all_runs) if all_runs else None,
        "peak_memory_bytes": max((run.peak_memory_bytes for run in all_runs), default=None),
        "distinct_4grams": distinct_4grams([run.tokens for (_, repeat), run in runs.items() if repeat == 0]),
        "by_task": {task: _task(runs, ratios, prompts, task) for task in tasks},
    }


def run_speed(run: Run) -> float | None:
    """Tokens per second, or None where a reply has one token only."""
    return _over(len(run.tokens) - 1, run.decode_seconds) if len(run.tokens) > 1 else None


def prompt_ratios(runs: Runs, plain: Runs) -> dict[int, float]:
    """Each prompt's speed over the plain one's: the median over repeats of ratios within one repeat."""
    ratios: dict[tuple[int, int], float | None] = {}
    for key, run in runs.items():
        ours, theirs = run_speed(run), run_speed(plain[key]) if key in plain else None
        ratios[key] = ours / theirs if ours is not None and theirs else None
    return {place: ratio for place, ratio in _by_prompt(ratios).items() if ratio is not None}


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """A 95 % bootstrap interval of the median. One value alone has none."""
    if len(values) < 2:
        return None, None
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(np.asarray(values)[picks], axis=1), (0.025, 0.975))
    return float(low), float(high)


def quartiles(values: Sequence[float]) -> list[float] | None:
    """First and third quartile over prompts."""
    if not values:
        return None
    return [float(value) for value in np.quantile(np.asarray(values), (0.25, 0.75))]


def distinct_4grams(replies: Sequence[Sequence[int]]) -> float | None:
    """Share of a reply's runs of four tokens that are different ones; a reply that goes round in circles comes near 0, and is easy to guess."""
    total = distinct = 0
    for tokens in replies:
        grams = [tuple(tokens[start : start + 4]) for start in range(len(tokens) - 3)]
        total += len(grams)
        distinct += len(set(grams))
    return _over(distinct, total)


def difference(plain: Sequence[int], tokens: Sequence[int]) -> tuple[int, int | None, int | None] | None:
    """Where two replies part: position in the reply, and both tokens there (None where one reply has ended)."""
    if tuple(plain) == tuple(tokens):
        return None
    position = next((i for i, (a, b) in enumerate(zip(plain, tokens, strict=False)) if a != b), min(len(plain), len(tokens)))
    at = [reply[position] if position < len(reply) else None for reply in (plain, tokens)]
    return position, at[0], at[1]


def _task(runs: Runs, ratios: Mapping[int, float], prompts: Sequence[BenchPrompt], task: str) -> dict[str, Any]:
    inside = {place for place, prompt in enumerate(prompts) if prompt.task == task}
    return _group({key: run for key, run in runs.items() if key[0] in inside}, {place: ratio for place, ratio in ratios.items() if place in inside})


def _group(runs: Runs, ratios: Mapping[int, float]) -> dict[str, Any]:
    timed = [run for run in runs.values() if len(run.tokens) > 1]
    values = list(ratios.values())
    low, high = interval(values)
    return {
        "tokens_per_second": _over(sum(len(run.tokens) - 1 for run in timed), sum(run.decode_seconds for run in timed)),
        "speedup": float(statistics.median(values)) if values else None,
        "speedup_low": low,
        "speedup_high": high,
        "tokens_per_round": _over(sum(run.emitted for run in runs.values()), sum(run.rounds for run in runs.values())),
        "prompts": len(values),
    }


def _by_prompt(values: Mapping[tuple[int, int], float | None]) -> dict[int, float | None]:
    repeats: dict[int, list[float]] = {}
    for (place, _), value in values.items():
        if value is not None:
            repeats.setdefault(place, []).append(value)
    return {place: statistics.median(found) for place, found in repeats.items()}


def _over(above: float, below: float) -> float | None:
    return above / below if below else None
