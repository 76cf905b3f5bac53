"""What the chat's screen costs: lag of its loop while a reply comes, and the tokens per second it takes from the engine.

    python examples/chat_cost.py                    # SmolLM2, 256 tokens, 5 pairs
    python examples/chat_cost.py --fake             # an engine of words with a long code fence, 60 rounds a second

The pairs run in turn in one process: the same engine, prompt and seed, once read by a plain loop in the engine's thread, once with the screen
(120 by 40, drawn by Textual's own driver for tests) reading along.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxspec.sessions.store import Store
from mlxspec.tui.app import ChatApp
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.prompt_history import History
from mlxspec.tui.chat.worker import Worker

PROMPT = "Write a long Python class for a bank account, in one code block, with many methods and a docstring for each."
BEAT = 0.1  # seconds between two looks at the clock; each look takes a core from the engine for a moment


def load(model: str, drafter: str, options: Mapping[str, Any], say: Any) -> Any:
    import mlxspec

    return mlxspec.load(model, drafter=drafter, say=say, **options)


def load_fake(model: str, drafter: str, options: Mapping[str, Any], say: Any) -> Any:
    """Two tokens a round, sixty rounds a second, in one code fence of some 160 lines."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.tui.fake_chat import FakeChatEngine, Gate

    class Slow(Gate):
        def arrive(self, cancel: Any) -> None:
            end = time.perf_counter() + 1 / 60
            while time.perf_counter() < end:  # half of the time in Python, as a host that samples and drafts
                if end - time.perf_counter() > 1 / 120:
                    time.sleep(1 / 120)

    engine = FakeChatEngine(gate=Slow())
    engine.script = ["```py\n" + " \n".join(f"value_{line} = {line} + {line}" for line in range(400))] * 100
    return engine


async def beat(lags: list[float], stop: asyncio.Event) -> None:
    """How late the loop wakes a task that wants to be woken often."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        wanted = loop.time() + BEAT
        await asyncio.sleep(BEAT)
        lags.append(loop.time() - wanted)


async def with_screen(talk: Conversation, lags: list[float]) -> float:
    """Tokens per second of a reply that the screen shows."""
    app = ChatApp(talk, environ={}, history=History(None))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        talk.clear()
        stop = asyncio.Event()
        beating = asyncio.create_task(beat(lags, stop))
        talk.send(PROMPT)
        started, worked = time.perf_counter(), time.thread_time()
        while talk.answering:
            await asyncio.sleep(2 * BEAT)
        seconds = time.perf_counter() - started
        print(f"  the screen's thread worked {100 * (time.thread_time() - worked) / seconds:.1f} % of the time", end="; ")
        stop.set()
        await beating
    return speed(talk, seconds)


def without_screen(talk: Conversation) -> float:
    """The same reply with nobody who draws."""
    talk.tell, talk.redraw, talk.give_back = (lambda text: None), (lambda: None), (lambda text: None)
    talk.clear()
    talk.send(PROMPT)
    started = time.perf_counter()
    while talk.answering:
        talk.worker.wait(0.25)
        talk.feed()
    return speed(talk, time.perf_counter() - started)


def speed(talk: Conversation, seconds: float) -> float:
    """Tokens per second by the engine's clock; the engine of words has none."""
    assert talk.done is not None
    return len(talk.done.tokens) / seconds if talk.done.model == "fake" else float(talk.done.stats["tokens_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--drafter", default="lookup")
    given = parser.parse_args()
    worker = Worker(load_fake if given.fake else load).start()
    talk = Conversation(worker, Store(Path(tempfile.mkdtemp())), {"seed": 1, "temperature": 0.0, "max_tokens": given.tokens, "stop": ()})
    talk.load("smollm2-135m", given.drafter)
    talk.send("Hello.")
    while talk.answering or talk.worker.busy or talk.baseline is None:
        worker.wait(0.25)
        talk.feed()
    lags: list[float] = []
    ratios = []
    for pair in range(given.pairs):
        bare, drawn = 0.0, 0.0
        for screen in (pair % 2 == 0, pair % 2 == 1):
            if screen:
                drawn = asyncio.run(with_screen(talk, lags))
            else:
                bare = without_screen(talk)
        ratios.append(drawn / bare)
        print(f"pair {pair + 1}: {bare:.2f} tok/s bare, {drawn:.2f} with the screen, ratio {drawn / bare:.3f}", flush=True)
    lags.sort()
    print(f"ratio, median of {len(ratios)}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"lag of the loop: median {1e3 * lags[len(lags) // 2]:.1f} ms, 99th percentile {1e3 * lags[int(0.99 * len(lags))]:.1f} ms", end=", ")
    print(f"longest {1e3 * lags[-1]:.1f} ms, of {len(lags)}")
    talk.leave()
    sys.stdout.flush()
    os._exit(0)  # MLX does not bear Python's own ending in another thread


if __name__ == "__main__":
    main()
