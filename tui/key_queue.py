"""Keys in their turn: each is dealt with before the next one is looked at, however fast they come.

Textual puts a key into the queue of the widget that has the focus when the key arrives. What the key before it does (move the focus, send the
prompt) comes through other queues, so in a burst, or on a busy machine, the end of a sentence could land on a message as commands.
"""

import time
from collections import deque
from collections.abc import Sequence

from textual import events
from textual.app import App, ReturnType
from textual.message_pump import MessagePump

AT_MOST = 1.0  # seconds a key waits for the one before it; a widget that hangs must not take the keyboard with it


class KeyQueue(App[ReturnType]):
    """An app whose keys and pastes wait for one another."""

    def __init__(self, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._waiting: deque[events.Key | events.Paste] = deque()
        self._since: float | None = None  # when the key that is being dealt with was let through
        self._let = 0  # keys let through so far

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            self._waiting.append(event)
            if self._since is None or time.monotonic() - self._since > AT_MOST:
                await self._next()
        else:
            await super().on_event(event)

    async def _next(self) -> None:
        """Let the next one through, and send a question after it the way it goes: up from its widget to the app, and once more through the app
        for what was asked of it on the way."""
        self._since = None
        if self._waiting:
            self._since, self._let = time.monotonic(), self._let + 1
            way = [*(self.focused or self.screen).ancestors_with_self, self, self]
            await super().on_event(self._waiting.popleft())
            await self._follow(way, self._let)

    async def _follow(self, way: Sequence[MessagePump], key: int) -> None:
        for place, node in enumerate(way):
            if node.call_later(self._follow, way[place + 1 :], key):
                return  # a widget that is gone takes no questions: the next one is asked
        if key == self._let:
            await self._next()
