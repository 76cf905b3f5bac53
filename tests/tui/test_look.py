"""Themes by what the terminal says."""

import pytest

from mlxspec.tui.look import Look, choose

THEMES = ("textual-dark", "textual-light", "ansi-dark", "ansi-light", "nord")


@pytest.mark.parametrize(
    ("wanted", "environ", "look"),
    [
        (None, {}, Look("textual-dark")),
        ("nord", {}, Look("nord")),
        ("nord", {"NO_COLOR": "1"}, Look("ansi-dark")),
        (None, {"NO_COLOR": ""}, Look("textual-dark")),
        (None, {"COLORFGBG": "0;15"}, Look("textual-light")),
        (None, {"COLORFGBG": "15;default;0"}, Look("textual-dark")),
        (None, {"COLORFGBG": "12;8"}, Look("textual-dark")),
        (None, {"COLORFGBG": "nonsense"}, Look("textual-dark")),
        (None, {"COLORFGBG": "0;15", "NO_COLOR": "1"}, Look("ansi-light")),
    ],
)
def test_a_theme_that_fits(wanted: str | None, environ: dict[str, str], look: Look) -> None:
    assert choose(wanted, THEMES, environ) == look


def test_an_unknown_theme_is_said() -> None:
    look = choose("nrod", THEMES, {})
    assert look.theme == "textual-dark" and look.complaint is not None and "'nrod'" in look.complaint
