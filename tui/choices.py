"""Choosing a model, a drafter, a saved conversation or an earlier prompt in a window. Knows the app; the list itself is a Picker."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlxspec.display import clean, one_line
from mlxspec.sessions.store import Summary
from mlxspec.tui.chat.reports import Offers
from mlxspec.tui.screens.picker import Choice, Item, Picker

if TYPE_CHECKING:
    from mlxspec.tui.app import ChatApp
    from mlxspec.tui.screen_actions import ScreenActions

MODEL, DRAFTER = "model ", "drafter "
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Choices:
    """The windows that choose."""

    def __init__(self, app: "ChatApp", deeds: "ScreenActions") -> None:
        self.app = app
        self.deeds = deeds
        self._offers: Picker | None = None  # waits for what the engine's thread finds

    def pick(self, what: str) -> None:
        """Open the window for a model, a drafter or a session."""
        if what == "session":
            self._session()
        else:
            self._model_or_drafter(what)

    # ---- Models and drafters -------------------------------------------------------------------------------------------------------------

    def _model_or_drafter(self, what: str) -> None:
        title = "models, and drafters for this one" if what == "model" else "drafters, and models"
        self._offers = Picker(title, [Item("", "looking at what is here …")], free="a folder, a .gguf file or a hub id")
        self._first = what
        self.app.push_screen(self._offers, self._chosen)
        self.deeds.talk.worker.offers([Path.cwd()])

    def offer(self, offers: Offers) -> None:
        """What was found."""
        if self._offers is None or not self._offers.is_attached:
            return
        models = [Item("", "models")]
        models += [Item(MODEL + one.name, _named(one.name, one.current), clean(f"{one.kind} · {one.about}"), one.fits) for one in offers.models]
        drafters = [Item("", "drafters for the model that is loaded")] if offers.drafters else []
        drafters += [Item(DRAFTER + one.name, _named(one.name, one.current), clean(one.about), one.fits) for one in offers.drafters]
        fitting = sum(one.fits for one in offers.drafters)
        note = f"{fitting} of {len(offers.drafters)} drafters fit" if offers.drafters else "drafters are listed once a model is loaded"
        self._offers.offer([*models, *drafters] if self._first == "model" else [*drafters, *models], note)

    def _chosen(self, choice: Choice | None) -> None:
        self._offers = None
        if choice is None:
            return
        if choice.key.startswith(DRAFTER):
            self.deeds.do(lambda: self.deeds.draft(choice.key.removeprefix(DRAFTER)))
        elif self._first == "drafter" and not choice.key.startswith(MODEL):
            self.deeds.do(lambda: self.deeds.draft(choice.key))
        else:
            self.deeds.do(lambda: self.deeds.model(choice.key.removeprefix(MODEL)))

    # ---- Sessions ------------------------------------------------------------------------------------------------------------------------

    def _session(self) -> None:
        items = [Item(one.id, clean(one.title), about_session(one, time.time())) for one in self.deeds.talk.saved.summaries()]
        actions = [("ctrl+d", "delete", "delete"), ("ctrl+e", "export", "export")]
        self.app.push_screen(Picker("saved chats", items, actions=actions), self._session_chosen)

    def _session_chosen(self, choice: Choice | None) -> None:
        if choice is None:
            return
        if choice.action == "open":
            self.deeds.do(lambda: self.deeds.load(choice.key))
        elif choice.action == "delete":
            self.confirm(f"delete {choice.key}?", lambda: self.app.toast(f"deleted {self.deeds.talk.saved.delete(choice.key)}"))
        else:
            self.deeds.do(lambda: self.deeds.export_session(choice.key))

    def confirm(self, question: str, then: Callable[[], None], after: Callable[[], object] | None = None) -> None:
        """Ask before something is lost; no is the first answer."""

        def answered(choice: Choice | None) -> None:
            if choice is not None and choice.key == "yes":
                self.deeds.do(then)
            if after is not None:
                after()

        self.app.push_screen(Picker(question, [Item("no", "no"), Item("yes", "yes")]), answered)

    # ---- Earlier prompts -----------------------------------------------------------------------------------------------------------------

    def prompts(self, past: Sequence[str]) -> None:
        """Search in what was said before, the newest first."""
        newest = list(dict.fromkeys(reversed(past)))
        items = [Item(str(number), one_line(text)[:200]) for number, text in enumerate(newest)]
        prompt = self.app.screen_of_chat.prompt
        self.app.push_screen(Picker("earlier prompts", items), lambda choice: prompt.put(newest[int(choice.key)]) if choice is not None else None)


def _named(name: str, current: bool) -> str:
    return clean(name) + ("  ◂ in use" if current else "")


def about_session(summary: Summary, now: float) -> str:
    """Messages, age, model, and what is wrong with it.

    >>> about_session(Summary("a", "t", 0, 0, "m", 2, cut_off=True), 7200)
    '2 messages · 2 h ago · m · cut off'
    """
    age = max(0.0, now - summary.updated)
    seconds, unit = next(((seconds, unit) for seconds, unit in AGES if age >= seconds), AGES[-1])
    ago = f"{age // seconds:.0f} {unit} ago"
    parts = [f"{summary.turns} messages", ago, clean(summary.model or "")]
    parts += ["cut off"] * summary.cut_off + ["damaged"] * summary.damaged
    return " · ".join(part for part in parts if part)
