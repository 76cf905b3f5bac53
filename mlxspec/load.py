"""From what ``--model`` says to a model in memory: a built-in name, an MLX folder, a GGUF file or a hub repo id. Knows no drafter and no loop.

Local and cached copies come first; whatever looks like a path never goes to the network. On the CPU weights become float32, on Metal they keep
the form of the file; ``dtype`` overrides both.
"""

import difflib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxspec import gguf
from mlxspec.errors import ModelError, UsageError
from mlxspec.fetch import BUILT_IN, megabytes, obtain, one_line
from mlxspec.options import Options

Say = Callable[[str], None]
ASK_ABOVE = 1_000_000_000  # bytes of a hub download
HUB_FILES = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory, ready to run, and all that is known of it. ``digest`` names the weights, whatever dtype they run in."""

    name: str
    model: nn.Module
    tokenizer: Any  # mlx_lm.tokenizer_utils.TokenizerWrapper
    config: dict[str, Any]
    source: str
    digest: str
    defaults: dict[str, Any]


def load_model(options: Options, say: Say) -> Loaded:
    """Find, check and load the model of ``options``. All that can go wrong with it is a ModelError in one line."""

    def tell(text: str) -> None:
        say(one_line(text))

    try:
        return _load(options, tell)
    except ModelError as error:
        raise ModelError(one_line(error)) from error


def _load(options: Options, say: Say) -> Loaded:
    name = options.model
    if name in BUILT_IN:
        path, source = obtain(BUILT_IN[name], offline=options.offline, say=say)
        say(f"Model {name} from {source}: {path}")
    elif looks_like_path(name):
        path = Path(name).expanduser()
        if not path.exists():
            raise ModelError(f"There is no model at {name}: give a folder, a .gguf file, a hub repo id or a built-in name ({_near(name)}).")
        source, name = f"{'folder' if path.is_dir() else 'file'} {path}", path.resolve().name
        say(f"Model {name} from {source}")
    elif re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        path, source = _from_hub(name, options, say)
        say(f"Model {name} from {source}")
    else:
        raise ModelError(f"{name} is no built-in model ({_near(name)}), no path here and no hub repo id (owner/name): give one of those.")
    model, tokenizer, config, defaults = _read_file(path) if path.is_file() else _read_folder(path)
    dtype = options.dtype or ("float32" if runs_on_cpu() else None)
    if dtype is not None:
        set_dtype(model, getattr(mx, dtype))
    model.eval()
    try:
        mx.eval(model.parameters())
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"The weights of {name} cannot be read ({one_line(error, 200)}): fetch them again.") from error
    return Loaded(name, model, tokenizer, config, source, digest(path), defaults)


def runs_on_cpu() -> bool:
    """Where MLX's quantised kernels are slow: T(8) = 7 × T(1), against 1.4 × in float32."""
    return bool(mx.default_device() == mx.cpu)


def looks_like_path(name: str) -> bool:
    """Whether ``--model`` can only mean something on this disk.

    >>> [looks_like_path(name) for name in ("./model", "~/m", "/m", "m.gguf", "owner/name")]
    [True, True, True, True, False]
    """
    return name.startswith(("/", ".", "~")) or name.lower().endswith(".gguf") or name.endswith("/") or (name != "" and Path(name).exists())


def _near(name: str) -> str:
    return ", ".join(difflib.get_close_matches(name.lower(), BUILT_IN, n=3, cutoff=0.4) or sorted(BUILT_IN))


def _read_file(path: Path) -> tuple[nn.Module, Any, dict[str, Any], dict[str, Any]]:
    model, tokenizer, config = gguf.load(path)
    return model, tokenizer, config, {}


