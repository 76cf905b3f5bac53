"""``mlxspec chat`` through its function: which face it has, what it refuses, where its settings come from. The engine is a fake one."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli import chat as cli_chat
from mlxspec.cli.chat import chat, face, for_generate
from mlxspec.cli.main import main
from mlxspec.cli.terminal import Terminal
from mlxspec.errors import UsageError
from mlxspec.sessions.store import Store
from tests import fake_engine
from tests.fake_engine import ANSWER, failing, isolate
from tests.tui.fake_chat import Loader
from tests.tui.test_plain import Screen


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    loader = Loader()
    monkeypatch.setattr(cli_chat, "load_engine", loader)
    return loader


class Typing(io.StringIO):
    """A stdin at which somebody sits."""

    def isatty(self) -> bool:
        return True


def talking(monkeypatch: pytest.MonkeyPatch, *argv: str, typed: str = "", **environ: str) -> tuple[int, str, str]:
    """A chat in lines: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "stdin", Typing(typed))
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # where input() puts its prompt
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    out, err, codes = Screen(), Screen(), list[int]()
    code = chat([*argv], Terminal(out, err, os.environ), os.environ, end=codes.append)
    assert codes == [code]
    return code, out.getvalue(), err.getvalue()


def asked(loader: Loader) -> dict[str, Any]:
    return next(options for options in reversed(loader.engines[-1].asked) if options.get("max_tokens") != 48)


# ---- Which face --------------------------------------------------------------------------------------------------------------------------


def test_a_screen_that_nobody_would_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="stderr, which is redirected"):
        face(Terminal(Screen(), io.StringIO(), {"TERM": "xterm"}), plain=False)
    assert face(Terminal(Screen(), io.StringIO(), {"TERM": "xterm"}), plain=True) == "lines"
    assert face(Terminal(Screen(), Screen(), {"TERM": "dumb"}), plain=False) == "lines"
    assert face(Terminal(Screen(), Screen(), {"TERM": "xterm"}), plain=False) == "screen"


