"""What a benchmark ran on: chip, memory, versions, BLAS and power. Measures nothing, and leaves out what it cannot find out."""

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxspec.version import __version__

MAC = platform.system() == "Darwin"


def machine(dtype: str) -> dict[str, Any]:
    """The ``machine`` block of ``bench --json``. ``dtype`` is the one of the target's weights."""
    return {
        "chip": chip(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "os": f"macOS {platform.mac_ver()[0]}" if MAC else f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "mlxspec": __version__,
        "device": device(),
        "blas": blas(),
        "dtype": dtype,
        "power": power(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def chip() -> str:
    """The processor's own name."""
    if MAC:
        return _said("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Physical memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def device() -> str:
    """What MLX computes on: ``gpu (Apple M4 Pro)``."""
    default = mx.default_device()
    kind = str(default.type).rsplit(".", 1)[-1]
    try:
        name = mx.device_info(default).get("device_name")
    except (AttributeError, TypeError, ValueError, RuntimeError):
        name = None
    return f"{kind} ({name})" if name else kind


def blas() -> str | None:
    """The BLAS that MLX's CPU calls reach: the first loaded one, where a preloaded one comes before MLX's own. None where it is unknown."""
    if MAC:
        return "Accelerate"
    return blas_in(_read("/proc/self/maps"), os.environ.get("LD_PRELOAD", ""))


def blas_in(maps: str, preload: str) -> str | None:
    """The BLAS in a process's map of files.

    numpy's own (``libscipy_openblas64_``) has other symbol names and serves numpy alone, so it does not count.
    """
    paths = sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines() if re.search(r"/[^/]*(blas|blis|mkl_rt)[^/]*$", line)})
    paths = [path for path in paths if "scipy_openblas" not in path]
    early = {Path(path).resolve().name for path in re.split(r"[: ]+", preload) if path}
    for path in paths:
        if Path(path).resolve().name in early:
            return f"{Path(path).name} (preloaded)"
    for path in paths:
        if re.search(r"/libblas[-.]", path):
            return f"{Path(path).name} (reference)" if "mlx" in path else Path(path).name
    return Path(paths[0]).name if paths else None


def power() -> str | None:
    """AC or battery, with its charge; None on a machine that does not say."""
    if not MAC:
        return None
    return power_in(_said("pmset", "-g", "batt"))


def power_in(said: str) -> str | None:
    """Reads ``pmset -g batt``: "Now drawing from 'Battery Power' … 57%; discharging"."""
    source = re.search(r"drawing from '([^']+)'", said)
    charge = re.search(r"(\d+)%", said)
    if source is None:
        return None
    return f"{source[1]}, {charge[1]}%" if charge else source[1]


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
