"""Driving a Textual app in tests: run a coroutine, wait until something is so, read the screen as text."""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from textual.app import App
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

import mlxspec.tui

M = TypeVar("M", bound=Message)

PATIENCE = 10.0  # seconds after which something that should have happened has not


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def until(pilot: Pilot[Any], so: Callable[[], bool]) -> None:
    """Let the app work until something is so. Time is only the bound."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while not so():
        assert loop.time() < end, f"never came true: {so}"
        await pilot.pause()


def screen_text(app: App[Any]) -> str:
    """What the terminal shows, without styles."""
    width, height = app.size
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None, record=True, legacy_windows=False)
    console.print(app.screen._compositor.render_update(full=True))
    return "\n".join(line.rstrip() for line in console.export_text(styles=False).splitlines())


class Stage(App[None]):
    """An app with nothing but one widget or screen, and the look of the chat."""

    CSS_PATH = str(Path(mlxspec.tui.__file__).with_name("chat.tcss"))

    def __init__(self, shown: Widget) -> None:
        super().__init__()
        self.shown = shown
        self.animation_level = "none"
        self.heard: list[Message] = []

    def on_mount(self) -> None:
        if isinstance(self.shown, Screen):
            self.push_screen(self.shown, self.answered)
        else:
            self.mount(self.shown)

    def answered(self, answer: Any) -> None:
        self.answer = answer

    def of(self, kind: type[M]) -> list[M]:
        """Messages of a kind that came up to the app."""
        return [message for message in self.heard if isinstance(message, kind)]

    async def _dispatch_message(self, message: Message) -> None:
        self.heard.append(message)
        await super()._dispatch_message(message)


@asynccontextmanager
async def staged(shown: Widget, size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Stage, Pilot[None]]]:
    app = Stage(shown)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


def same_as_stored(app: App[Any], name: str) -> None:
    """Compare the screen with a stored one. ``SNAPSHOTS=write`` stores it: look at the difference before committing it."""
    width, height = app.size
    path = Path(__file__).parent / "snapshots" / f"{name}-{width}x{height}.txt"
    shown = screen_text(app) + "\n"
    if os.environ.get("SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, "utf-8")
    assert shown == path.read_text("utf-8"), f"{path.name} differs:\n{shown}"
