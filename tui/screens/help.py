"""F1: every key with its name for the config file, and every command. Takes bindings and lines; knows no app."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

ABOUT = """\
The panel at the right (F2) shows what drafting gains: tokens a second, against plain decoding as measured on this machine; tokens a round,
the model's own included; how many drafted rows were accepted; by depth, of the rounds that drafted so far and of those that got so far;
a strip with one cell a round (tab, then left and right, select one and show its tree); and where the time went.

F3 shows a reply by origin: accepted drafts underlined, the model's own tokens plain, and ~rejected~ drafts struck out before what the model
said instead. Rejected drafts are no part of the text and are never copied.

Other keys go into the config file:   [keys]   send = "ctrl+s"
"""


class HelpScreen(ModalScreen[None]):
    """Closed by escape, F1 or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "leave", "close")]

    def __init__(self, bindings: Mapping[str, Binding], keymap: Mapping[str, str], commands: Sequence[tuple[str, str]], files: Sequence[str]) -> None:
        super().__init__()
        self._bindings_shown = bindings
        self._keymap = keymap
        self._commands = commands
        self._files = files

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content("help"), classes="title")
            with VerticalScroll():
                yield Static(self._text(), markup=False)
            yield Static(Content("esc close"), classes="hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _text(self) -> Content:
        rows = [(self._keymap.get(name, binding.key), binding.description, name) for name, binding in self._bindings_shown.items()]
        lines = [Content("keys").stylize("bold")]
        lines += [Content(f"{keys:<22} {what:<34}").append(Content(name).stylize("dim")) for keys, what, name in rows]
        lines += [Content(""), Content("commands").stylize("bold")]
        lines += [Content(f"{usage:<28} {what}") for usage, what in self._commands]
        lines += [Content(""), Content(ABOUT), *(Content(line) for line in self._files)]
        return Content("\n").join(lines)

    def action_leave(self) -> None:
        self.dismiss(None)
