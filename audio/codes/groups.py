"""Acoustic groups: which audio tokens sound alike. Knows vectors and token ids, no model, no engine and no sound.

A token's group holds the tokens of its own slot whose vectors lie near its own: of the output head, of the input embeddings, or of the codec's
codebook. Groups overlap, and a set counts once however many tokens have it. How near is near is never a number of ours: it follows from the mean
size that is asked for, or from a budget of distance. Text, control and end tokens, and rows that were never trained, are in no group.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Measure = Literal["cosine", "centred", "distance"]  # centred: the cosine once the mean row is taken away
MEASURES: tuple[Measure, ...] = ("cosine", "centred", "distance")
BLOCK = 1024  # rows compared at once
LARGEST = 64  # tokens of a group at most: the nearest


@dataclass(frozen=True, slots=True)
class Groups:
    """Group ``i`` is ``members[offsets[i] : offsets[i + 1]]``, sorted. A group is named by its seed, the first token whose surroundings it is.

    ``home`` is the group of a token's own surroundings, -1 where that is the token alone.
    """

    vocab_size: int
    seeds: np.ndarray  # (groups,)
    offsets: np.ndarray  # (groups + 1,)
    members: np.ndarray
    home: np.ndarray  # (vocab_size,)

    def __len__(self) -> int:
        return len(self.seeds)

    @classmethod
    def of(cls, vocab_size: int, surroundings: Iterable[tuple[int, Sequence[int]]]) -> "Groups":
        """From (token, the tokens around it); the token itself need not be among them. Equal sets become one group, single tokens none."""
        home = np.full(vocab_size, -1, np.int32)
        known: dict[bytes, int] = {}
        seeds: list[int] = []
        sets: list[np.ndarray] = []
        for token, around in surroundings:
            members = np.union1d([token], around).astype(np.int32)
            if members[0] < 0 or members[-1] >= vocab_size:
                raise ValueError(f"A group around token {token} has tokens from {members[0]} to {members[-1]}: there are 0 to {vocab_size - 1}.")
            if len(members) > 1:
                home[token] = known.setdefault(members.tobytes(), len(seeds))
                if home[token] == len(seeds):
                    seeds.append(token)
                    sets.append(members)
        offsets = np.cumsum([0, *map(len, sets)])
        return cls(vocab_size, np.array(seeds, np.int32), offsets, np.concatenate(sets) if sets else np.zeros(0, np.int32), home)

    def around(self, token: int) -> np.ndarray:
        """The tokens that may stand in for ``token``, itself among them."""
        group = self.home[token]
        return self.members[self.offsets[group] : self.offsets[group + 1]] if group >= 0 else np.array([token], np.int32)

    def sizes(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """The size of each token's own group, 1 where it stands alone."""
        home = self.home[np.asarray(tokens)]
        return np.where(home >= 0, np.append(np.diff(self.offsets), 1)[home], 1)

    def grouped(self) -> np.ndarray:
        """The tokens that are in some group."""
        return np.unique(self.members)

    def digest(self) -> str:
        total = hashlib.sha256(str(self.vocab_size).encode())
        for array in (self.seeds, self.offsets, self.members, self.home):
            total.update(np.ascontiguousarray(array).astype("<i8").tobytes())
        return total.hexdigest()

    def check(self) -> None:
        """Raise ValueError where the arrays contradict each other."""
        sizes, groups = np.diff(self.offsets), len(self.seeds)
        sound = len(self.offsets) == groups + 1 and self.offsets[0] == 0 and self.offsets[-1] == len(self.members) and bool((sizes > 1).all())
        sound = sound and self.home.shape == (self.vocab_size,) and bool(((self.home >= -1) & (self.home < groups)).all())
        if not sound or (groups and (min(self.members.min(), self.seeds.min()) < 0 or max(self.members.max(), self.seeds.max()) >= self.vocab_size)):
            raise ValueError("the groups' arrays do not fit together")


@dataclass(frozen=True, slots=True)
class Slot:
    """Audio tokens that can stand for each other, and what is known of each: vectors (tokens, width)."""

    tokens: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True, slots=True)
