"""What ships: trained drafters of a known target, small enough, whole, with a card that says how to make them again."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm import load as load_folder

from mlxspec.loading.catalog import trained_drafters, with_the_package
from mlxspec.loading.fetch import BUILT_IN
from mlxspec.loading.load import digest
from mlxspec.models.redrafter import load
from mlxspec.recipes.sounds import HELD_OUT
from mlxspec.speech import voice_folder
from mlxspec.speech.voice import load_voice
from tests import ROOT

SHIPPED = trained_drafters()


def test_drafters_come_with_the_default_model() -> None:
    assert {("redrafter", "smollm2-135m"), ("small", "smollm2-135m")} <= {(kind, record["target"]) for kind, _, record in SHIPPED}
    assert {row["name"] for row in with_the_package()} == {f"{kind}:{record['target']}" for kind, _, record in SHIPPED}


@pytest.mark.parametrize(("kind", "folder", "record"), SHIPPED, ids=[folder.name for _, folder, _ in SHIPPED])
def test_it_is_small_whole_and_of_a_target_we_know(kind: str, folder: Path, record: dict[str, Any]) -> None:
    target = record["target"]
    assert folder.name == f"{target}-{kind}"
    assert record["target_digest"] == (BUILT_IN[target].sha256 if target in BUILT_IN else digest(voice_folder.find_voice(target).folder))
    assert record["complete"] is True and record["figures"]["tokens_per_round"] > 1.5
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 20_000_000
    assert {"README.md", "config.json", "model.safetensors"} <= {file.name for file in folder.iterdir()}
    card = (folder / "README.md").read_text("utf-8")
    assert f"mlxspec train {kind} --model {target} " in card and f"--steps {record['course']['steps']} " in card and "sha256" in card


def test_the_redrafters_numbers_are_numbers() -> None:
    for kind, folder, _ in SHIPPED:
        if kind == "redrafter":
            network = load(folder)
            weights: Any = network.parameters()  # type: ignore[no-untyped-call]
            arrays: Any = tree_flatten(weights)
            assert all(bool(mx.isfinite(array).all()) for _, array in arrays)
            ids: Any = network.d2t.tolist() if network.d2t is not None else []
            assert ids == sorted(set(ids)) and all(0 <= token < network.args.vocab_size for token in ids)
            assert json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"] == network.args.vocab_size


def test_the_small_model_is_an_ordinary_folder_of_the_targets_tokens() -> None:
    """What mlx_lm.generate --draft-model takes; every number of it is one."""
    folder = next(folder for kind, folder, record in SHIPPED if (kind, record["target"]) == ("small", "smollm2-135m"))
    model, tokenizer = load_folder(str(folder))
    logits = model(mx.array([tokenizer.encode("The tide comes in twice a day.")]))
    assert logits.shape[-1] == len(tokenizer.get_vocab()) == 49152 and bool(mx.isfinite(logits).all())


# ---- The voice ---------------------------------------------------------------------------------------------------------------------------

WEIGHTS = ROOT / "models" / "weights" / "voices"
SENTENCE = "The bridge was closed, so we walked home along the river."


def test_a_voice_comes_with_the_package_and_is_small_and_whole() -> None:
    assert "ada" in voice_folder.names()
    folder = WEIGHTS / "ada"
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 40_000_000
    card = (folder / "README.md").read_text("utf-8")
    assert "python -m mlxspec.recipes.voice" in card and "python -m mlxspec.recipes.codec" in card and "Kokoro-82M (Apache-2.0)" in card
    with np.load(folder / "spoken.npz") as corpus:
        assert not set(corpus["lines"].tolist()) & set(HELD_OUT)


def test_the_shipped_voice_says_a_sentence_the_same_with_any_drafter() -> None:
    """Every symbol once, so neither too short nor too long; loud enough; and the seed settles it."""
    voice = load_voice("ada", drafter="none")
    plain = voice.speak(SENTENCE, seed=3)
    for name in ("lookup", "redrafter", "auto"):
        drafted = voice.with_drafter(name).speak(SENTENCE, seed=3)
        assert plain.spoken.faults == () and np.array_equal(plain.samples, drafted.samples), name
    assert 2.0 < plain.duration < 6.0 and 0.01 < np.sqrt(np.mean(plain.samples**2)) < 0.3 and np.abs(plain.samples).max() <= 1


def test_the_drafter_of_the_shipped_voice_drafts() -> None:
    """2.7 tokens a round over many sentences; two of this one at the least."""
    voice = load_voice("ada", drafter="redrafter")
    stats = voice.speak(SENTENCE, seed=3, draft_tokens=4).spoken.stats
    assert stats["emitted"] / stats["rounds"] > 2
