"""The command line through ``main``: help, flags, and settings. The engine is a fake one."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli.main import VERBS, main
from mlxspec.drafters.kinds import spellings
from mlxspec.settings.options import Options, names
from tests.fake_engine import FakeEngine, Opened, failing, install, isolate, report


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, home: Path) -> Opened:
    return install(monkeypatch)


# ---- Help --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: mlxspec {verb}")
    assert captured.err == ""


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mlxspec 0.")


def test_a_bare_command_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    help = capsys.readouterr()
    assert main([]) == 0
    assert capsys.readouterr() == help


def test_help_lists_every_option_with_its_own_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    main(["generate", "--help"])
    out = capsys.readouterr().out
    for name in names():
        assert f"--{name.replace('_', '-')}" in out
        assert (spellings() if name == "drafter" else Options.__dataclass_fields__[name].metadata["help"]) in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("",), 'mlxspec generate "..."'),
        (("generat", "x"), "did you mean generate?"),
        (("What is gravity?",), 'mlxspec generate "..."'),
        (("--seed", "1", "generate"), "--seed stands before it"),
        (("xyzzy",), "the verbs are generate"),
    ],
)
def test_a_missing_or_unknown_verb(argv: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, *argv)
    assert code == 2
    assert words in line


# ---- Flags -------------------------------------------------------------------------------------------------------------------------------

FLAGS = [
    ("model", ["--model", "a/b"], "a/b"),
    ("model", ["-m", "a/b"], "a/b"),
    ("model", ["--model", "200"], "200"),
    ("drafter", ["--drafter", "lookup"], "lookup"),
    ("drafter", ["--draft-model", "a/b"], "small:a/b"),
    ("dtype", ["--dtype", "float16"], "float16"),
    ("max_kv_size", ["--max_kv_size", "64"], 64),
    ("kv_bits", ["--kv-bits", "8"], 8),
    ("offline", ["--offline"], True),
    ("offline", ["--no-offline"], False),
    ("yes", ["-y"], True),
    ("force", ["--force"], True),
    ("draft_tokens", ["--draft-tokens", "3"], 3),
    ("draft_tokens", ["--draft-tokens", "auto"], None),
    ("draft_tokens", ["--num-draft-tokens", "3"], 3),
    ("draft_width", ["--draft-width", "2"], 2),
    ("draft_rows", ["--draft-rows", "9"], 9),
    ("accept", ["--accept", "ratio"], "ratio"),
    ("require_spec", ["--require-spec"], True),
    ("strict", ["--strict"], True),
    ("system_prompt", ["-s", "Be brief."], "Be brief."),
    ("chat_template_config", ["--chat-template-config", '{"enable_thinking": false}'], '{"enable_thinking": false}'),
    ("max_tokens", ["-n", "100"], 100),
    ("max_tokens", ["--max_tokens=-1"], -1),
    ("temperature", ["--temp", "0"], 0),
    ("temperature", ["--temperature", "1.5"], 1.5),
    ("top_p", ["--top_p", "0.5"], 0.5),
    ("top_k", ["--top-k", "9"], 9),
    ("min_p", ["--min-p", "0.1"], 0.1),
    ("repetition_penalty", ["--repetition-penalty", "1.2"], 1.2),
    ("repetition_context_size", ["--repetition-context-size", "5"], 5),
    ("logit_bias", ["--logit-bias", '{"3": -1}', "--logit-bias", "4=2.5"], {"3": -1, "4": 2.5}),
    ("seed", ["--seed", "7"], 7),
    ("stop", ["--stop", "END", "--stop", "###"], ["END", "###"]),
]


@pytest.mark.parametrize(("name", "flags", "value"), FLAGS, ids=lambda value: value[0] if isinstance(value, list) else None)
def test_each_flag_changes_the_run(name: str, flags: list[str], value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "hi", *flags)["stats"]["options"][name] == value


def test_the_flags_of_every_option_are_tested() -> None:
    assert {name for name, _, _ in FLAGS} == set(names())


def test_a_run_without_flags_leaves_all_to_the_engine(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """So that a model's own generation config counts."""
    main(["generate", "hi"])
    assert opened.engines[0].asked == [{}]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--temprature", "1"], "did you mean --temperature?"),
        (["--temp", "1", "--temperature", "2"], "contradict"),
        (["--drafter", "lookup", "--draft-model", "x"], "contradict"),
        (["--num-draft-tokens", "2", "--draft-tokens", "3"], "contradict"),
        (["--offline", "--no-offline"], "contradict"),
        (["--stats", "--no-stats"], "contradict"),
        (["--stats", "--quiet"], "contradict"),
        (["--verbose", "-q"], "contradict"),
        (["--stats", "--verbose", "False"], "contradict"),
        (["--verbose=maybe"], "true nor false"),
        (["--kv-bits", "4", "--max-kv-size", "99"], "exclude each other"),
        (["-m", "200"], "-n 200"),
        (["-m100"], "-n 100"),
        (["--temp", "hot"], "'hot'"),
        (["--temp", "nan"], "nan"),
        (["--temp", "-1"], "-1"),
        (["--top-p", "2"], "2"),
        (["--max-tokens", "1.5"], "'1.5'"),
        (["--seed"], "expected one argument"),
        (["--accept", "mirrored"], "coupled"),
        (["--logit-bias", "a=1"], "TOKEN=BIAS"),
        (["--logit-bias", "3=1", "--logit-bias", "3=2"], "two values"),
        (["--logit-bias", "3=inf"], "makes no sense"),
        (["--chat-template-config", "[1]"], "JSON object"),
        (["--stop", ""], "--stop"),
        (["--trace", "-"], "--trace -"),
        (["--se", "1"], "Unknown option --se"),
        (["--prompt", "x"], "given twice"),
        (["--file", "x"], "given twice"),
        (["-p", "x", "-f", "y"], "given twice"),
        (["-c"], "none yet"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_before_a_model_is_loaded(
    argv: list[str], words: str, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = failing(capsys, "generate", "hi", *argv)
    assert code == 2
    assert words in line
    assert opened.engines == []


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["generate", "hi", "--temp", "-1"], "--temp -1"),
        (["generate", "hi", "--temp=-1"], "--temp -1"),
        (["generate", "hi", "--temp", "hot"], "--temp 'hot'"),
        (["generate", "hi", "--temp", "0", "--accept", "pcg"], "--temp 0"),
        (["generate", "hi", "--temperature", "-1"], "--temperature -1"),
        (["generate", "hi", "--top_p", "2"], "--top-p 2"),
        (["generate", "hi", "-n", "-7"], "-n -7"),
        (["generate", "hi", "-n-7"], "-n -7"),
        (["chat", "hi", "--temp", "-1"], "--temp -1"),
        (["bench", "--prompts", "x", "-n", "0"], "-n 0"),
    ],
    ids=" ".join,
)
def test_a_flag_is_named_as_it_was_typed(argv: list[str], typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, *argv)
    assert code == 2
    assert f" {typed}" in line
    assert "--temperature" not in line or "--temperature" in argv


