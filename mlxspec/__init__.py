"""Local LLMs on MLX that answer faster by speculative decoding, without changing what they would have said.

Everything loads on first use: importing this package imports no mlx.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxspec.engine import Engine, load
    from mlxspec.errors import DrafterError, MlxspecError, ModelError, RollbackError, UsageError
    from mlxspec.events import Audio, Done, Event, Prefill, Sentence, Spoken, Step, Text
    from mlxspec.options import Options
    from mlxspec.proposal import Proposal, Verdict
    from mlxspec.speech import Speech, Voice, load_voice

__version__ = "0.1.0"

_HOMES = {
    "Audio": "events",
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
    "Sentence": "events",
    "Speech": "speech",
    "Spoken": "events",
    "Step": "events",
    "Text": "events",
    "UsageError": "errors",
    "Verdict": "proposal",
    "Voice": "speech",
    "load": "engine",
    "load_voice": "speech",
}

__all__ = [
    "Audio",
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
    "Sentence",
    "Speech",
    "Spoken",
    "Step",
    "Text",
    "UsageError",
    "Verdict",
    "Voice",
    "load",
    "load_voice",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlxspec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"mlxspec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
