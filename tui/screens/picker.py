"""A list to choose from, narrowed by typing: sessions, models, drafters, earlier prompts. Takes plain items; knows nothing of what they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

MOST = 300  # items in the list at once; typing narrows the rest


@dataclass(frozen=True, slots=True)
class Item:
    """Something to choose. One that is not ``enabled`` is shown with its reason (``about``) and cannot be chosen; a ``key`` of "" is a heading."""

    key: str
    title: str
    about: str = ""
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and what to do with it: open, or one of the picker's further actions."""

    key: str
    action: str = "open"


class Picker(ModalScreen[Choice | None]):
    """``free`` offers what was typed as a choice of its own; ``actions`` are further keys: (key, action, label)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close"),
        Binding("down", "move(1)", "down", show=False, priority=True),
        Binding("up", "move(-1)", "up", show=False, priority=True),
        Binding("pagedown", "move(10)", "down", show=False, priority=True),
        Binding("pageup", "move(-10)", "up", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        items: Sequence[Item],
        *,
        free: str | None = None,
        actions: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        super().__init__()
        self._title = title
        self._items = list(items)
        self._free = free
        self._actions = {key: action for key, action, _ in actions}
        hints = ["⏎ choose", *(f"{key} {label}" for key, _, label in actions), "esc close"]
        self._hint = "  ".join(hints)
        for key, action, label in actions:
            self._bindings.bind(key, f"act('{action}')", label, priority=True)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content(self._title), classes="title")
            yield Input(placeholder="type to narrow" + (f", or {self._free}" if self._free else ""))
            yield OptionList(markup=False)
            yield Static("", classes="note", markup=False)
            yield Static(Content(self._hint), classes="hint")

    def on_mount(self) -> None:
        self.query_one(".note").display = False
        self._fill("")
        self.query_one(Input).focus()

    def offer(self, items: Sequence[Item], note: str = "") -> None:
        """Other items, as they become known."""
        self._items = list(items)
        self.query_one(".note", Static).update(Content(note))
        self.query_one(".note").display = bool(note)
        self._fill(self.query_one(Input).value)

    @property
    def highlighted(self) -> str | None:
        """The key of the item that is marked."""
        option = self.query_one(OptionList).highlighted_option
        return option.id if option is not None else None

    @on(Input.Changed)
    def narrow(self, event: Input.Changed) -> None:
        self._fill(event.value)

    @on(Input.Submitted)
    def choose(self) -> None:
        if (key := self.highlighted) is not None:
            self.dismiss(Choice(key))

    @on(OptionList.OptionSelected)
    def chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.dismiss(Choice(event.option.id))

    def action_move(self, by: int) -> None:
        listed = self.query_one(OptionList)
        for _ in range(abs(by)):
            if by > 0:
                listed.action_cursor_down()
            else:
                listed.action_cursor_up()

    def action_act(self, action: str) -> None:
        if (key := self.highlighted) is not None:
            self.dismiss(Choice(key, action))

    def action_leave(self) -> None:
        self.dismiss(None)

    def _fill(self, typed: str) -> None:
        """The items that hold every typed word."""
        words = typed.lower().split()
        fitting = [item for item in self._items if all(word in f"{item.title} {item.about}".lower() for word in words) and (item.key or not words)]
        listed = self.query_one(OptionList)
        listed.clear_options()
        options: list[Option] = []
        if self._free and typed.strip():
            fitting = [Item(typed.strip(), typed.strip(), "as typed"), *(item for item in fitting if item.key != typed.strip())]
        seen: set[str] = set()
        for item in fitting[:MOST]:
            if item.key and item.key in seen:
                continue
            seen.add(item.key)
            options.append(Option(_line(item), id=item.key or None, disabled=not item.enabled or not item.key))
        if not options:
            options = [Option(Content("nothing fits"), disabled=True)]
        listed.add_options(options)
        listed.highlighted = next((place for place, option in enumerate(options) if not option.disabled), None)


def _line(item: Item) -> Content:
    if not item.key:
        return Content(item.title).stylize("bold")
    line = Content(item.title if item.enabled else f"✗ {item.title}")
    return line + Content(f"  {item.about}").stylize("dim") if item.about else line
