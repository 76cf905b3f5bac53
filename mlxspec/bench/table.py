"""A benchmark's result as a table for any terminal or log: plain ASCII, but for names that come from files."""

from collections.abc import Sequence
from typing import Any

from mlxspec.display import one_line

HEADS = ("row", "tok/s", "speedup", "95 %", "tokens/round", "accepted", "identical", "host ms/round")


def format_table(result: dict[str, Any]) -> str:
    """The rows, what went wrong or differs, and the speedups by task."""
    machine, settings, rows = result["machine"], result["settings"], result["rows"]
    head = [
        f"{result['model']} ({machine['dtype']}) on {machine['chip']}, {machine['device']}, BLAS {machine['blas'] or 'unknown'}",
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}; {settings['prompts']} prompts x {settings['repeats']}, up to {settings['max_tokens']}"
        f" tokens, temperature {settings['temperature']:g}, accept {settings['accept']}, seed {settings['seed']}",
    ]
    if result["interrupted"]:
        head.append("Interrupted: only what was complete is counted.")
    lines = [*map(one_line, head), "", *_aligned([HEADS, *map(_cells, rows)])]
    notes = [one_line(note) for row in rows for note in _notes(row)]
    tasks = settings["tasks"]
    if len(tasks) > 1:
        table = [("speedup by task", *map(one_line, tasks))]
        table += [(short(row["name"]), *(_number(row["by_task"][task]["speedup"], 2) for task in tasks)) for row in rows if row["name"] != "none"]
        lines += ["", *_aligned(table)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def short(name: str) -> str:
    """A row's name in little room: of a path only its end.

    >>> short("small:/home/me/models/smollm2"), short("small:org/a-model-with-a-rather-long-name-4bit")
    ('small:.../smollm2', 'small:.../a-model-with-a-rather-long-name-4bit')
    """
    kind, colon, model = one_line(name).partition(":")
    return f"{kind}:.../{model.rstrip('/').rpartition('/')[2]}" if "/" in model and len(name) > 24 else f"{kind}{colon}{model}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    low, high = row["speedup_low"], row["speedup_high"]
    host = row["host_seconds_per_round"]
    identical = {None: "-", True: "yes", False: "ties" if row["only_ties"] else "NO"}[row["identical_to_plain"]]
    return (
        short(row["name"]),
        _number(row["tokens_per_second"], 1),
        _number(row["speedup"], 2),
        f"[{low:.2f}, {high:.2f}]" if low is not None else "-",
        _number(row["tokens_per_round"], 2),
        f"{row['accepted']}/{row['drafted']}" if row["drafted"] else "-",
        identical,
        _number(None if host is None else 1000 * host, 2),
    )


def _notes(row: dict[str, Any]) -> list[str]:
    notes = []
    if row["error"] is not None:
        notes.append(f"{row['name']} failed: {row['error']}")
    first = row["first_difference"]
    if first is not None:
        what = f"tie, gap {first['gap']:.2g} under {first['tolerance']:.2g} in {first['dtype']}" if first["tie"] else "not a tie"
        if not first["tie"] and first["gap"] is not None:
            what += f", gap {first['gap']:.2g} over {first['tolerance']:.2g} in {first['dtype']}"
        where = f"prompt {first['prompt']}, token {first['position']}"
        notes.append(f"{row['name']} first differs from plain at {where}: {first['tokens'][0]} became {first['tokens'][1]} ({what})")
        if row["ties"]:
            notes.append(f"{row['name']}: {len(row['ties'])} of the differences are ties")
    if row["speculation"] == "off" and row["reason"] and row["name"] != "none":
        notes.append(f"{row['name']} did not speculate: {row['reason']}")
    return notes


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    pads = [str.ljust, *[str.rjust] * (len(widths) - 1)]  # names to the left, numbers to the right
    return ["  ".join(pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True)).rstrip() for line in table]


def _number(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"
