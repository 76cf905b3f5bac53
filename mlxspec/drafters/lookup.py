"""Prompt lookup: what followed the last tokens where they stood before, in the prompt or the answer. Costs no model.

Source: Saxena, prompt-lookup-decoding (2023), here with the longest match, several continuations as a tree, and a length that follows experience.

>>> lookup = LookupDrafter(); lookup.begin([1, 2, 3, 4, 2], {}, 0)
>>> lookup.propose(3, 2, None).tokens                 # 2 3 was seen before, this is what followed
(4, 2)
"""

from collections import defaultdict
from collections.abc import Sequence

import mlx.core as mx

from mlxspec.core.drafter import Drafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.core.target import Target
from mlxspec.loading.load import Loaded, Say
from mlxspec.settings.options import Options

CHANCE = {1: 0.26, 2: 0.5, 3: 0.67, 4: 0.75, 5: 0.76, 6: 0.77, 7: 0.8, 8: 0.82, 9: 0.84, 10: 0.86, 11: 0.9, 12: 0.93}
"""How often the next token is right after a match of so many tokens: 7,000 greedy tokens of SmolLM2-135M; where experience starts from."""


class LookupDrafter(Drafter):
    """Longest suffix match over all tokens so far.

    A guess is worth a row while the chance that it is reached and right is above ``worth``: the chance that one more copied token is right is learnt
    per length of the match (``experience``).
    """

    name = "lookup"
    depth = 12
    rows = 14
    width = 3
    shortest = min(CHANCE)  # tokens that must match
    longest = max(CHANCE)  # longer matches are not told apart
    worth = 0.1

    def __init__(self) -> None:
        self.experience = {length: _Rate(chance) for length, chance in CHANCE.items()}
        self.begin((), {}, 0)

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        self.tokens: list[int] = []
        self.ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # the last `shortest` tokens -> places just behind them
        self.lengths: tuple[int, ...] = ()
        self.proposal = Proposal()
        self._extend(prompt)

    def propose(self, token: int, limit: int, context: Context | None) -> Proposal:
        self._extend([token])
        rows = (context and context.rows) or self.rows
        width = (context and context.width) or self.width
        self.proposal, self.lengths = self._tree(limit, rows, width)
        return self.proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        proposal = self.proposal
        row = -1
        for step in (*path, None):  # each row visited was a trial of its first child, the longest match
            children = [i for i, parent in enumerate(proposal.parents) if parent == row]
            if children:
                self.experience[self.lengths[children[0]]].see(step == children[0])
            if step is None:
                break
            row = step
        self._extend([proposal.tokens[i] for i in path])

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            if len(self.tokens) >= self.shortest:
                self.ends[tuple(self.tokens[-self.shortest :])].append(len(self.tokens))

    def _matches(self) -> list[tuple[int, int]]:
        """(matched length, place just behind it), longest first and then latest first, of the last few places."""
        found = []
        now = len(self.tokens)
        for end in self.ends[tuple(self.tokens[-self.shortest :])][-64:-1]:  # the last one is now
            length = self.shortest
            while length < self.longest and end - length > 0 and self.tokens[end - length - 1] == self.tokens[now - length - 1]:
                length += 1
            found.append((length, end))
        return sorted(found, reverse=True)

    def _tree(self, limit: int, most: int, width: int) -> tuple[Proposal, tuple[int, ...]]:
        """The best continuations merged where they agree: rows in order of their chance to be right."""
        tokens: list[int] = []
        parents: list[int] = []
        lengths: list[int] = []
        chances: list[float] = []
        children: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for rank, (length, end) in enumerate(self._matches()[: 4 * width]):
            row, chance = -1, 1.0
            for step in range(limit):
                if end + step >= len(self.tokens):
                    break
                token = self.tokens[end + step]
                grown = min(length + step, self.longest)
                chance *= self.experience[grown].value / (1 + rank)  # a place that differs from a better one is the likelier wrong
                known = children[row].get(token)
                if known is None:
                    if chance < self.worth or len(tokens) >= most or len(children[row]) >= width:
                        break
                    known = len(tokens)
                    tokens.append(token)
                    parents.append(row)
                    lengths.append(grown)
                    chances.append(chance)
                    children[row][token] = known
                row = known
        return Proposal(tuple(tokens), tuple(parents), values=tuple(chances)), tuple(lengths)


def opened(model: str, wish: str, target: Target, loaded: Loaded, options: Options, say: Say) -> LookupDrafter:
    """The drafter of ``--drafter lookup``."""
    return LookupDrafter()


class _Rate:
    """A running share of successes that forgets slowly and starts from a prior."""

    def __init__(self, prior: float, weight: float = 6.0, memory: float = 60.0) -> None:
        self.value = prior
        self.weight = weight
        self.memory = memory

    def see(self, success: bool) -> None:
        self.weight = min(self.weight + 1, self.memory)
        self.value += (success - self.value) / self.weight
