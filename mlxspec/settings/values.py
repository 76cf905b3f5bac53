"""One option's value, as it is written on a command line, in the environment or in a form: what kind it is, and how it is read."""

import json
import re
from dataclasses import Field, fields
from typing import Any

from mlxspec.errors import UsageError
from mlxspec.settings.options import Options

FIELDS: dict[str, Field[Any]] = {field.name: field for field in fields(Options)}
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}  # of a string that a shell or a form cannot hold otherwise
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def flag(name: str) -> str:
    """``--top-p`` for ``top_p``."""
    return "--" + name.replace("_", "-")


def kind_of(name: str) -> str:
    """What an option holds: bool, int, float, str, tuple or Mapping. A name that is no field of Options is a switch."""
    return re.sub(r"<class '(\w+)'>|(?:\w+\.)*(\w+)\b.*", r"\1\2", str(FIELDS[name].type)) if name in FIELDS else "bool"


def read_value(name: str, text: str) -> Any:
    """The value of an option as written on the command line or in the environment."""
    kind = kind_of(name)
    if name == "draft_tokens" and text.lower() == "auto":
        return None
    if name == "logit_bias":
        return read_bias(text)
    if name == "chat_template_config":
        return template_config(text)
    if kind == "bool":
        if text.lower() not in TRUE + FALSE:
            raise UsageError(f"{flag(name)} {text!r} is neither true nor false: give one of them.")
        return text.lower() in TRUE
    if kind == "tuple":
        return (re.sub(r"\\([nt\\])", lambda escape: ESCAPES[escape[1]], text),)
    if kind in ("int", "float"):
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError:
            raise UsageError(f"{flag(name)} {text!r} is no {'whole ' if kind == 'int' else ''}number: give one.") from None
    return text


def read_bias(text: str) -> dict[int, float]:
    """``{"11": -5}`` or ``11=-5``."""
    try:
        if text.lstrip().startswith("{"):
            return {int(token): float(bias) for token, bias in json.loads(text).items()}
        token, separator, bias = text.partition("=")
        if separator:
            return {int(token): float(bias)}
    except (ValueError, TypeError):
        pass
    raise UsageError(f'--logit-bias {text!r} is neither JSON nor TOKEN=BIAS: give {{"TOKEN": BIAS}}, with the token\'s number.')


def template_config(text: str) -> str:
    """JSON for the chat template, checked to be an object."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError:
        pass
    raise UsageError(f"--chat-template-config {text!r} is no JSON object: give one, such as '{{\"enable_thinking\": false}}'.")
