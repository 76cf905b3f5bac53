"""Voices without a model and a sound card: each sentence is a sentence of speech, two seconds of it in two pieces; a gate lets pieces through."""

import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlxspec.core.events import Audio, Pace, Sentence, SpeechEvent, Spoken
from mlxspec.errors import UsageError
from tests.tui.fake_chat import Gate

RATE = 1000


class FakeVoice:
    """Nothing of what it says is heard before all is said."""

    def __init__(self, name: str, gate: Gate) -> None:
        self.files = SimpleNamespace(name=name)
        self.gate = gate
        self.said: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.threads: set[str] = set()
        self.faults: tuple[str, ...] = ()
        self.failure: Exception | None = None

    def play(
        self, text: str, *, cancel: threading.Event | None = None, on: Callable[[SpeechEvent, float], None] | None = None, **options: Any
    ) -> Spoken:
        assert on is not None and cancel is not None
        self.threads.add(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        self.said.append(text)
        self.asked.append(options)
        sentences, ahead = re.findall(r"\S[^.?!\n]*[.?!]?", text), 0.0
        for index, sentence in enumerate(sentences):
            on(Sentence(sentence, index, len(sentences)), ahead)
            for _ in range(2):
                self.gate.arrive(cancel)
                if not cancel.is_set():
                    on(Audio(np.zeros(RATE, np.float32), RATE, Pace(0.25, 0.4, round(40 * (1 + ahead)), round(30 * (1 + ahead)))), ahead)
                    ahead += 1.0
        spoken = Spoken(text, round(ahead * RATE), RATE, self.files.name, "none", options["accept"], True, 1, self.faults, cancel.is_set(), {})
        on(spoken, ahead)
        return spoken


class Voices:
    """Stands in for mlxspec.load_voice; keeps the voices it made. ``gate`` holds loading back, ``pieces`` what is said."""

    def __init__(self) -> None:
        self.made: list[FakeVoice] = []
        self.gate, self.pieces = Gate(), Gate()
        self.failure: Exception | None = None  # of the next voices

    def __call__(self, name: str | None, say: Callable[[str], None]) -> FakeVoice:
        say("Voice from \x1b[1mnowhere.")
        self.gate.arrive(None)
        if name == "nobody":
            raise UsageError("There is no voice nobody: give one of the voices (anna), or a voice's folder.")
        self.made.append(FakeVoice(name or "anna", self.pieces))
        self.made[-1].failure = self.failure
        return self.made[-1]

    def open(self) -> None:
        self.gate.open()
        self.pieces.open()
