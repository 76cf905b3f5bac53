"""What is learnt when a small drafter is trained: a tiny Llama over the target's whole vocabulary, saved as an ordinary mlx-lm folder.

Its embeddings start as the target's output projection, cut to the small width where that changes the target's logits least. With them comes what
the small model's last hidden state should be at every place (the target's own, seen through the same cut); it is trained to come near that too.
"""

import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.llama import Model, ModelArgs

from mlxspec.errors import DrafterError
from mlxspec.loading.load import Loaded, dequantise
from mlxspec.training.cross_entropy import cross_entropy, projected
from mlxspec.training.data import Answer, TrainingText
from mlxspec.training.redrafter import rounds, tables

ABOUT = "A small Llama over the target's whole vocabulary, for classical speculative decoding; an ordinary mlx-lm folder."
OWN = ("hidden_size",)
RATE, BATCH = 2e-3, 8  # by default; a batch is of texts
DEPTH = 4  # of the chain in the estimate of tokens per round
COMMON = 8192  # tokens of the text that most steps are trained over
WHOLE_EVERY = 8  # one step in so many is trained over the whole vocabulary, which costs several times as much


@dataclass(frozen=True, slots=True)
class SmallShape:
    """What the user chooses about the network and its labels."""

    hidden_size: int = 256
    layers: int = 4
    window: int = 256
    soft: bool = True
    prompt_weight: float = 0.3  # of the tokens of prompts, whose labels are always hard
    follow: float = 0.0  # weight of the distance to the target's own hidden state
    bits: int = 6


