"""The ReDrafter network (Cheng et al. 2403.09919): a recurrent state over drafted tokens beside one hidden state of the target, and one head.

Names and shapes are those of Apple's checkpoints. Beyond them: a trimmed draft vocabulary with a map to the target's tokens, and a quantised head.
Knows nothing of the engine, the search or the training. The embeddings are the target's own and are never stored here.

    s_t = SiLU(rnn_w E[token] + rnn_u s_{t-1})            from s_0 = 0; rnn=False: E[token] + s_{t-1}
    x   = input_proj([h; s_t])                            only where exit_dim is not 2 hidden_size; h is the target's, constant over t
    x   = x + SiLU(linear_i(x)) for each draft layer, then the head
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

MODEL_TYPE = "recurrent_drafting_drafter"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


class CheckpointError(ValueError):
    """A folder that holds no ReDrafter we can read. One line: what, the value, the remedy."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the head is quantised; ``group_size`` divides exit_dim."""

    bits: int
    group_size: int


@dataclass(frozen=True, slots=True)
class ReDrafterArgs:
    """``hidden_size`` and ``vocab_size`` are the target's; ``draft_vocab_size`` None drafts over the target's whole vocabulary."""

    hidden_size: int
    vocab_size: int
    exit_dim: int
    num_draft_layers: int = 2
    rnn: bool = True
    draft_vocab_size: int | None = None
    quantization: Quantization | None = None
    model_type: str = MODEL_TYPE

    @property
    def head_size(self) -> int:
        """Rows of the head: the tokens that can be drafted."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size


class ResBlock(nn.Module):
    """x + SiLU(linear(x))."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.linear = nn.Linear(size, size)

    def __call__(self, x: mx.array) -> mx.array:
        return x + nn.silu(self.linear(x))


