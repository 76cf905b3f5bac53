"""Two replies to one prompt, plain and speculative: are they the same, and where they are not, how close was it? Knows no screen."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlxspec.core.events import Done
from mlxspec.tui.chat.reports import Compared


def verdict(engine: Any, prompt: Sequence[int], plain: Done, speculative: Done, options: Mapping[str, Any]) -> Compared:
    """The comparison of two finished replies. Only ``coupled`` promises that they are identical."""
    if speculative.accept != "coupled":
        return Compared(plain, speculative, None)
    at = first_difference(plain.tokens, speculative.tokens)
    if at is None:
        return Compared(plain, speculative, True)
    one, other = (done.tokens[at] if at < len(done.tokens) else None for done in (plain, speculative))
    texts = tuple("" if token is None else str(engine.tokenizer.decode([token])) for token in (one, other))
    if one is None or other is None:
        return Compared(plain, speculative, False, at, (texts[0], texts[1]))
    gap, measure = engine.gap([*prompt, *plain.tokens[:at]], one, other, seed=plain.seed, **options)
    return Compared(plain, speculative, False, at, (texts[0], texts[1]), gap, measure)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two sequences differ (the end of the shorter one counts), or None.

    >>> first_difference((1, 2, 3), (1, 2)), first_difference((1, 2), (1, 2))
    (2, None)
    """
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), None if len(one) == len(other) else shorter)
