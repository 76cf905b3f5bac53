"""``mlxspec generate`` through ``main``: prompts, streams, exit codes, -c and --trace. The engine is a fake one, but for the last test."""

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli.main import main
from mlxspec.errors import ModelError
from mlxspec.sessions import last_exchange, learned
from mlxspec.settings.options import Options
from tests.fake_engine import ANSWER, FakeEngine, Opened, failing, install, isolate, report


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, home: Path) -> Opened:
    return install(monkeypatch)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts bytes on stdin."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return put


# ---- Prompts -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "stdin", "prompt"),
    [
        (["What", "is", "gravity?"], None, "What is gravity?"),
        (["What", "--seed", "1", "is", "it?"], None, "What is it?"),
        (["--", "--seed", "is", "what?"], None, "--seed is what?"),
        (["-5 degrees?"], None, "-5 degrees?"),
        (["--prompt", "hello"], None, "hello"),
        (["-p", "-"], b"from stdin\n", "from stdin"),
        (["-"], b"from stdin\n", "from stdin"),
        (["-f", "-"], b"from stdin\n", "from stdin"),
        ([], b"all of it\r\nin two lines\r\n", "all of it\r\nin two lines"),
        (["Explain:"], b"a document\n", "Explain:\n\na document"),
        (["-p", "Explain:"], b"a document\n", "Explain:\n\na document"),
        (["hello"], b"", "hello"),
        (["hello"], b" \n", "hello"),
        (["hello", "--verbose"], None, "hello"),
        (["--verbose", "hello"], None, "hello"),
        (["--verbose", "True", "hello"], None, "hello"),
        ([], "żółć 日本".encode(), "żółć 日本"),
        ([], b"\xef\xbb\xbfwith a mark", "with a mark"),
        ([os.fsdecode(b"caf\xc3\xa9")], None, "café"),
    ],
)
def test_where_a_prompt_comes_from(
    argv: list[str], stdin: bytes | None, prompt: str, opened: Opened, pipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if stdin is not None:
        pipe(stdin)
    assert main(["generate", *argv]) == 0
    assert opened.prompt == prompt


def test_a_prompt_from_a_file(home: Path, opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "prompt.txt").write_text("What is\ngravity?\n")
    assert main(["generate", "--file", str(home / "prompt.txt")]) == 0
    assert opened.prompt == "What is\ngravity?"


@pytest.mark.parametrize(
    ("argv", "stdin", "words"),
    [
        ([""], None, "empty"),
        ([" \n\t"], None, "empty"),
        ([], b"", "empty"),
        ([], b" \n ", "empty"),
        ([], None, "no prompt"),
        (["a\0b"], None, "NUL"),
        ([], b"a\0b", "NUL"),
        (["hello"], b"a\0b", "NUL"),
    ],
)
def test_a_prompt_without_text_is_refused(argv: list[str], stdin: bytes | None, words: str, pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if stdin is not None:
        pipe(stdin)
    code, line = failing(capsys, "generate", *argv)
    assert code == 2
    assert words in line


def test_an_unreadable_prompt_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (home / "none.txt", home):
        code, line = failing(capsys, "generate", "-f", str(path))
        assert code == 2
        assert str(path) in line


def test_bytes_that_are_not_utf8(pipe: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pipe(b"caf\xe9 \x80 5")
    code, line = failing(capsys, "generate")
    assert code == 1
    assert "byte 4 is 0xe9" in line
    monkeypatch.setenv("LANG", "en_US.CP1252")
    pipe(b"caf\xe9 \x80 5")
    assert main(["generate"]) == 0
    assert opened.prompt == "café € 5"
    pipe(b"not in cp1252: \x81")
    assert "byte 16 is 0x81" in capsys.readouterr().err + failing(capsys, "generate")[1]


# ---- The answer --------------------------------------------------------------------------------------------------------------------------


def test_stdout_is_the_answer_and_nothing_else(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FAKE_PRINT", "a library's chatter")
    assert main(["generate", "hi"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ANSWER + "\n"
    assert captured.err == "Model fake from nowhere\na library's chatter\n"


def test_stats_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    main(["generate", "hi", "--stats", "--seed", "7"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "7 tokens · 27.8 tok/s · 2.00 tokens/round · accepted 3/6 · prefill 0.1 s · lookup, coupled, seed 7"
    monkeypatch.setenv("LANG", "C")
    main(["generate", "hi", "--stats", "--seed", "7", "--drafter", "none", "-n", "3"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.isascii()
    assert "speculation off (--drafter none)" in line
    assert "cut at the token limit" in line


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ([], 1),
        (["--stats"], 2),
        (["--verbose"], 3),
        (["--verbose", "False"], 1),
        (["--no-stats"], 1),
        (["-q"], 0),
        (["--json"], 1),
        (["--json", "--stats"], 2),
    ],
    ids=str,
)
def test_what_goes_to_stderr(flags: list[str], lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", *flags]) == 0
    assert capsys.readouterr().err.count("\n") == lines


def test_a_flag_without_effect_is_said_to_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--drafter", "none", "--draft-tokens", "4"]) == 0
    assert "--draft-tokens has no effect with --drafter none." in capsys.readouterr().err


def test_json_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "hi", "--seed", "7")
    assert list(found) == ["text", "tokens", "finish_reason", "model", "drafter", "accept", "exact", "seed", "stats"]
    assert (found["text"], found["tokens"], found["finish_reason"], found["seed"]) == (ANSWER, 7, "stop", 7)


def test_no_tokens_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "-n", "0"]) == 0
    assert capsys.readouterr().out == ""
    assert report(capsys, "hi", "-n", "0")["finish_reason"] == "length"


def test_exit_codes(capsys: pytest.CaptureFixture[str], opened: Opened) -> None:
    assert main(["generate", "hi", "-n", "2"]) == 0
    assert main(["generate", "hi", "-n", "2", "--strict"]) == 3
    assert main(["generate", "hi", "--strict"]) == 0
    assert main(["generate", "hi", "--require-spec"]) == 0
    capsys.readouterr()
    code, line = failing(capsys, "generate", "hi", "--require-spec", "--drafter", "none")
    assert code == 3
    assert "--drafter none" in line
    assert opened.engines[-1].prompts == []


# ---- Answers to learn from ---------------------------------------------------------------------------------------------------------------


def test_answers_are_kept_where_that_is_asked_for_and_go_when_they_are_deleted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only whole answers; open to their owner alone."""
    assert main(["generate", "hi"]) == main(["generate", "hi", "--learn", "-n", "2"]) == 0
    assert learned.names() == [] and "not finished (length)" in capsys.readouterr().err
    assert main(["learned"]) == 0 and "No answers are kept" in capsys.readouterr().err
    assert main(["generate", "Say something", "--learn", "--system-prompt", "Be brief."]) == main(["generate", "-c", "Again", "--learn"]) == 0
    first, second = (learned.read(name) for name in learned.names())
    assert (first.model, first.digest) == ("fake", "fake-digest")
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something"}, {"role": "assistant", "content": ANSWER}]
    assert first.messages == told and second.messages == [*told, {"role": "user", "content": "Again"}, told[-1]]
    file = learned.folder() / f"{first.id}.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    capsys.readouterr()
    assert main(["learned", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and first.id in lines[1] and lines[1].endswith("Say something") and lines[2].endswith("Again")
    assert main(["learned", "show", first.id]) == 0 and "user: Say something" in capsys.readouterr().out
    assert main(["learned", "--json"]) == 0 and len(json.loads(capsys.readouterr().out)["learned"]) == 2
    for argv, said in (
        (["rm"], "or --all"),
        (["rm", first.id, "20200101-000000-123456"], "There is no kept answer"),
        (["rm", "../last"], "There is no kept answer"),
        (["show"], "takes one ID"),
        (["list", "x"], "takes nothing more"),
        (["list", "--all"], "no effect"),
        (["keep"], "is unknown"),
    ):
        code, line = failing(capsys, "learned", *argv)
        assert code == 2 and said in line
    assert len(learned.names()) == 2
    assert main(["learned", "rm", first.id]) == 0 and learned.names() == [second.id]
    (learned.folder() / f"{second.id}.json").write_text("{")
    capsys.readouterr()
    code, line = failing(capsys, "learned")
    assert code == 1 and f"mlxspec learned rm {second.id}" in line
    assert main(["learned", "rm", "--all"]) == 0 and learned.names() == []


def test_a_folder_that_cannot_be_written_costs_no_answer_either(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learned.folder().parent.mkdir(parents=True)
    learned.folder().write_text("in the way")
    assert main(["generate", "hi", "--learn"]) == 0
    streams = capsys.readouterr()
    assert ANSWER in streams.out and "was not kept for training" in streams.err


def test_speculation_that_goes_off_on_the_way_counts_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(self: FakeEngine, options: Options, cancel: Any) -> Any:
        self.speculation, self.reason = "off", "the cache cannot rewind"
        yield from whole(self, options, cancel)

    whole = FakeEngine._reply
    monkeypatch.setattr(FakeEngine, "_reply", broken)
    assert main(["generate", "hi", "--require-spec"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ANSWER + "\n"
    assert "the cache cannot rewind" in captured.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ModelError("There is no model at x: give another."), 1, "no model at x"),
        (RuntimeError("[metal::malloc] too much\nsecond line \x1b[2J"), 1, "RuntimeError: [metal::malloc] too much second line (this"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_failures_are_one_line(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("mlxspec.cli.generate.open_engine", fail)
    assert failing(capsys, "generate", "hi")[0] == code
    assert main(["generate", "hi", "--json"]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "\x1b" not in captured.err
    assert words in json.loads(captured.out)["error"]["message"]
    if isinstance(error, Exception):
        main(["generate", "hi", "--debug"])
        assert "Traceback" in capsys.readouterr().err


def test_a_failure_in_the_middle_keeps_what_was_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FAKE_FAIL", "The drafter proposed token 999.")
    assert main(["generate", "hi", "--seed", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Gravity pulls things\n"
    assert captured.err.splitlines()[-1] == "mlxspec: The drafter proposed token 999."
    assert not last_exchange.exchange_file().exists()


def test_interrupted_by_the_first_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The signal comes within the second round; the handler of before is back afterwards."""
    before = signal.getsignal(signal.SIGINT)
    sent = []

    def pause(seconds: float) -> None:
        sent.append(seconds)
        if len(sent) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("time.sleep", pause)
    assert main(["generate", "hi", "--stats"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "Gravity pulls things\n"
    assert captured.err.splitlines()[-1].endswith("interrupted")
    assert signal.getsignal(signal.SIGINT) is before
    assert last_exchange.load().messages[-1] == {"role": "assistant", "content": "Gravity pulls things"}


# ---- -c ----------------------------------------------------------------------------------------------------------------------------------


def test_an_exchange_goes_on_with_its_settings(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    first = ["--model", "a/b", "--temp", "0.3", "-s", "Be brief.", "--logit-bias", "3=-1", "--stop", "END", "--seed", "7", "--yes", "--strict"]
    assert main(["generate", "What is gravity?", *first]) == 0
    assert opened.prompt == "What is gravity?"
    assert last_exchange.exchange_file().stat().st_mode & 0o777 == 0o600
    assert main(["generate", "-c", "And why?", "--temp", "0.9"]) == 0
    assert opened.prompt == [
        {"role": "user", "content": "What is gravity?"},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "And why?"},
    ]
    assert opened.engines[-1].options.model == "a/b"
    assert opened.engines[-1].options.yes is False
    wanted = {"temperature": 0.9, "system_prompt": "Be brief.", "logit_bias": {3: -1.0}, "stop": ("END",), "seed": 7}
    assert opened.engines[-1].asked == [wanted]
    assert main(["generate", "--continue", "-s", "Be long.", "More."]) == 0
    assert [message["role"] for message in opened.prompt] == ["user", "assistant"] * 2 + ["user"]
    assert opened.engines[-1].asked[0]["system_prompt"] == "Be long."
    assert opened.engines[-1].asked[0]["temperature"] == 0.9
    assert list(last_exchange.exchange_file().parent.iterdir()) == [last_exchange.exchange_file()]


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"messages": [{"role": "user"}], "settings": {}}', '{"messages": [], "settings": {"seed": "x"}}']
)
def test_a_damaged_exchange_is_said_to_be(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    last_exchange.exchange_file().parent.mkdir(parents=True)
    last_exchange.exchange_file().write_text(content)
    code, line = failing(capsys, "generate", "-c", "hi")
    assert code == 1
    assert str(last_exchange.exchange_file()) in line


def test_a_state_folder_that_cannot_be_written_costs_no_answer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "state").write_text("a file")
    assert main(["generate", "hi"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ANSWER + "\n"
    assert "not kept for -c" in captured.err


# ---- --trace -----------------------------------------------------------------------------------------------------------------------------


def test_a_trace_is_written_and_inspected(home: Path, opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "run.jsonl"
    found = report(capsys, "hi", "--trace", str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    wanted = {"model": "fake", "drafter": "lookup", "accept": "coupled", "seed": found["seed"], "prompt_tokens": 5}
    assert wanted.items() <= lines[0].items()
    assert "".join(line["text"] for line in lines[1:-1]) + lines[-1]["tail"] == ANSWER
    assert lines[-1]["stats"] == found["stats"]
    assert main(["inspect", str(path)]) == 0
    assert "+_pulls (-_wrong) =_things" in capsys.readouterr().out


def test_a_trace_that_cannot_be_written_is_refused_first(home: Path, opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "generate", "hi", "--trace", str(home / "none" / "run.jsonl"))
    assert code == 1
    assert "none/run.jsonl" in line
    assert opened.engines == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_trace_on_a_full_disk_fails_after_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--trace", "/dev/full"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ANSWER + "\n"
    assert "No space left" in captured.err
    assert main(["generate", "hi", "--trace", "/dev/full", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["text"] == ANSWER, "one object, and that the answer"


def test_an_empty_reply_has_a_trace(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "run.jsonl"
    report(capsys, "hi", "-n", "0", "--trace", str(path))
    assert len(path.read_text().splitlines()) == 2
    assert main(["inspect", str(path)]) == 0


# ---- The real engine ---------------------------------------------------------------------------------------------------------------------


def test_a_tiny_model_from_a_folder(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.tiny import save_folder

    folder = save_folder(home / "tiny", vocab_size=258, max_position_embeddings=128)
    monkeypatch.undo()
    isolate(monkeypatch, home)
    path = home / "run.jsonl"
    flags = ["--model", str(folder), "--seed", "7", "-n", "40", "--offline"]
    found = report(capsys, "abcabcabc", *flags, "--trace", str(path))
    assert found["tokens"] == 40
    assert found["stats"]["emitted"] == 39
    assert main(["generate", "abcabcabc", *flags]) == 0
    assert capsys.readouterr().out.rstrip("\n") == found["text"].rstrip("\n"), "the same seed, the same text"
    assert main(["inspect", "--json", str(path)]) == 0
    sums = json.loads(capsys.readouterr().out)
    assert {key: sums[key] for key in ("rounds", "drafted", "accepted", "emitted")} == {
        key: found["stats"][key] for key in ("rounds", "drafted", "accepted", "emitted")
    }
    assert main(["generate", "-c", "x"]) == 0
    assert main(["generate", "x" * 200, *flags]) == 2
    assert "reads at most 128" in capsys.readouterr().err.splitlines()[-1]


def test_an_exchange_that_outgrows_the_context_goes_on_without_its_oldest_turns(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny import save_folder

    folder = save_folder(home / "tiny", vocab_size=258, max_position_embeddings=128)
    monkeypatch.undo()
    isolate(monkeypatch, home)
    assert main(["generate", "one " * 8, "--model", str(folder), "--seed", "7", "-n", "20", "-s", "Be brief."]) == 0
    assert "oldest" not in capsys.readouterr().err
    for turn in range(5):
        assert main(["generate", "-c", f"{turn} " + "two " * 8]) == 0
    assert "128" in (err := capsys.readouterr().err) and "oldest" in err
    assert len(last_exchange.load().messages) == 13, "nothing is lost"
    assert main(["generate", "-c", "x" * 300]) == 2
    assert "reads at most 128" in capsys.readouterr().err.splitlines()[-1]


def test_what_came_from_a_folder_goes_on_from_it_in_any_other(home: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("owner/name", "drafts", "smollm2-135m"):
        (home / name).mkdir(parents=True)
    monkeypatch.chdir(home)
    for model, kept in (("owner/name", str(home / "owner" / "name")), ("smollm2-135m", "smollm2-135m"), ("other/name", "other/name")):
        assert main(["generate", "hi", "--model", model, "--drafter", "small:./drafts"]) == 0
        monkeypatch.chdir("/")
        assert main(["generate", "-c", "on"]) == 0
        assert (opened.engines[-1].options.model, opened.engines[-1].options.drafter) == (kept, f"small:{home / 'drafts'}")
        monkeypatch.chdir(home)


@pytest.mark.parametrize(("typed", "read"), [(r"\n", "\n"), (r"a\tb", "a\tb"), (r"\\n", r"\n"), (r"\d", r"\d"), ("\n", "\n")])
def test_a_stop_string_may_be_typed_with_escapes(typed: str, read: str, opened: Opened) -> None:
    assert main(["generate", "hi", "--stop", typed, "--stop", "END"]) == 0
    assert opened.engines[-1].asked[0]["stop"] == (read, "END")
    assert main(["generate", "-c", "on"]) == 0
    assert opened.engines[-1].asked[0]["stop"] == (read, "END")
    assert Options(stop=(typed,)).stop == (typed,)
