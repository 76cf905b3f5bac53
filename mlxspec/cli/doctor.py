"""``mlxspec doctor``: what this machine has, and what is wrong with it. Fetches nothing; its one measurement takes a moment.

Each check is ok, a note (works, could be better; with the remedy), or broken (something needed; the exit code is 1).
"""

import importlib
import os
import platform
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mlxspec import paths
from mlxspec.cli.arguments import Parser, parsed, plain_parser
from mlxspec.cli.terminal import Terminal
from mlxspec.display import in_bytes, one_line
from mlxspec.errors import MlxspecError
from mlxspec.loading.catalog import hub_cache, in_hub_cache
from mlxspec.settings import config

SIDE = 512  # of the matrices that are multiplied
OLDEST = {"mlx": (0, 32), "mlx-lm": (0, 32)}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``data`` goes into the JSON."""

    text: str
    status: str = "ok"  # ok, note, broken
    remedy: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


def parser() -> Parser:
    return plain_parser("doctor", "Check this machine: chip, memory, versions, BLAS, audio, terminal, files.")


def doctor(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb. Returns 1 where something needed is broken."""
    as_json = parsed(parser(), argv)
    checks: dict[str, Callable[[], Check]] = {
        "system": system,
        "memory": memory,
        "python": python,
        "mlx": mlx,
        "blas": blas,
        "audio": audio,
        "terminal": lambda: screen(terminal, environ),
        "config": lambda: settings(environ),
        "files": files,
        "hub": hub,
        "network": lambda: network(environ),
    }
    found: dict[str, Check] = {}
    with terminal.stdout_guarded():
        for name, check in checks.items():
            try:
                found[name] = check()
            except Exception as error:  # a check that cannot be made is a finding, and the others go on
                found[name] = Check(f"could not be checked ({type(error).__name__}: {error})", "note")
    well = all(finding.status != "broken" for finding in found.values())
    if as_json:
        shown = {name: {"status": one.status, "text": one_line(one.text), "remedy": one.remedy, **one.data} for name, one in found.items()}
        terminal.json({"ok": well, "checks": shown})
    else:
        for name, finding in found.items():
            terminal.print(f"{finding.status:<7}{name:<10}{one_line(finding.text)}")
            if finding.remedy:
                terminal.print(f"{'':17}-> {one_line(finding.remedy)}")
    return 0 if well else 1


def system() -> Check:
    from mlxspec.machine import chip

    name = f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else f"{platform.system()} {platform.release()}"
    data = {"chip": chip(), "os": name, "arch": platform.machine(), "cores": os.cpu_count()}
    return Check(f"{data['chip']}, {data['cores']} cores, {name}, {data['arch']}", data=data)


def memory() -> Check:
    from mlxspec.machine import memory_bytes

    total, free = memory_bytes(), available()
    data = {"memory_bytes": total, "available_bytes": free}
    parts = ["unknown" if total is None else in_bytes(total)] + ([f"{in_bytes(free)} available"] if free is not None else [])
    return Check(", ".join(parts), data=data)


def available() -> int | None:
    """Memory that can be had now, where the system says so in a file."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def python() -> Check:
    data = {"python": platform.python_version(), "executable": sys.executable}
    return Check(f"{data['python']} ({sys.executable})", data=data)


def mlx() -> Check:
    """MLX and mlx-lm: there, new enough, and able to compute."""
    data: dict[str, Any] = {}
    for package, oldest in OLDEST.items():
        try:
            data[package] = version(package)
        except PackageNotFoundError:
            return Check(f"{package} is not installed", "broken", f"pip install {package}")
        if tuple(int(part) for part in data[package].split(".")[:2] if part.isdigit()) < oldest:
            return Check(f"{package} {data[package]} is too old", "broken", f"pip install -U '{package}>={'.'.join(map(str, oldest))}'", data)
    try:
        import mlx.core as mx

        from mlxspec.machine import device

        importlib.import_module("mlx_lm")
        good = mx.sum(mx.ones((8, 8)) @ mx.ones((8, 8))).item() == 512
    except Exception as error:
        return Check(f"MLX does not work ({type(error).__name__}: {error})", "broken", "pip install --force-reinstall mlx mlx-lm", data)
    data |= {"device": device(), "metal": mx.metal.is_available()}
    text = f"mlx {data['mlx']}, mlx-lm {data['mlx-lm']}, computes on {data['device']}{'' if data['metal'] else ', no Metal'}"
    if not good:
        return Check(f"{text}: a product of two matrices is wrong", "broken", "pip install --force-reinstall mlx", data)
    return Check(text, data=data)


def blas() -> Check:
    """The BLAS that MLX's CPU calls reach, with the speed it gives, and the remedy where it is the slow reference one."""
    import mlx.core as mx

    from mlxspec.machine import blas as loaded

    speed = gigaflops(mx)
    name = loaded()
    data = {"blas": name, "gflops": round(speed, 1)}
    text = f"{name or 'unknown'}, {speed:.1f} GFLOP/s (float32, {SIDE} x {SIDE} x {SIDE}, on the CPU)"
    if name is not None and "reference" in name:
        return Check(text, "note", remedy(), data)
    return Check(text, data=data)


