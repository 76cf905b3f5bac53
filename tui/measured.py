"""What was measured on this machine before, one small JSON file a thing. A file that is missing or damaged means: measure again."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxspec.paths import cache_dir, put


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
