"""A conversation: keeps the caches of target and drafter over the turns, so that a turn reads only what is new. Knows no terminal."""

from collections.abc import Callable, Generator, Sequence
from threading import Event as CancelEvent
from typing import Any, Protocol

from mlxspec.core.events import ChatEvent, Done, Event, Notice, Text, finished
from mlxspec.errors import UsageError

Message = dict[str, str]
Events = Generator[ChatEvent, None, None]


class Reader(Protocol):
    """How an engine reads messages (prompt.PromptReader): marked text keeps what a message says apart from the template's own marks."""

    def marked(self, messages: Sequence[Message], template_config: str | None = None) -> str: ...
    def literal(self, text: str) -> str: ...
    def encode(self, text: str) -> list[int]: ...


class Engine(Protocol):
    """What a conversation needs of an engine."""

    target: Any  # of which the ``context_length``
    tokenizer: Any

    @property
    def reader(self) -> Reader: ...
    def checked(self, options: dict[str, Any]) -> Any: ...
    def prompt_tokens(self, prompt: list[int]) -> list[int]: ...
    def stream(self, prompt: list[int], *, cancel: CancelEvent | None, reuse: bool, **options: Any) -> Generator[Event, None, None]: ...


class Chat:
    """Messages and the reply to the last of them. ``options`` are reply options that hold for every turn unless a turn says otherwise.

    Whatever changes the history (edit, undo, regenerate) starts the next turn from the longest common prefix. Where the context is too small, the
    oldest whole turns are dropped, the system prompt stays, and a Notice says so.
    """

    def __init__(self, engine: Engine, system: str | None = None, **options: Any) -> None:
        self.engine = engine
        self.options = options
        self.system = system
        self.messages: list[Message] = []
        self.dropped = 0  # messages at the start that the model no longer sees
        self.prompt: list[int] = []  # tokens that the last reply goes on from
        self._said: list[tuple[str, list[int]]] = []  # beginnings of the conversation as marked text and as the tokens that were read and said

    def send(self, text: str, **options: Any) -> Done:
        """The whole reply to a user's message."""
        return finished(self.stream(text, **options))

    def stream(self, text: str, *, cancel: CancelEvent | None = None, **options: Any) -> Events:
        """Events of the reply to a user's message. A cancelled or closed reply keeps what it has."""
        if not text.strip():
            raise UsageError("The message is empty: give some text.")
        self._check(options)
        return self._reply([*self.messages, {"role": "user", "content": text}], cancel, options)

    def regenerate(self, *, cancel: CancelEvent | None = None, **options: Any) -> Events:
        """Another reply to the last user's message; without a seed, with a fresh one."""
        asked = self.messages[:-1] if self.messages and self.messages[-1]["role"] == "assistant" else list(self.messages)
        if not asked:
            raise UsageError("There is no message to reply to: send one.")
        self._check(options)
        return self._reply(asked, cancel, options)

    def proceed(self, *, cancel: CancelEvent | None = None, **options: Any) -> Events:
        """Go on with the last reply where it stopped."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise UsageError("There is no reply to go on with: send a message.")
        self._check(options)
        tokens, text = self._prompt(self.messages[self.dropped : -1], {**self.options, **options}, self.messages[-1]["content"])
        return self._events(self.engine.prompt_tokens(tokens), text, self.messages[-1], cancel, options)

    def edit(self, index: int, text: str) -> None:
        """Replace the user's message ``index`` and drop what came after it; ``regenerate`` then answers it."""
        if not 0 <= index < len(self.messages) or self.messages[index]["role"] != "user":
            raise UsageError(f"Message {index} is none of the user's: give the index of one.")
        self.messages[index:] = [{"role": "user", "content": text}]
        self.dropped = 0

    def undo(self) -> None:
        """Drop the last user's message and what came after it."""
        self.dropped = 0
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def context_used(self) -> tuple[int, int | None]:
        """Tokens in the conversation, and how many the model reads at most."""
        return len(self._said[-1][1]) if self._said else 0, self.engine.target.context_length

    def _check(self, options: dict[str, Any]) -> None:
        """Raise for options that make no sense before anything changes."""
        self.engine.checked({**self.options, **options})

    def _reply(self, messages: list[Message], cancel: CancelEvent | None, options: dict[str, Any]) -> Events:
        tokens, text, dropped = self._fit(messages, {**self.options, **options})
        tokens = self.engine.prompt_tokens(tokens)  # raises where even the last message alone is too long
        if dropped > self.dropped:
            limit = self.engine.target.context_length
            yield Notice(full(limit, dropped))
        self.dropped = dropped
        reply: Message = {"role": "assistant", "content": ""}
        self.messages = [*messages, reply]
        yield from self._events(tokens, text, reply, cancel, options)

    def _events(self, tokens: list[int], text: str, reply: Message, cancel: CancelEvent | None, options: dict[str, Any]) -> Events:
        emitted: list[int] = []
        cut = False
        stop = frozenset(self.engine.tokenizer.eos_token_ids)
        before, self.prompt = reply["content"], tokens
        self._said = [(said, of) for said, of in self._said if text.startswith(said) and said != text] + [(text, tokens)]
        try:
            for event in self.engine.stream(tokens, cancel=cancel, reuse=True, **{**self.options, **options}):
                if isinstance(event, Done):
                    reply["content"] = before + event.text
                    cut = event.finish_reason == "stop_string"
                elif isinstance(event, Text):
                    reply["content"] += event.text
                    emitted += [token for token in event.step.tokens if token not in stop] if event.step is not None else []
                yield event
        finally:
            said = self.engine.reader.literal(reply["content"][len(before) :])
            read = self.engine.reader.encode(said) if cut else emitted  # a stop string ends the text within the tokens
            self._said.append((text + said, [*tokens, *read]))

    def _fit(self, messages: list[Message], options: dict[str, Any]) -> tuple[list[int], str, int]:
        """The prompt of the next reply, its text, and how many of the oldest messages had to be left out."""
        dropped = self.dropped if self.dropped < len(messages) else 0
        limit, wanted = self.engine.target.context_length, options.get("max_tokens", 512)
        dropped = too_many(messages, lambda left: len(self._prompt(left, options)[0]), limit, wanted, dropped)
        return *self._prompt(messages[dropped:], options), dropped

    def _prompt(self, messages: list[Message], options: dict[str, Any], begun: str = "") -> tuple[list[int], str]:
        """Tokens and text of a conversation and a reply that has ``begun``: what was read and said is taken as it was, the rest is encoded."""
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        text = self.engine.reader.marked([*system, *messages], options.get("chat_template_config")) + self.engine.reader.literal(begun)
        known, tokens = next(((said, of) for said, of in reversed(self._said) if text.startswith(said)), ("", []))
        return [*tokens, *self.engine.reader.encode(text[len(known) :])], text


def too_many(messages: list[Message], count: Callable[[list[Message]], int], limit: int | None, wanted: int, dropped: int = 0) -> int:
    """How many of the oldest messages to leave out, in whole turns, so that a context has room for a reply. The last one always stays."""
    if limit is None:
        return dropped
    room = min(max(wanted, 64), limit // 4)
    while limit - count(messages[dropped:]) < room and dropped + 2 < len(messages):
        dropped += 2  # a user's message and the reply to it
    return dropped


def full(limit: int | None, dropped: int) -> str:
    """What is said where messages had to be left out."""
    return f"The context of {limit} tokens is full: the oldest {dropped // 2} turns are no longer seen by the model."
