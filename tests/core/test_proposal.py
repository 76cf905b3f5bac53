"""Trees: their shape, their paths, and what is refused."""

import random
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.errors import DrafterError


def random_tree(rng: random.Random, vocab: int = 50) -> Proposal:
    tokens: list[int] = []
    parents: list[int] = []
    for row in range(rng.randrange(12)):
        parent = rng.randrange(-1, row)
        taken = {tokens[i] for i in range(row) if parents[i] == parent}
        tokens.append(rng.choice([t for t in range(vocab) if t not in taken]))
        parents.append(parent)
    return Proposal(tuple(tokens), tuple(parents))


def test_a_tree_by_hand() -> None:
    tree = Proposal((5, 6, 9, 7), (-1, 0, -1, 0))
    assert len(tree) == 4 and not tree.is_chain
    assert tree.depths == (1, 2, 1, 2)
    assert [tree.child(-1, 5), tree.child(-1, 9), tree.child(0, 7), tree.child(2, 7), tree.child(-1, 6)] == [0, 2, 3, None, None]
    assert [tree.path_to(row) for row in (-1, 0, 1, 2, 3)] == [(), (0,), (0, 1), (2,), (0, 3)]


def test_chains() -> None:
    assert Proposal.chain([4, 4, 4]) == Proposal((4, 4, 4), (-1, 0, 1))
    assert Proposal.chain([]) == Proposal()
    assert Proposal().is_chain and Proposal.chain([1, 2]).is_chain
    assert not Proposal((1, 2), (-1, -1)).is_chain
    assert Proposal.chain([1, 2], ["p", "q"]).probs == ["p", "q"]


@pytest.mark.parametrize("seed", range(30))
def test_paths_depths_and_children_agree(seed: int) -> None:
    tree = random_tree(random.Random(seed))
    tree.check(50)
    for row in range(len(tree)):
        path = tree.path_to(row)
        assert len(path) == tree.depths[row] and path[-1] == row
        above = -1
        for step in path:  # walking down by tokens finds the same rows
            assert tree.child(above, tree.tokens[step]) == step
            above = step
    assert tree.is_chain == (tree.depths == tuple(range(1, len(tree) + 1)) and len(tree.path_to(len(tree) - 1)) == len(tree))


MALFORMED: dict[str, tuple[Proposal, str]] = {
    "fewer parents": (Proposal((1, 2), (-1,)), "2 tokens with 1 parents"),
    "more parents": (Proposal((1,), (-1, 0)), "1 tokens with 2 parents"),
    "probabilities for some": (Proposal.chain((1, 2), [0.5]), "2 tokens with 1 distributions"),
    "token too large": (Proposal((50,), (-1,)), "token 50 in row 0"),
    "negative token": (Proposal((3, -1), (-1, 0)), "token -1 in row 1"),
    "no whole token": (Proposal((1.0,), (-1,)), "token 1.0 in row 0"),
    "no token": (Proposal((None,), (-1,)), "token None in row 0"),
    "its own parent": (Proposal((1, 2), (-1, 1)), "row 1 the parent 1"),
    "parent behind its child": (Proposal((1, 2, 3), (-1, 2, 0)), "row 1 the parent 2"),
    "parent before the root": (Proposal((1,), (-2,)), "row 0 the parent -2"),
    "no whole parent": (Proposal((1,), (None,)), "row 0 the parent None"),
    "the same child twice": (Proposal((1, 2, 2), (-1, 0, 0)), "token 2 twice below row 0"),
    "the same root twice": (Proposal((1, 1), (-1, -1)), "token 1 twice below row -1"),
    "too deep": (Proposal.chain((1, 2, 3, 4)), "4 tokens ahead where 3"),
    "too deep beside a leaf": (Proposal((9, 1, 2, 3, 4), (-1, -1, 1, 2, 3)), "4 tokens ahead where 3"),
    "rest with tokens": (Proposal((1,), (-1,), rest=True), "rest"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_trees_are_refused_in_one_line(kind: str) -> None:
    proposal, part = MALFORMED[kind]
    with pytest.raises(DrafterError, match=part) as caught:
        proposal.check(50, 3)
    assert "\n" not in str(caught.value)


def test_what_is_well_formed_passes() -> None:
    Proposal().check(50, 0)
    Proposal(rest=True).check(50, 0)
    Proposal.chain((0, 49, 0)).check(50, 3)
    Proposal((1, 2, 1, 2), (-1, 0, 1, -1)).check(50, 3)  # the same token at other places
    Proposal([1, 2], [-1, 0]).check(50)  # lists serve too


@pytest.mark.parametrize(("value", "name"), [(Proposal(), "tokens"), (Verdict((), 1), "token")])
def test_values_are_frozen(value: Any, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, 3)
    with pytest.raises((AttributeError, TypeError)):  # slots: no field of one's own
        value.other = 1
