"""Several texts at once: in each round the rows that all of them ask for are read in one forward. Knows a text by its generator alone."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx

from mlxspec.core.target import Request, Rows

Key = TypeVar("Key")
Steps = Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A text has ended: what its generator returned, or the error that ended it. The others go on."""

    value: Any = None
    error: Exception | None = None


def together(texts: Iterable[tuple[Key, Steps]], at_once: int) -> Generator[tuple[Key, Any], None, None]:
    """Run the generators of texts (``decode.loop``), at most ``at_once`` of them at a time; as one ends the next joins.

    Yields what each of them yields, with its key, and ``Ended`` at last. A text's tokens do not depend on which others run beside it, up to ties of
    float rounding. Texts of several targets may be mixed.
    """
    waiting = iter(texts)
    live: dict[Key, Steps] = {}
    answers: dict[Key, Rows | None] = {}
    try:
        while True:
            while len(live) < at_once and (joined := next(waiting, None)) is not None:
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
    """One forward for each target that is asked."""
    found: dict[Key, Rows] = {}
    for target in dict.fromkeys(request.target for request in asked.values()):
        keys = [key for key, request in asked.items() if request.target is target]
        rows = target.forward([asked[key] for key in keys])
        mx.async_eval([one.logits for key, one in zip(keys, rows, strict=True) if asked[key].answers])
        found.update(zip(keys, rows, strict=True))
    return found
