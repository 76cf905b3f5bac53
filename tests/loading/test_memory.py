"""What a model and its cache will take, told from shapes alone; refusal and warning."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxspec.core.cache import make_cache
from mlxspec.core.target import Target
from mlxspec.drafters.choose import choose_drafter
from mlxspec.drafters.redrafter import RecurrentDrafter
from mlxspec.errors import ModelError
from mlxspec.loading import memory
from mlxspec.loading.load import Loaded
from mlxspec.loading.memory import Need, needed, preflight
from mlxspec.models.redrafter import ReDrafter, ReDrafterArgs, save
from mlxspec.settings.options import Options
from tests.tiny import tiny_model

GB = 1_000_000_000


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mamba2", "qwen3_next", "gpt_oss"])
@pytest.mark.parametrize("options", [{}, {"max_kv_size": 64}, {"kv_bits": 8}])
def test_what_is_planned_is_what_a_full_cache_takes(family: str, options: dict[str, int]) -> None:
    """Against a cache that was really filled; buffers grow in steps, so it may hold some rows more than it needs."""
    model = tiny_model(family)
    tokens = 1024
    try:
        need = needed(model, tokens, **options)
    except ModelError as error:  # what cannot be is refused with the flag's name
        assert options
        assert ("--kv-bits" if "kv_bits" in options else "--max-kv-size") in str(error)
        return
    caches = make_cache(model, **options)
    for _ in range(4):
        model(mx.zeros((1, tokens // 4), mx.int32), cache=caches)
        mx.eval([layer.state for layer in caches])
    arrays: Any = tree_flatten([layer.state for layer in caches])
    held = sum(array.nbytes for _, array in arrays if isinstance(array, mx.array))
    assert need.cache == pytest.approx(held, rel=0.35 if options or family in ("gemma3_text", "gpt_oss") else 0.01)
    weights: Any = tree_flatten(model.parameters())
    assert need.weights == sum(array.nbytes for _, array in weights)


def test_a_conversation_is_planned_for_and_no_more_than_the_model_reads() -> None:
    model = tiny_model("llama")
    assert needed(model, 131_072) == needed(model, None)
    assert needed(model, 512).cache * 16 == needed(model, 8192).cache
    assert needed(model, 131_072).context == 8192


@pytest.mark.parametrize(("total", "beside", "outcome"), [(6, 0, "quiet"), (8, 0, "quiet"), (9.5, 0, "close"), (6, 3.5, "close"), (6, 5, "refused")])
def test_close_is_said_and_too_much_refused(monkeypatch: pytest.MonkeyPatch, total: float, beside: float, outcome: str) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 10 * GB)
    need = Need(int((total - 1) * GB), GB, 8192)
    said: list[str] = []
    if outcome == "refused":
        with pytest.raises(
            ModelError, match=r"x takes 5.0 GB, its cache of 8192 tokens 1.0 GB beside 5.0 GB .*: 11.0 GB of 10.0 GB .* or pass --force\."
        ):
            preflight("x", need, int(beside * GB), False, said.append)
        preflight("x", need, int(beside * GB), True, said.append)
        assert "--force was given" in said[0]
    else:
        preflight("x", need, int(beside * GB), False, said.append)
        assert len(said) == (outcome == "close")
        assert outcome == "quiet" or "That is close" in said[0]


def test_a_redrafter_counts_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fits, and does not with its drafter: refused before the drafter is read, unless forced. Where it is close, that is said."""
    model: Any = tiny_model("llama")
    loaded = Loaded("tiny", model, None, {}, "", "digest", {}, memory=9 * GB)
    target = Target(model)
    target.probe()
    width = model.model.embed_tokens.weight.shape[1]
    save(tmp_path, ReDrafter(ReDrafterArgs(width, target.vocab_size, 2 * width, 1)))
    size = RecurrentDrafter.bytes(tmp_path)
    assert size >= (tmp_path / "model.safetensors").stat().st_size and RecurrentDrafter.bytes(tmp_path / "none") == 0
    said: list[str] = []
    monkeypatch.setattr(memory, "limit", lambda: 9 * GB + size // 2)
    wish = f"redrafter:{tmp_path}"
    with pytest.raises(ModelError, match=r"redrafter:.* takes [^,]* beside 9.0 GB of what is loaded: .* or pass --force\."):
        choose_drafter(wish, target, loaded, Options(), said.append)
    (drafter,) = choose_drafter(wish, target, loaded, Options(force=True), said.append)
    assert isinstance(drafter, RecurrentDrafter) and "--force was given" in said[-1]
    monkeypatch.setattr(memory, "limit", lambda: 9 * GB + 2 * size)
    choose_drafter(wish, target, loaded, Options(), said.append)
    assert "That is close" in said[-1]


def test_metal_says_what_it_can_work_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 12 * GB})
    assert memory.limit() == 12 * GB
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(memory, "memory_bytes", lambda: None)
    assert memory.limit() is None
    preflight("x", Need(10**15, 0, 1), 0, False, pytest.fail)  # nobody says: nothing is refused
