"""How fast a model decodes plainly on this machine: measured once, kept on disk. Knows the API of an engine and no screen.

One small JSON file per measurement. A file that is missing or damaged means: measure again.
"""

import hashlib
import json
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxspec.core.events import Done
from mlxspec.paths import cache_dir, put
from mlxspec.tui.chat.reports import Baseline

TOKENS = 48  # of the measured reply
PROMPT = (
    "A lighthouse keeper writes a letter to the harbour office every week. He counts the ships that passed, the hours of fog, "
    "the litres of oil, and the birds that rested on the rail. This week he has something more to tell, and he does not know how to begin."
)


class Cache:
    """Numbers by key; ``folder`` None is the place in the user's cache."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def load(self, *about: Any) -> dict[str, float]:
        """The numbers kept for a key; none where there are none that can be used."""
        with suppress(OSError, ValueError, AttributeError, TypeError):
            return {str(name): float(value) for name, value in json.loads(self.path(*about).read_text("utf-8")).items()}
        return {}

    def save(self, *about: Any, **numbers: float) -> None:
        """Keep numbers; where that fails they are measured again next time."""
        with suppress(OSError):
            put(self.path(*about), numbers)

    def path(self, *about: Any) -> Path:
        folder = self.folder or cache_dir() / "measured"
        return folder / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:24]}.json"


def measure(engine: Any, cache: Cache | None, cancel: threading.Event, now: Callable[[], float], again: bool) -> Baseline | None:
    """The speed of plain decoding, from the cache, or measured on a text of its own; None where it was broken off."""
    about = _about(engine)
    known = cache.load(*about) if cache is not None and not again else {}
    if known.keys() == {"tokens_per_second", "context", "measured"} and known["tokens_per_second"] > 0:
        return Baseline(known["tokens_per_second"], int(known["context"]), known["measured"], fresh=False)
    limit = engine.target.context_length
    tokens = engine.tokenizer.encode(PROMPT)[: None if limit is None else max(1, limit // 2)]
    done: Done | None = None
    for event in engine.aside().stream(tokens, cancel=cancel, temperature=0.0, max_tokens=TOKENS):
        if isinstance(event, Done):
            done = event
    if cancel.is_set() or done is None or not done.stats["tokens_per_second"]:
        return None
    speed, context, when = done.stats["tokens_per_second"], len(tokens) + len(done.tokens), now()
    if cache is not None:
        cache.save(*about, tokens_per_second=speed, context=context, measured=when)
    return Baseline(speed, context, when, fresh=True)


def _about(engine: Any) -> tuple[Any, ...]:
    """This model, in its dtype and cache, on this machine."""
    settings = engine.settings
    machine = (platform.node(), platform.machine(), platform.processor(), os.environ.get("LD_PRELOAD", ""))
    return ("baseline", engine.loaded.digest, settings.dtype, settings.kv_bits, settings.max_kv_size, *machine)