def test_a_flag_that_was_not_typed_keeps_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLXSPEC_TEMPERATURE", "-1")
    assert "--temperature -1" in failing(capsys, "generate", "hi")[1]
    monkeypatch.delenv("MLXSPEC_TEMPERATURE")
    line = failing(capsys, "generate", "hi", "-m", "200")[1]
    assert "-n 200" in line and "--model 200" in line  # the remedy is another spelling


def test_an_unknown_model_and_a_prompt_file_that_is_not_there_are_usage_errors(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    isolate(monkeypatch, home)
    for argv in (["hi", "-m", "./nowhere"], ["hi", "-m", "no-such-model"], ["-f", str(home / "nowhere.txt")], ["-f", str(home)]):
        code, line = failing(capsys, "generate", *argv)
        assert code == 2
        assert "nowhere" in line or "no-such-model" in line or str(home) in line


def test_an_error_of_the_system_names_its_file_or_where_it_arose(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unnamed(*_: Any) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("mlxspec.cli.main.run", lambda *_: (home / "gone.json").read_text())
    assert str(home / "gone.json") in failing(capsys, "paths")[1]
    monkeypatch.setattr("mlxspec.cli.main.run", unnamed)
    assert Path(__file__).name in failing(capsys, "paths")[1]
    (home / "left").mkdir()
    monkeypatch.chdir(home / "left")
    (home / "left").rmdir()
    monkeypatch.setattr("mlxspec.cli.main.run", lambda *_: Path.cwd())
    line = failing(capsys, "paths")[1]
    monkeypatch.chdir(home)
    assert "current folder is gone" in line


def test_errors_with_json_are_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--json", "hi", "--nonsense"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["type"] == "UsageError"
    assert "--nonsense" in json.loads(captured.out)["error"]["message"]
    assert captured.err.count("\n") == 1


# ---- Settings ----------------------------------------------------------------------------------------------------------------------------


def test_precedence(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """flag > environment > config file > the model's own > built-in."""

    def temperature(*flags: str) -> float:
        return float(report(capsys, "hi", *flags)["stats"]["options"]["temperature"])

    assert temperature() == 0.7
    monkeypatch.setattr(FakeEngine, "defaults", {"temperature": 0.6})
    assert temperature() == 0.6
    (home / "config" / "mlxspec").mkdir(parents=True)
    (home / "config" / "mlxspec" / "config.toml").write_text("temperature = 0.5")
    assert temperature() == 0.5
    monkeypatch.setenv("MLXSPEC_TEMPERATURE", "0.4")
    assert temperature() == 0.4
    assert temperature("--temp", "0.3") == 0.3


def test_unknown_settings_are_errors_that_name_their_place(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLXSPEC_TEMPO", "1")
    assert "MLXSPEC_TEMPO" in failing(capsys, "generate", "hi")[1]
    monkeypatch.delenv("MLXSPEC_TEMPO")
    (home / "config" / "mlxspec").mkdir(parents=True)
    (home / "config" / "mlxspec" / "config.toml").write_text("tempo = 1")
    code, line = failing(capsys, "generate", "hi")
    assert code == 2
    assert "config.toml" in line
    assert "'tempo'" in line
