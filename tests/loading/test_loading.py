"""What ``--model`` may say: built-in names, folders, GGUF files and hub ids, in which order, in which dtype, and every refusal. No network."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import huggingface_hub
import mlx.core as mx
import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from mlxspec.errors import ModelError
from mlxspec.loading import fetch
from mlxspec.loading.load import SAMPLING, Loaded, dequantise, digest, load_model, sampling_defaults, set_dtype
from mlxspec.settings.options import Options
from tests import gguf_writer as writer

LOAD = import_module("mlxspec.loading.load")
IDS = mx.array([[5, 7, 9, 100, 3, 2, 1, 200, 44]])


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing leaves the machine, the caches are empty, and we stand in an empty folder."""

    def blocked(*_: Any, **__: Any) -> None:
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", blocked)
    monkeypatch.setattr(socket, "getaddrinfo", blocked)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the hub of these tests is a stand-in
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mlx_folder(tmp_path / "model")


def weights_of(seed: int = 0) -> tuple[dict[str, Any], dict[str, mx.array], Any]:
    """Config and weights of a small Llama, and its tokenizer, all by way of a GGUF file."""
    from mlxspec.loading import gguf

    made = writer.llama(seed=seed)
    path = Path(os.environ["XDG_CACHE_HOME"]).parent / f"seed{seed}.gguf"
    weights = {name: mx.array(array) for name, array in made.write(path).items()}
    return made.config | {"eos_token_id": 2}, weights, gguf.tokenizer_of(gguf.read_header(path), path.name)


def mlx_folder(folder: Path, seed: int = 0, shards: int = 1, quantised: dict[str, Any] | None = None) -> Path:
    """An MLX folder with that model."""
    config, weights, tokenizer = weights_of(seed)
    folder.mkdir(parents=True)
    if quantised:
        model = llama.Model(llama.ModelArgs.from_dict(config))
        model.load_weights(list(weights.items()))
        nn.quantize(model, **quantised)
        weights, config = dict(tree_flatten(model.parameters())), config | {"quantization": quantised}
    tokenizer._tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    files = {name: "model.safetensors" if shards == 1 else f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in names if files[name] == file})
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def loaded(model: object, **options: Any) -> tuple[Loaded, list[str]]:
    said: list[str] = []
    return load_model(Options(model=str(model), **options), said.append), said


def refusal(model: object, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(model, **options)
    message = str(caught.value)
    assert message.isprintable() and ": " in message and message.endswith("."), message
    return message


def logits(seed: int = 0) -> mx.array:
    config, weights, _ = weights_of(seed)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.load_weights(list(weights.items()))
    return model(IDS)


# ---- What loads --------------------------------------------------------------------------------------------------------------------------


def test_a_built_in_model_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = writer.llama("Q4_0")
    made.write(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    entry = fetch.BuiltIn(
        name="tiny", package="p", version="1", wheel="p.whl", wheel_sha256="0", wheel_size=1, inner="p/t.gguf", sha256=sha256, size=len(data)
    )
    monkeypatch.setitem(fetch.BUILT_IN, "tiny", entry)
    entry.path.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "tiny.gguf", entry.path)
    model, said = loaded("tiny", offline=True)
    assert (model.name, model.source, model.digest) == ("tiny", f"the cache, {entry.path}", sha256)
    assert said == [f"Model tiny from the cache, {entry.path}."]
    assert not model.model.training
    assert "(tiny)" in refusal("tinny")
    entry.path.unlink()
    assert "--offline touches no network" in refusal("tiny", offline=True)


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "my model.gguf"
    expected = writer.llama("Q8_0").write(path)
    model, said = loaded(path)
    assert (model.name, model.source) == ("my model.gguf", f"the file {path}")
    assert said == [f"Model my model.gguf from the file {path}."]
    assert model.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    found = dict(tree_flatten(model.model.parameters()))
    assert {array.dtype for array in found.values()} == {mx.float32}
    assert np.array_equal(np.array(found["model.layers.1.self_attn.k_proj.weight"]), expected["model.layers.1.self_attn.k_proj.weight"])
    assert model.tokenizer.eos_token_ids == {0, 2} and model.config["max_position_embeddings"] == 256


def test_an_mlx_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 0]}))
    model, said = loaded(folder)
    assert (model.name, model.source) == ("model", f"the folder {folder}")
    assert said == [f"Model model from the folder {folder}."]
    assert mx.array_equal(model.model(IDS), logits())
    assert model.defaults == {"temperature": 0.6, "top_p": 0.9}
    assert model.tokenizer.eos_token_ids == {0, 2} and model.tokenizer.has_chat_template
    assert model.tokenizer.encode("hello 12") == weights_of()[2].encode("hello 12")
    assert not model.model.training
    assert capfd.readouterr() == ("", "")


