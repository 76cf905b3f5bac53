"""The clipboard of the machine the user sits at: pbcopy on a local Mac, else the terminal's own way (OSC 52), which works over ssh too."""

import base64
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

from mlxspec.errors import MlxspecError

MOST = 1_000_000  # bytes: beyond that no terminal takes it
OSC52 = "the terminal (OSC 52)"


def copy(
    text: str,
    write: Callable[[str], None],
    environ: Mapping[str, str],
    platform: str = sys.platform,
    run: Callable[..., "subprocess.CompletedProcess[bytes]"] = subprocess.run,
) -> str:
    """Copy a text, by ``write`` where the terminal does it; the name of the way it went. Whether the terminal took it nobody can tell."""
    data = text.encode("utf-8", "replace")
    if platform == "darwin" and not remote(environ) and shutil.which("pbcopy", path=environ.get("PATH")):
        try:
            run(["pbcopy"], input=data, check=True, timeout=5, env={**environ, "LC_CTYPE": "UTF-8"})
            return "pbcopy"
        except (OSError, subprocess.SubprocessError):
            pass  # no session with a pasteboard, as in a launch daemon: the terminal may have one
    if len(data) > MOST:
        raise MlxspecError(f"{len(data)} bytes are more than a terminal's clipboard takes ({MOST}): /export FILE writes the conversation.")
    write(osc52(data, environ))
    return OSC52


def remote(environ: Mapping[str, str]) -> bool:
    """Whether the user sits at another machine."""
    return any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))


def osc52(data: bytes, environ: Mapping[str, str]) -> str:
    """The sequence that sets a terminal's clipboard; GNU screen hands it through only when wrapped, in short pieces."""
    sequence = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if environ.get("STY") and not environ.get("TMUX"):
        return "".join(f"\x1bP{sequence[start : start + 240]}\x1b\\" for start in range(0, len(sequence), 240))
    return sequence
