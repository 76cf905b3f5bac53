"""From what ``--model`` says to a model in memory: a built-in name, an MLX folder, a GGUF file or a hub repo id. Knows no drafter and no loop.

Local and cached copies come first, and whatever looks like a path never goes to the network. On the CPU weights become float32, on Metal they
keep the form of the file; ``dtype`` overrides both.
"""

import difflib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from mlxspec.display import in_bytes, one_line
from mlxspec.errors import ModelError, UsageError
from mlxspec.loading import gguf
from mlxspec.loading.catalog import looks_like_path
from mlxspec.loading.ends import end_tokens
from mlxspec.loading.fetch import BUILT_IN, brief, obtain
from mlxspec.loading.memory import needed, preflight
from mlxspec.settings.options import NEAR_ZERO, Options
from mlxspec.settings.values import kind_of

Say = Callable[[str], None]
GIGABYTE = 1_000_000_000  # a hub download above it asks first; a GGUF file above it is hashed by samples
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
HUB_FILES = ["*.json", "*.jsonl", "*.jinja", "*.txt", "*.tiktoken", "tokenizer.model", "model*.safetensors"]  # mlx-lm's list without its code
UNPACKED = ("weight", "scales", "biases", "bias")  # of a quantised layer
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory, ready to run, and what is known of it. ``digest`` names the weights, whatever dtype they run in."""

    name: str
    model: nn.Module
    tokenizer: Any  # mlx_lm.tokenizer_utils.TokenizerWrapper
    config: dict[str, Any]
    source: str
    digest: str
    defaults: dict[str, Any]  # the model's own sampling defaults, under the names of Options
    memory: int = 0  # bytes it and its cache take, and what was there before it


def load_model(options: Options, say: Say, beside: int = 0) -> Loaded:
    """Find, check and load the model of ``options``. Whatever is wrong with it is a ModelError in one line.

    ``beside``: bytes that others take in memory (``Loaded.memory`` of the target, where this one is to draft for it).
    """

    def tell(text: str) -> None:
        say(one_line(text))

    try:
        return _load(options, tell, beside)
    except ModelError as error:
        clean = ModelError(one_line(str(error)))
        clean.exit_code = error.exit_code
        raise clean from error


def unknown(text: str) -> ModelError:
    """The error for a name that is no model's: a mistake in the command, as its exit code says."""
    error = ModelError(text)
    error.exit_code = UsageError.exit_code
    return error


def _load(options: Options, say: Say, beside: int) -> Loaded:
    name, known = options.model, None
    if name in BUILT_IN:
        path, source = obtain(BUILT_IN[name], offline=options.offline, say=say)
        known, source = BUILT_IN[name].sha256, f"{source}, {path}"
    elif looks_like_path(name):
        path = Path(os.path.expanduser(name))
        if not os.path.exists(path):
            raise unknown(f"There is no model at {brief(name)}: give a folder, a .gguf file, a hub repo id or a built-in name ({near(name)}).")
        name, source = path.resolve().name, f"the {'folder' if path.is_dir() else 'file'} {path}"
    elif HUB_ID.fullmatch(name):
        path, source = _from_hub(name, options, say)
    else:
        raise unknown(f"{brief(repr(name))} is no built-in model ({near(name)}), no path here and no hub repo id (owner/name): give one of those.")
    say(f"Model {name} from {source}.")
    model, tokenizer, config, sampling = gguf.load(path) if path.is_file() else _read_folder(path, say)
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True  # we say it ourselves, as an error
    dtype = options.dtype or ("float32" if runs_on_cpu() else None)
    if dtype is not None:
        set_dtype(model, getattr(mx, dtype))
    elif path.is_file():
        model.set_dtype(getattr(mx, config["torch_dtype"]))  # the norms, float32 in the file, run in the dtype of the rest
    model.eval()
    need = needed(model, context_length(config), options.max_kv_size, options.kv_bits)
    preflight(name, need, beside, options.force, say)
    try:
        mx.eval(model.parameters())
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"The weights of {name} cannot be read ({brief(error)}): fetch them again.") from error
    return Loaded(name, model, tokenizer, config, source, known or digest(path), sampling_defaults(sampling, say), beside + need.total)


def runs_on_cpu() -> bool:
    """Whether MLX computes on the CPU, whose quantised kernels gain nothing from several rows (8 rows cost 7 times one; in float32, 1.4)."""
    return bool(mx.default_device() == mx.cpu)


def near(name: str) -> str:
    """Built-in names that resemble a name, or all of them."""
    return ", ".join(difflib.get_close_matches(name.lower(), BUILT_IN, n=3, cutoff=0.4) or sorted(BUILT_IN))


