"""Whether a row's text equals plain decoding's, and whether a difference is a tie of float rounding or a fault.

A tie is a place where the target itself can hardly tell the two tokens apart: the gap between their scores, from one more forward over the
common prefix, is under a stated tolerance. Rows of a batch are added up in another order than one row alone, so such a gap may turn over.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from mlxspec.bench.prompts import BenchPrompt
from mlxspec.bench.rows import LEFT_OUT, Run, weight_dtype
from mlxspec.bench.stats import difference
from mlxspec.settings.options import Options, names

FLOAT32_TOLERANCE = 1e-3
ROUNDINGS = 64  # of a logit near 1: what a coarser dtype may be off by


def tolerance(dtype: mx.Dtype, temperature: float) -> float:
    """The gap under which two tokens tie. Scores are divided by the temperature, and so are their errors; a distance from the nucleus edge is not.

    >>> tolerance(mx.float32, 0), tolerance(mx.float16, 0), tolerance(mx.bfloat16, 0)
    (0.001, 0.0625, 0.5)
    """
    gap = max(FLOAT32_TOLERANCE, ROUNDINGS * float(mx.finfo(dtype).eps))
    return gap / temperature if temperature > 0 else gap


def identity(
    runs: Mapping[tuple[int, int], Run],
    plain: Mapping[tuple[int, int], Run],
    engine: Any,
    prompts: Sequence[BenchPrompt],
    tokens: Sequence[list[int]],
    options: Options,
    seed: int,
) -> dict[str, Any]:
    """The fields ``identical_to_plain``, ``only_ties``, ``first_difference`` and ``ties`` of a row.

    All of a row's repeats are held against the first plain run of the prompt. With no runs (or no promise) the answer is None, not true.
    """
    differences: list[dict[str, Any]] = []
    seen: set[tuple[int, int, int | None, int | None]] = set()
    compared = 0
    for (place, repeat), run in sorted(runs.items()):
        if (place, 0) not in plain:
            continue
        compared += 1
        found = difference(plain[place, 0].tokens, run.tokens)
        if found is not None and (place, *found) not in seen:
            seen.add((place, *found))
            common = tokens[place] + list(run.tokens[: found[0]])
            entry = {"prompt": prompts[place].id, "task": prompts[place].task, "repeat": repeat, "position": found[0], "tokens": [found[1], found[2]]}
            differences.append(entry | _judge(engine, common, found, options, seed))
    ties = [entry for entry in differences if entry["tie"]]
    faults = [entry for entry in differences if not entry["tie"]]
    return {
        "identical_to_plain": not differences if compared else None,
        "only_ties": not faults if differences else None,
        "first_difference": next(iter(faults + ties), None),
        "ties": ties,
    }


def _judge(engine: Any, common: list[int], found: tuple[int, int | None, int | None], options: Options, seed: int) -> dict[str, Any]:
    dtype = weight_dtype(engine.target.model)
    _, ours, theirs = found
    gap, measure = None, None
    if ours is not None and theirs is not None:
        reply = {key: getattr(options, key) for key in names("reply") if key not in LEFT_OUT} | {"seed": seed}
        gap, measure = engine.gap(common, ours, theirs, **reply)
    limit = tolerance(dtype, options.temperature if measure == "score" else 0)
    tie = gap is not None and gap <= limit
    return {"gap": gap, "measure": measure, "tolerance": limit, "dtype": str(dtype).rsplit(".", 1)[-1], "tie": tie}
