"""``mlxspec inspect``: prints a trace, round by round, then what the rounds add up to. Marks do not rest on colour."""

from collections.abc import Mapping
from pathlib import Path

from mlxspec.cli.arguments import Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.display import one_line, visible
from mlxspec.errors import UsageError
from mlxspec.llm.trace import PARTS, Round, Trace, read, summary

LEGEND = "+accepted  -rejected  =the target's own; (…) hangs where the target went another way"


def parser() -> Parser:
    result = Parser("inspect", "FILE", "Print a trace that generate --trace wrote.", epilog=f"Marks: {LEGEND}")
    result.switch("--json", help="the sums as one JSON object")
    result.switch("--debug", help="show a traceback where something fails")
    return result


def inspect(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    given, words = parser().read(argv)
    if len(words) != 1:
        raise UsageError(f"inspect takes one file, and {len(words)} were given: mlxspec inspect FILE.")
    trace = read(Path(words[0]))
    if getattr(given, "json", False):
        terminal.json({**trace.header, **summary(trace.rounds), "complete": trace.end is not None, "stats": trace.end and trace.end["stats"]})
        return 0
    for line in listing(trace, terminal):
        terminal.print(line)
    return 0


def listing(trace: Trace, terminal: Terminal) -> list[str]:
    """The lines of a trace."""
    header = trace.header
    parts = [f"{header.get('model')}", f"drafter {header.get('drafter')}", f"{header.get('accept')}", f"seed {header.get('seed')}"]
    lines = [one_line(terminal.dot.join([*parts, f"{header.get('prompt_tokens')} prompt tokens"])), LEGEND.replace("…", "..."), ""]
    several = len({step.drafter for step in trace.rounds[1:]}) > 1
    for number, step in enumerate(trace.rounds):
        count = f"{len(step.path)}/{len(step.rows)}" if step.rows else ""
        name = f"  {one_line(step.drafter):<9}" if several else ""
        lines.append(f"{number:>5}  {count:>5}{name}  {' '.join(marked(step, terminal))}")
    return [*lines, "", *sums(trace, terminal)]


def marked(step: Round, terminal: Terminal) -> list[str]:
    """A round's tokens: kept rows in order, what was rejected beside them, then what the target said itself."""

    def rejected(row: int) -> str:
        below = " ".join(rejected(child) for child in step.children(row))
        return terminal.paint(f"-{visible(step.rows[row])}", "2;31") + (f" {below}" if below else "")

    shown, above = [], -1
    for row in (*step.path, None):
        if row is not None:
            shown.append(terminal.paint(f"+{visible(step.rows[row])}", "32"))
        if aside := [rejected(child) for child in step.children(above) if child != row]:
            shown.append(f"({' '.join(aside)})")
        above = row if row is not None else -1
    return shown + [terminal.paint(f"={visible(text)}", "1") for text in step.own]


def sums(trace: Trace, terminal: Terminal) -> list[str]:
    """Totals, what was kept by depth, and where the time went."""
    total = summary(trace.rounds)
    stats = trace.end["stats"] if trace.end else {}
    parts = [f"{total['rounds']} rounds", f"{total['emitted']} tokens after the first"]
    if total["rounds"]:
        parts.append(f"{total['tokens_per_round']:.2f} tokens/round")
    if total["drafted"]:
        parts.append(f"accepted {total['accepted']}/{total['drafted']}")
    if isinstance(speed := stats.get("tokens_per_second"), int | float):
        parts.append(f"{speed:.1f} tok/s")
    lines = [terminal.dot.join(parts)]
    for depth, row in enumerate(total["by_depth"], 1):
        share = row["accepted"] / row["drafted"] if row["drafted"] else 0.0
        reached = f"{row['accepted']} of {row['reached']} that got so far"
        lines.append(
            f"depth {depth}: accepted in {row['accepted']} of {row['drafted']} rounds ({share:.0%}, {reached}) {terminal.bar(share)}".rstrip()
        )
    whole = sum(total["seconds"].values())
    if whole:
        lines.append("time: " + terminal.dot.join(f"{part} {total['seconds'][part]:.2f} s ({total['seconds'][part] / whole:.0%})" for part in PARTS))
    if trace.end is None:
        lines.append("The trace has no last line: the run was killed, or is still going on.")
    else:
        lines.append(f"ended: {one_line(str(trace.end.get('finish_reason')))}")
    return lines