# ---- Reading -----------------------------------------------------------------------------------------------------------------------------


def _read_folder(path: Path, say: Say) -> tuple[nn.Module, Any, dict[str, Any], dict[str, Any]]:
    from mlx_lm.utils import load_model as load_folder
    from mlx_lm.utils import load_tokenizer

    if not (path / "config.json").is_file():
        files = sorted(file.name for file in path.glob("*.gguf")) if path.is_dir() else []
        hint = f"name the file, such as {path / files[0]}" if files else "give a folder with config.json, a tokenizer and model*.safetensors"
        raise ModelError(f"{path} holds no MLX model (no config.json): {hint}.")
    try:
        model, config = load_folder(path, lazy=True)
        tokenizer = load_tokenizer(path, {"trust_remote_code": False, "local_files_only": True}, eos_token_ids=config.get("eos_token_id"))
    except Exception as error:  # whatever mlx-lm, transformers and json make of foreign files
        if "trust_remote_code" in str(error):
            raise ModelError(f"{path} brings code of its own, which is not run here: give a model of a kind mlx-lm knows.") from error
        reason = f"{type(error).__name__}: {brief(error)}"
        raise ModelError(f"{path} cannot be loaded ({reason}): check that it is a whole MLX model of a kind mlx-lm knows.") from error
    sampling = _json(path / "generation_config.json", say)
    own = _json(path / "config.json", say)  # mlx-lm puts the generation config's ends in the place of its own
    text = own.get("text_config")
    inner = text.get("eos_token_id") if isinstance(text, dict) else None
    tokenizer.eos_token_ids = end_tokens(tokenizer, config.get("eos_token_id"), own.get("eos_token_id"), inner, sampling.get("eos_token_id"))
    return model, tokenizer, config, sampling


def _json(path: Path, say: Say) -> dict[str, Any]:
    """The object in a file; empty where there is none, or none that can be read, and then that is said."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        say(f"The settings in {path} are left out: it cannot be read ({brief(error)}).")
        return {}
    return found if isinstance(found, dict) else {}


def sampling_defaults(values: dict[str, Any], say: Say) -> dict[str, Any]:
    """The entries of a generation config that are options of ours; what makes no sense is left out, and that is said. No sampling means
    temperature 0, and so does a temperature that is nearly 0.

    >>> sampling_defaults({"do_sample": True, "temperature": 0.6, "top_k": 50.0, "top_p": 7, "eos_token_id": 2}, print)
    Of the model's own sampling settings one is left out: --top-p 7 makes no sense: give a number from 0 to 1.
    {'temperature': 0.6, 'top_k': 50}
    """
    if values.get("do_sample") is False:
        return {"temperature": 0.0}
    found: dict[str, Any] = {}
    for key in SAMPLING:
        value: Any = values.get(key)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer() and kind_of(key) == "int":
            value = int(value)
        if key == "temperature" and isinstance(value, float) and 0 < value < NEAR_ZERO:
            value = 0.0
        try:
            Options(**{key: value})
        except UsageError as error:
            say(f"Of the model's own sampling settings one is left out: {error}")
            continue
        found[key] = value
    return found


def context_length(config: dict[str, Any]) -> int | None:
    """The most tokens a model reads, where its config says it."""
    for place in (config, config.get("text_config", {})):
        for key in ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length"):
            if isinstance(place.get(key), int):
                return int(place[key])
    return None


def set_dtype(model: nn.Module, dtype: mx.Dtype) -> None:
    """Dequantise in float32, then round once to ``dtype``; what a model says must stay in float32 stays there."""
    model.set_dtype(mx.float32)
    dequantise(model)
    may_round = getattr(model, "cast_predicate", lambda _: True)  # mlx-lm's own convention, see its convert.py

    def rounded(at: str, x: mx.array) -> mx.array:
        return x.astype(dtype) if mx.issubdtype(x.dtype, mx.floating) and may_round(at) else x

    model.update(tree_map_with_path(rounded, model.parameters()))


def dequantise(model: nn.Module) -> nn.Module:
    """Unpack the quantised layers. A layer with a parameter that mlx-lm's unpacking would pass over is refused: without it the model says noise."""
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear
    from mlx_lm.utils import dequantize_model

    for name, layer in model.named_modules():
        if isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding | QuantizedSwitchLinear):
            for parameter, value in layer.items():
                if value is not None and parameter not in UNPACKED:
                    remedy = "give the model in another quantisation, or on a GPU leave out --dtype"
                    raise ModelError(f"The layer {name} is quantised with {parameter}, which is not unpacked here: {remedy}.")
    return dequantize_model(model)