class SmallTask:
    """A small model with its training text."""

    kind = "small"

    def __init__(self, head: np.ndarray, tokenizer: Any, text: TrainingText, shape: SmallShape, seed: int, start: Path | None = None) -> None:
        self.tokenizer, self.text, self.shape, self.seed = tokenizer, text, shape, seed
        mx.random.seed(seed)
        self.config = config_of(shape, len(head), tokenizer)
        self.network: nn.Module = Model(ModelArgs.from_dict(self.config))
        sample = text.hidden_at(np.unique(np.linspace(0, len(text) - 1, 20_000).astype(np.int64)))
        embeddings, self.reader = projected(head, sample, shape.hidden_size)
        if start is None:
            self.network.model.embed_tokens.weight = mx.array(embeddings)
        else:
            self._load(start)
        self.network.set_dtype(mx.float32)
        self.table_bytes = head.nbytes
        self.answers = text.training_answers()
        self.places = np.arange(len(self.answers))
        self.common = text.draft_vocabulary(min(COMMON, len(head)), len(head))
        self.place = np.full(len(head), -1, np.int32)  # of a token among the common ones
        self.place[self.common] = np.arange(len(self.common))

    def _load(self, folder: Path) -> None:
        from mlx_lm.utils import load_model

        try:
            network, config = load_model(folder)
        except Exception as error:
            raise DrafterError(f"{folder} cannot be loaded ({type(error).__name__}: {str(error).splitlines()[0]}): give a trained folder.") from error
        wanted = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
        for name in wanted:
            if config.get(name) != self.config[name]:
                raise DrafterError(f"{folder} has {name} {config.get(name)}, and {self.config[name]} is asked for: give the options of its training.")
        network.set_dtype(mx.float32)
        dequantise(network)
        self.network = network

    def loss(self, batch: np.ndarray, step: int) -> mx.array:
        answers = [self.answers[i] for i in batch]
        inputs, places, ids, probs, scale, rows = self._labelled(answers, np.random.default_rng([self.seed, 1, step]))
        hidden = self.network.model(mx.array(inputs))
        features = hidden.reshape(-1, hidden.shape[-1])[mx.array(places)]
        weight = self.network.model.embed_tokens.weight
        if step % WHOLE_EVERY:
            weight, ids = weight[mx.array(self.common)], self.place[ids]
            probs, ids = np.where(ids >= 0, probs, 0), np.maximum(ids, 0)
        loss = cross_entropy(features, weight, ids, probs, scale / scale.sum())
        own = np.flatnonzero(rows >= 0)
        if self.shape.follow and len(own):
            theirs = self.text.hidden_at(rows[own]) @ self.reader
            loss = loss + self.shape.follow * (features[mx.array(own)] - mx.array(theirs)).square().mean()
        return loss

    def _labelled(self, answers: list[Answer], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Windows of texts (n, window), and of every place with a label: where, the label's ids and probs, its weight, and its row or -1."""
        window, top = self.shape.window, self.text.ids.shape[1]
        inputs = np.zeros((len(answers), min(window, max(len(one.record.tokens) for one in answers) - 1)), np.int32)
        places, ids, probs, scale, seen = [], [], [], [], []
        for i, one in enumerate(answers):
            tokens, prompt = one.record.tokens, one.record.prompt
            spare = len(tokens) - 1 - window
            first = int(rng.integers(max(0, min(spare, prompt - window // 2)), spare + 1)) if spare > 0 else 0
            part = tokens[first : first + window + 1]
            inputs[i, : len(part) - 1] = part[:-1]
            at = np.arange(len(part) - 1)
            label, chance = np.zeros((len(at), top), np.int32), np.zeros((len(at), top), np.float32)
            label[:, 0], chance[:, 0] = part[1:], 1
            rows = one.start + first + at + 1 - prompt  # of the token that is to be said
            own = rows >= one.start
            if self.shape.soft:
                label[own], chance[own] = self.text.ids[rows[own]], np.exp(self.text.logprobs[rows[own]].astype(np.float32))
            places.append(i * inputs.shape[1] + at)
            ids.append(label)
            probs.append(chance)
            scale.append(np.where(own, 1.0, self.shape.prompt_weight))
            seen.append(np.where(own, rows, -1))
        return (inputs, *(np.concatenate(part) for part in (places, ids, probs, scale, seen)))

    def held_out(self, count: int) -> dict[str, float]:
        """Tokens per round of a chain on held-out greedy answers, the loss there, and the share of tokens that are right."""
        answers = self.text.held_out(count)
        matches, losses, hits = np.zeros(len(self.text), np.int32), [], []
        for one in answers:
            tokens, prompt = np.array(one.record.tokens), one.record.prompt
            first = max(0, prompt - 2 * self.shape.window)
            hidden = self.network.model(mx.array(tokens[None, first:-1]))[0, prompt - first :]
            logits = np.array(hidden @ self.network.model.embed_tokens.weight.T)
            logits -= logits.max(axis=1, keepdims=True)
            said = tokens[prompt + 1 :]
            hit = logits.argmax(axis=1) == said
            losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(said)), said])
            hits.append(hit)
            run = 0
            for row in range(len(hit) - 1, -1, -1):
                run = run + 1 if hit[row] else 0
                matches[one.start + row] = min(run, DEPTH)
        return {
            "tokens_per_round": rounds(answers, matches),
            "loss": float(np.concatenate(losses).mean()),
            "right": float(np.concatenate(hits).mean()),
        }

    def save(self, folder: Path, extra: dict[str, Any]) -> None:
        """Write the folder: quantised weights, config, tokenizer; each file appears whole, the weights last."""
        from mlx_lm.utils import quantize_model, save_model

        copy = Model(ModelArgs.from_dict(self.config))
        copy.update(tree_map(lambda x: x.astype(mx.float16), self.network.parameters()))
        config = {**self.config, "mlxspec": extra}
        if self.shape.bits < 16 and self.shape.hidden_size % 64 == 0:
            with redirect_stdout(io.StringIO()):  # mlx-lm reports there
                copy, config = quantize_model(copy, config, 64, self.shape.bits)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
            save_model(scratch, copy)
            (Path(scratch) / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            if not (folder / "tokenizer_config.json").exists():
                self.tokenizer.save_pretrained(scratch)
            for file in sorted(Path(scratch).iterdir(), key=lambda path: path.suffix == ".safetensors"):
                shutil.move(str(file), str(folder / file.name))


def config_of(shape: SmallShape, vocab: int, tokenizer: Any) -> dict[str, Any]:
    """The config.json of a small model."""
    heads = max(1, shape.hidden_size // 64)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "intermediate_size": 3 * shape.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2) if heads % 2 == 0 else heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "eos_token_id": sorted(tokenizer.eos_token_ids),
    }


def task(options: Any, loaded: Loaded, text: TrainingText, same: Sequence[int]) -> SmallTask:
    """The network to train, with its text."""
    shape = SmallShape(options.hidden_size, options.layers or 4, soft=options.labels == "soft")
    return SmallTask(tables(loaded.model)[1], loaded.tokenizer, text, shape, options.seed, options.start)
