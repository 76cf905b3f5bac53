"""F1: every key with what it does, the words of the panel, every command, and last the names of the keys. Takes bindings; knows no app."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from mlxspec.display import clean

WORDS = (
    ("token", "a piece of a word: what the model reads and writes"),
    ("draft", "tokens guessed ahead by something quicker than the model; a row is one of them"),
    ("drafter", "what guesses: a small model, or text that was said before"),
    ("round", "one step of the model: it checks a draft, keeps its right beginning, and says one token itself"),
    ("accepted", "guessed right, and kept; the model would have said the same"),
    ("rejected", "guessed wrong, and dropped: it is no part of the reply and is never copied"),
    ("tokens/round", "how many tokens a step gives; without drafts it is 1"),
    ("× plain", "how many times as fast as without drafts, as measured on this machine"),
    ("depth", "how far ahead a token was guessed: 1 is the next one"),
    ("of drafted, of reached", "the share of such guesses that was kept: of all, and of those whose forerunners were right"),
    ("strip", "one bar a round, the taller the more was accepted; F7, then left and right, shows the guesses of a round"),
    ("p", "how likely the model held a guess to be (asked when you look)"),
    ("q", "how likely the drafter held it to be"),
    ("draft, verify, other", "where the time of the rounds went: guessing, checking, the rest"),
    ("ctx", "how much of what the model can read at once is in use"),
    ("paused, off", "no drafts are made; the reason stands below"),
)
OWN = """\
A table in the config file gives a key another place:

[keys]
send = "ctrl+s"

These are the names:"""


class HelpScreen(ModalScreen[None]):
    """Closed by escape, F1 or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "leave", "close")]

    def __init__(
        self,
        bindings: Mapping[str, Mapping[str, Binding]],
        keymap: Mapping[str, str],
        commands: Sequence[tuple[str, str]],
        files: Sequence[str],
    ) -> None:
        """``bindings``: by where the keys work, and by name."""
        super().__init__()
        self._groups = bindings
        self._keymap = keymap
        self._commands = commands
        self._files = files

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content("help"), classes="title")
            with VerticalScroll():
                yield Static(self._text(), id="help")
            yield Static(Content("esc close"), classes="hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _text(self) -> Group:
        shown: list[Text | Table] = []
        for where, bindings in self._groups.items():
            shown += _table(f"keys {where}", [(self._keys(name, key), key.tooltip or key.description) for name, key in bindings.items()])
        shown += _table("words of the panel and of a reply", WORDS)
        shown += _table("commands", self._commands)
        names = [(name, self._keys(name, key)) for bindings in self._groups.values() for name, key in bindings.items()]
        shown += [Text("keys of your own", "bold"), Text(OWN), *_table("", names), *(Text(clean(line)) for line in self._files)]
        return Group(*shown)

    def _keys(self, name: str, binding: Binding) -> str:
        return self._keymap.get(name, binding.key).replace(",", ", ")

    def action_leave(self) -> None:
        self.dismiss(None)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> list[Text | Table]:
    """Rows of two columns below a title."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=2)
    for row in rows:
        table.add_row(*(Text(part) for part in row))
    return [*([Text(title, "bold")] if title else []), table, Text()]