class ReDrafter(nn.Module):
    """Batched over any leading axes. ``d2t`` gives the target's ids of the draft vocabulary, by default its first ones; it is not trained."""

    def __init__(self, args: ReDrafterArgs, d2t: Sequence[int] | mx.array | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args = args
        size, width = args.hidden_size, args.exit_dim
        if width != 2 * size:
            self.input_proj = nn.Linear(2 * size, width)
        self.lm_head: list[Any] = [ResBlock(width) for _ in range(args.num_draft_layers)]
        self.lm_head.append(nn.Linear(width, args.head_size, bias=False))
        if args.rnn:
            self.rnn_u = nn.Linear(size, size)
            self.rnn_w = nn.Linear(size, size, bias=False)
        if args.quantization is not None:
            self.quantise(args.quantization)
        self._d2t: mx.array | None = None  # the underscore keeps it out of the parameters
        if args.draft_vocab_size is not None:
            self._d2t = _checked_map(args, np.arange(args.head_size) if d2t is None else np.array(d2t))
        elif d2t is not None:
            raise ValueError(f"A map of {len(d2t)} tokens was given and no draft_vocab_size: set draft_vocab_size to {len(d2t)}.")

    @property
    def d2t(self) -> mx.array | None:
        """Target ids of the draft vocabulary, (head_size,) int32; None where both vocabularies are the same."""
        return self._d2t

    @property
    def drafted(self) -> np.ndarray:
        """Target ids of the draft vocabulary, (head_size,) int32, where both vocabularies are the same too."""
        return np.arange(self.args.head_size, dtype=np.int32) if self._d2t is None else np.array(self._d2t)

    def step(self, embedding: mx.array, state: mx.array | None = None) -> mx.array:
        """The state after one more token, given its embedding (..., hidden_size); ``state`` None is the zero state of the start."""
        if not self.args.rnn:
            return embedding if state is None else embedding + state
        return self._turn(self.rnn_w(embedding), state)

    def features(self, hidden: mx.array, state: mx.array) -> mx.array:
        """What the head reads, (..., exit_dim). ``hidden`` broadcasts against ``state``: (hidden_size,) beside (beams, hidden_size), say."""
        x = mx.concatenate(list(mx.broadcast_arrays(hidden, state)), axis=-1)
        return self._blocks(self.input_proj(x) if "input_proj" in self else x)

    def head(self, features: mx.array) -> mx.array:
        """Logits over the draft vocabulary, (..., head_size)."""
        logits: mx.array = self.lm_head[-1](features)
        return logits

    def logits(self, hidden: mx.array, state: mx.array) -> mx.array:
        """Logits of the token that follows ``state``, over the draft vocabulary."""
        return self.head(self.features(hidden, state))

    def unroll(self, hidden: mx.array, embeddings: mx.array) -> mx.array:
        """Features of every step of known continuations: hidden (N, H), embeddings (N, K, H) -> (N, K, exit_dim).

        Step k has read embeddings 0 to k: ``head`` of it predicts the token after them.
        """
        inputs = self.rnn_w(embeddings) if self.args.rnn else embeddings
        states: list[mx.array] = []
        for k in range(embeddings.shape[1]):
            before = states[-1] if states else None
            if self.args.rnn:
                states.append(self._turn(inputs[:, k], before))
            else:
                states.append(inputs[:, k] if before is None else inputs[:, k] + before)
        after = mx.stack(states, axis=1)  # (N, K, H)
        if "input_proj" not in self:
            return self.features(hidden[:, None], after)
        ours, theirs = mx.split(self.input_proj.weight, 2, axis=1)  # [h; s] W = h W_h + s W_s: the part of h once for all K
        return self._blocks(mx.addmm(self.input_proj.bias, hidden, ours.T)[:, None] + after @ theirs.T)

    def quantise(self, quantization: Quantization) -> None:
        """Quantise the head in place."""
        if self.args.exit_dim % quantization.group_size:
            raise ValueError(f"exit_dim {self.args.exit_dim} is no multiple of the group size {quantization.group_size}: choose one that divides it.")
        self.dequantise()
        self.lm_head[-1] = nn.QuantizedLinear.from_linear(self.lm_head[-1], quantization.group_size, quantization.bits)
        self.args = replace(self.args, quantization=quantization)

    def dequantise(self) -> None:
        """Make a quantised head dense again, in place: for the CPU, whose quantised kernels cost the same per row."""
        head = self.lm_head[-1]
        if isinstance(head, nn.QuantizedLinear):
            dense = nn.Linear(1, 1, bias=False)
            dense.weight = mx.dequantize(head.weight, head.scales, head.biases, head.group_size, head.bits)
            self.lm_head[-1] = dense
        self.args = replace(self.args, quantization=None)

    def trim(self, columns: np.ndarray) -> None:
        """Leave only these tokens of the draft vocabulary, (n,) places in it in their new order, in place: a step reads less."""
        self.dequantise()
        ids = self.drafted[columns]
        self.args = replace(self.args, draft_vocab_size=len(columns))
        self._d2t = _checked_map(self.args, ids)
        self.lm_head[-1].weight = self.lm_head[-1].weight[mx.array(columns.astype(np.int32))]

    def _blocks(self, x: mx.array) -> mx.array:
        for block in self.lm_head[:-1]:
            x = block(x)
        return x

    def _turn(self, read: mx.array, state: mx.array | None) -> mx.array:
        return nn.silu(read + (self.rnn_u.bias if state is None else self.rnn_u(state)))


def save(folder: str | Path, network: ReDrafter, extra_config: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint folder: each file appears whole or, where writing fails, the old one stays. The weights keep their dtype.

    The map is stored as EAGLE-3 does: ``d2t[d]`` is the distance from d to the target's id. ``extra_config`` joins the config's own entries.
    """
    args = network.args
    config: dict[str, Any] = {
        **(extra_config or {}),
        "model_type": args.model_type,
        "vocab_size": args.vocab_size,
        "hidden_size": args.hidden_size,
        "exit_dim": args.exit_dim,
        "num_draft_layers": args.num_draft_layers,
        "num_lookback_tokens": -1,
        "rnn": args.rnn,
        "emb_norm": False,
        "rms_norm_eps": 1e-5,
    }
    weights = _tensors(network)
    if network.d2t is not None:
        config["draft_vocab_size"] = args.head_size
        weights["d2t"] = network.d2t - mx.arange(args.head_size, dtype=mx.int32)
    if args.quantization is not None:
        config["quantization"] = {"bits": args.quantization.bits, "group_size": args.quantization.group_size}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / WEIGHTS, lambda path: mx.save_safetensors(str(path), weights, metadata={"format": "mlx"}))
    _replace(folder / CONFIG, lambda path: path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8"))


def read_config(folder: str | Path) -> dict[str, Any]:
    """The config of a checkpoint folder, entries of others included. Raises CheckpointError where there is none."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no ReDrafter: it has no {CONFIG}. Give a folder with {CONFIG} and {WEIGHTS}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no JSON that can be read ({_first_line(error)}): fetch or train the drafter again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__} where an object belongs: fetch or train the drafter again.")
    return config


def load(folder: str | Path) -> ReDrafter:
    """The network of a checkpoint folder, evaluated, in the dtype of the file: Apple's, the older spellings, or ours.

    Raises CheckpointError for whatever is missing, damaged or of another shape than the config says.
    """
    args = _read_args(folder, read_config(folder))
    weights = _read_weights(Path(folder) / WEIGHTS)
    stored_map = weights.pop("d2t", None)
    for unused in ("t2d", "emb_norm.weight"):  # the inverse map, and a norm that Apple's code never applies
        weights.pop(unused, None)
    if stored_map is not None and (stored_map.ndim != 1 or mx.issubdtype(stored_map.dtype, mx.floating)):
        raise CheckpointError(f"{folder} has a map d2t of {stored_map.dtype} {stored_map.shape}: a row of whole numbers belongs there.")
    if (stored_map is None) != (args.draft_vocab_size is None):
        said = "no draft_vocab_size" if args.draft_vocab_size is None else f"draft_vocab_size {args.draft_vocab_size}"
        raise CheckpointError(f"{folder} says {said} and has {'no' if stored_map is None else 'a'} map d2t: both or neither belong there.")
    try:
        d2t = None if stored_map is None else np.array(stored_map).astype(np.int64) + np.arange(stored_map.size)
        network = ReDrafter(args, None if d2t is None else d2t.tolist())
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    _check_tensors(folder, _tensors(network), weights)
    network.load_weights(list(weights.items()))
    mx.eval(_tensors(network))
    return network


def _read_args(folder: str | Path, config: Mapping[str, Any]) -> ReDrafterArgs:
    kind = config.get("model_type", MODEL_TYPE)
    if kind != MODEL_TYPE:
        raise CheckpointError(f"{folder} holds a model of type {kind!r}, a ReDrafter is {MODEL_TYPE!r}: give a ReDrafter's folder.")

    def size(name: str, *, least: int = 1, most: int | None = None, default: int | None = None) -> int:
        value = config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
            reach = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise CheckpointError(f"{folder} says {name} {value!r} in its {CONFIG}: a whole number {reach} belongs there.")
        return value

    hidden_size, vocab_size = size("hidden_size"), size("vocab_size")
    trimmed = config.get("draft_vocab_size") is not None
    rnn = config.get("rnn", True)
    if not isinstance(rnn, bool):
        raise CheckpointError(f"{folder} says rnn {rnn!r} in its {CONFIG}: true or false belongs there.")
    quantization = config.get("quantization")
    if quantization is not None:
        bits, group = (quantization.get("bits"), quantization.get("group_size")) if isinstance(quantization, dict) else (None, None)
        if bits not in (2, 3, 4, 5, 6, 8) or group not in (32, 64, 128):
            raise CheckpointError(f"{folder} says quantization {quantization!r} in its {CONFIG}: bits 2 to 8, group_size 32, 64 or 128.")
        quantization = Quantization(bits, group)
    return ReDrafterArgs(
        hidden_size,
        vocab_size,
        size("exit_dim"),
        size("num_draft_layers", least=0, most=64, default=2),
        rnn,
        size("draft_vocab_size", most=vocab_size) if trimmed else None,
        quantization,
    )


def _read_weights(path: Path) -> dict[str, mx.array]:
    if not path.is_file():
        others = ", ".join(sorted(p.name for p in path.parent.glob("*.bin"))[:2])
        remedy = f"convert {others} to safetensors" if others else f"give a folder with {CONFIG} and {WEIGHTS}"
        raise CheckpointError(f"{path.parent} has no {WEIGHTS}: {remedy}.")
    try:
        weights = mx.load(str(path))
        mx.eval(weights)
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({_first_line(error)}): fetch or train the drafter again.") from error
    assert isinstance(weights, dict)
    return {_new_name(name): weight for name, weight in weights.items()}


def _new_name(name: str) -> str:
    """Older spellings of the same tensors: input_projs., lm_heads., and a bare 0. for the head's list."""
    return re.sub(r"^(lm_heads|0)\.(?=\d+\.)", "lm_head.", re.sub(r"^input_projs\.", "input_proj.", name))


def _check_tensors(folder: str | Path, expected: Mapping[str, mx.array], found: Mapping[str, mx.array]) -> None:
    remedy = f"its {CONFIG} belongs to another drafter"
    for name, empty in expected.items():
        if name not in found:
            raise CheckpointError(f"{folder} has no tensor {name} {empty.shape} in its {WEIGHTS}: {remedy}, or the file is incomplete.")
        if found[name].shape != empty.shape:
            raise CheckpointError(f"{folder} has {name} of shape {found[name].shape} where {empty.shape} belongs: {remedy}.")
        if mx.issubdtype(found[name].dtype, mx.floating) != mx.issubdtype(empty.dtype, mx.floating):
            raise CheckpointError(f"{folder} has {name} of type {found[name].dtype} where {empty.dtype} belongs: {remedy}.")
        if mx.issubdtype(empty.dtype, mx.floating) and not mx.isfinite(found[name]).all().item():
            raise CheckpointError(
                f"{folder} has values in {name} that are no numbers (NaN or infinite): train it again, or from an earlier checkpoint."
            )
    if extra := sorted(found.keys() - expected.keys()):
        raise CheckpointError(f"{folder} has {len(extra)} tensors that a ReDrafter of this {CONFIG} has not, such as {extra[0]}: {remedy}.")


def _tensors(network: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(network.parameters()))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside ``path``, then put it there in one step."""
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _checked_map(args: ReDrafterArgs, d2t: np.ndarray) -> mx.array:
    ids = d2t.astype(np.int64)
    if ids.shape != (args.head_size,):
        raise ValueError(f"The map d2t has shape {ids.shape} and the draft vocabulary {args.head_size} tokens: give one target id a token.")
    if ids.min() < 0 or ids.max() >= args.vocab_size or len(np.unique(ids)) < len(ids):
        raise ValueError(
            f"The map d2t has ids from {ids.min()} to {ids.max()}, {len(ids) - len(np.unique(ids))} of them twice: "
            f"each token maps to one of its own below {args.vocab_size}."
        )
    return mx.array(ids.astype(np.int32))
