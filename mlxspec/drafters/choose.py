"""From what ``--drafter`` says to drafters that fit the target, or to none with the reason; and the checks that trained drafters share."""

import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.target import Target
from mlxspec.drafters.kinds import AUTO, KINDS, check_name
from mlxspec.drafters.own import OwnDrafter
from mlxspec.errors import DrafterError
from mlxspec.loading.catalog import record_of, trained_drafters
from mlxspec.loading.load import Loaded, Say
from mlxspec.settings.options import Options


def choose_drafter(wish: Any, target: Target, loaded: Loaded, options: Options, say: Say) -> list[Drafter]:
    """The drafters for a wish (a name or the user's own object), the costliest last.

    ``auto`` falls back to plain decoding where the target takes no drafts, and says so; a drafter asked for by name is refused instead.
    """
    if isinstance(wish, str):
        check_name(wish)
    if wish == "none":
        return [NoDrafter()]
    if target.shape == "none":
        if wish != AUTO:
            raise DrafterError(f"{loaded.name} takes no drafts ({target.reason}): use --drafter none.")
        say(f"Speculation is off: {loaded.name} takes no drafts ({target.reason}).")
        return [NoDrafter(f"the target takes no drafts ({target.reason})")]
    if target.shape == "chain":
        say(f"{loaded.name} verifies chains only, no trees ({target.reason}).")
    if not isinstance(wish, str):
        return [OwnDrafter(wish)]
    if wish == AUTO:
        return _auto(target, loaded, options, say)
    return [opened(wish, target, loaded, options, say)]


def opened(wish: str, target: Target, loaded: Loaded, options: Options, say: Say) -> Drafter:
    """The drafter of a name. Raises DrafterError where it does not fit the target."""
    kind, _, model = wish.partition(":")
    if KINDS[kind].trainer and not model:
        model = shipped(kind, loaded)
    drafter: Drafter = import_module(KINDS[kind].module).opened(model, wish, target, loaded, options, say)
    return drafter


def shipped(kind: str, loaded: Loaded) -> str:
    """The folder of the drafter of this kind that was trained for the target; DrafterError where none ships."""
    for name, folder, record in trained_drafters():
        if name == kind and record.get("target_digest") == loaded.digest:
            return str(folder)
    what = "small:MODEL with the same tokens" if kind == "small" else f"{kind}:FOLDER of one you trained"
    raise DrafterError(f"No {kind} drafter comes with {loaded.name}: name one, as --drafter {what} (mlxspec train {kind}).")


def _auto(target: Target, loaded: Loaded, options: Options, say: Say) -> list[Drafter]:
    lookup = opened("lookup", target, loaded, options, say)
    try:
        folder = shipped("redrafter", loaded)
    except DrafterError:
        say("Drafter: lookup (copies what stood in the prompt or answer before; costs no model). No trained drafter comes with this model.")
        return [lookup]
    say("Drafter: lookup and redrafter, each round what promises the most tokens a second of one or of both.")
    network = import_module(KINDS["redrafter"].module).opened(folder, f"redrafter:{loaded.name}", target, loaded, options, say)
    return [lookup, network]


def check_trained_for(folder: Path, name: str, loaded: Loaded, say: Say) -> None:
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
