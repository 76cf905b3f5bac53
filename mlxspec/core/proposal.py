"""What a drafter offers and what a rule makes of it. Plain values; knows no model and no cache.

A proposal is a tree of rows that hangs below the pending token (the last emitted one, which the target has not read yet).
Row 0 of the logits belongs to the pending token, row ``i + 1`` to the proposal's row ``i``.

>>> Proposal((5, 6, 9), (-1, 0, -1)).depths          # 5 then 6, or 9
(1, 2, 1)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxspec.errors import DrafterError


@dataclass(frozen=True, slots=True)
class Proposal:
    """Rows below the pending token. ``parents[i] < i``; -1 hangs from the pending token. A chain is the thin tree.

    ``probs[i]`` is the distribution row ``i``'s token was drawn from (over the target's vocabulary), or ``probs`` is None for certain guesses.
    ``values[i]`` is how likely the drafter holds row ``i`` to be reached and right, never above its parent's, or ``values`` is None.
    ``rest`` says that the next proposal will be empty too, so that the next step may start before this one is read.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: Sequence[Any] | None = None
    values: tuple[float, ...] | None = None
    rest: bool = False

    @classmethod
    def chain(cls, tokens: Sequence[int], probs: Sequence[Any] | None = None) -> "Proposal":
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == row - 1 for row, parent in enumerate(self.parents))

    @property
    def depths(self) -> tuple[int, ...]:
        """Steps below the pending token: 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def child(self, row: int, token: int) -> int | None:
        """The child of ``row`` (-1: of the pending token) that says ``token``, or None."""
        for i in range(row + 1, len(self.tokens)):
            if self.parents[i] == row and self.tokens[i] == token:
                return i
        return None

    def path_to(self, row: int) -> tuple[int, ...]:
        """The rows from the root down to ``row``, both included; empty for -1."""
        path: list[int] = []
        while row >= 0:
            path.append(row)
            row = self.parents[row]
        return tuple(reversed(path))

    def check(self, vocab_size: int, limit: int | None = None) -> None:
        """Raise DrafterError where the tree is malformed, so that no drafter can corrupt a reply."""
        if len(self.parents) != len(self.tokens):
            raise DrafterError(f"The drafter proposed {len(self.tokens)} tokens with {len(self.parents)} parents: give one parent a token.")
        if self.probs is not None and len(self.probs) != len(self.tokens):
            raise DrafterError(f"The drafter proposed {len(self.tokens)} tokens with {len(self.probs)} distributions: give one a token, or None.")
        if self.values is not None and len(self.values) != len(self.tokens):
            raise DrafterError(f"The drafter proposed {len(self.tokens)} tokens with {len(self.values)} values: give one a token, or None.")
        if self.rest and self.tokens:
            raise DrafterError(f"The drafter proposed {len(self.tokens)} tokens and said that it rests: rest goes with an empty proposal.")
        seen: set[tuple[int, int]] = set()
        for row, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                raise DrafterError(f"The drafter proposed token {token!r} in row {row}: the target speaks 0 to {vocab_size - 1}.")
            if not isinstance(parent, int) or not -1 <= parent < row:
                raise DrafterError(f"The drafter gave row {row} the parent {parent!r}: a parent comes before its child, -1 is the pending token.")
            if (parent, token) in seen:
                raise DrafterError(f"The drafter proposed token {token} twice below row {parent}: children of one row must differ.")
            seen.add((parent, token))
        if limit is not None and self.tokens and max(self.depths) > limit:
            raise DrafterError(f"The drafter proposed {max(self.depths)} tokens ahead where {limit} were asked for: keep within the limit.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of a proposal: accepted rows, root first, then the target's own next token. ``note`` is a rule's log."""

    path: tuple[int, ...]
    token: int
    note: Any = None
