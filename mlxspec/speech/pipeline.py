"""Stages of work, each in a thread of its own, short queues between: a slow stage holds up the ones before it, and ending is prompt. Knows no sound.

What a stage raises comes out at the end of the line. MLX arrays do not cross threads unless they are evaluated: stages hand on plain values.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

WAIT = 0.05  # seconds between looks at whether to give up


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def pipeline(
    source: Callable[[], Iterable[Any]], stages: Iterable[Callable[[Iterator[Any]], Iterable[Any]]], cancel: threading.Event, room: int = 16
) -> Generator[Any, None, None]:
    """Yield what the last stage makes. Each of ``source`` and ``stages`` runs in its own thread, at most ``room`` things ahead of the next.

    Closing the generator sets ``cancel``, lets every stage run out, and waits for them.
    """
    abandoned = threading.Event()
    running: list[threading.Event] = []
    line: queue.Queue[Any] = queue.Queue(room)

    def start(work: Callable[[], Iterable[Any]], out: "queue.Queue[Any]") -> None:
        running.append(_in_a_thread(lambda: _run(work, out, abandoned)))

    start(source, line)
    for stage in stages:
        before, line = line, queue.Queue(room)
        start(lambda stage=stage, before=before: stage(_taken(before, abandoned)), line)  # type: ignore[misc]
    try:
        yield from _taken(line, abandoned)
    finally:
        cancel.set()
        abandoned.set()
        for ended in running:
            ended.wait()


class _Worker(threading.Thread):
    """A thread that does one thing after another and never ends: MLX keeps things a thread, and a process that ends just after one crashes."""

    idle: "list[_Worker]" = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.work: queue.Queue[tuple[Callable[[], None], threading.Event]] = queue.Queue()
        self.start()

    def run(self) -> None:
        while True:
            do, ended = self.work.get()
            do()
            del do
            _Worker.idle.append(self)
            ended.set()


def _in_a_thread(do: Callable[[], None]) -> threading.Event:
    """Starts it in a worker; the event is set when it has ended."""
    ended = threading.Event()
    try:
        worker = _Worker.idle.pop()
    except IndexError:
        worker = _Worker()
    worker.work.put((do, ended))
    return ended


def _run(work: Callable[[], Iterable[Any]], out: "queue.Queue[Any]", abandoned: threading.Event) -> None:
    end = _End()
    try:
        items = work()
        try:
            for item in items:
                if not _put(out, item, abandoned):
                    return
        finally:
            if isinstance(items, Generator):
                items.close()  # now and in this thread: what it holds may belong to it
    except BaseException as error:
        end = _End(error)
    _put(out, end, abandoned)


def _put(out: "queue.Queue[Any]", item: Any, abandoned: threading.Event) -> bool:
    while not abandoned.is_set():
        try:
            out.put(item, timeout=WAIT)
            return True
        except queue.Full:
            continue
    return False


def _taken(line: "queue.Queue[Any]", abandoned: threading.Event) -> Iterator[Any]:
    while not abandoned.is_set():
        try:
            item = line.get(timeout=WAIT)
        except queue.Empty:
            continue
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return
        yield item
