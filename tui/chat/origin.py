"""Where a reply's text came from, and what a round drafted. Pure functions from events to plain values; knows no tokenizer and no widget.

``spell`` gives the text of single tokens (worker.spelling). The spans that are no rejected drafts, joined, are the text of the reply.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mlxspec.core.events import Step, Text

Origin = Literal["accepted", "own", "rejected"]
State = Literal["accepted", "rejected", "untested"]


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one origin: an accepted draft, the target's own, or the draft that it was said in place of."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Node:
    """A drafted token. ``p``: how likely the target holds it to be reached and right; ``q``: how likely the drafter did; None where not known.

    Rejected: the target came to its parent and said something else. Untested: the target never came to its parent.
    """

    row: int
    parent: int  # -1: hangs from the pending token
    text: str
    p: float | None
    q: float | None
    state: State


@dataclass(frozen=True, slots=True)
class Round:
    """A round: what was drafted, the rows that were followed, and what the target then said itself."""

    nodes: tuple[Node, ...]
    path: tuple[int, ...]
    own: str
    drafter: str
    seconds: Mapping[str, float]

    def children(self, parent: int) -> tuple[Node, ...]:
        """The drafts below a row (-1: below the pending token)."""
        return tuple(node for node in self.nodes if node.parent == parent)


def spans(pieces: Iterable[Text], spell: Mapping[int, str]) -> list[Span]:
    """The spans of a reply."""
    return [span for piece in pieces for span in spans_of(piece, spell)]


def spans_of(piece: Text, spell: Mapping[int, str]) -> list[Span]:
    """The spans of one piece, in order: accepted drafts, the rejected draft, the target's own token."""
    step = piece.step
    if step is None or step.proposal is None:
        return [Span(piece.text, "own")] if piece.text else []
    accepted, own = _parted(piece.text, step, spell)
    wrong = rejected(step)
    found = [
        Span(accepted, "accepted"),
        Span(spell.get(wrong, "") if wrong is not None else "", "rejected"),
        Span(own, "own"),
    ]
    return [span for span in found if span.text]


def rejected(step: Step) -> int | None:
    """The token the drafter would rather have seen where the target said its own: its first guess there. None where it had none."""
    if step.proposal is None or len(step.tokens) != len(step.path) + 1:
        return None
    at = step.path[-1] if step.path else -1
    children = [row for row, parent in enumerate(step.proposal.parents) if parent == at]
    tokens = [step.proposal.tokens[row] for row in children]
    return tokens[0] if tokens and step.tokens[-1] not in tokens else None


def round_of(step: Step, spell: Mapping[int, str], chances: Sequence[float] | None = None) -> Round:
    """The tree of a round; ``chances``: those of its rows, as the target holds them."""
    proposal, path = step.proposal, step.path
    nodes: list[Node] = []
    visited = {-1, *path}
    if proposal is not None:
        values = proposal.values
        for row, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
            state: State = "accepted" if row in path else "rejected" if parent in visited else "untested"
            q = values[row] if values is not None else None
            p = chances[row] if chances is not None else None
            nodes.append(Node(row, parent, spell.get(token, "?"), p, q, state))
    own = spell.get(step.tokens[-1], "?") if len(step.tokens) > len(path) else ""
    return Round(tuple(nodes), path, own, step.drafter, step.seconds)


def lines(tree: Round) -> list[str]:
    """A round as text: ``+`` accepted, ``-`` rejected, ``.`` untested, ``=`` the target's own; blanks can be seen.

    >>> from mlxspec.core.proposal import Proposal
    >>> step = Step((5, 7), Proposal((5, 6, 9), (-1, 0, -1), None, (0.8, 0.4, 0.1)), (0,))
    >>> lines(round_of(step, {5: " a", 6: "b", 7: "c", 9: "d"}, (0.9, 0.2, 0.1)))
    ['+ ␣a  p .90 q .80', '  - b  p .20 q .40', '  = c', '- d  p .10 q .10']
    """
    signs = {"accepted": "+", "rejected": "-", "untested": "."}
    out: list[str] = []

    def below(parent: int, indent: str) -> None:
        for node in tree.children(parent):
            known = " ".join(f"{name} {share(value)}" for name, value in (("p", node.p), ("q", node.q)) if value is not None)
            out.append(f"{indent}{signs[node.state]} {_shown(node.text)}{f'  {known}' if known else ''}")
            below(node.row, indent + "  ")
        if tree.own and parent == (tree.path[-1] if tree.path else -1):
            out.append(f"{indent}= {_shown(tree.own)}")

    below(-1, "")
    return out


def share(value: float) -> str:
    """A chance in three columns.

    >>> share(0.5), share(0.999)
    ('.50', '1.0')
    """
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"[1:]


def _parted(text: str, step: Step, spell: Mapping[int, str]) -> tuple[str, str]:
    """The text of a piece as that of its accepted drafts and that of the target's own token.

    Where bytes were held back the texts of single tokens do not add up; then what cannot be told apart counts as accepted, if anything was.
    """
    count = len(step.path)
    if not count:
        return "", text
    first = "".join(spell.get(token, "\0") for token in step.tokens[:count])
    last = "".join(spell.get(token, "\0") for token in step.tokens[count:])
    if text.startswith(first):
        return first, text[len(first) :]
    if last and text.endswith(last):
        return text[: -len(last)], last
    return text, ""


def _shown(text: str) -> str:
    inner: Sequence[str] = [char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text]
    return "".join(inner).replace(" ", "␣")
