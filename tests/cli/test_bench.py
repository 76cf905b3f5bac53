"""``mlxspec bench``, ``models`` and ``paths`` through ``main``. The benchmark itself has its own tests."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mlxspec.bench import run as bench_module
from mlxspec.bench.run import BenchOptions
from mlxspec.cli.main import main
from mlxspec.loading.catalog import trained_drafters
from mlxspec.loading.fetch import BUILT_IN
from tests.fake_engine import failing, isolate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


class Runs:
    """Stands in for ``run_bench``."""

    def __init__(self) -> None:
        self.asked: list[BenchOptions] = []
        self.result: dict[str, Any] = {"interrupted": False, "rows": [{"name": "none", "error": None}]}

    def __call__(self, asked: BenchOptions, say: Any) -> dict[str, Any]:
        self.asked.append(asked)
        say("Warming up.")
        print("a library's chatter")
        return self.result


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    result = Runs()
    monkeypatch.setattr(bench_module, "run_bench", result)
    monkeypatch.setattr(bench_module, "format_table", lambda result: f"a table of {len(result['rows'])}")
    return result


def test_defaults(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--prompts", "p.jsonl"]) == 0
    (asked,) = runs.asked
    assert (asked.drafters, asked.baselines, asked.prompts) == (("none", "lookup"), ("mlx-lm",), Path("p.jsonl"))
    assert (asked.options.temperature, asked.options.max_tokens, asked.repeats) == (0, 512, 1)
    captured = capsys.readouterr()
    assert captured.out == "a table of 1\n"
    assert captured.err == "Warming up.\na library's chatter\n"


@pytest.mark.parametrize(
    ("flags", "place", "value"),
    [
        (["--drafters", "none, lookup,small:a/b"], "drafters", ("none", "lookup", "small:a/b")),
        (["--baselines", ""], "baselines", ()),
        (["--baselines", "mlx-lm,mlx-lm-draft", "--draft-model", "a/b"], "baselines", ("mlx-lm", "mlx-lm-draft")),
        (["--drafters", "small", "--draft_model", "a/b"], "draft_model", "a/b"),
        (["--drafters", "none,redrafter,small", "--baselines", "mlx-lm-draft"], "small", "small"),
        (["--tasks", "qa,rag"], "tasks", ("qa", "rag")),
        (["--per-task", "2"], "per_task", 2),
        (["--limit", "9"], "limit", 9),
        (["--repeats", "3"], "repeats", 3),
        (["--plot", "x.png"], "plot", Path("x.png")),
        (["--model", "a/b"], "options.model", "a/b"),
        (["-n", "32"], "options.max_tokens", 32),
        (["--temp", "0.5"], "options.temperature", 0.5),
        (["--seed", "7"], "options.seed", 7),
        (["--accept", "ratio"], "options.accept", "ratio"),
    ],
    ids=str,
)
def test_each_flag_reaches_the_benchmark(flags: list[str], place: str, value: Any, runs: Runs) -> None:
    assert main(["bench", "--prompts", "p.jsonl", *flags]) == 0
    found: Any = runs.asked[0]
    for name in place.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--prompts FILE"),
        (["p.jsonl"], "takes no arguments"),
        (["--prompts", "p", "--repeats", "0"], "--repeats 0"),
        (["--prompts", "p", "--limit", "x"], "--limit x"),
        (["--prompts", "p", "--drafter", "none"], "did you mean --drafters?"),
        (["--prompts", "p", "--strict"], "Unknown option --strict"),
        (["--prompts", "p", "--draft-model", "a/b"], "--draft-model serves"),
        (["--prompts", "p", "--baselines", "llama.cpp"], "llama.cpp"),
        (["--prompts", "p", "-n", "0"], "-n 0"),
        (["--prompts", "p", "--temp", "-1"], "--temp -1"),
        (["--prompts", "p", "--baselines", "mlx-lm-draft"], "needs a small model"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(argv: list[str], words: str, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "bench", *argv)
    assert code == 2
    assert words in line
    assert runs.asked == []


def test_settings_that_bench_has_no_flag_for_do_not_reach_it(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXSPEC_STRICT", "1")
    monkeypatch.setenv("MLXSPEC_DRAFTER", "lookup")
    monkeypatch.setenv("MLXSPEC_TOP_P", "0.9")
    assert main(["bench", "--prompts", "p"]) == 0
    assert runs.asked[0].options.strict is False
    assert runs.asked[0].options.top_p == 0.9


def test_json_and_exit_codes(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--prompts", "p", "--json", "-q"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == runs.result
    runs.result = {"interrupted": True, "rows": []}
    assert main(["bench", "--prompts", "p"]) == 130
    runs.result = {"interrupted": False, "rows": [{"name": "small", "error": "no such model"}]}
    assert main(["bench", "--prompts", "p"]) == 1
    assert "small failed" in capsys.readouterr().err


def test_models(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One is built in and not here; the hub's cache has a loadable model, and one that is none for us."""
    hub = home / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(hub), raising=False)
    for name, files in {"models--org--good": ("config.json", "model.safetensors"), "models--org--other": ("model.gguf",)}.items():
        snapshot = hub / name / "snapshots" / "0" / "x"
        (hub / name / "refs").mkdir(parents=True)
        (hub / name / "refs" / "main").write_text("0")
        snapshot.parent.mkdir(parents=True)
        for file in files:
            (snapshot.parent / file).write_text("{}")
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    shipped = [(f"{kind}:{record['target']}", f"drafter ({kind})", True) for kind, _, record in trained_drafters()]
    expected = [("smollm2-135m", "built-in", False), *shipped, ("org/good", "hub", True)]
    assert [(row["name"], row["kind"], row["cached"]) for row in rows] == expected
    entry = BUILT_IN["smollm2-135m"]
    entry.path.parent.mkdir(parents=True)
    with entry.path.open("wb") as fetched:
        fetched.truncate(entry.size)
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^smollm2-135m +98 MB +yes", out, re.MULTILINE)
    assert "org/good" in out


def test_models_without_a_hub_cache(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", lambda: 1 / 0)
    assert main(["models"]) == 0
    assert capsys.readouterr().out.count("\n") == 1 + len(BUILT_IN) + len(trained_drafters())


def test_paths(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "cache" / "mlxspec").mkdir(parents=True)
    assert main(["paths", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"] == {"path": str(home / "config" / "mlxspec" / "config.toml"), "exists": False}
    assert found["cache"] == {"path": str(home / "cache" / "mlxspec"), "exists": True}
    assert {"data", "state", "models", "hub"} <= set(found)
    assert main(["paths"]) == 0
    assert capsys.readouterr().out.count("\n") == len(found)


@pytest.mark.parametrize("verb", ["models", "paths", "doctor"])
def test_verbs_that_take_nothing_say_so(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(capsys, verb, "x")[0] == 2
    assert failing(capsys, verb, "--seed", "1")[0] == 2