class Size:
    """How large groups are to be: by their mean size, single tokens counted, or by a budget of distance.

    ``distance``: how far a group's tokens are from its seed on average, as a share of how far any two tokens of the slot are apart.
    """

    mean: float | None = None
    distance: float | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) == (self.distance is None):
            raise ValueError("Groups are sized by a mean size or by a budget of distance: give one of them.")
        if self.mean is not None and not 1 <= self.mean <= LARGEST:
            raise ValueError(f"A mean group size of {self.mean} makes no sense: give a number from 1 to {LARGEST}.")
        if self.distance is not None and not 0 <= self.distance < 1:
            raise ValueError(f"A budget of distance of {self.distance} makes no sense: give a share from 0 to 1.")


def build(vocab_size: int, slots: Sequence[Slot], size: Size, measure: Measure = "cosine", largest: int = LARGEST) -> Groups:
    """Groups within each slot. Rows that were never trained (``untrained``) are left out."""
    surroundings: list[tuple[int, Sequence[int]]] = []
    for slot in slots:
        vectors = np.asarray(slot.vectors, np.float32)
        trained = ~untrained(vectors)
        tokens, rows = np.asarray(slot.tokens)[trained], prepared(vectors[trained], measure)
        if len(tokens) < 2:
            continue
        near, far = neighbours(rows, measure, min(largest, len(rows)) - 1)
        reach = _reach(far, size, typical(rows, measure) if size.mean is None else 0.0)
        surroundings += [(int(token), tokens[near[i][far[i] <= reach]].tolist()) for i, token in enumerate(tokens)]
    return Groups.of(vocab_size, surroundings)


def untrained(vectors: np.ndarray) -> np.ndarray:
    """Rows that no training has shaped: not finite, the same as another row, or far shorter than rows usually are."""
    finite = np.isfinite(vectors).all(axis=1)
    lengths = np.linalg.norm(np.where(finite[:, None], vectors, 0), axis=1)
    _, place, count = np.unique(vectors, axis=0, return_inverse=True, return_counts=True)
    found: np.ndarray = ~finite | (count[place.reshape(-1)] > 1) | (lengths <= 0.1 * np.median(lengths))
    return found


def prepared(vectors: np.ndarray, measure: Measure) -> np.ndarray:
    """Rows in the form in which they are compared: for cosines of length 1."""
    if measure not in MEASURES:
        raise ValueError(f"{measure} is no measure of nearness: give one of {', '.join(MEASURES)}.")
    if measure == "distance":
        return vectors
    if measure == "centred":
        vectors = vectors - vectors.mean(axis=0)
    rows: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return rows


def neighbours(rows: np.ndarray, measure: Measure, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` nearest other rows of each, (rows, count), and how far they are: block by block, in float32."""
    near, far = np.empty((len(rows), count), np.int32), np.empty((len(rows), count), np.float32)
    squares = np.einsum("ij,ij->i", rows, rows)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        inner = block @ rows.T
        gaps = 1 - inner if measure != "distance" else np.sqrt(np.maximum(squares[start : start + BLOCK, None] + squares - 2 * inner, 0))
        gaps[np.arange(len(block)), start + np.arange(len(block))] = np.inf
        best = np.argpartition(gaps, count - 1, axis=1)[:, :count]
        near[start : start + len(block)] = best
        far[start : start + len(block)] = np.take_along_axis(gaps, best, axis=1)
    return near, far


def typical(rows: np.ndarray, measure: Measure) -> float:
    """How far two rows are apart on average; of many rows, a sample."""
    some = rows[np.random.default_rng(0).permutation(len(rows))[:2048]]
    _, far = neighbours(some, measure, len(some) - 1)
    return float(far.mean())


def _reach(far: np.ndarray, size: Size, typical: float) -> float:
    """How far a group reaches: the distance up to which the wanted number of pairs lie, or up to which the budget holds."""
    gaps = np.sort(far, axis=None)
    if size.distance is None:
        pairs = min(round(len(far) * ((size.mean or 1) - 1)), len(gaps))
    else:
        means = np.cumsum(gaps, dtype=np.float64) / np.arange(1, len(gaps) + 1)
        pairs = int(np.searchsorted(means, size.distance * typical, side="right"))
    return float(gaps[pairs - 1]) if pairs else -1.0


def swapped(groups: Groups, tokens: Sequence[int], seed: int) -> tuple[list[int], float]:
    """The swap test's tokens: each that has a group replaced by one of it at random, all alike likely; and the share that changed."""
    rng = np.random.default_rng(seed)
    result = [int(rng.choice(groups.around(token))) for token in tokens]
    changed = sum(a != b for a, b in zip(result, tokens, strict=True))
    return result, changed / max(len(result), 1)
