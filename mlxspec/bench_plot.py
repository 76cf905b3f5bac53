"""The picture of a benchmark: speedup by task and row, with its 95 % interval, as PNG or SVG. matplotlib comes with ``mlxspec[plot]``."""

import importlib
from pathlib import Path
from typing import Any

from mlxspec.bench_table import short
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.terminal import one_line

FORMATS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise before a long run rather than after it: a format we do not draw, a missing folder, no matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path} is of no format we draw: name a .png or .svg file.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: the folder {path.absolute().parent} does not exist. Create it, or name another file.")
    _figure()


def write_plot(result: dict[str, Any], path: Path) -> None:
    """Draw a finished benchmark."""
    rows = [row for row in result["rows"] if row["name"] != "none" and row["speedup"] is not None]
    tasks = list(dict.fromkeys(task for row in rows for task in row["by_task"]))
    groups = [*tasks, "all tasks"] if len(tasks) != 1 else tasks
    figure = _figure()(figsize=(max(6.0, 1.2 + 0.32 * len(groups) * (len(rows) + 1)), 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(rows))
    for place, row in enumerate(rows):
        found = [row if group == "all tasks" else row["by_task"].get(group) for group in groups]
        bars = [(x, numbers) for x, numbers in enumerate(found) if numbers is not None and numbers["speedup"] is not None]
        left = [x + (place - (len(rows) - 1) / 2) * width for x, _ in bars]
        axes.bar(left, [numbers["speedup"] for _, numbers in bars], width, label=short(row["name"]))
        for at, (_, numbers) in zip(left, bars, strict=True):
            if numbers["speedup_low"] is not None:  # one prompt alone has no interval
                axes.plot([at, at], [numbers["speedup_low"], numbers["speedup_high"]], color="black", linewidth=1)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), [one_line(group) for group in groups], rotation=20, ha="right")
    axes.set_ylabel("speed / plain decoding (median)")
    axes.set_title(one_line(f"{result['model']}, {result['machine']['chip']}, {result['machine']['dtype']}"), fontsize=9)
    if rows:
        figure.legend(loc="outside lower center", ncols=min(4, len(rows)), fontsize=8)
    try:
        figure.savefig(path, format=path.suffix.lower()[1:], dpi=150)
    except OSError as error:
        raise MlxspecError(f"Cannot write {path}: {error.strerror or error}. Name another file with --plot.") from None


def _figure() -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise MlxspecError("--plot needs matplotlib, which is not installed: pip install 'mlxspec[plot]'.") from None
