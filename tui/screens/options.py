"""The parameters of a reply as a form, made from the fields of Options. A value counts once it is entered and makes sense. Knows no engine."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from mlxspec.errors import UsageError
from mlxspec.settings.config import checked
from mlxspec.settings.options import Options

LEFT_OUT = ("require_spec", "strict")  # exit codes, which a chat has none of
FIRST = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "system_prompt", "stop")
ALL = {field.name: field for field in fields(Options) if field.metadata["when"] == "reply" and field.name not in LEFT_OUT}
FIELDS = {name: ALL[name] for name in (*FIRST, *ALL)}
WITHOUT = {"seed": "a fresh one", "draft_tokens": "auto", "draft_width": "the drafter's own", "draft_rows": "the drafter's own"}  # else none


def written(value: Any) -> str:
    """A value as the form shows it."""
    if value is None:
        return ""
    if isinstance(value, tuple | list):
        alone = len(value) < 2 and not set("".join(value)) & set("\n\t\\")  # what is typed alone is read with its escapes
        return "".join(value) if alone else json.dumps(list(value))
    if isinstance(value, Mapping):
        return json.dumps({str(key): inner for key, inner in value.items()})
    return str(value)


def in_force(name: str, defaults: Mapping[str, Any]) -> str:
    """What counts where an option is not set."""
    return written(defaults.get(name, FIELDS[name].default)) or WITHOUT.get(name, "none")


def read(name: str, text: str) -> Any:
    """What was typed as the option's own type; UsageError where it makes no sense."""
    if name == "stop" and text.lstrip().startswith("["):
        try:
            return checked(name, json.loads(text), "stop")
        except ValueError:
            pass
    return checked(name, text, name.replace("_", " "))


class OptionsScreen(ModalScreen[None]):
    """``chosen`` holds what the user set, ``defaults`` what counts where nothing is set, ``refuse`` says why a set of options cannot be."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f5", "leave", "close"),
        Binding("down", "app.focus_next", "next", show=False, priority=True),
        Binding("up", "app.focus_previous", "before", show=False, priority=True),
    ]

    @dataclass
    class Changed(Message):
        """An option was set; ``value`` is None and ``unset`` true where its default counts again."""

        name: str
        value: Any
        unset: bool = False

    def __init__(self, chosen: Mapping[str, Any], defaults: Mapping[str, Any], refuse: Callable[[Mapping[str, Any]], str | None]) -> None:
        super().__init__()
        self._chosen = dict(chosen)
        self._defaults = defaults
        self._refuse = refuse

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content("parameters of the next reply"), classes="title")
            with VerticalScroll(can_focus=False):
                for name, field in FIELDS.items():
                    default = in_force(name, self._defaults)
                    with Horizontal(classes="option"):
                        yield Label(Content(name.replace("_", " ")))
                        yield Input(written(self._chosen.get(name)), placeholder=default, id=name)
                    choices = field.metadata["choices"]
                    help = field.metadata["help"] + (f": {', '.join(choices)}" if choices else "")
                    own = " (the model's own)" if name in self._defaults else ""
                    yield Static(Content(help if "default" in help else f"default: {default}{own} · {help}"), classes="help")
            yield Static("", id="refused", markup=False)
            yield Static(Content("⏎ set (empty: the default)  ↑↓ move  esc close"), classes="hint")

    def on_mount(self) -> None:
        self.query(Input).first().focus()

    @on(Input.Submitted)
    def set_one(self, event: Input.Submitted) -> None:
        self._set(event.input)

    @on(Input.Blurred)
    def left_one(self, event: Input.Blurred) -> None:
        self._set(event.input)

    def action_leave(self) -> None:
        if isinstance(self.focused, Input):
            self._set(self.focused)
        self.dismiss(None)

    def _set(self, field: Input) -> None:
        name = field.id or ""
        text = field.value.strip() if name not in ("system_prompt", "stop") else field.value
        if text == written(self._chosen.get(name)):
            return
        wish = {key: value for key, value in self._chosen.items() if key != name}
        try:
            if text:
                wish[name] = read(name, text)
            refused = self._refuse(wish)
        except UsageError as error:
            refused = str(error)
        field.set_class(bool(refused), "-refused")
        self.query_one("#refused", Static).update(Content(refused or ""))
        if not refused:
            self._chosen = wish
            self.app.post_message(self.Changed(name, wish.get(name), unset=name not in wish))
