"""The user's own keys: a table from names of bindings to keys, checked word by word. Whatever is odd in it is said and left out.

>>> # config.toml
>>> [keys]
>>> send = "ctrl+s"
>>> newline = "enter"
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS, KEY_TO_UNICODE_NAME, Keys

QUIT = "ctrl+q"  # always quits, whatever the table says
MODIFIERS = ("ctrl", "shift", "alt", "super", "meta", "hyper")
NAMED = {key.value.rpartition("+")[2] for key in Keys} | set(KEY_TO_UNICODE_NAME) | set(KEY_NAME_REPLACEMENTS.values()) | {"space"}


def bindings_of(*classes: type) -> dict[str, Binding]:
    """The bindings that can be given other keys, by name."""
    found: dict[str, Binding] = {}
    for cls in classes:
        listed: list[BindingType] = cls.__dict__.get("BINDINGS", [])
        for binding in listed:
            if isinstance(binding, Binding) and binding.id:
                found[binding.id] = binding
    return found


def keymap(table: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """What of the table can be used, and one line about each entry that cannot."""
    good: dict[str, str] = {}
    odd: list[str] = []
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "F1 lists the names."
            odd.append(f"[keys] {name!r} is unknown: {hint}")
            continue
        keys = [key.strip() for key in value.split(",")] if isinstance(value, str) else value if isinstance(value, list) else [value]
        wrong = [key for key in keys if not (isinstance(key, str) and is_key(key))]
        if wrong or not keys:
            odd.append(f"[keys] {name} = {value!r} is no key: write one as ctrl+s, f7, or escape; several with commas.")
        elif QUIT in keys and name != "quit":
            odd.append(f"[keys] {name} = {value!r}: {QUIT} always quits, give another key.")
        else:
            good[name] = ",".join(keys if name != "quit" or QUIT in keys else [*keys, QUIT])
    return good, odd


def is_key(name: str) -> bool:
    """Whether a terminal could send such a key."""
    *modifiers, key = name.split("+") if name != "+" else [name]
    return all(modifier in MODIFIERS for modifier in modifiers) and ((len(key) == 1 and key.isprintable()) or key in NAMED)
