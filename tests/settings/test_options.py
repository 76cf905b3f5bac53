"""Options check themselves: nonsense and contradictions are one line that names the flag and a remedy; the engine knows each one's place."""

import dataclasses
import math
import os
import subprocess
import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxspec
from mlxspec.core.sampling import Sampler
from mlxspec.errors import UsageError
from mlxspec.llm.engine import Engine, load
from mlxspec.settings.options import Options, names
from tests.tiny import tiny_engine

NAN, INF = math.nan, math.inf
NO_NUMBER: list[Any] = [NAN, INF, -INF, "1", "", True, False, [1], {}, 1j]
BAD: dict[str, list[Any]] = {
    "max_tokens": [-2, 1.5, 5.0, None, *NO_NUMBER],
    "temperature": [-0.1, -1, 1e-42, 1e300, 10**400, None, *NO_NUMBER],
    "top_p": [0, 1e-46, 1e-38, -0.1, 1.01, 2, None, *NO_NUMBER],
    "top_k": [-1, 0.5, 5.0, None, *NO_NUMBER],
    "min_p": [-0.01, 1.01, None, *NO_NUMBER],
    "repetition_penalty": [0, -1, 0.0, 1e-46, 1e39, None, *NO_NUMBER],
    "repetition_context_size": [-1, 2.5, 20.0, None, *NO_NUMBER],
    "seed": [-1, 2**64, 1.5, 7.0, *NO_NUMBER],
    "draft_tokens": [-1, 2.5, 2.0, *NO_NUMBER],
    "draft_width": [0, -1, 1.5, *NO_NUMBER],
    "draft_rows": [0, -1, 1.5, *NO_NUMBER],
    "max_kv_size": [0, 7, -1, 64.5, 64.0, *NO_NUMBER],
    "kv_bits": [0, 1, 2, 3, 5, 16, -4, 4.0, *NO_NUMBER],
    "accept": ["", "Coupled", "greedy", "mirrors", None, 1],
    "dtype": ["", "float", "int8", "f32", 32],
    "logit_bias": [{"3": 1.0}, {-1: 1.0}, {1.5: 1.0}, {True: 1.0}, {3: NAN}, {3: INF}, {3: 1e39}, {3: "1"}, {3: None}, [1], "3", 3],
    "stop": ["", ("",), ("a", ""), ("a", 5), 5, None, (None,)],
    "model": [5, None],
    "drafter": [5, None],
    "system_prompt": [5, ["a"]],
    "chat_template_config": ["{", "[1]", "3", '"a"', "", 5],
    "offline": ["no", 1, None],
    "yes": ["yes", 1, None],
    "force": ["no", 0, None],
    "require_spec": ["no", 1, None],
    "strict": ["no", 1, None],
}
GOOD: dict[str, list[Any]] = {
    "max_tokens": [-1, 0, 1, 10**9],
    "temperature": [0, 0.0, 1e-4, 1, 0.7, 5.5, 1e30],
    "top_p": [1, 1.0, 0.01, 1e-30],
    "top_k": [0, 1, 10**6],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [0.5, 1, 1.0, 3],
    "repetition_context_size": [0, 1, 1000],
    "seed": [0, 2**64 - 1, None],
    "draft_tokens": [0, 1, 100, None],
    "draft_width": [1, 3, None],
    "draft_rows": [1, 64, None],
    "max_kv_size": [8, 4096, None],
    "kv_bits": [4, 8, None],
    "accept": ["coupled", "ratio", "mirror", "pcg"],
    "dtype": ["float32", "float16", "bfloat16", None],
    "logit_bias": [{}, {0: 1}, {3: -1.5, 4: -INF}, {3: -1e300, 4: 1e30}, None],
    "stop": [(), ("a",), ("a", "b"), ["a"]],
    "model": ["smollm2-135m", "owner/name"],
    "drafter": ["none", "small:x"],
    "system_prompt": ["", "Be brief.", None],
    "chat_template_config": ["{}", '{"enable_thinking": false}', None],
    "offline": [True, False],
    "yes": [True, False],
    "force": [True, False],
    "require_spec": [True, False],
    "strict": [True, False],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=str)
def test_nonsense_is_refused_by_flag_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Options(**{name: value})
    message = str(caught.value)
    assert f"--{name.replace('_', '-')}" in message
    assert "\n" not in message and message.endswith(".")
    assert ":" in message  # what and the value, then the remedy


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values], ids=str)
def test_what_makes_sense_is_taken_as_it_is(name: str, value: Any) -> None:
    assert getattr(Options(**{name: value}), name) == value


def test_every_option_is_tested_here() -> None:
    assert set(BAD) == set(GOOD) == set(names())


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_every_number_that_is_taken_leaves_a_law_in_float32(name: str) -> None:
    """Powers of ten over the whole range of a double, among logits of both signs: refused, or as good as its like in double precision."""
    logits = mx.array([[3.0, -2.0, 1.0, 0.5]])
    taken = 0
    for value in [10.0**power for power in range(-320, 309)]:
        try:
            options = Options(**{"temperature": 1.0, "top_k": 3, name: value})
        except UsageError:
            continue
        taken += 1
        asked = {key: getattr(options, key) for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
        context = Sampler(4, **asked).at([1, 2])
        probs = np.array(context.probs(logits[0]), np.float64)
        assert abs(probs.sum() - 1) < 1e-5, value
        assert probs[int(np.array(context.draw(logits[0])))] > 0, value
    assert taken > 4


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3)])
def test_a_number_of_another_kind_is_never_taken_wrongly(value: Any) -> None:
    """Taken as the number it is, or refused in one line; nothing else."""
    for name in ("temperature", "max_tokens"):
        try:
            assert getattr(Options(**{name: value}), name) == value
        except UsageError:
            continue


