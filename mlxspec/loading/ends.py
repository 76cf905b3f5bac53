"""Which tokens end a reply: all that any part of a model's files names, and those whose spelling says so. Knows no file and no model."""

from collections.abc import Iterable
from typing import Any

from mlxspec.errors import ModelError

# special tokens that end a turn or a text, by the families that have them
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "[|endofturn|]",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_turn>",
        "<eos>",
        "</s>",
    }
)
NOT_BESIDE = {"<|end|>": "<|return|>"}  # where both are there (harmony), the first ends a part of a reply only


def end_tokens(tokenizer: Any, *named: Any) -> set[int]:
    """The ids at which a reply ends. ``named``: what configs give as ``eos_token_id``, one id, several or None."""
    special = {str(token.content): i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    found = {i for spelling, i in special.items() if spelling in END_TOKENS and NOT_BESIDE.get(spelling) not in special}
    return found.union(*(_ids(one) for one in [*named, tokenizer.eos_token_id]))


def _ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    ids = value if isinstance(value, list | tuple | set) else [value]
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool):
            raise ModelError(f"{one!r:.60} is given as eos_token_id, which is the number of a token: mend the model's config.json.")
    return ids
