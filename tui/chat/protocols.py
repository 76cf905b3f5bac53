"""What the chat needs of an engine and a voice, so that a test's fake can stand in for them. mlxspec.Engine, Chat and Voice have all of it."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from mlxspec import Proposal
from mlxspec.core.events import ChatEvent, Event, SpeechEvent, Spoken

Message = dict[str, str]
Say = Callable[[str], None]


class Chat(Protocol):
    """A conversation over an engine, as mlxspec.llm.chat has it."""

    messages: list[Message]
    system: str | None
    dropped: int
    prompt: list[int]

    def regenerate(self, *, cancel: threading.Event | None = None, **options: Any) -> Generator[ChatEvent, None, None]: ...
    def proceed(self, *, cancel: threading.Event | None = None, **options: Any) -> Generator[ChatEvent, None, None]: ...
    def context_used(self) -> tuple[int, int | None]: ...


class Engine(Protocol):
    """A loaded model with its drafter, as mlxspec.Engine; a test's fake has these members."""

    model_name: str
    drafter_name: str
    speculation: str
    reason: str | None
    defaults: dict[str, Any]
    tokenizer: Any
    target: Any  # has .context_length
    loaded: Any  # has .digest
    settings: Any  # Options

    def chat(self, *, system: str | None = None, **options: Any) -> Any: ...
    def with_drafter(self, drafter: Any) -> "Engine": ...
    def aside(self) -> "Engine": ...
    def report(self) -> tuple[str, str | None]: ...
    def prompt_tokens(self, prompt: Any) -> list[int]: ...
    def stream(self, prompt: Any, *, cancel: threading.Event | None = None, reuse: bool = False, **options: Any) -> Generator[Event, None, None]: ...
    def chances(
        self, tokens: Sequence[int], proposal: Proposal, *, cancel: threading.Event | None = None, **options: Any
    ) -> tuple[float, ...] | None: ...
    def gap(self, tokens: Sequence[int], one: int, other: int, *, seed: int = 0, **options: Any) -> tuple[float, str]: ...


class Voice(Protocol):
    """A voice in memory, as mlxspec.Voice."""

    files: Any  # has .name

    def play(
        self, text: str, *, cancel: threading.Event | None = None, on: Callable[[SpeechEvent, float], None] | None = None, **options: Any
    ) -> Spoken: ...


LoadVoice = Callable[[str | None, Say], Voice]  # a name, a folder, or None for the first there is; where its notices go
Load = Callable[[str, str, Mapping[str, Any], Say], Engine]  # model, drafter, other load options, where its notices go
