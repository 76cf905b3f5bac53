"""Settings from the config file (TOML) and from MLXSPEC_* variables. Knows no model.

Precedence: flag > environment > config file > the model's own generation config > built-in. A key nobody knows is an error that names
where it stands.

>>> # config.toml
>>> temperature = 0.2
>>> stop = ["###"]
>>> theme = "nord"  # of the chat, as is the table [keys]
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import UsageError
from mlxspec.paths import config_file
from mlxspec.settings.options import Options
from mlxspec.settings.values import FIELDS, flag, kind_of, read_value

KNOWN = (*FIELDS, "stats")
SHORT = {word[2:].replace("-", "_"): name for name, field in FIELDS.items() for word in field.metadata["flags"] if word.startswith("--")}
SCREEN = ("theme", "keys")  # of the chat alone: read by ``for_screen``
PREFIX = "MLXSPEC_"
ELSEWHERE: tuple[str, ...] = ()  # variables with our prefix that are read in other places


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the config file and the environment say, by option name."""
    return {**from_file(config_file()), **from_environment(environ)}


def from_file(path: Path) -> dict[str, Any]:
    """The settings of a config file; none where there is no such file."""
    result: dict[str, Any] = {}
    for key, value in _table(path).items():
        name = full(key.replace("-", "_"))
        if name in SCREEN:
            continue
        if name not in KNOWN:
            raise UsageError(f"{path}: the key {one_line(key)!r} is unknown{hint(name, KNOWN)}.")
        _put(result, name, checked(name, value, f"{path}: {key}"), f"{path}: {key}")
    return result


def for_screen(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The theme and the table of keys that a config file gives the chat, unchecked but for their kinds."""
    table = _table(path)
    theme, keys = table.get("theme"), table.get("keys", {})
    if not isinstance(theme, str | None):
        raise UsageError(f"{path}: theme {theme!r} is of the wrong kind: write a name in quotes.")
    if not isinstance(keys, dict):
        raise UsageError(f"{path}: keys {keys!r} is of the wrong kind: write a table, [keys].")
    return theme, keys


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"The config file {path} cannot be read ({error.strerror}): make it readable, or move it away.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The config file {path} is no TOML ({one_line(str(error))}): mend that line.") from None


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of MLXSPEC_* variables, written as on the command line. An empty one counts as not set."""
    result: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in ELSEWHERE:
            continue
        name = full(variable.removeprefix(PREFIX).lower())
        if name not in KNOWN:
            known = [PREFIX + key.upper() for key in KNOWN]
            raise UsageError(f"The environment variable {one_line(variable)} is unknown{hint(variable, known)}.")
        if text:
            _put(result, name, checked(name, text, variable), variable)
    return result


def full(name: str) -> str:
    """The option behind another spelling of its flag: ``temp`` is ``temperature``."""
    return SHORT.get(name, name)


def _put(result: dict[str, Any], name: str, value: Any, where: str) -> None:
    if name in result and result[name] != value:
        raise UsageError(f"{where} gives {name} a second time, with another value: keep one of them.")
    result[name] = value


def checked(name: str, value: Any, where: str) -> Any:
    """The value of one setting as Options takes it, or a UsageError that says where it stands."""
    try:
        value = converted(name, value)
        if name in FIELDS:
            Options(**{name: value})
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return value


def converted(name: str, value: Any) -> Any:
    """A TOML value, or a text in the command line's spelling, as the option's own type."""
    if isinstance(value, str):
        return read_value(name, value)
    kind = kind_of(name)
    if kind == "tuple" and isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(value)
    if name == "chat_template_config" and isinstance(value, dict):
        return json.dumps(value)
    if kind == "Mapping" and isinstance(value, dict):
        try:
            return {int(token): float(bias) for token, bias in value.items()}
        except (ValueError, TypeError):
            raise UsageError(f"{value!r} makes no sense: give numbers of tokens and biases.") from None
    if isinstance(value, bool) and kind == "bool":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and kind in ("int", "float"):
        return value
    raise UsageError(f"{value!r} is of the wrong kind: write it as after {flag(name)}, in quotes.")


def hint(name: str, known: tuple[str, ...] | list[str]) -> str:
    """What was meant, or where the names are listed."""
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]}" if close else ": the names are those of the options that mlxspec generate --help lists"
