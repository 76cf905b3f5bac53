"""The ReDrafter network: logits against NumPy, checkpoints there and back, Apple's and older names, and every damaged folder refused in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxspec.models.redrafter import CheckpointError, Quantization, ReDrafter, ReDrafterArgs, load, read_config, save
from tests import ROOT

SHAPES = {
    "apple": ReDrafterArgs(hidden_size=8, vocab_size=20, exit_dim=16),
    "projected": ReDrafterArgs(hidden_size=8, vocab_size=20, exit_dim=12, num_draft_layers=1),
    "sum": ReDrafterArgs(hidden_size=8, vocab_size=20, exit_dim=16, num_draft_layers=3, rnn=False),
    "projected sum": ReDrafterArgs(hidden_size=8, vocab_size=20, exit_dim=8, rnn=False),
    "bare": ReDrafterArgs(hidden_size=8, vocab_size=20, exit_dim=16, num_draft_layers=0),
    "trimmed": ReDrafterArgs(hidden_size=8, vocab_size=20, exit_dim=12, draft_vocab_size=6),
    "quantised": ReDrafterArgs(hidden_size=8, vocab_size=40, exit_dim=64, draft_vocab_size=33, quantization=Quantization(bits=8, group_size=32)),
}


def seeded(args: ReDrafterArgs, seed: int = 0) -> ReDrafter:
    mx.random.seed(seed)
    ids = np.random.default_rng(seed).permutation(args.vocab_size)[: args.head_size]
    network = ReDrafter(args, ids.tolist() if args.draft_vocab_size is not None else None)
    mx.eval(tensors(network))
    return network


@pytest.mark.parametrize("kind", ["apple", "trimmed", "quantised"])
def test_trimming_the_draft_vocabulary_leaves_the_other_tokens_logits(kind: str) -> None:
    network = seeded(SHAPES[kind])
    hidden, state = mx.random.normal((8,)), mx.random.normal((3, 8))
    columns = np.array([4, 0, 3])
    ids = np.arange(20) if network.d2t is None else np.array(network.d2t)
    network.dequantise()
    before = np.array(network.logits(hidden, state))
    network = seeded(SHAPES[kind])
    network.trim(columns)
    assert np.array(network.d2t).tolist() == ids[columns].tolist() and network.args.head_size == 3 and network.args.quantization is None
    assert np.allclose(np.array(network.logits(hidden, state)), before[:, columns], atol=1e-6)


def tensors(network: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(network.parameters()))


def stored(folder: Path) -> dict[str, Any]:
    weights: Any = mx.load(str(folder / "model.safetensors"))
    mx.eval(weights)
    return dict(weights)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def reference(network: ReDrafter, hidden: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Logits of each step, (K, vocab), for one hidden state (H,) and the embeddings of K tokens (K, H), in float64."""
    args, w = network.args, {name: np.array(tensor, dtype=np.float64) for name, tensor in tensors(network).items()}
    if args.quantization is not None:
        head = network.lm_head[-1]
        dense = mx.dequantize(head.weight, head.scales, head.biases, head.group_size, head.bits)
        w[f"lm_head.{args.num_draft_layers}.weight"] = np.array(dense, dtype=np.float64)
    state = np.zeros(args.hidden_size)
    rows = []
    for embedding in embeddings:
        state = silu(w["rnn_w.weight"] @ embedding + w["rnn_u.weight"] @ state + w["rnn_u.bias"]) if args.rnn else embedding + state
        x = np.concatenate([hidden, state])
        if args.exit_dim != 2 * args.hidden_size:
            x = w["input_proj.weight"] @ x + w["input_proj.bias"]
        for i in range(args.num_draft_layers):
            x = x + silu(w[f"lm_head.{i}.linear.weight"] @ x + w[f"lm_head.{i}.linear.bias"])
        rows.append(w[f"lm_head.{args.num_draft_layers}.weight"] @ x)
    return np.array(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_numpy(shape: str) -> None:
    """Step by step, unrolled, and with several states beside one hidden state."""
    args = SHAPES[shape]
    network = seeded(args)
    rng = np.random.default_rng(1)
    hidden, embeddings = rng.normal(size=(3, args.hidden_size)), rng.normal(size=(3, 4, args.hidden_size))
    expected = np.stack([reference(network, h, e) for h, e in zip(hidden, embeddings, strict=True)])  # (3, 4, head)
    h, e = mx.array(hidden, mx.float32), mx.array(embeddings, mx.float32)

    assert np.abs(np.array(network.head(network.unroll(h, e))) - expected).max() < 1e-5
    state = None
    for k in range(4):
        state = network.step(e[:, k], state)
        assert np.abs(np.array(network.logits(h, state)) - expected[:, k]).max() < 1e-5
    state = network.step(e[0, :1], mx.zeros((1, args.hidden_size)))  # a state of zeros is the start
    assert np.abs(np.array(network.logits(h[0], state)) - expected[0, :1]).max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_checkpoints_there_and_back(shape: str, tmp_path: Path) -> None:
    network = seeded(SHAPES[shape])
    save(tmp_path / "new" / "folder", network, {"target": "a digest", "hidden_size": "not this one"})
    again = load(tmp_path / "new" / "folder")
    assert again.args == network.args
    assert all(mx.array_equal(tensor, tensors(again)[name]) for name, tensor in tensors(network).items())
    assert (again.d2t is None) == (network.d2t is None)
    if network.d2t is not None and again.d2t is not None:
        assert again.d2t.tolist() == network.d2t.tolist()
        offsets = stored(tmp_path / "new" / "folder")["d2t"].tolist()
        assert [d + offset for d, offset in enumerate(offsets)] == network.d2t.tolist()  # EAGLE-3's convention
    assert read_config(tmp_path / "new" / "folder")["target"] == "a digest"
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["config.json", "model.safetensors"]


def test_dtype_is_kept_and_the_map_is_not_trained(tmp_path: Path) -> None:
    network = seeded(SHAPES["trimmed"])
    network.set_dtype(mx.float16)
    save(tmp_path, network)
    again = load(tmp_path)
    assert {tensor.dtype for tensor in tensors(again).values()} == {mx.float16}
    assert again.d2t is not None and again.d2t.dtype == mx.int32
    again.unfreeze()
    assert not any("d2t" in name for name in tensors(again))


def test_names_are_apples() -> None:
    assert {name: tensor.shape for name, tensor in tensors(seeded(SHAPES["trimmed"])).items()} == {
        "input_proj.weight": (12, 16),
        "input_proj.bias": (12,),
        "lm_head.0.linear.weight": (12, 12),
        "lm_head.0.linear.bias": (12,),
        "lm_head.1.linear.weight": (12, 12),
        "lm_head.1.linear.bias": (12,),
        "lm_head.2.weight": (6, 12),
        "rnn_u.weight": (8, 8),
        "rnn_u.bias": (8,),
        "rnn_w.weight": (8, 8),
    }
    assert set(tensors(seeded(SHAPES["bare"]))) == {"lm_head.0.weight", "rnn_u.weight", "rnn_u.bias", "rnn_w.weight"}
    assert set(tensors(seeded(SHAPES["sum"]))) == {
        *(f"lm_head.{i}.linear.{part}" for i in range(3) for part in ("weight", "bias")),
        "lm_head.3.weight",
    }


@pytest.mark.parametrize("spelling", ["lm_heads.", "0.", "lm_head."])
def test_apples_folder_and_older_names(spelling: str, tmp_path: Path) -> None:
    """A config with Apple's entries and no other, emb_norm ignored, in bfloat16."""
    network = seeded(SHAPES["projected"])
    names = {name: name.replace("lm_head.", spelling).replace("input_proj.", "input_projs." if spelling != "lm_head." else "input_proj.")
             for name in tensors(network)}  # fmt: skip
    weights = {names[name]: tensor.astype(mx.bfloat16) for name, tensor in tensors(network).items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {**weights, "emb_norm.weight": mx.ones((8,))})
    config = {"model_type": "recurrent_drafting_drafter", "vocab_size": 20, "hidden_size": 8, "exit_dim": 12, "num_draft_layers": 1,
              "num_lookback_tokens": -1, "rnn": True, "architectures": ["Drafter"], "torch_dtype": "bfloat16"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = load(tmp_path)
    assert again.args == network.args
    assert all(mx.array_equal(tensor.astype(mx.bfloat16), tensors(again)[name]) for name, tensor in tensors(network).items())


def test_dequantise_keeps_the_logits() -> None:
    network = seeded(SHAPES["quantised"])
    h, s = mx.random.normal((8,)), mx.random.normal((3, 8))
    before = network.logits(h, s)
    mx.eval(before)
    network.dequantise()
    assert isinstance(network.lm_head[-1], nn.Linear) and network.args.quantization is None
    assert mx.abs(network.logits(h, s) - before).max().item() < 1e-5
    network.quantise(Quantization(4, 64))
    assert isinstance(network.lm_head[-1], nn.QuantizedLinear) and network.lm_head[-1].bits == 4
    network.quantise(Quantization(8, 32))
    assert network.lm_head[-1].bits == 8 and network.args.quantization == Quantization(8, 32)
    with pytest.raises(ValueError, match=r"exit_dim 64 is no multiple of the group size 128"):
        network.quantise(Quantization(8, 128))


@pytest.mark.parametrize(
    ("d2t", "message"),
    [([1, 2], r"shape \(2,\).*6 tokens"), ([0, 1, 2, 3, 4, 4], "1 of them twice"), ([0, 1, 2, 3, 4, 20], "to 20"), ([-1, 1, 2, 3, 4, 5], "from -1")],
)
def test_a_bad_map_is_refused(d2t: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReDrafter(SHAPES["trimmed"], d2t)


def test_a_map_needs_a_trimmed_vocabulary() -> None:
    with pytest.raises(ValueError, match="set draft_vocab_size to 3"):
        ReDrafter(SHAPES["apple"], [1, 2, 3])


def config_with(**changes: Any) -> Any:
    def spoil(folder: Path) -> None:
        config = {**json.loads((folder / "config.json").read_text()), **changes}
        (folder / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value != "gone"}))

    return spoil


def weights_with(**changes: mx.array | None) -> Any:
    def spoil(folder: Path) -> None:
        weights = {**stored(folder), **{name.replace("__", "."): value for name, value in changes.items()}}
        mx.save_safetensors(str(folder / "model.safetensors"), {name: value for name, value in weights.items() if value is not None})

    return spoil


def cut(name: str, kept: int) -> Any:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:kept])

    return spoil


