"""A chat with a fake engine behind a real worker and a real store, driven by a pilot."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from mlxspec.sessions.store import Store
from mlxspec.tui.app import ChatApp
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.prompt_history import History
from mlxspec.tui.chat.reports import Offer, Offers
from mlxspec.tui.chat.worker import Worker
from tests.tui.fake_chat import FakeChatEngine, Loader
from tests.tui.fake_voice import Voices
from tests.tui.pilot import screen_text, until

OFFERS = Offers(
    (
        Offer("fake", "built-in", True, "93 MB", current=True),
        Offer("other/model", "hub", True, "1 GB"),
        Offer("bad", "folder", False, "no weights [x]"),
    ),
    (Offer("none", "none", True, "plain decoding"), Offer("lookup", "lookup", True, "copies what was said", current=True)),
)


def list_offers(engine: Any, folders: Sequence[Path]) -> Offers:
    return OFFERS


@dataclass
class Chatting:
    """All the parts of a running chat."""

    app: ChatApp
    pilot: Pilot[int]
    talk: Conversation
    loader: Loader
    voices: Voices
    store: Store

    @property
    def engine(self) -> FakeChatEngine:
        return self.loader.engines[-1]

    @property
    def shown(self) -> str:
        return screen_text(self.app)

    @property
    def toasts(self) -> str:
        """Lines that go away by themselves, one below the other."""
        return "\n".join(str(notice.message) for notice in self.app._notifications)

    async def settled(self) -> None:
        """Until the engine has nothing to do and all of it is drawn."""
        await until(self.pilot, lambda: not self.talk.answering and self.talk.working is None and not self.talk.worker.busy)
        await self.drawn()

    async def drawn(self) -> None:
        for _ in range(3):
            await self.app.catch_up()
            await self.pilot.pause()

    async def say(self, text: str, wait: bool = True) -> None:
        """Type something and send it."""
        self.app.screen_of_chat.prompt.focus()
        self.app.screen_of_chat.prompt.put(text)
        await self.pilot.press("enter")
        await self.pilot.pause()
        if wait:
            await self.settled()


@asynccontextmanager
async def chatting(
    folder: Path, size: tuple[int, int] = (120, 40), *, load: bool = True, said: Sequence[str] = (), store: Store | None = None, **app: Any
) -> AsyncIterator[Chatting]:
    """A chat in a folder; ``said`` are replies that the engine gives first."""
    loader, voices = Loader(), Voices()
    worker = Worker(loader, load_voice=voices, release=lambda: None, list_offers=list_offers).start()
    store = store or Store(folder / "sessions")
    talk = Conversation(worker, store, {"seed": 1})
    if load:
        talk.load("fake", "auto")
    chat = ChatApp(talk, **{"environ": {}, "history": History(None), **app})
    chat.animation_level = "none"
    try:
        async with chat.run_test(size=size, notifications=True) as pilot:
            parts = Chatting(chat, pilot, talk, loader, voices, store)
            await until(pilot, lambda: chat.drawable)
            if load:
                await until(pilot, lambda: talk.ready is not None)
                await parts.settled()
                parts.engine.script += said
            yield parts
    finally:
        loader.gate.open()
        voices.open()
        for engine in loader.engines:
            engine.gate.open()
        talk.leave()