@pytest.mark.parametrize("pair", [{"kv_bits": 4, "max_kv_size": 64}])
def test_contradictions_name_both_flags(pair: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Options(**pair)
    assert all(f"--{name.replace('_', '-')}" in str(caught.value) for name in pair)
    for name, value in pair.items():
        Options(**{name: value})  # each alone is fine


def test_one_stop_string_may_be_given_bare() -> None:
    assert Options(stop="END").stop == ("END",)


def test_every_option_says_what_it_does_and_when() -> None:
    flags: list[str] = []
    for f in dataclasses.fields(Options):
        text = f.metadata["help"]
        assert isinstance(text, str) and len(text) > 8 and "\n" not in text, f.name
        assert f.metadata["when"] in ("load", "reply"), f.name
        assert f.name in names() and f.name in names(f.metadata["when"])
        assert f.default is not dataclasses.MISSING, f.name
        flags += [f"--{f.name.replace('_', '-')}", *f.metadata["flags"]]
    assert len(set(flags)) == len(flags)  # no flag twice


def test_names_fall_into_two_kinds() -> None:
    assert names() == tuple(f.name for f in dataclasses.fields(Options))
    assert set(names("load")) | set(names("reply")) == set(names())
    assert not set(names("load")) & set(names("reply"))
    assert {"model", "drafter", "dtype"} <= set(names("load"))
    assert {"temperature", "seed", "stop"} <= set(names("reply"))


def test_defaults_are_the_documented_ones() -> None:
    options = Options()
    assert (options.model, options.drafter, options.accept) == ("smollm2-135m", "auto", "coupled")
    assert (options.max_tokens, options.temperature, options.top_p, options.top_k, options.min_p) == (512, 0.7, 1.0, 0, 0.0)
    assert (options.repetition_penalty, options.repetition_context_size, options.seed, options.stop) == (1.0, 20, None, ())


def test_options_are_frozen_and_named() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Options("smollm2-135m")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Options(temprature=1.0)  # type: ignore[call-arg]


def test_options_import_no_mlx() -> None:
    code = "import sys, mlxspec.settings.options; sys.exit('mlx' in sys.modules or 'mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}).returncode == 0


@pytest.fixture(scope="module")
def plain() -> Engine:
    return tiny_engine("none")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"temprature": 1}, "did you mean temperature"),
        ({"max_token": 1}, "did you mean max_tokens"),
        ({"dtype": "float32"}, "load()"),
        ({"drafter": "none"}, "load()"),
        ({"zzz": 1}, "zzz"),
        ({"temperature": -1}, "--temperature"),
        ({"logit_bias": {258: 1.0}}, "0 to 257"),
        ({"top_p": 1e-46}, "--top-p"),
        ({"chat_template_config": "{"}, "--chat-template-config"),
        ({"accept": "ratio", "draft_width": 2}, "--draft-width"),
        ({"accept": "pcg", "draft_width": 2}, "--draft-width"),
        ({"accept": "mirror", "temperature": 0}, "--temperature 0 draws nothing"),
        ({"accept": "pcg", "temperature": 0.0}, "--temperature 0 draws nothing"),
        ({"accept": "mirror"}, "has no audio alphabet"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_at_once(plain: Engine, options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part.replace("(", r"\(").replace(")", r"\)")):
        plain.stream("hello", **options)  # not only at the first event


@pytest.mark.parametrize(
    ("options", "part"), [({"temperature": 1}, "with the prompt"), ({"dtyp": "float32"}, "did you mean dtype"), ({"kv_bits": 5}, "kv-bits")]
)
def test_load_refuses_what_belongs_to_a_reply(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        load("/nowhere", **options)  # before it looks for the model


def test_a_models_own_defaults_hold_unless_overridden(plain: Engine) -> None:
    loaded = dataclasses.replace(plain.loaded, defaults={"temperature": 0.0, "repetition_penalty": 1.5})
    mild = Engine(loaded, plain.sequence, "none", plain.settings, lambda _: None)
    assert (
        mild.generate("one two one", max_tokens=12, seed=1).tokens
        == plain.generate("one two one", max_tokens=12, temperature=0, repetition_penalty=1.5).tokens
    )
    hot = {"temperature": 1.0, "repetition_penalty": 1.0, "max_tokens": 12, "seed": 1}
    assert (
        mild.generate("one two one", **hot).tokens
        == plain.generate("one two one", **hot).tokens
        != mild.generate("one two one", max_tokens=12, seed=1).tokens
    )


def test_load_is_a_function_every_time() -> None:
    """mlxspec/__init__ finds names late; a module of the same name must not take the place."""
    for _ in range(3):
        assert callable(mlxspec.load)
        assert mlxspec.load is load
