"""``mlxspec models pull``, ``rm`` and ``show``: what we manage, and a clear error for the rest. No network."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli import models as verb
from mlxspec.cli.main import main
from mlxspec.loading.fetch import BUILT_IN, BuiltIn
from tests.fake_engine import failing, isolate
from tests.tiny import save_folder

DATA = b"weights" * 100


@pytest.fixture(autouse=True)
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltIn:
    """A built-in model that is in the cache."""
    isolate(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    sha256 = hashlib.sha256(DATA).hexdigest()
    known = BuiltIn(
        name="tiny", package="p", version="1", wheel="p.whl", wheel_sha256="0", wheel_size=1, inner="p/t.gguf", sha256=sha256, size=len(DATA)
    )
    monkeypatch.setitem(BUILT_IN, "tiny", known)
    known.path.parent.mkdir(parents=True)
    known.path.write_bytes(DATA)
    return known


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["models", *argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_pull_says_where_a_built_in_model_is(entry: BuiltIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "pull", "tiny")["path"] == str(entry.path)
    asked: list[tuple[BuiltIn, bool]] = []

    def obtain(wanted: BuiltIn, *, offline: bool, say: Any) -> tuple[Path, str]:
        asked.append((wanted, offline))
        return wanted.path, "afar"

    monkeypatch.setattr(verb, "obtain", obtain)
    entry.path.unlink()
    assert main(["models", "pull", "tiny"]) == 0
    assert asked == [(entry, False)]
    assert str(entry.path) in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("yes\n", True), ("n\n", False), ("", False)])
def test_rm_asks(answer: str, gone: bool, entry: BuiltIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["models", "rm", "tiny", "-q"]) == (0 if gone else 2)
    assert entry.path.exists() != gone
    assert f"Delete {entry.path} (0 MB)? [y/N]" in capsys.readouterr().err


def test_rm_without_a_terminal_needs_a_yes(entry: BuiltIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, line = failing(capsys, "models", "rm", "tiny")
    assert code == 2 and "-y" in line and entry.path.exists()
    assert shown(capsys, "rm", "tiny", "-y")["deleted"] == "tiny"
    assert not entry.path.exists()
    code, line = failing(capsys, "models", "rm", "tiny", "-y")
    assert code == 2 and "is not here" in line


def test_show(entry: BuiltIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "show", "tiny") == {
        "name": "tiny",
        "kind": "built-in",
        "size_bytes": len(DATA),
        "source": "package p 1",
        "cached": True,
        "path": str(entry.path),
    }
    entry.path.unlink()
    assert main(["models", "show", "tiny"]) == 0
    assert "models pull" in capsys.readouterr().out
    folder = save_folder(tmp_path / "model")
    assert shown(capsys, "show", str(folder))["size_bytes"] == (folder / "model.safetensors").stat().st_size
    (tmp_path / "one.gguf").write_bytes(b"12345")
    assert shown(capsys, "show", "one.gguf")["size_bytes"] == 5


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["pul", "tiny"], "list, pull, rm, show"),
        (["list", "x"], "nothing more"),
        (["show"], "takes one NAME"),
        (["rm", "tiny", "tiny"], "takes one NAME"),
        (["show", "nowhere"], "'nowhere'"),
        (["pull", "org/name"], "generate -m"),
        (["rm", "org/name"], "hf cache rm"),
        (["show", "tiny", "-y"], "-y has no effect"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(argv: list[str], words: str, entry: BuiltIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "models", *argv)
    assert code == 2 and words in line
    assert entry.path.exists()
