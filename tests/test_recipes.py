"""The recipes, tried on seeded trifles: they learn, they go on where they were broken off to the same end, and they never see what is held out."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import soundfile
from mlx.utils import tree_flatten

from mlxspec.audio.codec import NeuralCodec
from mlxspec.errors import UsageError
from mlxspec.models.codec import Codec, load
from mlxspec.recipes import codec as recipe
from mlxspec.recipes.both_cores import Team, run_team
from mlxspec.recipes.codec import CodecTask, k_means, spectral
from mlxspec.recipes.course import Plan
from mlxspec.recipes.sounds import HELD_OUT, open_sounds
from tests.test_codec import TINY

SMALL = replace(TINY, codes=16, hop=320, window=640)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty short sounds of gliding tones, two of them held out."""
    folder = tmp_path_factory.mktemp("sounds")
    for line in [*range(40), 13_900, 13_999]:
        time = np.arange(int(16000 * (0.5 + 0.02 * (line % 40)))) / 16000
        sound = 0.4 * np.sin(2 * np.pi * (200 + 20 * (line % 40) + 100 * time) * time)
        soundfile.write(folder / f"{line:05d}.ogg", sound.astype(np.float32), 16000)
    return folder


def weights(folder: Path) -> dict[str, mx.array]:
    network: Any = load(folder)
    return dict(tree_flatten(network.parameters()))


def trained(sounds: Path, out: Path, *more: str) -> int:
    return recipe.main(["--sounds", str(sounds), "--out", str(out), "--batch", "4", "--processes=1", *more], SMALL, free=3)


def test_held_out_lines_are_in_no_corpus(sounds: Path, tmp_path: Path) -> None:
    found = open_sounds(sounds, tmp_path / "cache", 16000, lambda _: None)
    assert len(found) == 40 and not set(found.lines.tolist()) & set(HELD_OUT)
    places, watched = found.split()
    assert watched.tolist() == [19, 39] and len(places) == 38
    again = open_sounds(sounds, tmp_path / "cache", 16000, lambda _: None)
    assert np.array_equal(found.sound(7), again.sound(7)) and abs(len(found.sound(7)) / 16000 - 0.64) < 0.01
    with pytest.raises(UsageError, match="make the corpus first"):
        open_sounds(tmp_path / "cache", tmp_path / "other", 16000, lambda _: None)


def test_the_codec_recipe_makes_a_codec_that_loads(sounds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(sounds, tmp_path / "codec", "--steps", "24", "--rate", "0.003") == 0
    codec = NeuralCodec.load(tmp_path / "codec")
    frames = codec.encode(np.zeros(3200, np.float32))
    assert len(codec.decode(frames)) == 3200
    told = json.loads((tmp_path / "codec" / "config.json").read_text())["trained"]
    assert told["steps"] == 24 and told["processes"] == 1 and told["history"][-1]["mel"] < told["history"][0]["mel"]
    assert "left" in capsys.readouterr().err


def test_a_run_that_was_broken_off_ends_as_an_unbroken_one(sounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the codebook was begun; weights, moments and running means all matter."""
    assert trained(sounds, tmp_path / "whole", "--steps", "8") == 0
    after = CodecTask.after

    def interrupted(self: CodecTask, step: int, seen: Any) -> None:
        after(self, step, seen)
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(CodecTask, "after", interrupted)
        assert trained(sounds, tmp_path / "broken", "--steps", "8") == 130
    assert not (tmp_path / "broken" / "config.json").exists()
    assert trained(sounds, tmp_path / "broken", "--steps", "8", "--rate", "0.1", "--resume") == 2  # other settings
    assert trained(sounds, tmp_path / "broken", "--steps", "8", "--resume") == 0
    whole, broken = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(mx.allclose(whole[name], broken[name], atol=1e-5).item() for name in whole)


def test_the_decoder_alone_leaves_tokens_as_they_are(sounds: Path, tmp_path: Path) -> None:
    trained(sounds, tmp_path / "first", "--steps", "6")
    assert trained(sounds, tmp_path / "second", "--steps", "4", "--from", str(tmp_path / "first")) == 0
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    moved = {name.partition(".")[0] for name in first if not mx.array_equal(first[name], second[name])}
    assert moved == {"decoder"}


def test_minutes_become_steps(sounds: Path, tmp_path: Path) -> None:
    assert trained(sounds, tmp_path / "codec", "--minutes", "0.001") == 0
    assert json.loads((tmp_path / "codec" / "config.json").read_text())["trained"]["steps"] == 20


def test_dead_codes_are_placed_anew(sounds: Path, tmp_path: Path) -> None:
    found = open_sounds(sounds, tmp_path / "cache", 16000, lambda _: None)
    mx.random.seed(0)
    task = CodecTask(Codec(SMALL), found, Team(), batch=4, free=0)
    task.state["counts"][3] = 0.001
    vectors = mx.random.normal((40, SMALL.code_size))
    task._revive(25, vectors)
    place = task.state["sums"][3] / task.state["counts"][3]
    assert mx.abs(vectors - place).sum(axis=-1).min().item() < 1e-5


def test_k_means_finds_planted_centres() -> None:
    rng = np.random.default_rng(0)
    planted = rng.normal(0, 5, (6, 4))
    centres, counts = k_means(np.repeat(planted, 50, axis=0) + rng.normal(0, 0.05, (300, 4)), 24, seed=1)
    assert counts.sum() == 300
    assert max(np.abs(centres[counts > 0] - centre).max(axis=1).min() for centre in planted) < 0.2


def test_spectra_tell_sounds_apart() -> None:
    rng = np.random.default_rng(1)
    sound = mx.array(rng.normal(0, 0.1, (2, 8000)), mx.float32)
    near, far = sound + 0.001, mx.array(rng.normal(0, 0.4, (2, 8000)), mx.float32)
    assert spectral(sound, sound).item() == 0 < spectral(near, sound).item() < spectral(far, sound).item()


def test_rates_rise_and_fall() -> None:
    linear, cosine = Plan(1000, 1e-3), Plan(1000, 1e-3, shape="cosine")
    assert linear.rate_at(0) < linear.rate_at(59) == linear.rate_at(599) == 1e-3 > linear.rate_at(900) > 0
    assert cosine.rate_at(60) > cosine.rate_at(500) > cosine.rate_at(999) > 0


def test_two_processes_are_one_team(tmp_path: Path) -> None:
    assert run_team("tests.team_probe", [str(tmp_path)], 2) == 0
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [one["share"] for one in told] == [[0, 2, 4], [1, 3]]
    assert all(one["averaged"] == [0.5, 2.0] and one["agreed"] == 7.5 and one["any"] == [True, False] for one in told)
    assert told[0]["seen"] == [] and "0.mark" in told[1]["seen"]
    assert run_team("tests.team_probe", [str(tmp_path), "fails"], 2) == 3
