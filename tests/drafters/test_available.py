"""Which models and drafters are offered, and why one does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxspec.drafters import available
from mlxspec.drafters.available import Fit, drafters, models, snapshot, vocabulary
from mlxspec.drafters.choose import tokens_digest
from tests.fake_engine import isolate
from tests.tiny import save_folder, tiny_engine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    monkeypatch.setattr(available, "in_hub_cache", lambda: [])
    return tmp_path


def by_name(found: list[Fit]) -> dict[str, Fit]:
    return {fit.name: fit for fit in found}


def test_models_of_all_kinds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "a/b", "kind": "hub", "size_bytes": 3_000_000_000, "source": "the hub's cache", "cached": True, "path": "x"}
    monkeypatch.setattr(available, "in_hub_cache", lambda: [row])
    folder = save_folder(home / "here" / "mine")
    (home / "here" / "x.gguf").write_bytes(b"GGUF")
    (home / "here" / "empty").mkdir()
    found = by_name(models(None, (home / "here", home / "none")))
    assert found["a/b"].about == "3.0 GB, the hub's cache"
    assert "not here yet (a download)" in found["smollm2-135m"].about
    assert {str(folder), str(home / "here" / "x.gguf")} < set(found)
    assert str(home / "here" / "empty") not in found
    assert not any(fit.current for fit in found.values())


def test_without_a_model_there_are_no_drafters() -> None:
    assert drafters(None, ()) == []


def test_small_drafters_need_the_same_tokens(home: Path) -> None:
    engine = tiny_engine("lookup")
    same, other = save_folder(home / "same"), save_folder(home / "other", vocab_size=200)
    (save_folder(home / "unread") / "tokenizer.json").write_text("{]")
    found = by_name(drafters(engine, (home,)))
    assert found[f"small:{same}"].fits
    assert not found[f"small:{other}"].fits
    assert "tokens differ" in found[f"small:{other}"].about
    assert "when it is loaded" in found[f"small:{home / 'unread'}"].about
    assert [fit.name for fit in found.values() if fit.current] == ["lookup"]
    engine.with_drafter(f"small:{same}")
    with pytest.raises(Exception, match="same tokenizer"):
        engine.with_drafter(f"small:{other}")


def test_trained_drafters_say_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    records: list[dict[str, Any]] = [
        {"target": "tiny", "target_digest": "tiny-digest"},
        {"target": "tiny-4bit", "target_digest": "x", "tokens_digest": tokens_digest(engine.tokenizer)},
        {"target": "another", "target_digest": "y", "tokens_digest": "z"},
    ]
    listed = [("redrafter", Path(f"/w{number}"), record) for number, record in enumerate(records)]
    monkeypatch.setattr(available, "trained_drafters", lambda: listed)
    found = by_name(available.trained(engine))
    assert found["redrafter"].about == "trained for this model"
    assert found["redrafter:/w1"].fits and "other weights" in found["redrafter:/w1"].about
    assert not found["redrafter:/w2"].fits and "another" in found["redrafter:/w2"].about


def test_a_model_that_takes_no_drafts_says_why() -> None:
    engine = tiny_engine()
    engine.target.shape, engine.target.reason = "none", "logits differ"
    found = by_name(drafters(engine, ()))
    assert found["none"].fits and not found["lookup"].fits
    assert "logits differ" in found["lookup"].about


def test_reading_tokenizers(home: Path) -> None:
    assert vocabulary(home) is None
    (home / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": [{"id": 2, "content": "<s>"}]}))
    assert vocabulary(home) == {0: "a", 1: "b", 2: "<s>"}
    cached = home / "models--a--b" / "snapshots" / "123"
    cached.mkdir(parents=True)
    assert snapshot(home / "models--a--b") is None
    (cached / "config.json").write_text("{}")
    assert snapshot(home / "models--a--b") == cached
