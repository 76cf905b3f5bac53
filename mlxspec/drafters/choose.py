"""From what ``--drafter`` says to a drafter that fits the target, or to none with the reason. The place to add a drafter's name."""

import difflib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.core.target import Target
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.redrafter import RecurrentDrafter
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import DrafterError, UsageError
from mlxspec.loading.catalog import record_of, trained_drafters
from mlxspec.loading.load import Loaded, Say, context_length, dequantise, load_model, runs_on_cpu
from mlxspec.loading.memory import Need, needed, preflight
from mlxspec.settings.options import Options

NAMES = ("none", "lookup", "small", "redrafter", "auto")


def choose_drafter(wish: Any, target: Target, loaded: Loaded, options: Options, say: Say) -> tuple[list[Drafter], str | None]:
    """The drafters for a wish (a name or the user's own object), the costliest last, and why speculation is off where it is.

    ``auto`` falls back to plain decoding where the target takes no drafts, and says so; a drafter asked for by name is refused instead.
    """
    if isinstance(wish, str):
        check_name(wish)
    if wish == "none":
        return [NoDrafter()], "--drafter none"
    if target.shape == "none":
        if wish != "auto":
            raise DrafterError(f"{loaded.name} takes no drafts ({target.reason}): use --drafter none.")
        say(f"Speculation is off: {loaded.name} takes no drafts ({target.reason}).")
        return [NoDrafter()], f"the target takes no drafts ({target.reason})"
    if target.shape == "chain":
        say(f"{loaded.name} verifies chains only, no trees ({target.reason}).")
    if not isinstance(wish, str):
        return [OwnDrafter(wish)], None
    kind, _, model = wish.partition(":")
    if wish == "auto":
        return _auto(target, loaded, options, say), None
    if wish == "lookup":
        return [LookupDrafter()], None
    if kind == "small":
        return [_small(model or shipped(kind, loaded), wish, loaded, options, say)], None
    return [_redrafter(model or shipped("redrafter", loaded), wish, target, loaded, options, say)], None


def check_name(wish: str) -> None:
    """Raise UsageError for a name that is no drafter's, before any model is loaded."""
    kind, _, rest = wish.partition(":")
    if kind in NAMES and (not rest or kind in ("small", "redrafter")):
        return
    near = difflib.get_close_matches(kind, NAMES, n=1)
    meant = f" (meant {near[0]}?)" if near and near[0] != kind else ""
    raise UsageError(f"--drafter {wish} is unknown{meant}: give none, lookup, small:MODEL, redrafter:FOLDER or auto.")


def shipped(kind: str, loaded: Loaded) -> str:
    """The folder of the drafter of this kind that was trained for the target; DrafterError where none ships."""
    for name, folder, record in trained_drafters():
        if name == kind and record.get("target_digest") == loaded.digest:
            return str(folder)
    what = "small:MODEL with the same tokens" if kind == "small" else f"{kind}:FOLDER of one you trained"
    raise DrafterError(f"No {kind} drafter comes with {loaded.name}: name one, as --drafter {what} (mlxspec train {kind}).")


def _auto(target: Target, loaded: Loaded, options: Options, say: Say) -> list[Drafter]:
    lookup = LookupDrafter()
    try:
        folder = shipped("redrafter", loaded)
    except DrafterError:
        say("Drafter: lookup (copies what stood in the prompt or answer before; costs no model). No trained drafter comes with this model.")
        return [lookup]
    say("Drafter: lookup and redrafter, each round what promises the most tokens a second of one or of both.")
    return [lookup, _redrafter(folder, f"redrafter:{loaded.name}", target, loaded, options, say)]


def _redrafter(folder: str, name: str, target: Target, loaded: Loaded, options: Options, say: Say) -> RecurrentDrafter:
    path = Path(folder).expanduser()
    _check_trained_for(path, name, loaded, say)
    preflight(name, Need(RecurrentDrafter.bytes(path), 0, 0), loaded.memory, options.force, say)
    return RecurrentDrafter.load(path, loaded.model, target.vocab_size, name)


def _small(model: str, name: str, loaded: Loaded, options: Options, say: Say) -> SmallDrafter:
    if (Path(model).expanduser() / "config.json").is_file():
        _check_trained_for(Path(model), name, loaded, say)
    small = load_model(replace(options, model=model), say, loaded.memory)
    check_same_tokens(loaded.tokenizer, small.tokenizer, small.name)
    network = loaded.model if small.digest == loaded.digest else dense(small.model)  # the target drafting for itself is in memory once
    need = needed(network, context_length(small.config), options.max_kv_size, options.kv_bits)
    if loaded.memory + need.total > small.memory:
        preflight(f"{small.name}, unpacked", need, loaded.memory, options.force, say)
    return SmallDrafter(network, name, max_kv_size=options.max_kv_size, kv_bits=options.kv_bits)


def dense(model: nn.Module) -> nn.Module:
    """On the CPU a drafter's quantised layers are unpacked: a row through them takes two to five times what it takes through dense ones there."""
    return dequantise(model) if runs_on_cpu() else model


def _check_trained_for(folder: Path, name: str, loaded: Loaded, say: Say) -> None:
    """Refuse a drafter trained for a target with other tokens; warn where only the weights differ, as by quantisation."""
    record = record_of(folder.expanduser())
    if record.get("target_digest") in (None, loaded.digest):
        return
    if record.get("tokens_digest") != tokens_digest(loaded.tokenizer):
        raise DrafterError(
            f"{name} was trained for {record.get('target')}, whose tokens differ from those of {loaded.name}: "
            "pass --drafter lookup, or train one for this model."
        )
    say(f"{name} was trained for {record.get('target')} with other weights than {loaded.name}: it may be accepted less often.")


def tokens_digest(tokenizer: Any) -> str:
    """A hash of the token texts by id."""
    words = sorted((number, word) for word, number in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


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
        if isinstance(own, type):
            raise DrafterError(f"{own.__name__} is a class: pass an object, {own.__name__}().")
        self.own = own
        self.name: str = getattr(own, "name", type(own).__name__)
        self.taps: tuple[str, ...] = tuple(getattr(own, "taps", ()))
        self.depth: int = getattr(own, "depth", 4)
        if not isinstance(self.depth, int) or isinstance(self.depth, bool) or self.depth < 0:
            raise DrafterError(f"{self.name} has depth {self.depth!r}: give a whole number from 0.")

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