def gigaflops(mx: Any) -> float:
    """The best of a few products of two matrices."""
    a, b = (mx.random.normal((SIDE, SIDE), stream=mx.cpu) for _ in range(2))
    mx.eval(a, b)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        mx.eval(mx.matmul(a, b, stream=mx.cpu))
        best = min(best, time.perf_counter() - start)
    return 2 * SIDE**3 / best / 1e9


def remedy(exists: Callable[[Path], bool] = Path.exists) -> str:
    """How to come by OpenBLAS, in one line."""
    triplet = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    debian = Path(f"/usr/lib/{triplet}/openblas-pthread/libopenblas.so.0")
    others = [Path("/usr/lib64/libopenblasp.so.0"), Path("/usr/lib64/libopenblas.so.0"), Path("/usr/lib/libopenblas.so.0")]
    here = next((path for path in (debian, *others) if exists(path)), None)
    if here is not None:
        return f"some 20 times faster: export LD_PRELOAD={here}"
    return f"some 20 times faster: apt-get install libopenblas0-pthread, then export LD_PRELOAD={debian}"


def audio() -> Check:
    """What speech needs: a library for files, and a player."""
    players = [name for name in ("afplay", "aplay", "paplay", "pw-play", "ffplay") if shutil.which(name)]
    data: dict[str, Any] = {"players": players}
    try:
        import soundfile

        data |= {"soundfile": soundfile.__version__, "libsndfile": soundfile.__libsndfile_version__}
    except (ImportError, OSError) as error:
        return Check(f"soundfile does not load ({error})", "note", "pip install 'mlxspec[speech]' (text does not need it)", data)
    text = f"soundfile {data['soundfile']}, libsndfile {data['libsndfile']}, player {players[0] if players else 'none'}"
    return Check(text, data=data) if players else Check(text, "note", "sound cannot be played here; files can be written", data)


def screen(terminal: Terminal, environ: Mapping[str, str]) -> Check:
    columns, rows = shutil.get_terminal_size()
    inside = [name for name, variable in (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_CONNECTION")) if environ.get(variable)]
    data = {
        "tty": terminal.out_tty,
        "term": environ.get("TERM"),
        "colours": terminal.out_tty and terminal.colours,
        "encoding": getattr(terminal.out, "encoding", None),
        "unicode": terminal.unicode,
        "columns": columns,
        "rows": rows,
        "inside": inside,
    }
    kind = f"{environ.get('TERM') or 'no TERM'}, {columns} x {rows}" if terminal.out_tty else "stdout is no terminal"
    colours = "colours" if data["colours"] else "no colours"
    signs = "Unicode" if terminal.unicode else "ASCII signs (the locale names no UTF-8)"
    return Check(", ".join([kind, str(data["encoding"]), colours, signs, *inside]), data=data)


def settings(environ: Mapping[str, str]) -> Check:
    """Whether the config file and the environment can be read."""
    file = paths.config_file()
    try:
        found = sorted(config.settings(environ))
    except MlxspecError as error:
        return Check(str(error), "broken", "mend it: no other verb that reads settings runs until then", {"file": str(file)})
    return Check(f"{file}{'' if file.exists() else ' (absent)'}, sets {', '.join(found) or 'nothing'}", data={"file": str(file), "sets": found})


def files() -> Check:
    """Whether our folders can be written, and the room for models."""
    locked = [folder for folder in (paths.cache_dir(), paths.state_dir(), paths.data_dir()) if not os.access(nearest(folder), os.W_OK)]
    free = shutil.disk_usage(nearest(paths.cache_dir())).free
    data = {"cache": str(paths.cache_dir()), "free_bytes": free, "not_writable": [str(folder) for folder in locked]}
    if locked:
        return Check(f"cannot write to {locked[0]}", "broken", "allow it, or set XDG_CACHE_HOME, XDG_STATE_HOME and XDG_DATA_HOME", data)
    return Check(f"{paths.cache_dir()}, {in_bytes(free)} free", data=data)


def nearest(folder: Path) -> Path:
    """The folder, or the closest one above it that exists."""
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


def hub() -> Check:
    folder, count = hub_cache(), len(in_hub_cache())
    if folder is None:
        return Check("huggingface_hub is not installed", "broken", "pip install huggingface_hub")
    text = f"{folder}{'' if folder.exists() else ' (absent)'}, {count} model{'' if count == 1 else 's'}"
    return Check(text, data={"path": str(folder), "models": count})


def network(environ: Mapping[str, str]) -> Check:
    """Whether the network may be used. Nothing is asked of it here."""
    off = [
        name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "MLXSPEC_OFFLINE") if environ.get(name, "").lower() in ("1", "true", "yes", "on")
    ]
    text = f"off ({off[0]})" if off else "used to fetch models that are not here, and for nothing else; --offline touches none"
    return Check(text, data={"offline": bool(off)})
