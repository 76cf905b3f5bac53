"""The benchmark: its numbers against hand-made clocks, its order of runs, its prompt files, and one whole run on a tiny model."""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxspec import machine
from mlxspec.bench import rows as bench_rows
from mlxspec.bench import run as bench
from mlxspec.bench import stats as bench_stats
from mlxspec.bench import table as bench_table
from mlxspec.bench import ties as bench_ties
from mlxspec.bench.prompts import BenchPrompt, read_prompts, select
from mlxspec.bench.rows import EngineRow, MlxLmRow, Run, draft_rounds, plain_twin, weight_dtype
from mlxspec.bench.run import BenchOptions, bench_engine, format_table, run_bench
from mlxspec.core.events import Done, Event, Prefill, Step, Text
from mlxspec.errors import DrafterError, MlxspecError, UsageError
from mlxspec.loading.load import load_model
from mlxspec.settings.options import Options
from tests.tiny import config_of, save_folder, tiny_engine, tiny_model

# ---------------------------------------------------------------- prompt files


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_prompts_of_both_kinds_are_read_and_grouped(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "a", "task": "qa"},
        "",
        {"turns": ["b", "later"], "category": "writing"},
        {"question_id": 81, "turns": ["c"], "category": "writing"},
        {"question_id": 200, "turns": ["d"], "category": "rag"},
        {"id": "x", "prompt": "e"},
    )
    assert read_prompts(path) == [
        BenchPrompt(1, "qa", "a"),
        BenchPrompt(3, "writing", "b"),
        BenchPrompt(81, "mt_bench", "c"),
        BenchPrompt(200, "rag", "d"),
        BenchPrompt("x", "ungrouped", "e"),
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{not json", "Line 2 of .* is no JSON"),
        ("[1]", "Line 2 of .* is no JSON object"),
        ('{"text": "a"}', "Line 2 of .* has neither 'turns' nor 'prompt'"),
        ('{"turns": []}', "Line 2 of .* has 'turns' that are no list of strings"),
        ('{"turns": ["a", 3]}', "Line 2 of .* has 'turns'"),
        ('{"prompt": ["a"]}', "Line 2 of .* has a 'prompt' that is no string"),
        ('{"prompt": " \\n"}', "Line 2 of .* has an empty prompt"),
        ('{"prompt": "a", "task": 7}', "Line 2 of .* has the task 7"),
        ('{"prompt": "a", "id": [1]}', r"Line 2 of .* has the id \[1\]"),
        ("[" * 100_000, "Line 2 of .* is no JSON"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        read_prompts(write(tmp_path, {"prompt": "fine"}, line))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read the prompt file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match="Cannot read the prompt file"):
        read_prompts(tmp_path)
    with pytest.raises(UsageError, match="holds no prompt"):
        read_prompts(write(tmp_path, "", "  "))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}')
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prompts(tmp_path / "latin.jsonl")


def test_select_keeps_the_order_and_spreads_the_limit() -> None:
    prompts = [BenchPrompt(i, task, "text") for i, task in enumerate("aaaabbbc")]
    assert [p.id for p in select(prompts)] == list(range(8))
    assert [p.id for p in select(prompts, limit=5)] == [0, 1, 4, 5, 7]
    assert [p.id for p in select(prompts, limit=100)] == list(range(8))
    assert [p.id for p in select(prompts, per_task=1)] == [0, 4, 7]
    assert [p.id for p in select(prompts, tasks=("b", "c"), limit=3)] == [4, 5, 7]
    with pytest.raises(UsageError, match="No prompt has the task 'd': the file has a, b, c"):
        select(prompts, tasks=("a", "d"))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"baselines": ("vllm",)}, "--baselines vllm is unknown"),
        ({"per_task": 0}, "--per-task 0"),
        ({"limit": -1}, "--limit -1"),
        ({"repeats": 0}, "--repeats 0"),
        ({"options": Options(max_tokens=1)}, "--max-tokens 1 leaves nothing to time"),
        ({"options": Options(max_tokens=-1)}, "--max-tokens -1 sets no limit"),
        ({"options": Options(stop=("x",)), "baselines": ("mlx-lm",)}, "--stop and the mlx-lm baselines"),
        ({"options": Options(strict=True)}, "--strict has no meaning"),
        ({"options": Options(require_spec=True)}, "--require-spec has no meaning"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        asked(**changes)


# ---------------------------------------------------------------- a fake engine with a clock of its own


class Clock:
    """Stands in for the module ``time``: host seconds are a tenth of all seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now / 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bench_rows, "time", clock)
    monkeypatch.setattr(bench, "gc", SimpleNamespace(collect=lambda: None))  # takes its time where many modules are loaded
    return clock


Speed = Callable[[int, int], float]  # (prompt, how often it was run before) -> seconds a round


class FakeEngine:
    """Duck-typed engine: prompt token 100 + i is prompt i; each round takes ``seconds`` and emits ``width`` tokens."""

    def __init__(self, clock: Clock, name: str = "none", seconds: Speed = lambda *_: 1.0, width: int = 1, others: Any = None) -> None:
        self.clock, self.name, self.seconds, self.width = clock, name, seconds, width
        self.others: dict[str, FakeEngine] = others or {}
        self.target = SimpleNamespace(context_length=None, model=nn.Linear(2, 2))
        self.model_name = "fake"
        self.tokenizer = None
        self.calls: list[tuple[str, int, int]] = []
        self.seeds: set[int] = set()
        self.before: dict[int, int] = {}
        self.reply: Callable[[int], list[int]] = lambda place: [7, 8, 9, 10, 11, 12, 13, 14, 15]
        self.fail: Exception | None = None
        self.gaps: list[tuple[list[int], int, int]] = []

    def with_drafter(self, name: str) -> "FakeEngine":
        if name == "none":
            return self
        if name not in self.others:
            raise DrafterError(f"--drafter {name} is unknown.")
        self.others[name].calls = self.calls
        return self.others[name]

    def prompt_tokens(self, text: str, options: Options) -> list[int]:
        return [100 + int(text)]

    def gap(self, tokens: list[int], one: int, other: int, **options: Any) -> tuple[float, str]:
        self.gaps.append((tokens, one, other))
        return (0.0005 if one == 9 else 0.5), "score"

    def stream(self, prompt: Sequence[int], max_tokens: int, seed: int, **options: Any) -> Iterator[Event]:
        place = prompt[0] - 100
        self.calls.append((self.name, place, max_tokens))
        self.seeds.add(seed)
        if max_tokens == bench.WARM_UP_TOKENS:
            self.clock.now += 1000  # must not count
        elif self.fail is not None:
            raise self.fail
        turn = self.before.get(place, 0)
        if max_tokens != bench.WARM_UP_TOKENS:
            self.before[place] = turn + 1
        tokens = self.reply(place)
        yield Prefill(1, 1)
        self.clock.now += 5
        yield Text("", Step((tokens[0],)))
        rounds = 0
        for start in range(1, len(tokens), self.width):
            self.clock.now += self.seconds(place, turn)
            rounds += 1
            yield Text("a", Step(tuple(tokens[start : start + self.width])))
        self.clock.now += 50  # after the last token: must not count
        yield Text("b", None)
        after = len(tokens) - 1
        stats = {"rounds": rounds, "emitted": after, "drafted": 3 * rounds, "accepted": after - rounds, "speculation": "on", "reason": None}
        yield Done("", tuple(tokens), "length", "fake", self.name, "coupled", True, seed, stats)


def asked(**changes: Any) -> BenchOptions:
    settings: dict[str, Any] = {
        "options": Options(temperature=0, max_tokens=99),
        "drafters": ("none",),
        "baselines": (),
        "prompts": Path("none.jsonl"),
    }
    return BenchOptions(**{**settings, **changes})


def prompts_of(*tasks: str) -> list[BenchPrompt]:
    return [BenchPrompt(f"p{place}", task, str(place)) for place, task in enumerate(tasks)]


def rows_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    json.dumps(result, allow_nan=False)  # always valid JSON
    return {row["name"]: row for row in result["rows"]}


def test_speedup_is_the_median_over_prompts_of_ratios_within_a_repeat(clock: Clock) -> None:
    """The machine slows down between the repeats. Ratios within one are g, g / 100 and 2 g, their median g; the ratio of the medians is g / 5."""
    gain = (2.0, 4.0, 8.0)
    fast = FakeEngine(clock, "fast", lambda place, turn: 2 * (1, 1000, 50)[turn] / gain[place], width=2)
    engine = FakeEngine(clock, "none", lambda place, turn: (1, 10, 100)[turn], others={"fast": fast})
    rows = rows_of(bench_engine(engine, prompts_of("a", "b", "b"), asked(drafters=("fast",), repeats=3), lambda _: None))
    row, plain = rows["fast"], rows["none"]
    assert list(rows) == ["none", "fast"]
    assert row["speedup"] == pytest.approx(4)
    assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((2, 8))
    assert row["spread"]["speedup"] == pytest.approx([3, 6])
    assert {task: group["speedup"] for task, group in row["by_task"].items()} == pytest.approx({"a": 2, "b": 6})
    assert [group["prompts"] for group in row["by_task"].values()] == [1, 2]
    assert row["by_task"]["a"]["speedup_low"] is None
    assert plain["speedup"] == plain["speedup_low"] == plain["speedup_high"] == 1
    # 8 tokens after the first, thrice for each of three prompts
    assert plain["tokens_per_second"] == pytest.approx(9 * 8 / (3 * 8 * 111))
    assert row["tokens_per_second"] == pytest.approx(9 * 8 / (8 * 1051 * (1 / 2 + 1 / 4 + 1 / 8)))
    assert (row["tokens_per_round"], plain["tokens_per_round"]) == (2, 1)
    assert (row["drafted"], row["accepted"], row["acceptance"]) == (9 * 4 * 3, 9 * 4, pytest.approx(1 / 3))
    assert plain["host_seconds_per_round"] == pytest.approx(111 / 3 / 10)
    assert plain["prefill_seconds"] == pytest.approx(5)
    assert row["distinct_4grams"] == 1
    assert row["prompts"] == 3


def test_rows_take_turns_after_a_warm_up(clock: Clock) -> None:
    others = {name: FakeEngine(clock, name) for name in ("b", "c")}
    engine = FakeEngine(clock, "none", others=others)
    bench_engine(
        engine, prompts_of("a", "a"), asked(options=Options(temperature=0, max_tokens=99), drafters=("b", "none", "c"), repeats=2), lambda _: None
    )
    warm, timed = engine.calls[:3], engine.calls[3:]
    assert warm == [("none", 0, 16), ("b", 0, 16), ("c", 0, 16)]
    assert [place for _, place, _ in timed] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert "".join(name[0] for name, _, _ in timed) == "nbc" + "bcn" + "bcn" + "cnb"


def test_all_rows_share_a_seed_that_is_reported(clock: Clock) -> None:
    engine = FakeEngine(clock, others={"b": FakeEngine(clock, "b")})
    result = bench_engine(engine, prompts_of("a"), asked(drafters=("b",)), lambda _: None)
    assert engine.seeds == engine.others["b"].seeds == {result["settings"]["seed"]}
    given = bench_engine(engine, prompts_of("a"), asked(options=Options(temperature=0, max_tokens=99, seed=7)), lambda _: None)
    assert given["settings"]["seed"] == 7


def test_a_row_that_fails_is_reported_and_the_others_go_on(clock: Clock) -> None:
    broken = FakeEngine(clock, "broken")
    broken.fail = RuntimeError("out of memory")
    engine = FakeEngine(clock, others={"broken": broken})
    result = bench_engine(engine, prompts_of("a", "a"), asked(drafters=("broken",)), lambda _: None)
    rows = rows_of(result)
    assert rows["broken"]["error"] == "RuntimeError: out of memory"
    assert rows["broken"]["speedup"] is rows["broken"]["identical_to_plain"] is None
    assert rows["none"]["prompts"] == 2 and rows["none"]["error"] is None
    assert [call for call in engine.calls if call[0] == "broken"] == [("broken", 0, 16), ("broken", 0, 99)]
    assert "broken failed: RuntimeError: out of memory" in format_table(result)


def test_a_row_that_cannot_be_built_is_refused_before_the_first_prompt(clock: Clock) -> None:
    engine = FakeEngine(clock)
    with pytest.raises(UsageError, match=r"row nope cannot run\. --drafter nope is unknown"):
        bench_engine(engine, prompts_of("a", "a"), asked(drafters=("none", "nope")), lambda _: None)
    assert engine.calls == []


def test_ctrl_c_keeps_what_every_row_had_finished(clock: Clock) -> None:
    def seconds(place: int, turn: int) -> float:
        if place == 1:
            raise KeyboardInterrupt
        return 0.5

    engine = FakeEngine(clock, others={"b": FakeEngine(clock, "b", seconds)})
    said: list[str] = []
    result = bench_engine(engine, prompts_of("a", "a", "a"), asked(drafters=("b",)), said.append)
    rows = rows_of(result)
    assert result["interrupted"] and "Interrupted" in said[-1]
    assert rows["none"]["prompts"] == rows["b"]["prompts"] == 1
    assert rows["b"]["speedup"] == pytest.approx(2)
    assert "Interrupted" in format_table(result)


def test_a_difference_is_a_tie_or_a_fault(clock: Clock) -> None:
    """Prompt 1 parts at token 9, which the fake target gives a gap of 0.0005; prompt 2 at token 10, with a gap of 0.5."""
    other = FakeEngine(clock, "b")
    other.reply = lambda place: [[7, 8, 9, 10, 11, 12, 13, 14, 15], [7, 8, 1, 1, 1, 1, 1, 1, 1], [7, 8, 9, 3, 3, 3, 3, 3, 3]][place]
    engine = FakeEngine(clock, others={"b": other})
    tie = bench_engine(engine, prompts_of("a", "a"), asked(drafters=("b",), repeats=2), lambda _: None)
    row = rows_of(tie)["b"]
    assert row["identical_to_plain"] is False and row["only_ties"] is True
    found = {"prompt": "p1", "task": "a", "repeat": 0, "position": 2, "tokens": [9, 1], "gap": 0.0005, "measure": "score"}
    assert row["ties"] == [found | {"tolerance": 1e-3, "dtype": "float32", "tie": True}]
    assert row["first_difference"] == row["ties"][0]
    assert engine.gaps == [([101, 7, 8], 9, 1)]
    fault = bench_engine(engine, prompts_of("a", "a", "b"), asked(drafters=("b",)), lambda _: None)
    row = rows_of(fault)["b"]
    assert row["identical_to_plain"] is False and row["only_ties"] is False
    assert row["first_difference"]["prompt"] == "p2" and row["first_difference"]["position"] == 3
    assert len(row["ties"]) == 1
    assert "b first differs from plain at prompt p2, token 3: 10 became 3 (not a tie, gap 0.5 over 0.001 in float32)" in format_table(fault)
    ratio = bench_engine(
        engine, prompts_of("a", "a"), asked(options=Options(temperature=0, max_tokens=99, accept="ratio"), drafters=("b",)), lambda _: None
    )
    assert rows_of(ratio)["b"]["identical_to_plain"] is None


def test_a_reply_that_ends_early_is_a_difference_and_no_tie(clock: Clock) -> None:
    other = FakeEngine(clock, "b")
    other.reply = lambda place: [7, 8, 9]
    engine = FakeEngine(clock, others={"b": other})
    row = rows_of(bench_engine(engine, prompts_of("a"), asked(drafters=("b",)), lambda _: None))["b"]
    assert row["first_difference"]["tokens"] == [10, None] and row["first_difference"]["tie"] is False
    assert engine.gaps == []


def test_a_reply_of_one_token_has_no_speed(clock: Clock) -> None:
    engine = FakeEngine(clock, others={"b": FakeEngine(clock, "b", lambda *_: 0.5)})
    for one in (engine, engine.others["b"]):
        one.reply = lambda place: [7] if place == 0 else [7, 8, 9]
    row = rows_of(bench_engine(engine, prompts_of("a", "b"), asked(drafters=("b",)), lambda _: None))["b"]
    assert row["prompts"] == 1 and row["speedup"] == pytest.approx(2)
    assert row["by_task"]["a"]["speedup"] is row["by_task"]["a"]["tokens_per_second"] is None
    assert row["identical_to_plain"] is True


def test_a_prompt_beyond_the_context_is_left_out_and_said(clock: Clock) -> None:
    engine = FakeEngine(clock)
    engine.target.context_length = 102
    engine.prompt_tokens = lambda text, options: [100 + int(text)] * (4 if text == "0" else 3)  # type: ignore[method-assign]
    said: list[str] = []
    result = bench_engine(engine, prompts_of("a", "a"), asked(), said.append)
    assert [entry["prompt"] for entry in result["skipped"]] == ["p0"]
    assert result["settings"]["prompts"] == 1
    assert said[0].startswith("Left out 1 of 2 prompts; prompt p0: Its 4 tokens and a reply of 99 exceed the context of 102")
    engine.target.context_length = 5
    with pytest.raises(UsageError, match="None of the 2 prompts can be run"):
        bench_engine(engine, prompts_of("a", "a"), asked(), said.append)


# ---------------------------------------------------------------- statistics


def test_the_interval_is_seeded_and_holds_the_median() -> None:
    """95 of 100 such intervals hold the true median; 40 seeded trials miss it at most 6 times (odds of more: under 1 %)."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(40):
        values = list(rng.lognormal(0.3, 0.2, 60))
        low, high = bench_stats.interval(values)
        assert low is not None and high is not None and low <= statistics.median(values) <= high
        assert bench_stats.interval(values) == (low, high)
        missed += not low <= np.exp(0.3) <= high
    assert missed <= 6
    assert bench_stats.interval([2.0]) == (None, None)


def test_small_numbers() -> None:
    assert bench_stats.distinct_4grams([[1, 2, 3]]) is None
    assert bench_stats.distinct_4grams([[1, 2, 3, 4, 5]]) == 1
    assert bench_stats.distinct_4grams([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1]]) == pytest.approx(2 / 4)
    assert bench_stats.quartiles([]) is None
    assert bench_stats.difference([1, 2], [1, 2]) is None
    assert bench_stats.difference([1, 2, 3], [1, 5, 3]) == (1, 2, 5)
    assert bench_stats.difference([1, 2], [1, 2, 3]) == (2, None, 3)
    assert draft_rounds([True, True, False, False, True], 5, 2) == (3, 5)
    assert draft_rounds([], 5, 2) == (0, 0)
    assert [bench_ties.tolerance(dtype, 0) for dtype in (mx.float32, mx.float16, mx.bfloat16)] == [1e-3, 0.0625, 0.5]
    assert bench_ties.tolerance(mx.float32, 0.5) == 2e-3


