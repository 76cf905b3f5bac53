"""Steps to text: one detokenizer over all emitted tokens, and stop strings. Knows no model.

The pieces joined equal the full decode. Bytes that are not yet a whole character are held back, and so is what may start a stop string.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mlxspec.core.events import Step

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Tokens in, text out. Decodes a short tail again for each token, so that any tokenizer's joints come out right."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self.tokens: list[int] = []
        self.start = 0  # the tail that is decoded again
        self.read = 0  # tokens whose text is out
        self._before = ""  # text of tokens[start:read]

    def push(self, token: int) -> str:
        """The text this token completes, maybe none."""
        self.tokens.append(token)
        text = self.decode(self.tokens[self.start :])
        if text.endswith("\ufffd"):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What is still held back; bytes that never became a character are U+FFFD."""
        return self._advance(self.decode(self.tokens[self.start :]))

    def _advance(self, text: str) -> str:
        if not text.startswith(self._before):  # invalid bytes spoilt the run they stand in: what is out stays out
            text, self._before = self.decode(self.tokens[self.read :]), ""
        piece = text[len(self._before) :]
        self.start, self.read = self.read, len(self.tokens)
        self._before = self.decode(self.tokens[self.start : self.read])
        return piece


class TextStream:
    """The text of a reply as it grows. ``stopped`` once a stop string was met: the text ends before it."""

    def __init__(self, decode: Decode, stop: Iterable[str] = (), stop_tokens: frozenset[int] = frozenset()) -> None:
        self.detokenizer = Detokenizer(decode)
        self.stop = tuple(stop)
        self.stop_tokens = stop_tokens
        self.stopped = False
        self.text = ""
        self._held = ""

    def push(self, step: Step) -> tuple[str, Step]:
        """The printable text of a step, and the step cut behind the token that completed a stop string. Stop tokens have no text."""
        out = ""
        for i, token in enumerate(step.tokens):
            if token in self.stop_tokens:
                continue
            out += self._emit(self.detokenizer.push(token))
            if self.stopped:
                step = replace(step, tokens=step.tokens[: i + 1], path=step.path[:i])
                break
        self.text += out
        return out, step

    def flush(self) -> str:
        """What is held back when the reply ends."""
        out = "" if self.stopped else self._emit(self.detokenizer.flush())
        if not self.stopped:
            out, self._held = out + self._held, ""
        self.text += out
        return out

    def _emit(self, piece: str) -> str:
        """The part of ``held + piece`` that no stop string can claim any more."""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self.stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        hold = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
