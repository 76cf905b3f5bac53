"""The keys at the bottom: whole ones only. Where there is no room for all, the last ones go, but never the key of the help, which lists them all."""

from collections.abc import Iterable

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Footer

HELP = "help"  # the action of the key that is always there
BLANKS = 3  # columns around a key and behind its description


class KeyBar(Footer):
    """A footer that cuts no key."""

    def compose(self) -> ComposeResult:
        yield from fitting(super().compose(), self.app.size.width)

    async def on_resize(self, event: events.Resize) -> None:
        await self.recompose()


def fitting(keys: Iterable[Widget], width: int) -> list[Widget]:
    """As many keys as there is room for, in their order. The blank behind the last one needs none."""
    listed = list(keys)
    room = width + 1 - sum(_width(key) for key in listed if _is_help(key))
    shown: list[Widget] = []
    for key in listed:
        if not _is_help(key):
            room -= _width(key)
        if _is_help(key) or room >= 0:
            shown.append(key)
    return shown


def _is_help(key: Widget) -> bool:
    return getattr(key, "action", None) == HELP


def _width(key: Widget) -> int:
    return Content(getattr(key, "key_display", "") + getattr(key, "description", "")).cell_length + BLANKS