def digest(path: Path) -> str:
    """A name for weights: the sha256 of a GGUF file; of folders and large files one over all sizes and of samples, marked as such."""
    if path.is_file() and path.stat().st_size <= GIGABYTE:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total, block, samples = hashlib.sha256(), 1 << 16, 64
    for part in [path] if path.is_file() else sorted(path.glob("model*.safetensors")):
        size = part.stat().st_size
        total.update(f"{size}\n".encode())
        with part.open("rb") as file:
            for i in range(samples):  # the first block holds the names, shapes and dtypes
                file.seek(max(0, size - block) * i // (samples - 1))
                total.update(file.read(block))
    return f"sampled:{total.hexdigest()}"


# ---- The hub -----------------------------------------------------------------------------------------------------------------------------


def _from_hub(repo: str, options: Options, say: Say) -> tuple[Path, str]:
    """The folder of a hub repo: from the hub's cache where it is there and whole, else from the network, with the user's yes where it is large."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    cache = Path(constants.HF_HUB_CACHE)
    try:
        path = Path(snapshot_download(repo, allow_patterns=HUB_FILES, local_files_only=True))
        if _whole(path):
            return path, "the hub's cache"
    except Exception as error:  # not there, or not whole; the next lines see to it
        problem: Exception | None = error
    else:
        problem = None
    if options.offline or constants.HF_HUB_OFFLINE:
        remedy = "run once without --offline and HF_HUB_OFFLINE, or give a local folder"
        raise ModelError(f"{repo} is not (or not wholly) in the hub's cache {cache}, and the network is off: {remedy}.") from problem
    try:
        found = {file.rfilename: file.size or 0 for file in HfApi().model_info(repo, files_metadata=True, timeout=30).siblings or []}
        wanted = [name for name in found if any(fnmatch.fnmatch(name, pattern) for pattern in HUB_FILES)]
        if "config.json" not in wanted or not fnmatch.filter(wanted, "model*.safetensors"):
            remedy = "fetch one of its .gguf files and give its path" if fnmatch.filter(found, "*.gguf") else "give an MLX or safetensors repo"
            raise ModelError(f"{repo} on the hub holds no config.json with model*.safetensors: {remedy}.")
        size = sum(found[name] for name in wanted)
        _allow(repo, size, cache, options, say)
        say(f"Fetching {repo} from the hub ({in_bytes(size)}, once).")
        with _quiet_without_terminal():
            return Path(snapshot_download(repo, allow_patterns=HUB_FILES)), "the hub"
    except ModelError:
        raise
    except GatedRepoError as error:
        raise ModelError(f"{repo} is gated: accept its terms at https://huggingface.co/{repo}, then run `hf auth login`.") from error
    except RepositoryNotFoundError as error:
        raise unknown(f"There is no repo {repo} on the hub, or it is private: check its name, or run `hf auth login`.") from error
    except Exception as error:  # the network, the disk, the hub itself
        reason = f"{type(error).__name__}: {brief(error)}"
        raise ModelError(f"{repo} could not be fetched from the hub ({reason}): check the network and the room in {cache}.") from error


def _whole(folder: Path) -> bool:
    """Whether a snapshot has its config and all its weights (an old or interrupted download may not)."""
    if not (folder / "config.json").is_file():
        return False
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return all((folder / name).is_file() for name in set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return any(folder.glob("model*.safetensors"))


def _allow(repo: str, size: int, folder: Path, options: Options, say: Say) -> None:
    """A large download needs a yes, and one that does not fit is refused."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise ModelError(f"{repo} takes {in_bytes(size)} and {folder} has {in_bytes(free)} free: make room, or set HF_HOME to another disk.")
    if size <= GIGABYTE or options.yes:
        return
    question = f"{repo} is a download of {in_bytes(size)}, and {folder} has {in_bytes(free)} free"
    asks = threading.current_thread() is threading.main_thread()  # another thread has no terminal to itself
    if not asks or sys.stdin is None or not sys.stdin.isatty():
        raise ModelError(f"{question}: pass -y to allow it.")
    say(f"{question}. Fetch it? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ModelError(f"{repo} was not fetched ({in_bytes(size)}): answer y, or pass -y.")


@contextmanager
def _quiet_without_terminal() -> Iterator[None]:
    """The hub's progress bars are for a terminal only."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if (sys.stderr is not None and sys.stderr.isatty()) or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
