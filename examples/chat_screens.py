"""The screenshots of the chat in docs/, taken anew with the model itself: python examples/chat_screens.py [FOLDER]

Textual draws them without a terminal. The speeds in them are those of the machine it runs on, at that moment.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from mlxspec.cli.chat import load_engine, offers
from mlxspec.sessions.store import Store
from mlxspec.tui.app import ChatApp
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.prompt_history import History
from mlxspec.tui.chat.worker import Worker

SIZE = (118, 40)
FIRST = "What is a lighthouse for? One sentence."
SECOND = """Repeat this list, with a number before each line:

- the keeper counts the ships that pass
- the keeper counts the hours of fog
- the keeper counts the birds on the rail"""


class Camera:
    """Waits for the chat and writes pictures of it."""

    def __init__(self, app: ChatApp, pilot: Pilot[int], folder: Path) -> None:
        self.app, self.pilot, self.folder = app, pilot, folder

    async def settled(self) -> None:
        """Until the engine rests and all is drawn."""
        talk = self.app.talk
        while talk.answering or talk.working or talk.worker.busy or talk.ready is None or talk.baseline is None:
            await asyncio.sleep(0.2)
        await self.drawn()

    async def drawn(self) -> None:
        self.app.clear_notifications()
        for _ in range(4):
            await self.app.catch_up()
            await self.pilot.pause()
        self.app.live.draw_panel()
        await self.pilot.pause()

    def shoot(self, name: str) -> None:
        (self.folder / f"{name}.svg").write_text(self.app.export_screenshot(title="mlxspec chat"), "utf-8")
        print(self.folder / f"{name}.svg", flush=True)


async def main(folder: Path) -> None:
    worker = Worker(load_engine, list_offers=offers).start()
    talk = Conversation(worker, Store(Path(tempfile.mkdtemp())), {"temperature": 0.0, "max_tokens": 120})
    talk.load("smollm2-135m", "auto")
    app = ChatApp(talk, environ={}, history=History(None))
    async with app.run_test(size=SIZE) as pilot:
        camera = Camera(app, pilot, folder)
        await camera.settled()
        app.deeds.send(FIRST)
        await camera.settled()
        app.deeds.send(SECOND)
        await camera.settled()
        camera.shoot("chat")
        await pilot.press("f3", "f7")
        steps = list(app.live.tally.steps)
        app.screen_of_chat.panel.strip.selected = max(range(len(steps)), key=lambda place: len(steps[place].path))
        await pilot.pause()
        await camera.settled()  # the model is asked what it thought of the round
        camera.shoot("chat-origin")
        await pilot.press("escape", "f3", "f4")
        await camera.settled()
        camera.shoot("chat-models")
        await pilot.press("escape")
        app.deeds.send("/compare")
        await camera.settled()
        camera.shoot("chat-compare")
    talk.leave()
    os._exit(0)  # MLX does not bear Python's own ending in another thread


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
