"""What a round costs on this machine: seconds of a forward by rows and context, measured once, kept on disk, and refined from live rounds.

Rows are not free and not linear: there are cliffs at 2, 4, 8 or 16 rows that differ per chip, quantisation and context, so nothing is smoothed.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxspec.core.cache import keep_rows, states
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Request, Target, result
from mlxspec.paths import cache_dir, put

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)  # both sides of the usual cliffs
FIRST = (1, 8, 2, 16, 4, 12)  # are timed before the others, so that a slow machine's curve is short of detail, not of reach
FAR = 640  # tokens of context at which the slope is measured
RATE = 0.1  # how fast live rounds move the curve
OWN_RATE = 0.03  # and one row count within it, its base and, the longer the context, its slope (normalised least mean squares)
STALE, LONGEST = 128, 8192  # live rounds after which a row count is worth a look; looks that tell nothing new are made half as often each time
LOOK_RATE = 0.4  # how far such a look moves it
NEWS = 0.25  # a look that finds another cost than believed by this share is followed by the next one soon
KEPT_EVERY = 256  # rounds after which what they taught is worth writing down
BUDGET = 6.0  # seconds after which no more chains are timed
THREADS = ("_NUM_THREADS", "_MAXIMUM_THREADS")  # of a BLAS: how many it has decides what rows cost
UNLIKELY = 2.4  # times what the rows would take one by one (recurrent layers read them twice): the machine was busy with something else
SLOW = 0.5  # seconds of a plain forward from which the slope is not worth its time


class CostCurve:
    """Seconds of one forward of the target: ``base[rows]`` at an empty context plus ``slope[rows]`` a token of it, straight lines between."""

    def __init__(self, rows: Sequence[int], base: Sequence[float], slope: Sequence[float], path: Path | None = None) -> None:
        """``path`` is where the curve is kept, if it is."""
        self.path = path
        self.seen = 0  # live rounds since it was written
        self.rows = tuple(rows)
        self.base = list(base)
        self.slope = list(slope)
        self.pace = 1.0  # how much slower the machine is of late than when it was measured
        self.rounds = 0  # live ones
        self.seen_in = [0] * len(self.rows)  # which of them had a row count last
        self.looked, self.wait = 0, STALE  # which was the last look, and after how many comes the next

    @classmethod
    def flat(cls) -> "CostCurve":
        """A memory-bound machine that was never measured: every row adds a twentieth of the first."""
        return cls(ROWS, [0.02 * (1 + 0.05 * (rows - 1)) for rows in ROWS], [0.0] * len(ROWS))

    def seconds(self, rows: int, context: int) -> float:
        """The cost of a forward of ``rows`` rows after ``context`` tokens."""
        return self.pace * (self._at(self.base, rows) + context * self._at(self.slope, rows))

    def unlikely(self) -> bool:
        """Whether some rows take far longer in one forward than one by one, which no machine does that is left alone."""
        return any(seconds > UNLIKELY * rows * self.base[0] for rows, seconds in zip(self.rows, self.base, strict=True))

    def see(self, rows: int, context: int, seconds: float) -> None:
        """A live round took so long: move the whole curve towards it, and the nearest measured rows a little more.

        A round that was held up counts as twice as long at most. A look after long tells of its row count alone: of the machine the others tell.
        """
        off = min(2.0, seconds / self.seconds(rows, context)) - 1
        nearest = self._nearest(rows)
        look = self.stale(rows)
        self.pace *= 1 + (0 if look else RATE) * off
        move = (LOOK_RATE if look else OWN_RATE) * off * (self.base[nearest] + context * self.slope[nearest])
        far = context / FAR
        self.base[nearest] += move / (1 + far**2)
        self.slope[nearest] = max(0.0, self.slope[nearest] + move / (1 + far**2) * far / FAR)
        self.seen += 1
        self.rounds += 1
        self.seen_in[nearest] = self.rounds
        if look:
            self.looked, self.wait = self.rounds, STALE if abs(off) > NEWS else min(2 * self.wait, LONGEST)

    def stale(self, rows: int) -> bool:
        """Whether no live round has shown for long what so many rows cost: a curve of a bad moment would keep itself by nobody trying them."""
        return self.rounds - max(self.looked, self.seen_in[self._nearest(rows)]) >= self.wait

    def keep(self) -> None:
        """Write down what live rounds taught of the rows, once there is enough of it; the pace is of the day and is not kept."""
        if self.path is not None and self.seen >= KEPT_EVERY:
            save(self, self.path)
            self.seen = 0

    def _nearest(self, rows: int) -> int:
        return min(range(len(self.rows)), key=lambda i: abs(self.rows[i] - rows))

    def _at(self, values: Sequence[float], rows: int) -> float:
        right = next((i for i, measured in enumerate(self.rows) if measured >= rows), len(self.rows) - 1)
        left = max(0, right - 1)
        if self.rows[right] <= rows or left == right:
            return values[right] * max(1.0, rows / self.rows[right])
        share = (rows - self.rows[left]) / (self.rows[right] - self.rows[left])
        return values[left] + share * (values[right] - values[left])


def measured(target: Target, digest: str, say: Callable[[str], None], folder: Path | None = None) -> CostCurve:
    """The curve of a target on this machine: from disk, or measured now (a few seconds, said beforehand) and kept."""
    path = (folder or cache_dir() / "cost") / f"{_key(target, digest)}.json"
    try:
        stored = json.loads(path.read_text("utf-8"))
        if not stored["rows"] or not len(stored["rows"]) == len(stored["base"]) == len(stored["slope"]) or min(stored["base"]) <= 0:
            raise ValueError("a damaged curve")
        curve = CostCurve(stored["rows"], stored["base"], stored["slope"], path)
        if curve.unlikely():
            raise ValueError("measured on a busy machine")
        return curve
    except (OSError, ValueError, KeyError, TypeError):
        say("Measuring what a round costs on this machine: a few seconds, once for this model.")
        curve = measure(target)
        if curve.unlikely():
            say("The machine was busy meanwhile, so this is measured again next time.")
            curve.base = [min(seconds, rows * curve.base[0]) for rows, seconds in zip(curve.rows, curve.base, strict=True)]
        else:
            save(curve, path)
            curve.path = path
        return curve


def measure(target: Target, repeats: int = 3) -> CostCurve:
    """Time forwards of chains at a short and at a long context, on texts of their own, for a few seconds at most."""
    near = _times(target, 32, ROWS, repeats)
    far = min(FAR, (target.context_length or FAR + 64) - 64)
    few = [rows for rows in (1, 8, 16) if rows in near]
    slope = [0.0] * len(few)
    if far > 64 and near[1] < SLOW:
        late = _times(target, far, few, repeats)
        slope = [max(0.0, (late[rows] - near[rows]) / (far - 32)) if rows in late else 0.0 for rows in few]
    lines = CostCurve(few, slope, slope)
    slopes = [lines._at(slope, rows) for rows in near]
    base = [t - 32 * s for t, s in zip(near.values(), slopes, strict=True)]
    return CostCurve(list(near), base, slopes)


def save(curve: CostCurve, path: Path) -> None:
    """Keep a curve; where the disk refuses, it is measured again next time."""
    with suppress(OSError):
        put(path, {"rows": curve.rows, "base": curve.base, "slope": curve.slope})


def _times(target: Target, context: int, grid: Sequence[int], repeats: int) -> dict[int, float]:
    """Seconds by rows, the least of a few; on a slow machine some are left out.

    Where more rows took less, the fewer are timed again: what stays dearer then is the machine's way (a BLAS may take 16 rows faster than 12).
    """
    sequence = TokenSequence(target)
    result(sequence.read([i % target.vocab_size for i in range(context)]))
    cache = sequence.cache
    recurrent = bool(states(cache))  # what they keep they read again: that is part of what a round costs
    found: dict[int, float] = {}
    begun = time.perf_counter()

    def seconds(rows: int) -> float:
        started = time.perf_counter()
        (found_rows,) = target.forward([Request(target, cache, mx.array([1] + [2] * (rows - 1), mx.uint32))])
        mx.eval(found_rows.logits)
        if recurrent:
            keep_rows(cache, rows, range(rows - 1))
            mx.eval(states(cache))
        taken = time.perf_counter() - started
        if not recurrent:
            keep_rows(cache, rows, ())
        return taken

    for rows in sorted(grid, key=lambda rows: FIRST.index(rows) if rows in FIRST else len(FIRST)):
        seconds(rows)  # warms up
        found[rows] = min(seconds(rows) for _ in range(repeats))
        if time.perf_counter() - begun > BUDGET and len(found) >= 3:
            break
    for rows in [rows for rows in found if any(found[more] < found[rows] for more in found if more > rows)]:
        found[rows] = min(found[rows], *(seconds(rows) for _ in range(repeats)))
    return dict(sorted(found.items()))


def _key(target: Target, digest: str) -> str:
    device: Any = mx.device_info()
    weights: Any = tree_flatten(target.model.parameters())
    about = (
        digest,
        sorted({str(array.dtype) for _, array in weights}),
        target.kv_bits,
        target.max_kv_size,
        platform.machine(),
        str(device.get("device_name") or platform.processor()),
        version("mlx"),
        os.environ.get("LD_PRELOAD", ""),
        sorted((name, value) for name, value in os.environ.items() if name.endswith(THREADS)),
    )
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
