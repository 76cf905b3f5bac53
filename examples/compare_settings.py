"""What adaptive drafting is worth: it against every fixed setting of a grid, and any setting against plain decoding.

    python examples/compare_settings.py PROMPTS.jsonl --per-task 6 --tokens 64 auto redrafter@1 redrafter@3 redrafter@5 lookup@4
    python examples/compare_settings.py PROMPTS.jsonl --temperature 0.8 redrafter redrafter@4

A setting is a drafter and, after @, the tokens it drafts a round (0: none at all); without @ the engine decides, round by round. All settings run
on a prompt, in turn and turned about, before the next prompt. Of each task's prompts the even ones choose the best and the worst fixed setting, and
the odd ones judge: the ratio of the first adaptive setting to those, its median and its 95 % interval.
"""

import argparse
import dataclasses
import gc
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

import mlxspec
from mlxspec.bench.prompts import read_prompts, select
from mlxspec.bench.rows import EngineRow, Run
from mlxspec.bench.stats import distinct_4grams, interval, run_speed
from mlxspec.settings.options import Options

Rates = list[float | None]  # tokens per second, by prompt


def ratios(above: Rates, below: Rates, places: Sequence[int]) -> list[float]:
    return [a / b for a, b in ((above[i], below[i]) for i in places) if a and b]


def spread(values: list[float]) -> str:
    low, high = interval(values)
    middle = f"{statistics.median(values):.3f}" if values else "-"
    return f"{middle} [{low:.3f}, {high:.3f}]" if low is not None and high is not None else middle


def judge(rates: dict[str, Rates], tasks: Sequence[str]) -> None:
    """The first adaptive setting against the fixed ones, task by task and over all."""
    adaptive = next((name for name in rates if "@" not in name and name != "none"), None)
    fixed = [name for name in rates if "@" in name]
    if adaptive is None or len(fixed) < 2:
        return
    best_all: list[float] = []
    worst_all: list[float] = []
    print(f"\n{adaptive} over the best and the worst fixed setting, chosen on the other half")
    for task in dict.fromkeys(tasks):
        places = [i for i, one in enumerate(tasks) if one == task]
        choose, rest = places[0::2], places[1::2]
        speeds = {name: statistics.median(ratios(rates[name], rates["none"], choose)) for name in fixed}
        best, worst = max(speeds, key=lambda name: speeds[name]), min(speeds, key=lambda name: speeds[name])
        over_best, over_worst = ratios(rates[adaptive], rates[best], rest), ratios(rates[adaptive], rates[worst], rest)
        best_all += over_best
        worst_all += over_worst
        print(f"  {task:15} {spread(over_best):24} of {best:14} {spread(over_worst):24} of {worst}")
    print(f"  {'all':15} {spread(best_all):24} {'':17} {spread(worst_all)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare settings of drafting.")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("settings", nargs="+", help="DRAFTER or DRAFTER@TOKENS; plain decoding is always run")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a JSON file of every run")
    given = parser.parse_args()

    engine = mlxspec.load(given.model, drafter="none")
    prompts = select(read_prompts(given.prompts), per_task=given.per_task)
    tokens = [engine.prompt_tokens(prompt.text, Options()) for prompt in prompts]
    rows = {}
    for setting in dict.fromkeys(("none", *given.settings)):
        drafter, _, draft_tokens = setting.partition("@")
        options = Options(temperature=given.temperature, draft_tokens=int(draft_tokens) if draft_tokens else None)
        rows[setting] = EngineRow(setting, engine if drafter == "none" else engine.with_drafter(drafter), options, given.seed)
    names = list(rows)
    for row in rows.values():
        row.run(tokens[0], 16)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for place, prompt in enumerate(prompts):
        turn = place % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            mx.clear_cache()
            runs[name].append(rows[name].run(tokens[place], given.tokens))
        print(f"{place + 1} of {len(prompts)} ({prompt.task})", flush=True)

    rates = {name: [run_speed(run) for run in done] for name, done in runs.items()}
    print(f"\n{'setting':16} {'x plain':24} {'tokens a round':>14} {'same text':>10}")
    for name in names:
        speed = ratios(rates[name], rates["none"], range(len(prompts)))
        rounds, emitted = sum(run.rounds for run in runs[name]), sum(run.emitted for run in runs[name])
        same = sum(a.tokens == b.tokens for a, b in zip(runs[name], runs["none"], strict=True))
        print(f"{name:16} {spread(speed):24} {emitted / max(1, rounds):14.2f} {same:>6} of {len(prompts)}")
    print(f"distinct 4-grams of the plain text: {distinct_4grams([run.tokens for run in runs['none']])}")
    judge(rates, [prompt.task for prompt in prompts])
    if given.out:
        told: dict[str, Any] = {name: [dataclasses.asdict(run) for run in done] for name, done in runs.items()}
        given.out.write_text(json.dumps({"tasks": [prompt.task for prompt in prompts], "runs": told}) + "\n")


if __name__ == "__main__":
    main()
