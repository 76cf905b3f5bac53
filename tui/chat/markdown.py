"""What the Markdown of a reply holds: the code in it, and what of it is said aloud. Knows no widget."""

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

from mlxspec.tui.chat.unfinished import UnfinishedReply

SAID = {"text": None, "code_inline": None, "softbreak": " ", "hardbreak": "\n"}  # parts of a line that are said, and what for (None: as they are)


def parser() -> MarkdownIt:
    """A parser that keeps ``<…>`` as text."""
    return MarkdownIt("gfm-like", {"html": False})


def chat_parser() -> MarkdownIt:
    """The parser of the view. A line break in a chat is meant: poems and addresses have no blanks at the ends of their lines."""
    found = parser()
    found.core.ruler.push("line_breaks", _kept_breaks)
    return found


def _kept_breaks(state: StateCore) -> None:
    for block in state.tokens:
        for part in block.children or ():
            if part.type == "softbreak":
                part.type = "hardbreak"


def code_blocks(source: str) -> list[str]:
    """The contents of a text's code blocks, in order; one that is still open counts."""
    return [token.content for token in parser().parse(source) if token.type in ("fence", "code_block")]


def speakable(source: str) -> str:
    """What of a reply is said: no thinking, no code blocks and no marks of Markdown.

    >>> speakable("# Why?\\n\\nIt is **blue**:\\n\\n```py\\nx = 1\\n```\\n\\n- light\\n- air")
    'Why?\\n\\nIt is blue:\\n\\nlight\\n\\nair'
    """
    flow = UnfinishedReply()
    flow.feed(source)
    lines = [block.children or [] for block in parser().parse(flow.answer) if block.type == "inline"]
    said = ("".join(SAID[part.type] or part.content for part in line if part.type in SAID).strip() for line in lines)
    return "\n\n".join(line for line in said if line)