@pytest.mark.parametrize("argv", [["hello"], ["--plain", "hello"], ["hello", "--temp", "0"]])
def test_in_a_pipe_it_is_generate(argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout is no terminal here. Textual is not even imported."""
    monkeypatch.setitem(sys.modules, "textual", None)
    fake_engine.install(monkeypatch)
    assert main(["chat", *argv]) == 0
    assert capsys.readouterr().out == ANSWER + "\n"


def test_piped_stdin_is_the_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened = fake_engine.install(monkeypatch)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n"), encoding="utf-8"))
    assert main(["chat"]) == 0
    assert opened.prompt == "from a pipe"
    assert Store().summaries() == []


@pytest.mark.parametrize("flag", ["-c", "--resume", "--resume=x", "--continue", "--no-save"])
def test_flags_of_the_chat_are_refused_in_a_pipe(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "chat", "hello", flag)
    assert code == 2
    assert flag in line


def test_text_after_two_dashes_is_no_flag() -> None:
    assert for_generate(["--plain", "--", "--plain", "-c"]) == ["--", "--plain", "-c"]


# ---- In lines ----------------------------------------------------------------------------------------------------------------------------


def test_flags_shape_the_load_and_the_replies(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--plain", "--model", "a/b", "--drafter", "lookup", "--dtype", "float16", "--temp", "0.2", "-s", "be kind", "-n", "5", "hello", "you"]
    code, out, err = talking(monkeypatch, *argv, typed="/exit\n")
    assert code == 0
    (load,) = loader.asked
    assert load[:2] == ("a/b", "lookup")
    assert load[2]["dtype"] == "float16" and load[2]["offline"] is False
    assert asked(loader) == {"temperature": 0.2, "max_tokens": 5}
    assert next(prompt for prompt in loader.engines[0].prompts if prompt.startswith("[")) == "[system] be kind ;[user] hello you ;[assistant]"
    assert out.strip()
    assert "cut at the token limit" in err
    assert "Saved: mlxspec chat -c " in err


def test_settings_come_from_file_and_environment_and_flags_win(loader: Loader, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config" / "mlxspec").mkdir(parents=True)
    (home / "config" / "mlxspec" / "config.toml").write_text("temperature = 0.1\ntop_k = 3\nstats = false\ntheme = 'nord'\n")
    _, _, err = talking(monkeypatch, "--plain", "--top-k", "4", "hello", MLXSPEC_MIN_P="0.5")
    assert asked(loader) == {"temperature": 0.1, "top_k": 4, "min_p": 0.5}
    assert "tok/s" not in err


def test_a_config_file_that_cannot_be_used_is_said_and_the_chat_starts(loader: Loader, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config" / "mlxspec").mkdir(parents=True)
    (home / "config" / "mlxspec" / "config.toml").write_text("temperature = = 0.1")
    code, out, err = talking(monkeypatch, "--plain", "hello", MLXSPEC_TOP_K="4")
    assert code == 0 and out.strip()
    assert "is no TOML" in err and "without the config file" in err
    assert asked(loader) == {"top_k": 4}


def test_going_on_with_a_session_and_its_settings(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    talking(monkeypatch, "--plain", "--model", "a/b", "--temp", "0.3", "-s", "be kind", "hello")
    name = Store().summaries()[0].id
    talking(monkeypatch, "--plain", "-c", typed="more\n")
    assert loader.asked[-1][0] == "a/b"
    assert asked(loader) == {"temperature": 0.3}
    prompt = next(prompt for prompt in reversed(loader.engines[-1].prompts) if prompt.startswith("["))
    assert prompt.startswith("[system] be kind ;[user] hello ;[assistant] ") and prompt.endswith("[user] more ;[assistant]")
    talking(monkeypatch, "--plain", "--resume", name[:-1], "--model", "c/d", "--temp", "0.9", typed="again\n")
    assert loader.asked[-1][0] == "c/d"
    assert asked(loader) == {"temperature": 0.9}
    (summary,) = Store().summaries()
    assert (summary.turns, summary.model, summary.cut_off) == (6, "c/d", False)


def test_a_session_that_is_open_is_passed_over_and_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Store().create()
    log.user("elsewhere")
    with pytest.raises(UsageError, match="no saved conversation to go on with"):
        talking(monkeypatch, "--plain", "-c")
    with pytest.raises(UsageError, match="open in another"):
        talking(monkeypatch, "--plain", "-c", log.id)
    log.close()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-c", "nothing"], "no session"),
        (["-c", "--no-save"], "contradict"),
        (["--temp", "hot"], "hot"),
        (["--strict"], "--strict"),
        (["--json"], "--json"),
        (["--stats"], "--plain"),
        (["-m", "200"], "-n 200"),
        (["--kv-bits", "3"], "kv-bits"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(
    argv: list[str], words: str, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=words):
        talking(monkeypatch, *argv, "hello")
    assert loader.asked == []


def test_a_wrong_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="MLXSPEC_TEMPO"):
        talking(monkeypatch, "--plain", MLXSPEC_TEMPO="1")


def test_a_model_that_cannot_be_loaded_leaves_a_chat(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = talking(monkeypatch, "--plain", "--model", "broken", typed="hello\n/model fake\nhello\n")
    assert code == 0
    assert "no model at broken" in err and "No model is loaded" in err
    assert out.strip()


def test_prompts_are_kept_unless_nothing_shall_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talking(monkeypatch, "--plain", "--no-save", typed="hello\n")
    assert not (home / "state").exists() and not (home / "data").exists()
    talking(monkeypatch, "--plain", typed="hello\n")
    assert (home / "state" / "mlxspec" / "prompts.jsonl").read_text() == '"hello"\n'


# ---- On the screen -----------------------------------------------------------------------------------------------------------------------


def test_the_screen_gets_talk_theme_and_keys(loader: Loader, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config" / "mlxspec").mkdir(parents=True)
    (home / "config" / "mlxspec" / "config.toml").write_text("theme = 'nord'\n[keys]\nsend = 'ctrl+s'\n")
    seen: dict[str, Any] = {}

    def run(talk: Any, **more: Any) -> int:
        seen.update(more, said=[one.text for one in talk.said], answering=talk.answering)
        return 5

    monkeypatch.setattr("mlxspec.tui.app.run", run)
    code, _, err = talking(monkeypatch, "hello")
    assert code == 5
    assert seen == {"theme": "nord", "keys": {"send": "ctrl+s"}, "said": ["hello", ""], "answering": True}
    assert "Traceback" not in err


def test_leaving_tells_what_is_not_saved(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "data").write_text("in the way")
    code, out, err = talking(monkeypatch, "--plain", "hello")
    assert code == 0 and out.strip()
    assert "not saved" in err
