"""Several texts at once: in each round the rows that all of them ask for are read in one forward. Knows a text by its generator alone."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import mlx.core as mx

from mlxspec.core.target import Request, Rows

ROWS = 2048  # of one forward, but where one text alone asks for more
Key = TypeVar("Key")
Steps = Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A text has ended: what its generator returned, or the error that ended it. The others go on."""

    value: Any = None
    error: Exception | None = None


def together(more: Callable[[], tuple[Key, Steps] | None], at_once: int) -> Generator[tuple[Key, Any], None, None]:
    """Run the generators of texts (``decode.loop``), at most ``at_once`` of them at a time. Where there is room ``more`` is asked for another one,
    with a key; None: there is none now. It ends when all have ended and none is left.

    Yields what each of them yields, with its key, and ``Ended`` at last. A text's tokens do not depend on which others run beside it, up to ties of
    float rounding. Texts of several targets may be mixed.
    """
    live: dict[Key, Steps] = {}
    answers: dict[Key, Rows | None] = {}
    try:
        while True:
            while len(live) < at_once and (joined := more()) is not None:
                live[joined[0]], answers[joined[0]] = joined[1], None
            if not live:
                return
            asked: dict[Key, Request] = {}
            for key, steps in list(live.items()):
                try:
                    while not isinstance(item := steps.send(answers.pop(key, None)), Request):
                        yield key, item
                    asked[key] = item
                except StopIteration as end:
                    del live[key]
                    yield key, Ended(end.value)
                except Exception as error:
                    del live[key]
                    yield key, Ended(error=error)
            answers.update(_read(asked))
    finally:
        for steps in live.values():
            steps.close()


def _read(asked: dict[Key, Request]) -> dict[Key, Rows]:
    """One forward for each target that is asked; more where there are more rows than one should hold."""
    found: dict[Key, Rows] = {}
    for target in dict.fromkeys(request.target for request in asked.values()):
        keys = [key for key, request in asked.items() if request.target is target]
        while keys:
            sizes = accumulate(asked[key].tokens.size for key in keys)
            fitting = max(1, sum(size <= ROWS for size in sizes))
            part, keys = keys[:fitting], keys[fitting:]
            rows = target.forward([asked[key] for key in part])
            mx.async_eval([one.logits for key, one in zip(part, rows, strict=True) if asked[key].answers])
            found.update(zip(part, rows, strict=True))
    return found
