"""A reply by origin, and the tree of a round, as styled text. Told by underline, strike and signs, never by colour alone. Knows no widget."""

from textual.content import Content

from mlxspec.core.events import Step
from mlxspec.display import clean
from mlxspec.tui.chat.message import ChatMessage
from mlxspec.tui.chat.origin import Round, lines, round_of, spans

STYLES = {"accepted": "underline $text-success", "own": "", "rejected": "strike dim"}
SIGNS = {"+": "$text-success", "-": "strike dim", ".": "dim", "=": "bold"}
LEGEND = "+ accepted  - rejected\n. untested  = the model's own\np, q: chance of the row for the\nmodel, for the drafter"


def by_origin(said: ChatMessage) -> Content | None:
    """The reply with its rejected drafts between tildes; None where its rounds are not known (a reply of an earlier run)."""
    if not any(piece.step is not None for piece in said.pieces):
        return None
    known = sum(len(piece.text) for piece in said.pieces)
    parts = [Content(clean(said.text[: len(said.text) - known]))] if known < len(said.text) else []
    for span in spans(said.pieces, said.spelling):
        text = clean(span.text)
        if span.origin == "rejected":
            parts += [Content(" " * text.startswith(" ")), Content(f"~{visible(text)}~").stylize(STYLES["rejected"])]
        else:
            parts.append(Content(text).stylize(STYLES[span.origin]) if STYLES[span.origin] else Content(text))
    return Content("").join(parts)


def visible(text: str) -> str:
    """A rejected draft on one line: line ends and lone blanks can be seen."""
    return text.replace("\n", "⏎").replace("\t", "⇥").strip(" ") or "␣"


def tree_of(step: Step, said: ChatMessage, number: int) -> Content:
    """A round: when and by whom it was drafted, its tree, and the signs."""
    tree: Round = round_of(step, said.spelling, said.chances.get(number))
    took = " · ".join(f"{part} {1000 * seconds:.0f}" for part, seconds in tree.seconds.items()) + " ms" * bool(tree.seconds)
    head = [f"round {number + 1} · {clean(tree.drafter)} · kept {len(tree.path)} of {len(tree.nodes)}", took]
    parts = [Content(line) for line in head if line]
    for line in lines(tree):
        row = line.lstrip()
        indent, (text, gap, known) = line[: -len(row)], row.partition("  ")
        parts.append(Content(indent) + Content(clean(text)).stylize(SIGNS.get(row[:1], ""), 2) + Content(gap + known))
    return Content("\n").join([*parts, Content(LEGEND).stylize("dim")])
