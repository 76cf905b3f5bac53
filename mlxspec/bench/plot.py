"""The picture of a benchmark: speedup by task and row, with its 95 % interval, as PNG or SVG. matplotlib comes with ``mlxspec[plot]``."""

from pathlib import Path
from typing import Any

from mlxspec.bench.table import short
from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.extras import need

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
    _save(figure, path)


def write_frontier(result: dict[str, Any], path: Path) -> None:
    """Draw compared speech: a point for each row that speaks, a line through the group sizes of a rule and drafter, the codec below."""
    from mlxspec.bench.speech import Row

    spoken = [row for row in result["rows"] if row["tokens_per_round"] is not None]
    judged = any(row["word_error"] is not None for row in spoken)
    figure = _figure()(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for row in spoken:
        read = Row.of(row["name"])
        height = 100 * (row["word_error"] or 0) if judged else row["tokens_per_second"]
        size = "" if read.group_size is None else f"{read.group_size:g}"
        lines.setdefault(f"{read.accept}:{read.drafter}", []).append((row["tokens_per_round"], height, size))
    for name, points in lines.items():
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", label=short(name))
        for x, y, size in points:
            axes.annotate(size, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    for row in result["rows"]:
        if row["name"] in ("teacher", "codec") and row["word_error"] is not None:
            axes.axhline(
                100 * row["word_error"], color="black", linewidth=0.8, linestyle=":" if row["name"] == "teacher" else "--", label=row["name"]
            )
    axes.set_xlabel("tokens a round")
    axes.set_ylabel("word error, %" if judged else "tokens a second")
    axes.set_title(one_line(f"{result['voice']}: {result['lines']} sentences, {result['seeds']} seeds; numbers are mean group sizes"), fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, format=path.suffix.lower()[1:], dpi=150)
    except OSError as error:
        raise MlxspecError(f"Cannot write {path}: {error.strerror or error}. Name another file with --plot.") from None


def _figure() -> Any:
    return need("matplotlib.figure", "plot", "--plot").Figure
