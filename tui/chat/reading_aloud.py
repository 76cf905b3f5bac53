"""What the chat says aloud: by which voice, and which sentence is heard just now. Feeds on reports of the engine's thread; knows no widget."""

import time
from collections import deque
from collections.abc import Callable

from mlxspec.errors import UsageError
from mlxspec.tui.chat.markdown import speakable
from mlxspec.tui.chat.message import ChatMessage
from mlxspec.tui.chat.reports import Ended, Failed, Happening, Speech
from mlxspec.tui.chat.worker import Worker


class Hearing:
    """Reports of speech run ahead of the ear by what the player holds: the clock tells which sentence is heard, and how much sound still waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._coming: deque[tuple[float, str]] = deque()  # when a sentence will be heard, and the sentence
        self.newest = Speech()

    def take(self, speech: Speech) -> None:
        self._at = self._clock()
        if speech.sentence and speech.number != self.newest.number:
            self._coming.append((self._at + speech.ahead, speech.sentence))
        self.newest = speech

    @property
    def sentence(self) -> str:
        """The sentence that is heard now; empty before the first one."""
        while len(self._coming) > 1 and self._coming[1][0] <= self._clock():
            self._coming.popleft()
        return self._coming[0][1] if self._coming else ""

    @property
    def buffer(self) -> float:
        """Seconds of sound that wait to be heard."""
        return max(0.0, self.newest.ahead - (self._clock() - self._at))


class ReadingAloud:
    """One piece of speech at a time. ``always``: each reply is to be said when it has ended, until a speech fails; ``tell`` gets lines."""

    def __init__(self, worker: Worker, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.always = False
        self.hearing: Hearing | None = None  # while something is said, or is about to be
        self._worker, self._tell, self._clock = worker, tell, clock
        self._voice: str | None = None  # that spoke last; None: the first there is
        self._wanted: str | None = None  # that is to speak
        self._job: int | None = None

    def ended(self, reply: ChatMessage) -> None:
        """A reply has ended: say it, where each one is to be said."""
        if self.always and speakable(reply.text):
            self.say(reply)

    def say(self, message: ChatMessage | None, voice: str | None = None, mirror: bool = False) -> None:
        """Say a message, if there is one; ``voice``: by another one than before; ``mirror``: by the approximate rule."""
        if message is None:
            raise UsageError("There is nothing to speak: send a message first.")
        text = speakable(message.text)
        if not text:
            raise UsageError("There is nothing to speak in this message.")
        self._wanted = voice or self._voice
        self._job = self._worker.speak(text, self._wanted, mirror)
        self.hearing = Hearing(self._clock)

    def take(self, job: int, event: Happening) -> None:
        """A report; those of other jobs are nothing to it."""
        if job != self._job or self.hearing is None:
            return
        if isinstance(event, Speech):
            self.hearing.take(event)
            self._voice = self._wanted if event.voice else self._voice
        elif isinstance(event, Failed) and self.always:
            self.always = False
            self._tell("Replies are not spoken any more: /speak on begins again.")
        elif isinstance(event, Ended):
            self._job = self.hearing = None
