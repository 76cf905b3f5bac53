"""Text for distillation: templates, how it is written, what it saw, filters, shards that resume."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxspec.core.target import Target
from mlxspec.errors import ModelError
from mlxspec.training import distil
from mlxspec.training.distil import Record, Template, TextStore, TextWriter, answer_tokens, collect, loop_cut, read_records
from mlxspec.training.openers import ARTICLES, OPENERS, filled, opener, passage_request, with_passages
from mlxspec.training.writer import Job, Writer, Written, likeliest
from tests.tiny import byte_tokenizer, tiny_model

CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "ANSWER_LIMIT", 20)
    monkeypatch.setattr(distil, "REQUEST_LIMIT", 6)
    monkeypatch.setattr(distil, "PASSAGE_LIMIT", 90)


def tokenizer_with(template: str) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.chat_template = template
    return tokenizer


def writer_in(folder: Path, **settings: Any) -> TextWriter:
    return TextWriter(tiny_model(), tokenizer_with(CHAT), TextStore(folder), **{"batch": 4, **settings})


def test_the_template_is_split_around_the_users_message() -> None:
    assert Template.of(tokenizer_with(CHAT)) == Template("<user>", "\n<assistant>")
    tokenizer = byte_tokenizer(template=False)
    assert tokenizer.chat_template is None
    assert Template.of(tokenizer) == Template("", "")


def test_a_template_that_changes_messages_is_refused() -> None:
    with pytest.raises(ModelError, match="chat template"):
        Template.of(tokenizer_with("{% for m in messages %}{{ m['content'] | length }}{% endfor %}"))


def test_a_broken_off_run_resumes_to_the_same_text(tmp_path: Path) -> None:
    whole, parts = writer_in(tmp_path / "whole"), writer_in(tmp_path / "parts")
    said: list[str] = []
    whole.write(900, said.append)
    parts.write(1, said.append)
    half = parts.store.folder / "00001.part"
    half.mkdir()
    (half / "text.jsonl").write_text("{")
    writer_in(tmp_path / "parts").write(900, said.append)
    assert len(whole.store.shards()) > 1
    assert [path.name for path in whole.store.shards()] == [path.name for path in parts.store.shards()]
    for one, other in zip(whole.store.shards(), parts.store.shards(), strict=True):
        for file in one.iterdir():
            assert file.read_bytes() == (other / file.name).read_bytes()
    assert "tokens of answers" in said[-1] and "min left" in said[-1]


def test_every_row_is_what_the_model_sees_there(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    records = writer.shard(0)
    hidden, ids, logprobs = (np.load(tmp_path / "00000" / f"{name}.npy") for name in ("hidden", "ids", "logprobs"))
    assert len(hidden) == answer_tokens(records) == answer_tokens(read_records(tmp_path / "00000"))
    assert {one.temperature for one in records} > {0.0}
    row = 0
    for one in records:
        logits = np.array(writer.target.model(mx.array([one.tokens[:-1]]))[0, one.prompt - 1 :])
        states = np.array(writer.target.model.model(mx.array([one.tokens[:-1]]))[0, one.prompt - 1 :])
        here = slice(row, row + len(logits))
        exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        assert np.abs(np.take_along_axis(exact, ids[here], axis=1) - logprobs[here]).max() < 0.02
        assert np.abs(states - hidden[here]).max() < 0.02
        if one.temperature == 0:
            assert (ids[here, 0] == one.tokens[one.prompt :]).mean() > 0.98  # but for ties
        row += len(logits)


def test_long_shards_ask_about_passages_of_their_own(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, batch=16)
    records = writer.shard(3)
    assert {one.kind for one in records} == {"long"}
    assert max(one.prompt for one in records) > 150


def test_prompts_come_once_and_answers_are_worth_keeping(tmp_path: Path) -> None:
    records = writer_in(tmp_path, batch=8).shard(0)
    keys = [(tuple(one.tokens[: one.prompt]), one.temperature) for one in records]
    assert len(set(keys)) == len(keys)
    assert all(len(one.tokens) - one.prompt >= 2 for one in records)


def written(tokens: list[int], prompt: tuple[int, ...] = (1, 2)) -> Written:
    row = (np.zeros(4, np.float16), np.zeros(3, np.int32), np.zeros(3, np.float16))
    return Written(Job(list(prompt), (0.0,), 9), 0.0, tokens, [row] * len(tokens))


def test_collect_drops_what_is_short_or_there_twice_and_cuts_loops() -> None:
    records, features = collect([written([5, 6, 7]), written([5, 6, 7]), written([5]), written([7, 8] * 100, (3,))], 4, "short")
    assert [one.tokens for one in records] == [[1, 2, 5, 6, 7], [3] + [7, 8] * 26 + [7]]
    assert len(features["hidden"]) == answer_tokens(records) == 56
    assert collect([], 0, "short") == ([], {})


def test_loops() -> None:
    assert loop_cut([1, 2, 3]) == 3
    text = list(range(300))
    assert loop_cut(text) == 300
    assert loop_cut(text + text[:60]) == 351


def test_a_model_that_says_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "ANSWER_LIMIT", 1)
    with pytest.raises(ModelError, match="--data"):
        writer_in(tmp_path).write(100, lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("vocab", [5, 300, 20_001])
def test_the_likeliest_tokens(vocab: int) -> None:
    logits = np.random.default_rng(vocab).normal(size=(7, vocab)).astype(np.float32) * 4
    ids, logprobs = likeliest(logits)
    order = np.argsort(-logits, axis=1)[:, :16]
    assert (ids == order).all()
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert np.abs(np.take_along_axis(exact, order, axis=1) - logprobs).max() < 0.02


@pytest.mark.parametrize(("family", "prefix"), [("llama", []), ("qwen3", [1, 2]), ("gemma3_text", [])])
def test_many_at_once_are_written_as_each_would_be_alone(family: str, prefix: list[int]) -> None:
    model = tiny_model(family)
    prompts = [[1, 2, 3], [7], [1, 2, 11, 4, 8, 2], [5, 9, 11, 4, 8, 2], [250, 3]]
    found: dict[tuple[int, ...], list[int]] = {}

    def done(one: Written) -> list[Job]:
        found[tuple(one.job.prompt)] = one.tokens
        return [Job([9, 9], (0.0,), 5)] if one.job.prompt == [7] else []

    steps = list(Writer(Target(model), [256], 2, 0, 258, prefix).run([Job(prompt, (0.0,), 8) for prompt in prompts], done))
    assert sum(steps) == sum(map(len, found.values()))
    assert len(found) == 6
    for prompt, tokens in found.items():
        text = list(prompt)
        for _ in tokens:
            text.append(int(model(mx.array([text]))[0, -1].argmax().item()))
        assert tokens == text[len(prompt) :]


def test_openers_are_varied_and_filled() -> None:
    import random

    rng = random.Random(0)
    many = [opener(rng) for _ in range(2000)]
    assert len(set(many)) > 500 and "" in many and not any("{}" in one for one in many)
    assert len(OPENERS) > 200
    assert "{}" not in passage_request(rng) and len(ARTICLES) > 5
    about = [with_passages(["first text", "second text", "third text", "fourth"], rng) for _ in range(200)]
    assert {finish for _, finish in about} == {True, False}
    assert all("text" in one or "fourth" in one for one, _ in about)
    assert filled("{} and {}", ["a {} b", "a {} b"], rng) == "a {} b and a {} b"


def test_records_are_plain_json(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "new")
    shard = store.add(0, [Record([1, 2, 3], 1, 0.5, 7, "short")], {"hidden": np.zeros((2, 4), np.float16)})
    assert json.loads((shard / "text.jsonl").read_text()) == {"tokens": [1, 2, 3], "prompt": 1, "temperature": 0.5, "seed": 7, "kind": "short"}
    assert store.shards() == [shard] and read_records(shard) == [Record([1, 2, 3], 1, 0.5, 7, "short")]
    assert TextStore.of("digest", 1).folder != TextStore.of("digest", 2).folder
