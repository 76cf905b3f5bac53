"""The kinds of drafters, each once: what --drafter calls it, what it is, and which module opens it. Imports no mlx.

A new kind is a module beside this one, with a class and a function ``opened``, and a line in the table.
"""

import difflib
from dataclasses import dataclass

from mlxspec.errors import UsageError


@dataclass(frozen=True, slots=True)
class Kind:
    """``module`` has ``opened(model, wish, target, loaded, options, say) -> Drafter``, ``model`` being what follows the colon of ``wish``."""

    name: str
    about: str
    module: str
    takes: str = ""  # what may follow the colon
    trainer: str = ""  # the module that trains it for one target; some ship, and without a colon the shipped one is meant


KINDS = {
    kind.name: kind
    for kind in (
        Kind("none", "plain decoding", ""),
        Kind("lookup", "copies what stood in the prompt or answer before; costs no model", "mlxspec.drafters.lookup"),
        Kind("small", "another model with the same tokens", "mlxspec.drafters.small", "MODEL", "mlxspec.training.small"),
        Kind("redrafter", "a recurrent network on the model's hidden state", "mlxspec.drafters.redrafter", "FOLDER", "mlxspec.training.redrafter"),
    )
}
AUTO = "auto"  # what fits the model and pays
TRAINED = tuple(kind.name for kind in KINDS.values() if kind.trainer)


def spellings() -> str:
    """What --drafter takes, in one line."""
    return ", ".join(f"{kind.name}:{kind.takes}" if kind.takes else kind.name for kind in KINDS.values()) + f" or {AUTO}"


def check_name(wish: str) -> None:
    """Raise UsageError for a name that is no drafter's, before any model is loaded."""
    kind, _, rest = wish.partition(":")
    if (kind in KINDS and (not rest or KINDS[kind].takes)) or wish == AUTO:
        return
    near = difflib.get_close_matches(kind, (*KINDS, AUTO), n=1)
    meant = f" (meant {near[0]}?)" if near and near[0] != kind else ""
    raise UsageError(f"--drafter {wish} is unknown{meant}: give {spellings()}.")
