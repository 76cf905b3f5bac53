"""How fast a model decodes plainly on this machine: measured once, kept on disk. Knows the API of an engine and no screen."""

import hashlib
import json
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxspec.events import Done
from mlxspec.paths import cache_dir, private
from mlxspec.tui.reports import Baseline

TOKENS = 48  # of the measured reply
PROMPT = (
    "A lighthouse keeper writes a letter to the harbour office every week. He counts the ships that passed, the hours of fog, "
    "the litres of oil, and the birds that rested on the rail. This week he has something more to tell, and he does not know how to begin."
)


class Cache:
    """Measured speeds by model, one small file each. A file that is missing or damaged means: measure again."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def load(self, key: str) -> tuple[float, int, float] | None:
        """Tokens per second, context and time of what was measured."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(self._path(key).read_text("utf-8"))
            speed, context, when = float(stored["tokens_per_second"]), int(stored["context"]), float(stored["measured"])
            if speed > 0:
                return speed, context, when
        return None

    def save(self, key: str, speed: float, context: int, when: float) -> None:
        """Keep a measurement; where that fails it is measured again next time."""
        path = self._path(key)
        with suppress(OSError):
            private(path.parent)
            handle, fresh = tempfile.mkstemp(prefix="baseline-", dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"tokens_per_second": speed, "context": context, "measured": when}, file)
            os.replace(fresh, path)

    def _path(self, key: str) -> Path:
        return (self.folder or cache_dir() / "baseline") / f"{key}.json"


def measure(engine: Any, cache: Cache | None, cancel: threading.Event, now: Callable[[], float], again: bool) -> Baseline | None:
    """The speed of plain decoding, from the cache or measured in caches of its own; None where it was broken off."""
    key = _key(engine)
    if cache is not None and not again and (known := cache.load(key)) is not None:
        return Baseline(*known, fresh=False)
    limit = engine.target.context_length
    tokens = engine.tokenizer.encode(PROMPT)[: None if limit is None else max(1, limit // 2)]
    done: Done | None = None
    with engine.target.scratch():
        for event in engine.stream(tokens, cancel=cancel, draft_tokens=0, temperature=0.0, max_tokens=TOKENS):
            if isinstance(event, Done):
                done = event
    if cancel.is_set() or done is None or not done.stats["tokens_per_second"]:
        return None
    speed, context, when = done.stats["tokens_per_second"], len(tokens) + len(done.tokens), now()
    if cache is not None:
        cache.save(key, speed, context, when)
    return Baseline(speed, context, when, fresh=True)


def _key(engine: Any) -> str:
    """A file name for this model, in its dtype and cache, on this machine."""
    settings = engine.settings
    about = (engine.loaded.digest, settings.dtype, settings.kv_bits, settings.max_kv_size, platform.node(), platform.machine(), platform.processor())
    return hashlib.sha256(repr((*about, os.environ.get("LD_PRELOAD", ""))).encode()).hexdigest()[:24]