def test_a_reply_ends_at_what_any_file_of_a_folder_names(folder: Path) -> None:
    """config.json, generation_config.json and the tokenizer name one each, and the tokenizer has special tokens that end a turn by their names."""
    words = json.loads((folder / "tokenizer.json").read_text())
    added = ["<|eot_id|>", "<end_of_turn>", "<|start_of_turn|>", "<|end|>"]
    last = max(words["model"]["vocab"].values())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    words["added_tokens"] += [{"id": last + 1 + i, "content": text, **flags} for i, text in enumerate(added)]
    words["added_tokens"].append({"id": last + 9, "content": "</s>", **flags, "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(words))
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": [20, 21], "text_config": {"eos_token_id": 22}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 30}))
    tokenizer = loaded(folder)[0].tokenizer
    eot, turn, end = (tokenizer.convert_tokens_to_ids(added[i]) for i in (0, 1, 3))
    assert tokenizer.eos_token_ids == {0, 2, 20, 21, 22, 30, eot, turn, end}
    words["added_tokens"].append({"id": last + 12, "content": "<|return|>", **flags})
    (folder / "tokenizer.json").write_text(json.dumps(words))
    tokenizer = loaded(folder)[0].tokenizer  # where there is a <|return|>, <|end|> ends a part of a reply
    assert tokenizer.eos_token_ids == {0, 2, 20, 21, 22, 30, eot, turn, tokenizer.convert_tokens_to_ids("<|return|>")}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [30, "</s>"]}))
    assert "'</s>' is given as eos_token_id" in refusal(folder)


def test_the_same_tokens_end_a_reply_in_a_folder_and_in_a_gguf_file(tmp_path: Path, folder: Path) -> None:
    writer.llama().write(tmp_path / "same.gguf")
    assert loaded(folder)[0].tokenizer.eos_token_ids == loaded(tmp_path / "same.gguf")[0].tokenizer.eos_token_ids == {0, 2}


def test_paths_of_all_kinds_stay_on_this_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder.parent)
    os.symlink(folder.parent, folder.parent / "owner")
    for name in ("~/model", "./model", "model", "owner/model", f"{folder}/", "../" + folder.parent.name + "/model"):
        assert loaded(name)[0].name == "model"
    monkeypatch.chdir(folder)
    assert loaded(".")[0].name == "model"


QUANTISED = [{"group_size": 32, "bits": 4}, {"group_size": 32, "bits": 8}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}]


