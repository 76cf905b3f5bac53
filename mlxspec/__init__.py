"""Local LLMs on MLX that answer faster by speculative decoding, without changing what they would have said.

Everything loads on first use: importing this package imports no mlx.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxspec.core.events import Audio, Done, Event, Prefill, Sentence, Spoken, Step, Text
    from mlxspec.core.proposal import Proposal, Verdict
    from mlxspec.errors import DrafterError, MlxspecError, ModelError, RollbackError, UsageError
    from mlxspec.llm.engine import Engine, load
    from mlxspec.settings.options import Options
    from mlxspec.speech.voice import Speech, Voice, load_voice

from mlxspec.version import __version__ as __version__

_HOMES = {
    "Audio": "core.events",
    "Done": "core.events",
    "DrafterError": "errors",
    "Engine": "llm.engine",
    "Event": "core.events",
    "MlxspecError": "errors",
    "ModelError": "errors",
    "Options": "settings.options",
    "Prefill": "core.events",
    "Proposal": "core.proposal",
    "RollbackError": "errors",
    "Sentence": "core.events",
    "Speech": "speech.voice",
    "Spoken": "core.events",
    "Step": "core.events",
    "Text": "core.events",
    "UsageError": "errors",
    "Verdict": "core.proposal",
    "Voice": "speech.voice",
    "load": "llm.engine",
    "load_voice": "speech.voice",
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
