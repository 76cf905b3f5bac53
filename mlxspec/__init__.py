"""Local LLMs on MLX that answer faster by speculative decoding, without changing what they would have said.

Everything loads on first use: importing this package imports no mlx.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxspec.engine import Engine, load
    from mlxspec.errors import DrafterError, MlxspecError, ModelError, RollbackError, UsageError
    from mlxspec.events import Done, Event, Prefill, Step, Text
    from mlxspec.options import Options
    from mlxspec.proposal import Proposal, Verdict

__version__ = "0.1.0"

_HOMES = {
    "Done": "events",
    "DrafterError": "errors",
    "Engine": "engine",
    "Event": "events",
    "MlxspecError": "errors",
    "ModelError": "errors",
    "Options": "options",
    "Prefill": "events",
    "Proposal": "proposal",
    "RollbackError": "errors",
    "Step": "events",
    "Text": "events",
    "UsageError": "errors",
    "Verdict": "proposal",
    "load": "engine",
}

__all__ = [
    "Done",
    "DrafterError",
    "Engine",
    "Event",
    "MlxspecError",
    "ModelError",
    "Options",
    "Prefill",
    "Proposal",
    "RollbackError",
    "Step",
    "Text",
    "UsageError",
    "Verdict",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlxspec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"mlxspec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