@pytest.mark.parametrize("quantised", QUANTISED)
def test_a_quantised_folder_becomes_float32_on_the_cpu(tmp_path: Path, quantised: dict[str, Any]) -> None:
    config, weights, _ = weights_of()
    packed = llama.Model(llama.ModelArgs.from_dict(config))
    packed.load_weights(list(weights.items()))
    nn.quantize(packed, **quantised)
    model, _ = loaded(mlx_folder(tmp_path / "q", quantised=quantised))
    assert {array.dtype for _, array in tree_flatten(model.model.parameters())} == {mx.float32}
    assert mx.allclose(model.model(IDS), packed(IDS), atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_overrides(tmp_path: Path, folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.llama("Q4_1").write(tmp_path / "q.gguf")
    for cpu in (True, False):
        monkeypatch.setattr(LOAD, "runs_on_cpu", lambda cpu=cpu: cpu)
        for path in (tmp_path / "q.gguf", folder):
            found = {str(array.dtype) for _, array in tree_flatten(loaded(path, dtype=dtype)[0].model.parameters())}
            assert found == {f"mlx.core.{dtype}"}


def test_elsewhere_the_form_of_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOAD, "runs_on_cpu", lambda: False)
    writer.llama("Q4_0").write(tmp_path / "q.gguf")
    writer.llama("F32").write(tmp_path / "f.gguf")
    half = dict(tree_flatten(loaded(tmp_path / "q.gguf")[0].model.parameters()))
    assert half["model.layers.0.mlp.up_proj.weight"].dtype == mx.uint32
    assert {array.dtype for name, array in half.items() if not name.endswith("weight") or "norm" in name} == {mx.float16}
    assert {array.dtype for _, array in tree_flatten(loaded(tmp_path / "f.gguf")[0].model.parameters())} == {mx.float32}
    packed = loaded(mlx_folder(tmp_path / "q", quantised=QUANTISED[0]))[0].model
    assert isinstance(packed.model.layers[0].mlp.up_proj, nn.QuantizedLinear)


def test_weights_that_must_stay_in_float32_do(folder: Path) -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.bias, self.weight = mx.ones(3), mx.ones(3)

        @property
        def cast_predicate(self) -> Any:
            return lambda at: at != "bias"

    model = Careful()
    set_dtype(model, mx.bfloat16)
    assert (model.bias.dtype, model.weight.dtype) == (mx.float32, mx.bfloat16)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}, None),
        ({"temperature": -1, "top_k": 2.5, "top_p": 0, "min_p": "x", "repetition_penalty": None}, {}),
        ({"do_sample": False, "temperature": 0.9, "top_p": 0.9}, {"temperature": 0.0}),
        ({"temperature": True, "top_k": [1], "max_length": 20}, {}),
        ({"temperature": 1e-6, "top_k": 50.0}, {"temperature": 0.0, "top_k": 50}),
        ({"temperature": 1.0, "top_p": 1e-46}, {"temperature": 1.0}),
        ({}, {}),
    ],
)
def test_sampling_defaults(values: dict[str, Any], expected: dict[str, Any] | None) -> None:
    """What is taken is of the option's own kind, and each value that is left out is named."""
    said: list[str] = []
    found = sampling_defaults(values, said.append)
    expected = values if expected is None else expected
    assert found == expected and list(map(type, found.values())) == list(map(type, expected.values()))
    left_out = {key for key in SAMPLING if values.get(key) is not None} - found.keys() if values.get("do_sample", True) else set()
    assert len(said) == len(left_out)
    assert all(any(f"--{key.replace('_', '-')} {values[key]!r}" in line for line in said) for key in left_out)


