"""What the chat needs of an engine, so that a test's fake can stand in for it. mlxspec.Engine and mlxspec.chat.Chat have all of it."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from mlxspec.events import ChatEvent, Event

Message = dict[str, str]
Say = Callable[[str], None]


class Chat(Protocol):
    """A conversation over an engine, as mlxspec.chat has it."""

    messages: list[Message]
    system: str | None
    dropped: int

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
    adaptive: Any  # None, or has .state and .reason
    tokenizer: Any
    target: Any  # has .context_length, and .scratch(): a time with caches of its own
    loaded: Any  # has .digest
    settings: Any  # Options

    def chat(self, *, system: str | None = None, **options: Any) -> Any: ...
    def with_drafter(self, drafter: Any) -> "Engine": ...
    def prompt_tokens(self, prompt: Any) -> list[int]: ...
    def stream(self, prompt: Any, *, cancel: threading.Event | None = None, reuse: bool = False, **options: Any) -> Generator[Event, None, None]: ...
    def gap(self, tokens: Sequence[int], one: int, other: int, *, seed: int = 0, **options: Any) -> tuple[float, str]: ...


Load = Callable[[str, str, Mapping[str, Any], Say], Engine]  # model, drafter, other load options, where its notices go
