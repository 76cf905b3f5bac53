"""From what ``--drafter`` says to a drafter that fits the target, or to none with the reason. The place to add a drafter's name."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlxspec.drafters import Drafter, NoDrafter
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import DrafterError
from mlxspec.loading import Loaded, Say, load_model
from mlxspec.options import Options
from mlxspec.proposal import Proposal
from mlxspec.sampling import Context
from mlxspec.target import Target

NAMES = ("none", "lookup", "small", "auto")


def choose_drafter(wish: Any, target: Target, loaded: Loaded, options: Options, say: Say) -> tuple[Drafter, str | None]:
    """The drafter for a wish (a name or the user's own object), and why speculation is off where it is.

    ``auto`` falls back to plain decoding where the target takes no drafts, and says so; a drafter asked for by name is refused instead.
    """
    if wish == "none":
        return NoDrafter(), "--drafter none"
    if target.shape == "none":
        if wish != "auto":
            raise DrafterError(f"{loaded.name} takes no drafts ({target.reason}): use --drafter none.")
        say(f"Speculation is off: {loaded.name} takes no drafts ({target.reason}).")
        return NoDrafter(), f"the target takes no drafts ({target.reason})"
    if target.shape == "chain":
        say(f"{loaded.name} verifies chains only, no trees ({target.reason}).")
    if not isinstance(wish, str):
        return OwnDrafter(wish), None
    kind, _, model = wish.partition(":")
    if wish == "auto":
        say("Drafter: lookup (copies what stood in the prompt or answer before; costs no model).")
        return LookupDrafter(), None
    if wish == "lookup":
        return LookupDrafter(), None
    if kind == "small":
        if not model:
            raise DrafterError(f"No small drafter comes with {loaded.name}: name one with the same tokens, as --drafter small:MODEL.")
        return _small(model, wish, loaded, options, say), None
    near = difflib.get_close_matches(kind, NAMES, n=1)
    raise DrafterError(f"--drafter {wish} is unknown{f' (meant {near[0]}?)' if near else ''}: give none, lookup, small:MODEL or auto.")


def _small(model: str, name: str, loaded: Loaded, options: Options, say: Say) -> SmallDrafter:
    small = load_model(replace(options, model=model), say)
    check_same_tokens(loaded.tokenizer, small.tokenizer, small.name)
    network = loaded.model if small.digest == loaded.digest else small.model  # the target drafting for itself is in memory once
    return SmallDrafter(network, name, max_kv_size=options.max_kv_size, kv_bits=options.kv_bits)


def check_same_tokens(target: Any, drafter: Any, name: str) -> None:
    """Raise DrafterError unless both tokenizers have the same texts for the same ids. Padding beyond either's tokens does not count."""
    ours, theirs = ({i: text for text, i in tokenizer.get_vocab().items()} for tokenizer in (target, drafter))
    differing = sum(ours.get(i) != theirs.get(i) for i in ours.keys() | theirs.keys())
    if differing:
        raise DrafterError(
            f"{name} speaks {len(theirs)} tokens and the target {len(ours)}, {differing} of them differ: they need the same tokenizer. "
            "Pass --drafter lookup, or a drafter made for this model."
        )


class OwnDrafter:
    """A user's own object as a drafter: needs propose(token, limit, context); begin, accept, name, taps and depth may be left out."""

    def __init__(self, own: Any) -> None:
        if not callable(getattr(own, "propose", None)):
            raise DrafterError(f"{type(own).__name__} is no drafter: it needs a method propose(token, limit, context) -> Proposal.")
        self.own = own
        self.name: str = getattr(own, "name", type(own).__name__)
        self.taps: tuple[str, ...] = tuple(getattr(own, "taps", ()))
        self.depth: int = getattr(own, "depth", 4)

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        if hasattr(self.own, "begin"):
            self.own.begin(list(prompt), hidden, reused)

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        proposal = self.own.propose(token, limit, context)
        if not isinstance(proposal, Proposal):
            raise DrafterError(f"{self.name} proposed {type(proposal).__name__} {proposal!r:.60}: return a mlxspec.Proposal.")
        return proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        if hasattr(self.own, "accept"):
            self.own.accept(tuple(path), token, hidden)