class Experts(nn.Module):
    """A layer whose quantisation has a scale for each expert, which mlx-lm's unpacking passes over."""

    def __init__(self, global_scale: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate = QuantizedSwitchLinear(64, 32, 2, bias=False, group_size=16, bits=4, mode="nvfp4", global_scale=global_scale)


def test_a_quantised_layer_with_a_parameter_that_unpacking_passes_over_is_refused_by_name() -> None:
    odd = nn.Sequential(nn.QuantizedLinear(64, 32, group_size=32, bits=4))
    odd.layers[0].zero_points = mx.ones((32,))
    for model, named in ((Experts(), ("gate", "global_scale")), (odd, ("layers.0", "zero_points"))):
        for unpack in (dequantise, lambda model: set_dtype(model, mx.float32)):
            with pytest.raises(ModelError) as caught:
                unpack(model)
            assert all(word in str(caught.value) for word in named)


def test_every_other_quantised_layer_is_unpacked() -> None:
    table = nn.QuantizedEmbedding(8, 64, group_size=32, bits=8)
    model = nn.Sequential(nn.QuantizedLinear(64, 32, bias=True, group_size=32, bits=4), table, Experts(global_scale=False))
    before = [model.layers[0](mx.ones((1, 64))), table(mx.array([3]))]
    dequantise(model)
    after = [model.layers[0](mx.ones((1, 64))), model.layers[1](mx.array([3]))]
    assert not [name for name, layer in model.named_modules() if "scales" in layer]
    assert all(mx.allclose(one, other, atol=1e-3).item() for one, other in zip(before, after, strict=True))


def test_a_broken_generation_config_is_no_reason_to_fail(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    assert loaded(folder)[0].defaults == {}


def test_the_digest_names_the_weights(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest(folder)
    assert first.startswith("sampled:") and first == digest(mlx_folder(tmp_path / "again"))
    assert len({first, digest(mlx_folder(tmp_path / "other", seed=1)), digest(mlx_folder(tmp_path / "q", quantised=QUANTISED[0]))}) == 3
    writer.llama().write(tmp_path / "a.gguf")
    writer.llama(seed=1).write(tmp_path / "b.gguf")
    monkeypatch.setattr(LOAD, "GIGABYTE", 10)  # as of a large file
    assert digest(tmp_path / "a.gguf").startswith("sampled:")
    assert digest(tmp_path / "a.gguf") != digest(tmp_path / "b.gguf")


# ---- What is refused ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["smollm2", "SmolLM2-135M", "gpt2", "", " ", "a/b/c", "owner/", "owner/na me", "https://huggingface.co/a/b", "x" * 5000]
)
def test_a_name_of_nothing(name: str) -> None:
    message = refusal(name)
    assert "smollm2-135m" in message and len(message) < 600


@pytest.mark.parametrize(
    "name", ["./none", "/none", "~/none", "~nobody/none", "../none", "none.gguf", "owner/none.gguf", "none/", ".", "/" + "x" * 5000]
)
def test_a_path_to_nothing_never_goes_to_the_network(name: str) -> None:
    message = refusal(name)
    assert "There is no model at" in message or "holds no MLX model" in message


def test_foreign_names_are_cleaned(tmp_path: Path) -> None:
    evil = tmp_path / "a\x1b]0;title\x07\nb\x9b2J"
    evil.mkdir()
    assert "holds no MLX model" in refusal(evil)
    (evil / "x\x1b[31m.gguf").write_bytes(b"GGUF")
    assert "\\x1b" not in refusal(evil)
    refusal(evil / "x\x1b[31m.gguf")
    refusal("\x1b[2J\nnone")
    writer.llama().write(evil / "good\x1b[31m.gguf")
    assert all(text.isprintable() for text in loaded(evil / "good\x1b[31m.gguf")[1])


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert "no config.json" in refusal(tmp_path / "x")
    (tmp_path / "x" / "m.gguf").touch()
    assert f"name the file, such as {tmp_path / 'x' / 'm.gguf'}" in refusal(tmp_path / "x")
    assert "too short" in refusal(tmp_path / "x" / "m.gguf")
    assert "holds no MLX model" in refusal("/dev/null")


def test_damaged_folders(folder: Path) -> None:
    def broken(name: str, data: bytes | None) -> str:
        before = (folder / name).read_bytes()
        (folder / name).unlink() if data is None else (folder / name).write_bytes(data)
        message = refusal(folder)
        (folder / name).write_bytes(before)
        return message

    weights = (folder / "model.safetensors").read_bytes()
    for size in (0, 7, 8, 100, len(weights) // 2, len(weights) - 1):
        assert "cannot be loaded" in broken("model.safetensors", weights[:size])
    assert "No safetensors found" in broken("model.safetensors", None)
    assert "JSONDecodeError" in broken("config.json", b"{")
    assert "cannot be loaded" in broken("config.json", b"[]")
    assert "model_type" in broken("config.json", b"{}")
    assert "Model type made_up not supported" in broken("config.json", b'{"model_type": "made_up"}')
    config = json.loads((folder / "config.json").read_bytes())
    assert "cannot be loaded" in broken("config.json", json.dumps(config | {"num_hidden_layers": 3}).encode())
    assert "cannot be loaded" in broken("config.json", json.dumps(config | {"hidden_size": 32}).encode())
    assert "brings code of its own" in broken("config.json", json.dumps(config | {"model_file": "evil.py"}).encode())
    assert "cannot be loaded" in broken("tokenizer.json", b"{")
    loaded(folder)


def test_code_in_a_folder_is_never_run(folder: Path) -> None:
    marker = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}))
    with contextlib.suppress(ModelError):
        loaded(folder)
    assert not marker.exists()


def test_more_weights_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    assert "--dtype bfloat16, or pass --force" in refusal(folder)
    loaded(folder, force=True)

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    loaded(folder)


# ---- The hub -----------------------------------------------------------------------------------------------------------------------------


def cached(repo: str, **folder: Any) -> Path:
    """A repo in the hub's cache, as an older version of its library leaves it (without a listing of the repo's files)."""
    place = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    return mlx_folder(place / "snapshots" / ("a" * 40), **folder)


