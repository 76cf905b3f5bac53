"""The acoustic groups of a voice: vectors from its model or codec, groups cached or built. Knows where vectors lie, not how groups are used."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxspec.audio.codes.codec import Codec
from mlxspec.audio.codes.groups import Groups, Measure, Size, Slot, build
from mlxspec.audio.codes.groups_cache import cached
from mlxspec.audio.codes.layout import Layout
from mlxspec.errors import ModelError, UsageError
from mlxspec.paths import cache_dir

ROWS = {"head": "lm_head", "input": "embed_tokens"}


def voice_groups(
    model: nn.Module, digest: str, layout: Layout, codec: Codec, source: str, measure: Measure, size: Size, say: Callable[[str], None]
) -> Groups:
    """Groups of the audio tokens alone: text, start, end and mask are in none."""
    settings: dict[str, Any] = {
        "model": digest,
        "layout": hashlib.sha256(repr(layout.to_json()).encode()).hexdigest(),
        "source": source,
        "measure": measure,
        "mean": size.mean,
        "distance": size.distance,
    }
    if source == "codebook":
        settings["codec"] = hashlib.sha256(b"".join(codec.codebook(slot).tobytes() for slot in range(len(layout.slots)))).hexdigest()
    try:
        groups = cached(groups_folder(), settings, lambda: build(layout.vocab_size, slots(model, layout, codec, source), size, measure), say)
    except ValueError as error:
        raise UsageError(str(error)) from error
    audio = {i for span in layout.slots for i in span.ids}
    if not audio.issuperset(groups.grouped().tolist()):
        raise ModelError("The groups have tokens that are no audio codes: remove the folder " + str(groups_folder()) + ".")
    return groups


def groups_folder() -> Path:
    return cache_dir() / "groups"


def slots(model: nn.Module, layout: Layout, codec: Codec, source: str) -> list[Slot]:
    """The audio tokens of each slot with their vectors."""
    if source == "codebook":
        tables = [codec.codebook(slot) for slot in range(len(layout.slots))]
    elif source in ROWS:
        rows = _rows(model, ROWS[source])
        tables = [rows[span.first : span.first + span.count] for span in layout.slots]
    else:
        raise UsageError(f"--source {source} is unknown: give head, input or codebook.")
    return [Slot(np.array(span.ids), np.asarray(table)) for span, table in zip(layout.slots, tables, strict=True)]


def _rows(model: nn.Module, leaf: str) -> np.ndarray:
    """The rows of the output head or of the embedding table, dequantised; a model with tied embeddings has one table for both."""
    modules = {name.rpartition(".")[2]: module for name, module in model.named_modules()}
    module: Any = modules.get(leaf) or modules.get("embed_tokens")
    if module is None or "weight" not in module:
        raise ModelError(f"The speech model has no {leaf} to take vectors from: use --source codebook.")
    weight = module.weight
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        weight = mx.dequantize(weight, module.scales, module.biases, module.group_size, module.bits)
    return np.array(weight.astype(mx.float32))