SPOILT = {
    "no folder": (lambda folder: [path.unlink() for path in folder.iterdir()] and folder.rmdir(), "has no config.json"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"has no model.safetensors: give a folder"),
    "torch file": (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "convert pytorch_model.bin to safetensors"),
    "config cut": (cut("config.json", 20), "is no JSON that can be read"),
    "config empty": (cut("config.json", 0), "is no JSON that can be read"),
    "config no text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"), "is no JSON that can be read"),
    "config a list": (lambda folder: (folder / "config.json").write_text("[1]"), "holds a list where an object belongs"),
    "weights cut": (cut("model.safetensors", 1000), "damaged or cut short"),
    "header cut": (cut("model.safetensors", 30), "damaged or cut short"),
    "weights empty": (cut("model.safetensors", 0), "damaged or cut short"),
    "weights no safetensors": (lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs"), "damaged or cut short"),
    "another type": (config_with(model_type="llama"), "of type 'llama'"),
    "no size": (config_with(hidden_size="gone"), "hidden_size None .*of at least 1"),
    "size a text": (config_with(vocab_size="20"), "vocab_size '20'"),
    "size true": (config_with(exit_dim=True), "exit_dim True"),
    "size zero": (config_with(exit_dim=0), "exit_dim 0"),
    "layers": (config_with(num_draft_layers=-1), "num_draft_layers -1 .*from 0 to 64"),
    "rnn": (config_with(rnn="yes"), "rnn 'yes'"),
    "draft vocabulary too large": (config_with(draft_vocab_size=21), "draft_vocab_size 21 .*from 1 to 20"),
    "quantization": (config_with(quantization={"bits": 7, "group_size": 32}), "quantization .*bits"),
    "quantization a number": (config_with(quantization=4), "quantization 4"),
    "quantised group": (config_with(quantization={"bits": 4, "group_size": 32}), "exit_dim 12 is no multiple of the group size 32"),
    "sizes of another": (config_with(hidden_size=16), r"has input_proj.weight of shape \(12, 16\) where \(12, 32\) belongs"),
    "hidden of another": (config_with(exit_dim=16), r"has lm_head.0.linear.weight of shape \(12, 12\) where \(16, 16\)"),
    "more layers": (config_with(num_draft_layers=3), r"no tensor lm_head.2.linear.weight \(12, 12\)"),
    "fewer layers": (config_with(num_draft_layers=1), r"no tensor lm_head.1.weight"),
    "no rnn": (config_with(rnn=False), "3 tensors that a ReDrafter of this config.json has not, such as rnn_u.bias"),
    "tensor gone": (weights_with(rnn_u__bias=None), r"no tensor rnn_u.bias \(8,\)"),
    "tensor of whole numbers": (weights_with(rnn_u__bias=mx.zeros((8,), mx.int32)), "rnn_u.bias of type mlx.core.int32"),
    "tensor of NaN": (weights_with(rnn_u__bias=mx.full((8,), mx.nan)), "values in rnn_u.bias that are no numbers"),
    "no map": (weights_with(d2t=None), "says draft_vocab_size 6 and has no map d2t"),
    "map without need": (config_with(draft_vocab_size="gone"), "says no draft_vocab_size and has a map d2t"),
    "map of another": (weights_with(d2t=mx.zeros((5,), mx.int32)), "shape"),
    "map out of reach": (weights_with(d2t=mx.array([0, 0, 0, 0, 0, 15], mx.int32)), "ids from 0 to 20"),
    "map with doubles": (weights_with(d2t=mx.array([1, 0, 0, 0, 0, 0], mx.int32)), "1 of them twice"),
    "map of reals": (weights_with(d2t=mx.zeros((6,))), r"d2t of mlx.core.float32 \(6,\)"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_damaged_checkpoint_says_so_in_one_line(fault: str, tmp_path: Path) -> None:
    spoil, message = SPOILT[fault]
    folder = tmp_path / "drafter"
    save(folder, seeded(SHAPES["trimmed"]))
    load(folder)
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_a_failed_save_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    """The file may not grow past 1,500 bytes: as on a full disk the write fails half way."""
    network = seeded(SHAPES["trimmed"])
    save(tmp_path, network)
    program = (
        "import sys, resource, signal\n"
        "from tests.models.test_redrafter import SHAPES, save, seeded\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        "save(sys.argv[1], seeded(SHAPES['trimmed'], seed=5))\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode != 0 and "Unable to write" in run.stderr
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    assert mx.array_equal(load(tmp_path).rnn_w.weight, network.rnn_w.weight)