# ---------------------------------------------------------------- the machine


def test_the_blas_in_use_is_told_from_numpys() -> None:
    numpys = "7f r-xp 00 08:01 5  /venv/numpy.libs/libscipy_openblas64_-32a4b2a6.so\n"
    mlxs = "7f r-xp 00 08:01 5  /venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0\n"
    fast = "7f r-xp 00 08:01 5  /usr/lib/openblas-pthread/libopenblas.so.0\n"
    assert machine.blas_in(numpys, "") is None
    assert machine.blas_in(numpys + mlxs, "") == "libblas-bd8a282c.so.3.10.0 (reference)"
    assert machine.blas_in(numpys + mlxs + fast, "/usr/lib/openblas-pthread/libopenblas.so.0") == "libopenblas.so.0 (preloaded)"
    assert machine.blas_in(mlxs + fast, "") == "libblas-bd8a282c.so.3.10.0 (reference)"


def test_the_power_source_is_read() -> None:
    battery = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t57%; discharging; 3:12 remaining present: true"
    assert machine.power_in(battery) == "Battery Power, 57%"
    assert machine.power_in("Now drawing from 'AC Power'") == "AC Power"
    assert machine.power_in("") is None


# ---------------------------------------------------------------- table and plot


def test_the_table_lines_up_and_drives_no_terminal(clock: Clock) -> None:
    fast = FakeEngine(clock, "fast", lambda *_: 1.0, width=2)
    engine = FakeEngine(clock, others={"small:/some/rather/long/path/to/model": fast})
    engine.model_name = "fake\x1b[2J"
    result = bench_engine(engine, prompts_of("qa\x1b[31m", "sum"), asked(drafters=("small:/some/rather/long/path/to/model",)), lambda _: None)
    table = format_table(result)
    assert "\x1b" not in table
    lines = table.splitlines()
    head, plain, row = lines[3:6]
    assert head.split("  ")[0].strip() == "row"
    assert len(head) == len(plain) == len(row)
    assert plain.split() == ["none", "1.0", "1.00", "[1.00,", "1.00]", "1.00", "0/48", "yes", "100.00"]
    assert row.split()[:3] == ["small:.../model", "2.0", "2.00"]
    assert "8/24" in row and "yes" in row and "2.00" in row
    assert lines[7].split() == ["speedup", "by", "task", "qa", "sum"]
    assert lines[8].split() == ["small:.../model", "2.00", "2.00"]
    assert bench_table.short("small:org/tiny") == "small:org/tiny"


