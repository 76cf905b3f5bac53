"""``mlxspec bench``: reads the flags; the work is done in ``mlxspec/bench/run.py``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxspec.cli.arguments import Parser, whole
from mlxspec.cli.terminal import Terminal
from mlxspec.errors import UsageError
from mlxspec.settings import config
from mlxspec.settings.options import Options
from mlxspec.settings.values import FIELDS

NOT_HERE = ("drafter", "require_spec", "strict")  # the rows say which drafter, and whether it speculated


def parser() -> Parser:
    result = Parser(
        "bench",
        "--prompts FILE",
        "Run drafters, plain decoding and mlx-lm's own loops over the same prompts, interleaved, and compare their speed and their text.",
        epilog="A prompt file has one JSON object a line, with turns or prompt, and optionally task (Spec-Bench's format).",
    )
    rows = result.add_argument_group("rows")
    result.one("--drafters", help="rows of ours, with commas (default: none,lookup)", kind=listed, metavar="A,B", to=rows)
    result.one("--baselines", help="rows of mlx-lm: mlx-lm, mlx-lm-draft, or '' (default: mlx-lm)", kind=listed, metavar="A,B", to=rows)
    result.one("--draft-model", help="the model of the rows small and mlx-lm-draft (default: the one that ships)", metavar="REPO", to=rows)
    work = result.add_argument_group("prompts")
    result.one("--prompts", help="the prompt file", metavar="FILE.jsonl", to=work)
    result.one("--tasks", help="only these tasks, with commas", kind=listed, metavar="A,B", to=work)
    result.one("--per-task", help="the first N prompts of each task", kind=whole("--per-task"), metavar="N", to=work)
    result.one("--limit", help="N prompts in all, spread over the tasks", kind=whole("--limit"), metavar="N", to=work)
    result.one("--repeats", help="how often each prompt is run (default: 1)", kind=whole("--repeats"), metavar="R", to=work)
    result.options(leave_out=NOT_HERE, defaults={"temperature": 0})
    output = result.add_argument_group("output")
    result.switch("--json", help="print one JSON object in place of the table", to=output)
    result.one("--plot", help="write a plot", metavar="FILE.png|svg", to=output)
    result.common(output)
    return result


def listed(text: str) -> tuple[str, ...]:
    """``a,b`` as ("a", "b"); the empty text is no name at all."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def bench(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb. Ends with 1 where a row failed, with 130 where Ctrl-C cut it short."""
    if any(word.partition("=")[0] == "--speech" for word in argv):
        from mlxspec.cli.bench_speech import bench_speech

        return bench_speech(argv, terminal)
    namespace, words = parser().read(argv)
    given: dict[str, Any] = vars(namespace)
    if words:
        raise UsageError(f"bench takes no arguments, and {words[0]!r} was given: prompts come from --prompts FILE.")
    if "prompts" not in given:
        raise UsageError("bench needs prompts: give --prompts FILE.jsonl, one JSON object a line.")
    drafters, baselines = given.get("drafters", ("none", "lookup")), given.get("baselines", ("mlx-lm",))
    if "draft_model" in given and "small" not in drafters and "mlx-lm-draft" not in baselines:
        raise UsageError("--draft-model serves the rows small and mlx-lm-draft, and neither is asked for: give --drafters or --baselines with one.")
    terminal.quiet = given.get("quiet", False)
    settings = {"temperature": 0.0} | config.settings(environ) | given
    options = Options(**{name: value for name, value in settings.items() if name in FIELDS and name not in NOT_HERE})

    from mlxspec.bench.run import BenchOptions, format_table, run_bench

    asked = BenchOptions(
        options=options,
        drafters=drafters,
        baselines=baselines,
        prompts=Path(given["prompts"]),
        tasks=given.get("tasks", ()),
        per_task=given.get("per_task"),
        limit=given.get("limit"),
        repeats=given.get("repeats", 1),
        draft_model=given.get("draft_model"),
        plot=Path(given["plot"]) if "plot" in given else None,
    )
    with terminal.stdout_guarded():
        result = run_bench(asked, terminal.notice)
    if given.get("json", False):
        terminal.json(result)
    else:
        terminal.print(format_table(result))
    if result.get("interrupted"):
        return 130
    failed = [row["name"] for row in result["rows"] if row.get("error")]
    if failed:
        terminal.error(f"mlxspec: {', '.join(failed)} failed: the {'result' if given.get('json') else 'table'} says why.")
    return 1 if failed else 0
