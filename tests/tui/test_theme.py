"""Themes by what the terminal says."""

import pytest

from mlxspec.tui.theme import Theme, choose

THEMES = ("textual-dark", "textual-light", "ansi-dark", "ansi-light", "nord")


@pytest.mark.parametrize(
    ("wanted", "environ", "look"),
    [
        (None, {}, Theme("textual-dark")),
        ("nord", {}, Theme("nord")),
        ("nord", {"NO_COLOR": "1"}, Theme("ansi-dark")),
        (None, {"NO_COLOR": ""}, Theme("textual-dark")),
        (None, {"COLORFGBG": "0;15"}, Theme("textual-light")),
        (None, {"COLORFGBG": "15;default;0"}, Theme("textual-dark")),
        (None, {"COLORFGBG": "12;8"}, Theme("textual-dark")),
        (None, {"COLORFGBG": "nonsense"}, Theme("textual-dark")),
        (None, {"COLORFGBG": "0;15", "NO_COLOR": "1"}, Theme("ansi-light")),
    ],
)
def test_a_theme_that_fits(wanted: str | None, environ: dict[str, str], look: Theme) -> None:
    assert choose(wanted, THEMES, environ) == look


def test_an_unknown_theme_is_said() -> None:
    look = choose("nrod", THEMES, {})
    assert look.theme == "textual-dark" and look.complaint is not None and "'nrod'" in look.complaint
