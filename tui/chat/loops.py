"""Finds out while a reply comes whether it only repeats itself. Knows tokens only, and costs the same for each, however long the reply.

A loop is a block of tokens, of any length, that stands there at least three times in a row. Tables and lists repeat a little as well, so a short
block has to come back more often.
"""

from collections.abc import Iterable

GRAM = 8  # tokens that, said again, are worth a look
LEAST = 64  # repeated tokens that are no accident
TIMES = 2  # and how often the block is said again


class Loops:
    """``repeated`` counts the tokens of loops that only repeat what stands before them; ``now`` says whether the end is one."""

    def __init__(self) -> None:
        self.period = 0  # tokens of the block that may be repeated
        self._run = 0  # tokens up to the end that equal those a period before
        self._over = 0  # repeated tokens of loops that ended
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # where each gram ended the last time

    @property
    def now(self) -> bool:
        return self._run >= max(LEAST, TIMES * self.period)

    @property
    def repeated(self) -> int:
        return self._over + (self._run if self.now else 0)

    def see(self, tokens: Iterable[int]) -> None:
        """More tokens."""
        for token in tokens:
            goes_on = bool(self._run) and self._tokens[-self.period] == token
            self._tokens.append(token)
            gram, end = tuple(self._tokens[-GRAM:]), len(self._tokens)
            if goes_on:
                self._run += 1
            else:
                self._over = self.repeated
                known = self._last.get(gram)
                self.period, self._run = (end - known, GRAM) if known is not None else (0, 0)
            if end >= GRAM:
                self._last[gram] = end


def repeated(said: Iterable[Iterable[int]]) -> int:
    """How many tokens of a whole reply, given by its rounds, are those of loops."""
    loops = Loops()
    for tokens in said:
        loops.see(tokens)
    return loops.repeated
