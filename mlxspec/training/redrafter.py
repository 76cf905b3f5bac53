"""What is learnt when a ReDrafter is trained: its start from the target's own weights, its loss, and the tokens per round to expect of it.

At row r of an answer the target's hidden state is known and the token said there is the guaranteed one; step k is to say the token k rows on. A step
is trained about as often as it will be reached: the chance that the target said all the tokens before it decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mlxspec.errors import DrafterError, UsageError
from mlxspec.loading.load import Loaded
from mlxspec.models.redrafter import CheckpointError, ReDrafter, ReDrafterArgs, load, save
from mlxspec.training.cross_entropy import cross_entropy, projected
from mlxspec.training.data import Answer, TrainingText

DRAFT_VOCAB, LAYERS = 4096, 2
ABOUT = "A ReDrafter (recurrent drafter, arXiv 2403.09919): reads the target's last hidden state and offers a tree of continuations."
OWN = ("exit_dim", "draft_vocab", "draft_steps")
RATE, BATCH = 1e-3, 256  # by default; a batch is of rows
RIDGE = 0.01  # of a feature's mean square
RARELY = 0.1  # a step is trained at least this often
OFFERED = 0.06  # a token hangs in the tree where the drafter gives its branch this much


@dataclass(frozen=True, slots=True)
class ReDrafterShape:
    """What the user chooses about the network and its labels."""

    exit_dim: int | None = None  # None: the target's hidden size, or what --from has
    draft_vocab: int | None = None  # None: DRAFT_VOCAB, or what --from has
    layers: int | None = None  # None: LAYERS, or what --from has
    rnn: bool = True
    steps: int = 5
    soft: bool = True
    follow: float = 0.0  # weight of the distance between what the head reads and the target's own hidden state there


class ReDrafterTask:
    """A ReDrafter with its training text."""

    kind = "redrafter"

    def __init__(
        self,
        table: np.ndarray,
        head: np.ndarray,
        text: TrainingText,
        shape: ReDrafterShape,
        seed: int,
        start: Path | None = None,
        alike: Sequence[int] = (),
    ) -> None:
        """``table`` (vocab, width) are the target's embeddings, ``head`` (vocab, width) its output projection.

        ``alike``: tokens that need not be told apart, since a rule of the sampler chooses among them. They are drafted as the first of them.
        """
        self.table, self.text, self.shape, self.seed = table, text, shape, seed
        vocab, width = table.shape
        if start is None:
            mx.random.seed(seed)
            ids = text.draft_vocabulary(min(shape.draft_vocab or DRAFT_VOCAB, vocab), vocab)
            ids = np.union1d(ids[~np.isin(ids, list(alike))], list(alike[:1])).astype(np.int32)
            args = ReDrafterArgs(width, vocab, shape.exit_dim or width, shape.layers or LAYERS, shape.rnn, len(ids))
            self.network = ReDrafter(args, ids.tolist())
            rows = [head[list(alike)].mean(axis=0) if i in alike[:1] else head[i] for i in ids]
            begin_by_regression(self.network, np.stack(rows), table, text, shape.steps, seed)
        else:
            self.network = self._loaded(start, vocab, width)
            if shape.draft_vocab is not None and shape.draft_vocab < self.network.args.head_size:
                kept = np.union1d(text.draft_vocabulary(shape.draft_vocab, vocab, self.network.drafted), list(alike[:1]))
                self.network.trim(np.flatnonzero(np.isin(self.network.drafted, kept)))
        self.ids = ids = self.network.drafted
        self.table_bytes = table.nbytes + (head.nbytes if head is not table else 0)
        self.place = np.full(vocab, -1, np.int32)  # of a target token in the draft vocabulary
        self.place[ids] = np.arange(len(ids))
        if alike:
            self.place[list(alike)] = self.place[alike[0]]
        self.network.set_dtype(mx.float32)
        self.places = np.concatenate([one.rows[:-1] for one in text.training_answers() if one.length > 1])

    def _loaded(self, folder: Path, vocab: int, width: int) -> ReDrafter:
        try:
            network = load(folder)
        except CheckpointError as error:
            raise DrafterError(str(error)) from error
        network.dequantise()
        if (network.args.vocab_size, network.args.hidden_size) != (vocab, width):
            raise DrafterError(
                f"{folder} was trained for {network.args.vocab_size} tokens and hidden size {network.args.hidden_size}, "
                f"and this model has {vocab} and {width}: give --from a drafter of the same model."
            )
        has, wants = network.args, self.shape
        for flag, found, asked in (("exit-dim", has.exit_dim, wants.exit_dim), ("layers", has.num_draft_layers, wants.layers)):
            if asked not in (None, found):
                raise UsageError(f"--{flag} {asked} and --from {folder}, which has {found}: leave out --{flag}, or --from.")
        if (wants.draft_vocab or 0) > has.head_size:
            raise UsageError(
                f"--draft-vocab {wants.draft_vocab} and --from {folder}, which can draft {has.head_size} tokens: "
                "it can be cut to fewer, not made to learn more; leave out --draft-vocab, or --from."
            )
        return network

    def loss(self, rows: np.ndarray, step: int) -> mx.array:
        """The loss of a batch of rows; a function of the network's parameters."""
        text, depth = self.text, self.shape.steps
        rng = np.random.default_rng([self.seed, 1, step])
        left = text.left[rows]
        ahead = np.minimum(np.arange(depth + 1), left[:, None] - 1) + rows[:, None]  # (n, depth + 1)
        reached = np.cumprod(np.concatenate([np.ones((len(rows), 1)), text.chance[ahead[:, 1:depth]]], axis=1), axis=1)
        train = (np.arange(1, depth + 1) < left[:, None]) & (rng.random(reached.shape) < np.maximum(reached, RARELY))
        which = np.flatnonzero(train)
        features = self.network.unroll(mx.array(text.hidden_at(rows)), mx.array(self.table[text.tokens[ahead[:, :depth]]]))
        features = features.reshape(-1, features.shape[-1])[mx.array(which)]
        goals = ahead[:, 1:].reshape(-1)[which]
        ids, probs = self.labels(goals)
        loss = cross_entropy(features, self.network.lm_head[-1].weight, ids, probs, np.full(len(which), 1 / len(which)))
        if self.shape.follow and features.shape[-1] == text.width:
            theirs = mx.array(text.hidden_at(goals))
            loss = loss + self.shape.follow * (features - theirs).square().mean() / theirs.square().mean()
        return loss

    def labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of the head and their probabilities, (n, k): the target's likeliest tokens, or the one it said."""
        if not self.shape.soft:
            ids = self.place[self.text.tokens[rows]][:, None]
            return np.maximum(ids, 0), (ids >= 0).astype(np.float32)
        ids = self.place[self.text.ids[rows]]
        return np.maximum(ids, 0), np.where(ids >= 0, np.exp(self.text.logprobs[rows].astype(np.float32)), 0)

    def held_out(self, count: int) -> dict[str, float]:
        """Tokens per round on held-out greedy answers, for a chain and for a tree, the loss, and how far both distributions overlap."""
        answers = self.text.held_out(count)
        rows = np.concatenate([one.rows[:-1] for one in answers])
        chain, tree, parts = np.zeros(len(self.text), np.int32), np.zeros(len(self.text), np.int32), []
        for start in range(0, len(rows), 256):
            some = rows[start : start + 256]
            chain[some], tree[some], more = self._matches(some)
            parts.append(more)
        loss, overlap, first = np.concatenate(parts, axis=1).mean(axis=1)
        return {
            "tokens_per_round": rounds(answers, tree),
            "tokens_per_round_chain": rounds(answers, chain),
            "loss": float(loss),
            "overlap": float(overlap),
            "first": float(first),
        }

    def _matches(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How many tokens after each row a greedy chain and a tree would have had right; and of step 1 the loss, the overlap and the hits."""
        text, network, depth = self.text, self.network, self.shape.steps
        hidden, table = mx.array(text.hidden_at(rows)), self.table
        chain, tree, left = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32), text.left[rows]
        alive, branch = np.arange(len(rows)), np.zeros(len(rows))
        state, in_chain, first = None, np.ones(len(rows), bool), np.zeros((3, len(rows)))
        for k in range(1, depth + 1):
            go = left[alive] > k
            places = mx.array(np.flatnonzero(go).astype(np.int32))
            alive, branch, in_chain = alive[go], branch[go], in_chain[go]
            if not len(alive):
                break
            state = None if state is None else state[places]
            state = network.step(mx.array(table[text.tokens[rows[alive] + k - 1]]), state)
            logits = np.array(network.logits(hidden[mx.array(alive)], state).astype(mx.float32))
            logits -= logits.max(axis=1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            said = self.place[text.tokens[rows[alive] + k]]
            branch = branch + np.where(said >= 0, logits[np.arange(len(alive)), said], -np.inf)
            in_chain &= logits.argmax(axis=1) == said
            if k == 1:
                ids, probs = self.labels(rows[alive] + 1)
                ours = np.take_along_axis(logits, ids, axis=1)
                first[:, alive] = -(probs * ours).sum(axis=1), shared(ids, probs, np.exp(ours)), in_chain
            chain[alive[in_chain]] += 1
            on = branch >= np.log(OFFERED)
            tree[alive[on]] += 1
            keep = np.flatnonzero(on | in_chain)
            state = state[mx.array(keep.astype(np.int32))]
            alive, branch, in_chain = alive[keep], branch[keep], in_chain[keep]
        return chain, tree, first

    def save(self, folder: Path, extra: dict[str, Any]) -> None:
        """Write the network as it is now, in float16."""
        halved = ReDrafter(self.network.args, self.network.d2t)
        weights: Any = tree_flatten(self.network.parameters())  # type: ignore[no-untyped-call]
        halved.load_weights([(name, value.astype(mx.float16)) for name, value in weights])
        save(folder, halved, extra)


def begin_by_regression(network: ReDrafter, head: np.ndarray, table: np.ndarray, text: TrainingText, steps: int, seed: int) -> None:
    """Start where a closed form can: the head is the target's own, and what it is to read, the target's next hidden state, a ridge regression.

    ``head`` (draft vocabulary, width) are the target's rows of the tokens that can be drafted, ``table`` its embeddings. The recurrent weights are
    random and spread tokens to about unit variance, so that the regression finds them in the state.
    """
    rng = np.random.default_rng([seed, 2])
    size, width = network.args.hidden_size, network.args.exit_dim
    places = np.concatenate([one.rows[:-1] for one in text.training_answers() if one.length > 1])
    rows = np.sort(rng.choice(places, min(len(places), max(12_000, 8 * size)), replace=False))
    hidden = text.hidden_at(rows)
    if network.args.rnn:
        spread = float(table[text.tokens[rows]].std()) * size**0.5
        network.rnn_w.weight = mx.array(rng.standard_normal((size, size)).astype(np.float32) / spread)
        network.rnn_u.weight = mx.array(np.linalg.qr(rng.standard_normal((size, size)))[0].astype(np.float32))
        network.rnn_u.bias = mx.zeros(size)
    state, known, wanted = None, [], []
    for k in range(1, steps + 1):
        said = rows + np.minimum(k, text.left[rows]) - 1
        state = network.step(mx.array(table[text.tokens[said]]), state)
        some = np.flatnonzero((text.left[rows] > k) & (rng.random(len(rows)) < 0.5 ** (k - 1)))  # late steps matter less
        known.append(np.concatenate([hidden[some], np.array(state)[some], np.ones((len(some), 1), np.float32)], axis=1))
        wanted.append(text.hidden_at(rows[some] + k))
    x, y = np.concatenate(known), np.concatenate(wanted)
    if width < size:
        head, reader = projected(head, y, width)
        y = y @ reader
    moment = x.T.astype(np.float64) @ x
    moment[np.diag_indices_from(moment)] *= 1 + RIDGE
    found = np.linalg.solve(moment, x.T.astype(np.float64) @ y).astype(np.float32)  # (2 size + 1, min(size, width))
    for block in network.lm_head[:-1]:  # they start by changing little
        block.linear.weight = block.linear.weight * 0.1
        block.linear.bias = mx.zeros(width)
    if "input_proj" not in network:  # the head reads both parts itself
        network.lm_head[-1].weight = mx.array(head @ found[:-1].T)
        return
    through = found.shape[1]
    weight, bias = np.array(network.input_proj.weight), np.zeros(width, np.float32)
    weight[:through], bias[:through] = found[:-1].T, found[-1]
    network.input_proj.weight, network.input_proj.bias = mx.array(weight), mx.array(bias)
    network.lm_head[-1].weight = mx.array(np.pad(head, [(0, 0), (0, width - through)]))


def shared(ids: np.ndarray, probs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """The sum of min(p, q), (n,), where ``probs`` and ``ours`` (n, k) are p and q of the columns ``ids``. A column may come twice: its p are added.

    >>> shared(np.array([[3, 3, 5]]), np.array([[0.3, 0.2, 0.4]]), np.array([[0.6, 0.6, 0.1]]))
    array([0.6])
    """
    same = ids[:, :, None] == ids[:, None, :]
    total = (same * probs[:, None, :]).sum(axis=2)
    again = np.tril(same, -1).any(axis=2)
    return np.where(again, 0.0, np.minimum(ours, total)).sum(axis=1)


def rounds(answers: Sequence[Answer], matches: np.ndarray) -> float:
    """Tokens per round when drafts from row r are right for ``matches[r]`` tokens: each round starts where the last one ended."""
    emitted = count = 0
    for one in answers:
        at = 0
        while at < one.length - 1:  # the token at row ``at`` is there; a round brings the next ones
            step = min(int(matches[one.start + at]) + 1, one.length - 1 - at)
            emitted, count, at = emitted + step, count + 1, at + step
    return emitted / max(1, count)


def tables(model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """The embeddings and the output projection of a mlx-lm model, (vocab, width) each, in float32."""
    from mlxspec.drafters.redrafter import embedding_of

    found = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "embed_tokens"]
    vocab = int((found or [next(m for _, m in model.named_modules() if isinstance(m, nn.Embedding | nn.QuantizedEmbedding))])[0].weight.shape[0])
    table = np.array(embedding_of(model)(mx.arange(vocab)).astype(mx.float32))
    heads = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "lm_head"]
    if not heads:
        return table, table
    head: Any = heads[0]
    dense = not isinstance(head, nn.QuantizedLinear)
    weight = head.weight if dense else mx.dequantize(head.weight, head.scales, head.biases, head.group_size, head.bits)
    return table, np.array(weight.astype(mx.float32))[:vocab]


def task(options: Any, loaded: Loaded, text: TrainingText, same: Sequence[int]) -> ReDrafterTask:
    """The network to train, with its text. ``same``: tokens it need not tell apart."""
    table, head = tables(loaded.model)
    shape = ReDrafterShape(options.exit_dim, options.draft_vocab, options.layers, steps=options.draft_steps, soft=options.labels == "soft")
    return ReDrafterTask(table, head, text, shape, options.seed, options.start, same)
