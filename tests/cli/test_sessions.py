"""``mlxspec sessions`` through ``main``."""

import json
from pathlib import Path

import pytest

from mlxspec.cli.main import main
from mlxspec.sessions.store import Store
from tests.fake_engine import failing, isolate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def names(home: Path) -> list[str]:
    """Two sessions, the second the later one."""
    store, found = Store(), []
    for number, text in enumerate(("Why is the sky blue?", "Tell me of \x1b]0;x\x07lighthouses")):
        log = store.create(model="smollm2-135m", drafter="auto", system="be kind", settings={"temperature": 0.5})
        log.user(text)
        log.reply()
        log.text(f"Reply {number} with ```code``` and vector<int>")
        log.end("stop", {"model": "smollm2-135m", "seed": 7, "stats": {"rounds": 3}})
        log.close()
        found.append(log.id)
    first, second = (store.folder / f"{name}.jsonl" for name in found)
    import os

    os.utime(first, (1, 1))
    assert second.stat().st_mtime > 1
    return found


@pytest.mark.parametrize("argv", [[], ["list"]])
def test_the_list(argv: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", *argv]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["ID", "CHANGED", "MESSAGES", "MODEL", "TITLE"]
    assert [line.split()[0] for line in lines[1:]] == names[::-1]
    assert lines[1].endswith("Tell me of lighthouses")
    assert captured.err == ""
    assert main(["sessions", *argv, "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_list_as_json(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["sessions"]
    assert list(rows[0]) == ["id", "title", "created", "updated", "model", "messages", "cut_off", "damaged"]
    assert [row["id"] for row in rows] == names[::-1]
    assert rows[1]["messages"] == 2 and rows[1]["cut_off"] is False


def test_none_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no saved conversations" in captured.err
    assert main(["sessions", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sessions": []}


def test_show(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "show", names[0]]) == 0
    out = capsys.readouterr().out
    assert out.startswith('---\ntitle: "Why is the sky blue?"\n')
    assert "## System\n\nbe kind\n" in out
    assert "## You\n\nWhy is the sky blue?\n" in out
    assert "## smollm2-135m\n\nReply 0 with ```code``` and vector<int>\n" in out
    assert main(["sessions", "show", names[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["messages"][1] == {
        "role": "assistant",
        "content": "Reply 0 with ```code``` and vector<int>",
        "finish_reason": "stop",
        "model": "smollm2-135m",
        "seed": 7,
        "stats": {"rounds": 3},
    }
    assert found["settings"] == {"temperature": 0.5}


def test_search(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "search", "SKY", "is"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["sessions", "search", "the", "SKY"]) == 0
    assert capsys.readouterr().out == f"{names[0]}  user 1: Why is the sky blue?\n"
    assert main(["sessions", "search", "reply", "--json", "-n", "1"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["id"], hit["message"], hit["role"]) == (names[1], 2, "assistant")


def test_export(names: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "export", names[0]]) == 0
    text = capsys.readouterr().out
    assert main(["sessions", "export", names[0], "-o", "a.md"]) == 0
    assert (home / "a.md").read_text() == text
    assert main(["sessions", "export", names[0], "-o", "a.json"]) == 0
    assert json.loads((home / "a.json").read_text())["id"] == names[0]
    capsys.readouterr()
    assert "there already" in failing(capsys, "sessions", "export", names[0], "-o", "a.md")[1]
    assert main(["sessions", "export", names[1], "-o", "a.md", "--force"]) == 0
    assert "lighthouses" in (home / "a.md").read_text()
    capsys.readouterr()
    assert "ends in" in failing(capsys, "sessions", "export", names[0], "-o", "a.txt")[1]
    assert failing(capsys, "sessions", "export", names[0], "-o", "none/a.md")[0] == 1


def test_rm(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "sessions", "rm", names[0], "nothing")
    assert code == 2 and "nothing" in line
    assert len(Store().summaries()) == 2, "all of them are there, or none goes"
    assert main(["sessions", "rm", *names]) == 0
    assert Store().summaries() == []
    assert names[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["dance"], "list, show, search"),
        (["show"], "one ID"),
        (["show", "a", "b"], "one ID"),
        (["show", "nothing"], "no session"),
        (["rm"], "needs an ID"),
        (["search"], "nothing to search"),
        (["list", "x"], "nothing more"),
        (["show", "x", "-n", "3"], "no effect"),
        (["list", "-o", "a.md"], "no effect"),
        (["list", "-n", "0"], "from 1"),
        (["list", "--jsn"], "did you mean --json"),
        (["show", "\x1b[2J"], "no session"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense(argv: list[str], words: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "sessions", *argv)
    assert code == 2
    assert words in line
    assert "\x1b" not in line


def test_a_damaged_session_is_shown_as_far_as_it_goes(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Store().folder / f"{names[0]}.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], b"rubbish", *lines[2:]]))
    assert main(["sessions", "show", names[0]]) == 0
    captured = capsys.readouterr()
    assert "Why is the sky blue?" in captured.out and "Reply" not in captured.out
    assert "damaged (line 3" in captured.err
