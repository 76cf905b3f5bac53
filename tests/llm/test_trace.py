"""Traces: what is written can be read back, also of a killed run; what is no trace is refused with its line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli.main import main
from mlxspec.core.events import Done, Step, Text
from mlxspec.core.proposal import Proposal
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.llm.trace import TraceWriter, read, summary
from tests.fake_engine import WordTokenizer, isolate

HEADER = {"mlxspec": "0", "model": "fake", "drafter": "lookup", "accept": "coupled", "seed": 7, "prompt_tokens": 3}
TREE = Proposal((1, 2, 3, 4), (-1, 0, 0, -1))  # the → (cat | dog), a


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer() -> WordTokenizer:
    result = WordTokenizer()
    for word in ("on", " the", " cat", " dog", " a", " sat", "\n"):
        result.token(word)
    return result


@pytest.fixture
def path(home: Path, tokenizer: WordTokenizer) -> Path:
    """Three rounds: two accepted and one of the target's own; all rejected; cut by a stop, so that nothing is the target's own."""
    path = home / "run.jsonl"
    writer = TraceWriter(path)
    writer.begin(HEADER)
    writer.begin(HEADER)
    writer.add(Text("on", Step((0,))), tokenizer)
    seconds = {"draft": 0.1, "verify": 0.3, "other": 0.0}
    writer.add(Text(" the cat sat", Step((1, 2, 5), TREE, (0, 1), seconds, "lookup")), tokenizer)
    writer.add(Text("\n", Step((6,), Proposal.chain([1, 2]), (), seconds, "lookup")), tokenizer)
    last = Step((1,), Proposal.chain([1]), (0,), seconds, "lookup")
    writer.add(Text(" th", last), tokenizer)
    writer.add(Text("e", last), tokenizer)
    writer.add(Text("!", None), tokenizer)
    writer.end(Done("on the cat sat\n the!", (0, 1, 2, 5, 6, 1), "stop", "fake", "lookup", "coupled", True, 7, {"tokens_per_second": 10.0}))
    writer.close()
    return path


def test_one_json_line_a_round(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0] == HEADER
    assert [line["round"] for line in lines[1:5]] == [0, 1, 2, 3]
    assert lines[2]["proposal"] == {"tokens": [1, 2, 3, 4], "parents": [-1, 0, 0, -1], "texts": [" the", " cat", " dog", " a"]}
    assert (lines[2]["tokens"], lines[2]["path"], lines[2]["accepted"], lines[2]["text"]) == ([1, 2, 5], [0, 1], 2, " the cat sat")
    assert lines[1]["proposal"] is None
    assert lines[-1] == {"finish_reason": "stop", "tail": "e!", "seed": 7, "stats": {"tokens_per_second": 10.0}}
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_rounds_add_up(path: Path) -> None:
    assert summary(read(path).rounds) == {
        "rounds": 3,
        "drafted": 7,
        "accepted": 3,
        "emitted": 5,
        "tokens_per_round": 5 / 3,
        "by_depth": [{"drafted": 3, "reached": 3, "accepted": 2}, {"drafted": 2, "reached": 1, "accepted": 1}],
        "seconds": {"draft": pytest.approx(0.3), "verify": pytest.approx(0.9), "other": 0.0},
    }


def test_inspect_marks_without_colour(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "    0         =on\n" in out
    assert "    1    2/4  +_the (-_a) +_cat (-_dog) =_sat\n" in out
    assert "    2    0/2  (-_the -_cat) =\\n\n" in out
    assert "    3    1/1  +_the\n" in out
    assert "3 rounds · 5 tokens after the first · 1.67 tokens/round · accepted 3/7 · 10.0 tok/s" in out
    assert "depth 2: accepted in 1 of 2 rounds (50%, 1 of 1 that got so far)" in out
    assert "time: draft 0.30 s (25%) · verify 0.90 s (75%) · other 0.00 s (0%)" in out
    assert out.endswith("ended: stop\n")


def test_inspect_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["accepted"], found["complete"]) == ("fake", 3, True)


@pytest.mark.parametrize("cut", [0, 10])
def test_a_killed_run_is_readable(path: Path, cut: int, capsys: pytest.CaptureFixture[str]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:cut])
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 rounds" in out
    assert "no last line" in out


def changed(place: str, value: Any) -> bytes:
    line = {
        "round": 1,
        "tokens": [1, 5],
        "texts": ["a", "b"],
        "text": "ab",
        "proposal": {"tokens": [1], "parents": [-1], "texts": ["a"]},
        "path": [0],
        "accepted": 1,
        "drafter": "x",
        "seconds": {"draft": 0, "verify": 0, "other": 0},
    }
    return json.dumps({**line, place: value}).encode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not JSON", ["line 2", "damaged"]),
        (b"[1, 2]", ["line 2", "no JSON object"]),
        (b'{"round": 1}', ["line 2", "no round"]),
        (b"\xff\xfe", ["line 2", "damaged"]),
        pytest.param(b"[" * 100_000, ["line 2", "damaged"], id="deep"),
        (changed("path", [1]), ["line 2", "path"]),
        (changed("path", [-1]), ["line 2", "path"]),
        (changed("path", [0, 0]), ["line 2", "path"]),
        (changed("proposal", {"tokens": [1], "parents": [0], "texts": ["a"]}), ["line 2"]),
        (changed("texts", ["a"]), ["line 2"]),
        (changed("seconds", {"draft": "long"}), ["line 2", "no round"]),
        (changed("tokens", None), ["line 2", "no round"]),
    ],
)
def test_a_damaged_line_is_named(home: Path, line: bytes, words: list[str]) -> None:
    path = home / "bad.jsonl"
    path.write_bytes(json.dumps(HEADER).encode() + b"\n" + line + b"\n")
    with pytest.raises(MlxspecError) as error:
        read(path)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"a": 1}\n', b"\x89PNG\r\n\x1a\n\x00", b'{"mlxspec": "0"'])
def test_a_foreign_file_is_refused_at_line_1(home: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "foreign").write_bytes(content)
    assert main(["inspect", str(home / "foreign")]) == 1
    err = capsys.readouterr().err
    assert "line 1" in err
    assert err.count("\n") == 1


def test_inspect_needs_one_file_that_is_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 2
    assert main(["inspect", "a", "b"]) == 2
    assert main(["inspect", str(home / "none")]) == 1
    assert main(["inspect", str(home)]) == 1
    assert capsys.readouterr().err.count("\n") == 4


def test_hostile_names_in_a_trace_reach_no_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "hostile.jsonl"
    header = {**HEADER, "model": "\x1b]52;c;x\x07m", "drafter": "\x1b[2Jd"}
    path.write_bytes(json.dumps(header).encode() + b"\n" + changed("texts", ["\x1b[31ma", "\x9bb"]) + b"\n")
    assert main(["inspect", str(path)]) == 0
    assert not set(capsys.readouterr().out) & {"\x1b", "\x9b", "\x07"}


def test_a_trace_replaces_a_trace_and_nothing_else(home: Path, path: Path) -> None:
    notes = home / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        TraceWriter(notes)
    assert notes.read_text() == "mine"
    writer = TraceWriter(path)
    writer.close()
    assert len(read(path).rounds) == 4, "opening it alone loses nothing"
    writer = TraceWriter(path)
    writer.begin(HEADER)
    writer.close()
    assert read(path).rounds == ()
    writer = TraceWriter(notes, force=True)
    writer.begin(HEADER)
    writer.close()
    assert read(notes).header == HEADER


def test_a_trace_that_was_never_begun_leaves_no_file(home: Path) -> None:
    TraceWriter(home / "new.jsonl").close()
    assert not (home / "new.jsonl").exists()


def test_where_a_trace_cannot_go(home: Path) -> None:
    for path in (home / "none" / "run.jsonl", home):
        with pytest.raises(MlxspecError, match="cannot be written"):
            TraceWriter(path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_trace_and_not_the_reply(tokenizer: WordTokenizer) -> None:
    writer = TraceWriter(Path("/dev/full"))
    writer.begin(HEADER)
    writer.add(Text("on", Step((0,))), tokenizer)
    writer.close()
    assert "No space left" in str(writer.failure)