def _read_folder(path: Path) -> tuple[nn.Module, Any, dict[str, Any], dict[str, Any]]:
    from mlx_lm.utils import load_model as load_folder
    from mlx_lm.utils import load_tokenizer

    if not (path / "config.json").is_file():
        files = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"name its file, such as {path / files[0]}" if files else "give a folder with config.json, tokenizer and model*.safetensors"
        raise ModelError(f"{path} holds no MLX model (no config.json): {hint}.")
    try:
        model, config = load_folder(path, lazy=True)
        tokenizer = load_tokenizer(path, {"trust_remote_code": False, "local_files_only": True}, eos_token_ids=config.get("eos_token_id"))
    except Exception as error:  # whatever mlx-lm, transformers and json make of foreign files
        raise ModelError(f"{path} cannot be loaded ({type(error).__name__}: {one_line(error, 200)}): check the folder, or fetch it again.") from error
    return model, tokenizer, config, _generation_defaults(path)


def _generation_defaults(path: Path) -> dict[str, Any]:
    """Sampling defaults the model comes with; what makes no sense is left out."""
    try:
        values = json.loads((path / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return sampling_defaults(values) if isinstance(values, dict) else {}


def sampling_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """
    >>> sampling_defaults({"do_sample": True, "temperature": 0.6, "top_p": 7, "eos_token_id": 2})
    {'temperature': 0.6}
    """
    if values.get("do_sample") is False:
        return {"temperature": 0.0}
    found = {}
    for key in SAMPLING:
        try:
            if values.get(key) is not None:
                Options(**{key: values[key]})
                found[key] = values[key]
        except (UsageError, TypeError):
            continue
    return found


def set_dtype(model: nn.Module, dtype: mx.Dtype) -> None:
    """Dequantise in float32, then round once to ``dtype``; what a model must keep in float32 stays."""
    from mlx_lm.utils import dequantize_model

    model.set_dtype(mx.float32)
    dequantize_model(model)
    keep = getattr(model, "cast_predicate", lambda _: True)
    if dtype != mx.float32:
        from mlx.utils import tree_map_with_path

        model.update(tree_map_with_path(lambda at, x: x.astype(dtype) if keep(at) and mx.issubdtype(x.dtype, mx.floating) else x, model.parameters()))


def digest(path: Path) -> str:
    """A name for the weights: the sha256 of a GGUF file, for folders and large files one over headers, sizes and samples."""
    if path.is_file() and path.stat().st_size <= 1_000_000_000:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for part in [path] if path.is_file() else sorted(path.glob("model*.safetensors")):
        size = part.stat().st_size
        total.update(f"{part.name if path.is_dir() else ''} {size}\n".encode())
        with part.open("rb") as file:
            for i in range(64):
                file.seek(max(0, size - 65_536) * i // 63)
                total.update(file.read(65_536))
    return "sampled:" + total.hexdigest()


def _from_hub(repo: str, options: Options, say: Say) -> tuple[Path, str]:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    try:
        return Path(snapshot_download(repo, allow_patterns=HUB_FILES, local_files_only=True)), f"the hub's cache (repo {repo})"
    except Exception as error:  # not here, or not whole
        if options.offline or constants.HF_HUB_OFFLINE:
            raise ModelError(f"{repo} is not in the hub's cache and --offline touches no network: run once without it, or give a folder.") from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        info = HfApi().model_info(repo, files_metadata=True)
        size = sum(file.size or 0 for file in info.siblings or [] if any(Path(file.rfilename).match(pattern) for pattern in HUB_FILES))
        _ask(repo, size, Path(constants.HF_HUB_CACHE), options, say)
        say(f"Fetching {repo} from the hub ({megabytes(size)}).")
        return Path(snapshot_download(repo, allow_patterns=HUB_FILES)), f"the hub (repo {repo})"
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{repo} cannot be had from the hub ({type(error).__name__}: {one_line(error, 200)}): check the name and the network.") from error


def _ask(repo: str, size: int, folder: Path, options: Options, say: Say) -> None:
    """A large download needs a yes; one that does not fit is refused."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ModelError(f"{repo} takes {megabytes(size)} and {folder} has {megabytes(free)} free: make room, or set HF_HOME to another disk.")
    if size <= ASK_ABOVE or options.yes:
        return
    question = f"{repo} is a download of {megabytes(size)} ({megabytes(free)} free)"
    if not sys.stdin.isatty():
        raise ModelError(f"{question}: pass -y to allow it.")
    say(f"{question}. Fetch it? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ModelError(f"{repo} was not fetched: pass -y, or answer y.")
