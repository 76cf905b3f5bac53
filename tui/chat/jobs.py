"""A thread that does jobs one at a time, in an order that suits a person who waits. Knows no engine: what a job does is its own affair.

Jobs that come ``first`` go to the front and break off what runs. One job may be kept for idle times: it gives way to any other and begins anew.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlxspec.display import one_line
from mlxspec.errors import MlxspecError
from mlxspec.tui.chat.reports import Begun, Ended, Failed, Happening, Report

FIRST = ("load", "drafter")  # go to the front of the queue and end what runs
TALK = ("reply", "compare", "speech")  # what ``cancel`` ends
SPEECH = "speech"  # makes room for what else is said
LOOK = "chances"  # makes room for anything that is said or loaded
IDLE = "baseline"


@dataclass(slots=True)
class Job:
    """Something to do. ``run`` looks at ``cancel`` as often as it can."""

    number: int
    kind: str
    run: Callable[["Job"], None]
    cancel: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The queue, its thread, and what the jobs report."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()
        self._news = threading.Event()
        self._wake = threading.Condition()
        self._queue: deque[Job] = deque()
        self._idle: Job | None = None
        self._running: Job | None = None
        self._number = 0
        self._begun = self._leaving = False
        self._thread = threading.Thread(target=self._work, name="mlxspec-engine", daemon=True)

    def start(self) -> None:
        """Start the thread, once. Jobs may be given before."""
        with self._wake:
            if not self._begun:
                self._begun = True
                self._thread.start()

    def submit(self, kind: str, run: Callable[[Job], None]) -> int:
        """Queue a job; its number."""
        with self._wake:
            self._number += 1
            job = Job(self._number, kind, run)
            if self._leaving:
                self.report(job, Ended(kind, cancelled=True))
                return job.number
            if self._running is not None and self._gives_way(self._running, kind):
                self._running.cancel.set()
            if kind == IDLE:
                self._forget((IDLE,))
                self._idle = job
            elif kind in FIRST:
                self._forget(FIRST if kind == "load" else (kind,))
                at = next((i for i, waiting in enumerate(self._queue) if waiting.kind not in FIRST), len(self._queue))
                self._queue.insert(at, job)
            else:
                if kind in (SPEECH, LOOK):  # of these the last one is wanted
                    self._forget((kind,))
                self._queue.append(job)
            self._wake.notify()
            return job.number

    def cancel(self) -> None:
        """End the reply, comparison or speech that runs, with what it has, and forget those that wait."""
        with self._wake:
            self._forget(TALK)
            if self._running is not None and self._running.kind in TALK:
                self._running.cancel.set()

    def drain(self) -> list[Report]:
        """What has happened since the last time, in order. Never waits."""
        self._news.clear()
        reports = []
        while self._reports:
            reports.append(self._reports.popleft())
        return reports

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to drain; False where nothing came in time."""
        return self._news.wait(timeout)

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits, other than the one for idle times."""
        with self._wake:
            return bool(self._queue) or (self._running is not None and self._running.kind != IDLE)

    @property
    def running(self) -> Job | None:
        """The job that is being done."""
        return self._running

    def quit(self, timeout: float) -> bool:
        """End everything and wait a moment for the thread; whether it is gone."""
        with self._wake:
            self._leaving = True
            self._forget(None)
            if self._running is not None:
                self._running.cancel.set()
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def report(self, job: Job, event: Happening) -> None:
        """Let the screen know. Called from the thread, a job at work."""
        self._reports.append(Report(job.number, event))
        self._news.set()

    def _gives_way(self, running: Job, kind: str) -> bool:
        """Whether what runs is to be broken off for a new job: anything for a new model, a load not for a mere drafter."""
        if running.kind == IDLE or (running.kind == SPEECH and kind in TALK) or (running.kind == LOOK and kind in (LOOK, *TALK, *FIRST)):
            return True
        return kind in FIRST and (running.kind in TALK or (running.kind == "load" and kind == "load"))

    def _forget(self, kinds: Sequence[str] | None) -> None:
        """Drop waiting jobs of some kinds (None: all). The lock is held."""
        waiting = [*self._queue, *([self._idle] if self._idle is not None else [])]
        self._queue.clear()
        self._idle = None
        for job in waiting:
            if kinds is None or job.kind in kinds:
                self.report(job, Ended(job.kind, cancelled=True))
            elif job.kind == IDLE:
                self._idle = job
            else:
                self._queue.append(job)

    def _next(self) -> Job | None:
        with self._wake:
            while not (self._leaving or self._queue or self._idle):
                self._wake.wait()
            if self._leaving:
                return None
            if self._queue:
                self._running = self._queue.popleft()
            else:
                self._running, self._idle = self._idle, None
            return self._running

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self.report(job, Begun(job.kind))
            try:
                job.run(job)
            except MlxspecError as error:
                self.report(job, Failed(one_line(str(error))))
            except Exception as error:  # whatever a model's own code raises: the chat goes on
                self.report(job, Failed(one_line(f"{type(error).__name__}: {error}")))
            with self._wake:
                self._running = None
                again = job.kind == IDLE and job.cancel.is_set() and self._idle is None and not self._leaving
                if again:  # it made room for something else
                    job.cancel.clear()
                    self._idle = job
                else:
                    self.report(job, Ended(job.kind, job.cancel.is_set()))
