"""Keeps a Mac from sleeping while a reply is being made, and only then. Elsewhere it does nothing."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Awake:
    """Holds a caffeinate, which ends with this process whatever becomes of it (-w)."""

    def __init__(self, platform: str = sys.platform, start: Callable[..., Any] = subprocess.Popen) -> None:
        self._mac = platform == "darwin"
        self._start = start
        self._holder: Any = None

    def on(self) -> None:
        """From now on the machine stays awake."""
        if not self._mac or self._holder is not None:
            return
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            self._holder = self._start(["caffeinate", "-i", "-w", str(os.getpid())], **quiet)
        except OSError:  # no caffeinate: not worth a word, let alone the reply
            self._mac = False

    def off(self) -> None:
        """It may sleep again."""
        if self._holder is not None:
            with suppress(OSError, subprocess.SubprocessError):
                self._holder.terminate()
                self._holder.wait(1)
            self._holder = None