class Hub:
    """What the hub would say; counts what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.files: dict[str, int] = {"config.json": 700, "model.safetensors": 9000, "README.md": 10**12, "evil.py": 1, "tokenizer.json": 300}
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.tmp_path = tmp_path
        local = huggingface_hub.snapshot_download
        hub = self

        class Api:
            def model_info(self, repo: str, **_: Any) -> Any:
                hub.asked.append(f"info {repo}")
                if hub.error:
                    raise hub.error
                siblings = [huggingface_hub.hf_api.RepoSibling(rfilename=name, size=size) for name, size in hub.files.items()]
                return type("Info", (), {"siblings": siblings})()

        def download(repo: str, local_files_only: bool = False, **rest: Any) -> str:
            if local_files_only:
                return str(local(repo, local_files_only=True, **rest))
            hub.asked.append(f"download {repo}")
            assert not any(pattern.endswith(".py") for pattern in rest["allow_patterns"])
            return str(cached(repo))

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    yield Hub(monkeypatch, tmp_path)


@pytest.mark.parametrize("offline", [False, True])
def test_a_cached_repo_needs_no_network(hub: Hub, offline: bool) -> None:
    cached("org/tiny-4.0_x", shards=2)
    model, said = loaded("org/tiny-4.0_x", offline=offline)
    assert (model.name, model.source) == ("org/tiny-4.0_x", "the hub's cache")
    assert said == ["Model org/tiny-4.0_x from the hub's cache."]
    assert hub.asked == []
    assert mx.array_equal(model.model(IDS), logits())


def test_a_repo_is_fetched_once(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    model, said = loaded("org/tiny")
    assert model.source == "the hub"
    assert said == ["Fetching org/tiny from the hub (0 MB, once).", "Model org/tiny from the hub."]
    assert hub.asked == ["info org/tiny", "download org/tiny"]
    assert loaded("org/tiny")[0].source == "the hub's cache"
    assert len(hub.asked) == 2
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("variable", [False, True])
def test_offline_means_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch, variable: bool) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", variable)
    message = refusal("org/tiny", offline=not variable)
    assert "org/tiny is not" in message and "--offline" in message and hub.asked == []
    (cached("org/tiny", shards=2) / "model-00002-of-00002.safetensors").unlink()
    assert "not wholly" in refusal("org/tiny", offline=not variable)


def test_a_large_download_asks_first(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["model.safetensors"] = 3_100_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 50_000_000_000})())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert "3.1 GB" in refusal("org/tiny") and "50.0 GB free: pass -y" in refusal("org/tiny")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer in ("n\n", "\n", "", "what\n"):
        monkeypatch.setattr(sys.stdin, "readline", lambda answer=answer: answer, raising=False)
        assert "was not fetched" in refusal("org/tiny")
    with ThreadPoolExecutor(1) as other:  # the terminal belongs to the main thread
        assert "pass -y" in other.submit(refusal, "org/tiny").result()
    assert not any("download" in asked for asked in hub.asked)
    monkeypatch.setattr(sys.stdin, "readline", lambda: " Yes\n", raising=False)
    model, said = loaded("org/tiny")
    assert model.source == "the hub" and "Fetch it? [y/N]" in said[0] and "3.1 GB" in said[0] and "50.0 GB free" in said[0]


def test_yes_answers_for_the_user_but_makes_no_room(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["model.safetensors"] = 3_100_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2_000_000_000})())
    assert "make room, or set HF_HOME" in refusal("org/tiny", yes=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4_000_000_000})())
    assert loaded("org/tiny", yes=True)[0].source == "the hub"


def test_repos_of_other_kinds_are_not_fetched(hub: Hub) -> None:
    hub.files = {"config.json": 1, "pytorch_model.bin": 10}
    assert "holds no config.json with model*.safetensors: give an MLX or safetensors repo" in refusal("org/tiny")
    hub.files = {"tiny-Q8_0.gguf": 10}
    assert "fetch one of its .gguf files and give its path" in refusal("org/tiny")
    assert hub.asked == ["info org/tiny"] * 2


def test_what_the_hub_may_answer(hub: Hub) -> None:
    response: Any = type("Response", (), {"headers": {}, "status_code": 404, "request": None})()
    for error, words in [
        (GatedRepoError("no\nway", response=response), "is gated: accept its terms at https://huggingface.co/org/tiny"),
        (RepositoryNotFoundError("no\nway", response=response), "There is no repo org/tiny"),
        (ConnectionError("no\x1b[31m route\n\nto host"), "ConnectionError: no route to host"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ValueError("x" * 9000), "check the network and the room"),
    ]:
        hub.error = error
        assert words in refusal("org/tiny")


# ---- The real model ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.real
def test_smollm2_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx_lm

    monkeypatch.undo()
    model, said = loaded("smollm2-135m")
    assert model.digest == fetch.BUILT_IN["smollm2-135m"].sha256 and said
    prompt = model.tokenizer.apply_chat_template([{"role": "user", "content": "What is gravity?"}], add_generation_prompt=True)
    answer = "".join(part.text for part in mlx_lm.stream_generate(model.model, model.tokenizer, prompt, max_tokens=24))
    assert "force" in answer.lower() or "physics" in answer.lower(), answer
