"""The user's own keys: what is taken, what is said about the rest."""

from typing import Any

import pytest

from mlxspec.tui.keys import is_key, keymap

KNOWN = ("send", "newline", "stop", "quit")


def test_good_entries_are_taken() -> None:
    table = {"send": "ctrl+s", "newline": ["enter", "shift+enter"], "stop": "escape, f8"}
    assert keymap({"quit": "f9"}, KNOWN) == ({"quit": "f9,ctrl+q"}, [])
    assert keymap(table, KNOWN) == ({"send": "ctrl+s", "newline": "enter,shift+enter", "stop": "escape,f8"}, [])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("sned", "ctrl+s", "did you mean send?"),
        ("xyzzy", "ctrl+s", "F1 lists"),
        ("send", "ctrl+nonsense", "is no key"),
        ("send", "hyperspace", "is no key"),
        ("send", "", "is no key"),
        ("send", 3, "is no key"),
        ("send", [], "is no key"),
        ("send", "ctrl+q", "always quits"),
    ],
)
def test_odd_entries_are_said_and_left_out(name: str, value: Any, words: str) -> None:
    good, odd = keymap({name: value, "stop": "f8"}, KNOWN)
    assert good == {"stop": "f8"}
    assert len(odd) == 1 and words in odd[0]


@pytest.mark.parametrize("name", ["a", "A", "?", "+", "f1", "ctrl+up", "shift+f3", "escape", "space", "ctrl+shift+left", "question_mark"])
def test_keys(name: str) -> None:
    assert is_key(name)


@pytest.mark.parametrize("name", ["", "ctrl+", "strg+s", "fn", "\x1b", "ctrl+\n"])
def test_no_keys(name: str) -> None:
    assert not is_key(name)
