"""Packages that only a part of mlxspec needs. The extras of pyproject.toml bring them; a missing one is named with its remedy."""

import importlib
from typing import Any

from mlxspec.errors import MlxspecError


def need(module: str, extra: str, what: str, instead: str = "") -> Any:
    """Import a module of an extra. ``what`` needs it; ``instead`` is what the user can do without it.

    Raises MlxspecError where it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MlxspecError(f"{what} needs {missing}, which is not installed: pip install 'mlxspec[{extra}]'{instead}.") from error