def test_a_plot_is_checked_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plot(name: str) -> BenchOptions:
        return asked(plot=tmp_path / name, prompts=tmp_path / "none.jsonl")

    with pytest.raises(UsageError, match=r"name a .png or .svg file"):
        run_bench(plot("out.jpg"), lambda _: None)
    with pytest.raises(UsageError, match="does not exist"):
        run_bench(plot("nowhere/out.png"), lambda _: None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MlxspecError, match=r"pip install 'mlxspec\[plot\]'"):
        run_bench(plot("out.png"), lambda _: None)


@pytest.mark.parametrize("name", ["out.png", "out.svg"])
def test_the_plot_is_drawn(clock: Clock, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    from mlxspec.bench.plot import check_plot, write_plot

    engine = FakeEngine(clock, others={"b": FakeEngine(clock, "b", lambda *_: 0.5)})
    result = bench_engine(engine, prompts_of("qa", "sum", "sum"), asked(drafters=("b", "nope")), lambda _: None)
    check_plot(tmp_path / name)
    write_plot(result, tmp_path / name)
    start = (tmp_path / name).read_bytes()[:100]
    assert start.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


# ---------------------------------------------------------------- real models


def test_the_twin_shares_every_array_and_is_untouched() -> None:
    engine = tiny_engine()
    twin = plain_twin(engine.target.model, config_of("llama"))
    assert type(twin.lm_head) is nn.Linear and type(engine.target.model.lm_head) is not nn.Linear
    assert twin.lm_head.weight is engine.target.model.lm_head.weight
    tokens = mx.array([[1, 2, 3]])
    assert mx.array_equal(twin(tokens), engine.target.model(tokens))
    assert weight_dtype(twin) == mx.float32


def test_the_twin_of_a_quantised_model_shares_its_arrays() -> None:
    model = tiny_model("qwen3", hidden_size=64, intermediate_size=64, head_dim=32)
    nn.quantize(model, group_size=32, bits=4, class_predicate=lambda path, module: hasattr(module, "to_quantized") and "o_proj" not in path)
    twin = plain_twin(model, config_of("qwen3", hidden_size=64, intermediate_size=64, head_dim=32))
    layer, other = model.layers[0], twin.layers[0]
    assert other.mlp.up_proj.scales is layer.mlp.up_proj.scales and other.mlp.up_proj.bits == 4 and other.mlp.up_proj.group_size == 32
    assert type(other.self_attn.o_proj) is nn.Linear
    assert mx.array_equal(twin(mx.array([[1, 2]])), model(mx.array([[1, 2]])))


def test_a_model_that_cannot_be_built_twice_is_a_clear_error() -> None:
    with pytest.raises(MlxspecError, match="cannot hold this model a second time"):
        plain_twin(tiny_model(), config_of("llama", num_hidden_layers=3))
    with pytest.raises(MlxspecError, match="cannot hold this model a second time"):
        plain_twin(tiny_model(), {"model_type": "no_such_model"})


def test_ours_and_mlx_lms_rows_end_alike() -> None:
    """Token lists hold a final EOS and are cut at the same length, whoever made them."""
    engine = tiny_engine()
    twin = plain_twin(engine.target.model, config_of("llama"))
    options = Options(temperature=0)
    ours, theirs = EngineRow("none", engine, options, 1), MlxLmRow("mlx-lm", twin, engine.tokenizer, options, 1)
    prompt = [5, 6, 7]
    for length in (2, 40):
        runs = ours.run(prompt, length), theirs.run(prompt, length)
        assert runs[0].tokens == runs[1].tokens and len(runs[0].tokens) == length
        assert all(run.decode_seconds > 0 and run.prefill_seconds > 0 and run.host_seconds > 0 for run in runs)
        assert runs[0].rounds == runs[1].rounds == length - 1
    free = ours.run(prompt, 40).tokens
    engine.tokenizer._eos_token_ids = {free[5]}
    cut = free[: free.index(free[5]) + 1]
    assert ours.run(prompt, 40).tokens == theirs.run(prompt, 40).tokens == cut


def test_mlx_lms_draft_loop_with_the_target_drafting_for_itself_accepts_all() -> None:
    model = tiny_model()
    row = MlxLmRow("mlx-lm-draft", model, tiny_engine(model=tiny_model()).tokenizer, Options(temperature=0, draft_tokens=3), 1, model)
    run: Run = row.run([5, 6, 7], 12)
    assert len(run.tokens) == 12
    assert (run.rounds, run.drafted, run.accepted, run.emitted) == (3, 9, 9, 12)
    assert run.host_rounds == 2
    with pytest.raises(MlxspecError, match="ignores --max-kv-size"):
        MlxLmRow("mlx-lm-draft", model, None, Options(max_kv_size=64), 1, model)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_whole_run_on_a_tiny_model(tmp_path: Path, temperature: float) -> None:
    target, small = save_folder(tmp_path / "target"), save_folder(tmp_path / "small", seed=1)
    path = write(tmp_path, *({"id": i, "task": task, "turns": [f"Say {i} {i} {i} {i}"]} for i, task in enumerate(("qa", "qa", "rag"))))
    options = Options(model=str(target), temperature=temperature, top_p=0.9, max_tokens=12, seed=7)
    drafters = ("lookup", f"small:{small}", f"small:{target}")
    said: list[str] = []
    result = run_bench(BenchOptions(options, drafters, ("mlx-lm", "mlx-lm-draft"), path, repeats=2), said.append)
    rows = rows_of(result)
    assert list(rows) == ["none", *drafters, "mlx-lm", "mlx-lm-draft"]
    assert not [row["error"] for row in result["rows"] if row["error"]]
    for name, row in rows.items():
        assert row["speedup"] > 0 and row["tokens_per_second"] > 0 and row["prompts"] > 0
        if temperature and name.startswith("mlx-lm"):
            assert row["identical_to_plain"] is None
        else:
            assert row["identical_to_plain"] or row["only_ties"]
    assert rows["none"]["tokens_per_round"] == rows["mlx-lm"]["tokens_per_round"] == 1.0
    assert rows[f"small:{target}"]["acceptance"] == 1.0
    assert result["machine"]["dtype"] == "float32" and result["settings"]["tasks"] == ["qa", "rag"]
    assert format_table(result)
    assert any("Prompt 6 of 6 (rag)" in line for line in said)


def test_the_baseline_with_a_draft_needs_a_small_model(tmp_path: Path) -> None:
    target = save_folder(tmp_path / "target")
    path = write(tmp_path, {"prompt": "Hello"})
    options = Options(model=str(target), temperature=0, max_tokens=4)
    with pytest.raises(UsageError, match="needs a small model"):
        BenchOptions(options, ("none", "lookup"), ("mlx-lm-draft",), path)
    with pytest.raises(UsageError, match="--drafter smal is unknown"):
        run_bench(BenchOptions(options, ("smal",), (), path), lambda _: None)
    with pytest.raises(UsageError, match=r"row small cannot run\. No small drafter comes with target"):
        run_bench(BenchOptions(options, ("small",), ("mlx-lm-draft",), path), lambda _: None)
    rows = rows_of(run_bench(BenchOptions(options, ("small",), ("mlx-lm-draft",), path, draft_model=str(target)), lambda _: None))
    assert list(rows) == ["none", f"small:{target}", "mlx-lm-draft"]
    assert rows["mlx-lm-draft"]["error"] is None


def test_the_baseline_drafts_with_the_small_model_that_ships_where_the_row_beside_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, small = save_folder(tmp_path / "target"), save_folder(tmp_path / "shipped", seed=1)
    path = write(tmp_path, {"prompt": "Hello"})
    monkeypatch.setattr("mlxspec.drafters.choose.shipped", lambda kind, loaded: str(small))
    options = Options(model=str(target), temperature=0, max_tokens=4)
    drafted: list[Any] = []
    built = MlxLmRow.__init__

    def caught(self: MlxLmRow, *args: Any) -> None:
        built(self, *args)
        drafted.append(self.draft_model)

    monkeypatch.setattr(MlxLmRow, "__init__", caught)
    rows = rows_of(run_bench(BenchOptions(options, ("none", "small", f"small:{target}"), ("mlx-lm-draft",), path), lambda _: None))
    assert list(rows) == ["none", "small", f"small:{target}", "mlx-lm-draft"]
    assert not [name for name, row in rows.items() if row["error"]]
    expected = load_model(Options(model=str(small)), lambda _: None).model.layers[0].mlp.up_proj.weight
    assert mx.array_equal(drafted[0].layers[0].mlp.up_proj.weight, expected)
