"""Settings from file and environment: types, precedence, and errors that say where."""

from pathlib import Path
from typing import Any

import pytest

from mlxspec.errors import UsageError
from mlxspec.settings.config import for_screen, from_environment, from_file, settings
from mlxspec.settings.values import FIELDS, kind_of
from tests.fake_engine import isolate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


def written(home: Path, text: str) -> Path:
    path = home / "config" / "mlxspec" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_every_option_is_of_a_known_kind() -> None:
    assert {kind_of(name) for name in FIELDS} <= {"bool", "int", "float", "str", "tuple", "Mapping"}


def test_a_file_in_its_own_types(home: Path) -> None:
    path = written(
        home,
        """
model = "owner/name"
temperature = 0
top-p = 0.9
draft_tokens = "auto"
stop = ["END", "###"]
offline = true
stats = false
chat_template_config = { enable_thinking = false }
[logit_bias]
11 = -5
""",
    )
    assert from_file(path) == {
        "model": "owner/name",
        "temperature": 0,
        "top_p": 0.9,
        "draft_tokens": None,
        "stop": ("END", "###"),
        "offline": True,
        "stats": False,
        "chat_template_config": '{"enable_thinking": false}',
        "logit_bias": {11: -5.0},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("temprature = 1", ["config.toml", "'temprature'", "did you mean temperature"]),
        ("temperature = 'hot'", ["config.toml", "temperature", "'hot'"]),
        ("temperature = -1", ["config.toml", "temperature", "-1"]),
        ("temperature = true", ["config.toml", "temperature", "wrong kind"]),
        ("model = 3", ["config.toml", "model", "wrong kind"]),
        ("offline = 1", ["config.toml", "offline", "wrong kind"]),
        ("stop = [1]", ["config.toml", "stop", "wrong kind"]),
        ("logit_bias = 3", ["config.toml", "logit_bias", "wrong kind"]),
        ("logit_bias = { a = 1 }", ["config.toml", "logit_bias"]),
        ("accept = 'maybe'", ["config.toml", "accept", "maybe"]),
        ("max_tokens = 2.5", ["config.toml", "max_tokens", "2.5"]),
        ("[generate]\ntemperature = 1", ["config.toml", "'generate'", "unknown"]),
        ("temperature = = 1", ["config.toml", "no TOML", "line 1"]),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(home: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        from_file(written(home, text))
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


def test_theme_and_keys_are_for_the_screen_alone(home: Path) -> None:
    path = written(home, 'theme = "nord"\ntemperature = 1\n[keys]\nsend = "ctrl+s"\n')
    assert from_file(path) == {"temperature": 1}
    assert for_screen(path) == ("nord", {"send": "ctrl+s"})
    assert for_screen(home / "none.toml") == (None, {})


@pytest.mark.parametrize("text", ["theme = 3", "keys = 'all'"])
def test_theme_and_keys_are_of_their_kinds(home: Path, text: str) -> None:
    with pytest.raises(UsageError, match="wrong kind"):
        for_screen(written(home, text))


def test_no_file_sets_nothing_and_an_unreadable_one_is_an_error(home: Path) -> None:
    assert from_file(home / "none.toml") == {}
    with pytest.raises(UsageError, match="cannot be read"):
        from_file(home)
    (home / "latin.toml").write_bytes(b"model = '\xe9'")
    with pytest.raises(UsageError, match="no TOML"):
        from_file(home / "latin.toml")


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("MLXSPEC_TEMPERATURE", "0.25", {"temperature": 0.25}),
        ("MLXSPEC_MAX_TOKENS", "-1", {"max_tokens": -1}),
        ("MLXSPEC_OFFLINE", "yes", {"offline": True}),
        ("MLXSPEC_OFFLINE", "0", {"offline": False}),
        ("MLXSPEC_STOP", "END", {"stop": ("END",)}),
        ("MLXSPEC_DRAFT_TOKENS", "auto", {"draft_tokens": None}),
        ("MLXSPEC_LOGIT_BIAS", '{"3": 1}', {"logit_bias": {3: 1.0}}),
        ("MLXSPEC_STATS", "1", {"stats": True}),
        ("MLXSPEC_SEED", "", {}),
        ("OTHER_SEED", "x", {}),
    ],
)
def test_environment(variable: str, text: str, value: dict[str, Any]) -> None:
    assert from_environment({variable: text}) == value


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("MLXSPEC_TEMPRATURE", "1", ["MLXSPEC_TEMPRATURE", "did you mean MLXSPEC_TEMPERATURE"]),
        ("MLXSPEC_TEMPERATURE", "hot", ["MLXSPEC_TEMPERATURE", "'hot'"]),
        ("MLXSPEC_OFFLINE", "perhaps", ["MLXSPEC_OFFLINE", "'perhaps'"]),
        ("MLXSPEC_TOP_P", "3", ["MLXSPEC_TOP_P", "3"]),
    ],
)
def test_what_is_wrong_in_the_environment_names_the_variable(variable: str, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        from_environment({variable: text})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_the_environment_comes_before_the_file(home: Path) -> None:
    written(home, "temperature = 0.1\nseed = 3")
    assert settings({"MLXSPEC_TEMPERATURE": "0.2"}) == {"temperature": 0.2, "seed": 3}


def test_other_spellings_of_a_flag_are_taken_once(home: Path) -> None:
    assert from_environment({"MLXSPEC_TEMP": "0.3"}) == {"temperature": 0.3}
    with pytest.raises(UsageError, match="MLXSPEC_TEMPERATURE gives temperature a second time"):
        from_environment({"MLXSPEC_TEMP": "0.3", "MLXSPEC_TEMPERATURE": "0.4"})
    assert from_file(written(home, "temp = 0.2\n")) == {"temperature": 0.2}
