"""Hidden labels: which acoustic group a token stands for, drawn with noise on the groups. Knows groups and rows of scores, no model, no drafter.

Token t belongs to the groups S(t), each with weight 1 / |S(t)|; a token of no group is a label of its own. A label k then has the probability
Q(k) = sum of weight x q(t) over its tokens. A draw has two levels: the label is argmax(log Q + G), G keyed by position for labels, and the token
argmax of log q + G' inside it, G' the noise that tokens have anyway. The token alone has law q, and a drafter with the same noise finds the same
label wherever it agrees on groups, though it may not agree inside them.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from mlxspec.audio.codes.groups import Groups
from mlxspec.core.sampling import Sampler
from mlxspec.errors import UsageError

OFFERED = 64  # leading labels for which a drafter is given a token


class Labels:
    """Groups as arrays. Label ``i`` below ``len(groups)`` is a group, the others are single tokens. Its name is the group's seed, or the token."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.vocab_size = groups.vocab_size
        sizes = np.diff(groups.offsets)
        count = np.bincount(groups.members, minlength=groups.vocab_size)  # |S(t)|
        self.weights = 1 / np.maximum(count, 1)  # (vocab,)
        self.owners = np.repeat(np.arange(len(sizes)), sizes)  # the group of each of ``groups.members``
        alone = np.flatnonzero(count == 0)
        self.names = np.concatenate([groups.seeds, alone]).astype(np.int64)
        self.place = np.full(groups.vocab_size, -1)  # the label of a token of no group
        self.place[alone] = len(sizes) + np.arange(len(alone))
        rows = max(len(sizes), 1)  # without groups one row that nothing is in
        table, weight = np.zeros((rows, sizes.max(initial=1)), np.int32), np.zeros((rows, sizes.max(initial=1)), np.float32)
        inside = np.arange(table.shape[1]) < np.resize(sizes, rows)[:, None] if len(sizes) else np.zeros_like(table, bool)
        table[inside] = groups.members
        weight[inside] = self.weights[groups.members]
        self._table, self._weight = mx.array(table), mx.array(weight)
        self._alone = mx.array(alone.astype(np.int32))
        self._names = mx.array(np.concatenate([np.resize(groups.seeds, rows) if len(sizes) else [0], alone]).astype(np.int32))
        self._rows = rows

    def masses(self, probs: np.ndarray) -> np.ndarray:
        """(vocab,) -> (labels,): what each label has of a distribution, in float64."""
        grouped = np.bincount(self.owners, (probs * self.weights)[self.groups.members], minlength=len(self.groups))
        return np.concatenate([grouped, probs[self.place >= 0]])

    def labels_of(self, token: int) -> np.ndarray:
        """The labels that a token stands for, each as likely as the others."""
        return self.owners[self.groups.members == token] if self.place[token] < 0 else self.place[token : token + 1]

    def members(self, label: int) -> np.ndarray:
        """The tokens of a label."""
        return (
            self.groups.members[self.groups.offsets[label] : self.groups.offsets[label + 1]] if label < len(self.groups) else self.names[label, None]
        )

    def name(self, label: int) -> int:
        """What a log calls it: the seed of a group, or the token itself."""
        return int(self.names[label])

    def distance(self, label: int, token: int, target: np.ndarray, draft: np.ndarray | None) -> float:
        """How far drafter and target disagree inside a label: the total variation of their laws of its tokens.

        Without the drafter's probabilities its token counts as certain, so this is one less what the target gives it inside the label.
        """
        members = self.members(label)
        q = self._shares(target, members)
        p = (members == token).astype(float) if draft is None else self._shares(draft, members)
        return float(np.abs(p - q).sum() / 2)

    def draw(self, scores: mx.array, for_labels: Any, for_tokens: Any) -> tuple[int, int]:
        """A label and a token of it, from one row of scores (vocab,) and the noise of its position."""
        noisy, logs = self._noisy(scores[None], for_labels)
        label = mx.argmax(noisy, axis=-1, keepdims=True)
        drawn: Any = mx.concatenate([label, self._inside(logs, label, for_tokens)], axis=-1).tolist()
        place, token = drawn[0]
        return place if len(self.groups) else place - self._rows, token

    def offers(self, scores: mx.array, for_labels: Any, for_tokens: Any) -> mx.array:
        """Scores (rows, vocab) -> (rows, vocab): a leading label's noisy score stands at the token drawn for it, all else is -inf.

        The argmax is what ``draw`` draws; the next are what it would have drawn for the next labels.
        """
        noisy, logs = self._noisy(scores, for_labels)
        count = min(OFFERED, noisy.shape[-1])
        lead = mx.argpartition(-noisy, count - 1, axis=-1)[:, :count] if count < noisy.shape[-1] else mx.broadcast_to(mx.arange(count), noisy.shape)
        tokens = self._inside(logs, lead, for_tokens)  # (rows, count)
        offers = mx.full(scores.shape, -mx.inf)
        return offers.at[mx.arange(scores.shape[0])[:, None], tokens].maximum(mx.take_along_axis(noisy, lead, axis=-1))

    def _shares(self, probs: np.ndarray, members: np.ndarray) -> np.ndarray:
        inside = probs[members] * self.weights[members]
        total = inside.sum()
        return inside / total if total > 0 else inside

    def _noisy(self, scores: mx.array, for_labels: Any) -> tuple[mx.array, mx.array]:
        """log Q + G of every label, (rows, labels), and log q."""
        logs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        probs = mx.exp(logs)
        masses = mx.concatenate([(probs[:, self._table] * self._weight).sum(axis=-1), probs[:, self._alone]], axis=-1)
        return mx.log(masses) + for_labels[self._names], logs

    def _inside(self, logs: mx.array, labels: mx.array, for_tokens: Any) -> mx.array:
        """The token drawn inside each of the labels (rows, n)."""
        place = mx.minimum(labels, self._rows - 1)
        single = labels >= self._rows
        tokens = mx.where(single[..., None], self._names[labels][..., None], self._table[place])  # (rows, n, most)
        weights = mx.where(single[..., None], 1.0, self._weight[place])
        row = mx.arange(logs.shape[0])[:, None, None]
        best = mx.argmax(logs[row, tokens] + mx.log(weights) + for_tokens[tokens], axis=-1, keepdims=True)
        return mx.take_along_axis(tokens, best, axis=-1)[..., 0]


