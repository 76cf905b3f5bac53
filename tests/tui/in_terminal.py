"""``python -m tests.tui.in_terminal FOLDER REPLY`` is the chat with an engine of words, for tests in a terminal of their own."""

import sys
from pathlib import Path

from mlxspec.sessions.store import Store
from mlxspec.tui.app import run
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.worker import Worker
from tests.tui.fake_chat import Loader


def main(folder: str, reply: str) -> int:
    loader = Loader()
    loader.gate.close()
    talk = Conversation(Worker(loader, release=lambda: None).start(), Store(Path(folder) / "sessions"), {"seed": 1})
    talk.load("fake", "auto")
    loader.gate.open()
    while talk.baseline is None:
        talk.worker.wait(0.1)
        talk.feed()
    loader.engines[0].script.append(reply.encode().decode("unicode_escape"))
    talk.send("hello")
    try:
        return run(talk)
    finally:
        talk.leave()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