class MirrorSampler(Sampler):
    """A sampler that draws in two levels. Target and drafters draw through it alike: drafters offer the groups that the target is about to name."""

    def __init__(self, labels: Labels, vocab_size: int, **settings: Any) -> None:
        super().__init__(vocab_size, **settings)
        if self.temperature == 0:
            raise UsageError(
                "--accept mirror draws groups at random, and --temperature 0 draws nothing: give a temperature, or use --accept coupled."
            )
        if labels.vocab_size != vocab_size:
            raise UsageError(f"The groups are for {labels.vocab_size} tokens and the model speaks {vocab_size}: build them for this model.")
        self.labels = labels

    def perturb(self, scores: mx.array, position: int, ids: mx.array | None = None) -> mx.array:
        whole = scores if scores.ndim == 2 else scores[None]
        if ids is not None:
            spread = mx.full((whole.shape[0], self.vocab_size), -mx.inf)
            spread[mx.arange(whole.shape[0])[:, None], mx.broadcast_to(ids, whole.shape)] = whole
            whole = spread
        offers = self.labels.offers(whole, self.noise(position, "label"), self.noise(position, "target"))
        if ids is not None:
            offers = mx.take_along_axis(offers, mx.broadcast_to(ids, (offers.shape[0], scores.shape[-1])), axis=-1)
        return offers.reshape(scores.shape)
