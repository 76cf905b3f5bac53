"""Training: the loss and its gradient, what is learnt, runs that are broken off and resumed, and everything that can be wrong."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxspec.cli.terminal import Terminal
from mlxspec.cli.train import started
from mlxspec.cli.train import train as verb
from mlxspec.core.target import Target
from mlxspec.drafters.redrafter import RecurrentDrafter
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import DrafterError, MlxspecError, ModelError, UsageError
from mlxspec.loading.load import load_model
from mlxspec.models.redrafter import ReDrafter, load
from mlxspec.paths import WEIGHTS
from mlxspec.sessions import learned
from mlxspec.settings.options import Options
from mlxspec.training import cross_entropy as head
from mlxspec.training import distil, loop
from mlxspec.training.card import command
from mlxspec.training.cross_entropy import cross_entropy, projected
from mlxspec.training.data import Answer, TrainingText, shuffled
from mlxspec.training.distil import Record, TextStore, TextWriter
from mlxspec.training.loop import CHECKPOINT, Course, Trainer, read_checkpoint, schedule
from mlxspec.training.redrafter import ReDrafterShape, ReDrafterTask, rounds, shared, tables
from mlxspec.training.run import TrainOptions, as_before, train
from mlxspec.training.small import SmallShape, SmallTask
from tests.tiny import VOCAB, byte_tokenizer, save_folder, tiny_engine, tiny_model

WIDTH = 32


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingText]:
    """What a tiny model wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distil, "ANSWER_LIMIT", 24)
        patch.setattr(distil, "REQUEST_LIMIT", 6)
        store = TextStore(tmp_path_factory.mktemp("text"))
        TextWriter(tiny_model(), byte_tokenizer(), store, batch=16).write(1500, lambda _: None)
        yield TrainingText(store.shards())


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in a folder, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(distil, "ANSWER_LIMIT", 24)
    monkeypatch.setattr(distil, "REQUEST_LIMIT", 6)
    return save_folder(tmp_path / "target")


def redrafter(text: TrainingText, **shape: Any) -> ReDrafterTask:
    table, head = tables(tiny_model())
    return ReDrafterTask(table, head, text, ReDrafterShape(**{"exit_dim": WIDTH, "draft_vocab": 200, "steps": 3, **shape}), 0)


def small(text: TrainingText, **shape: Any) -> SmallTask:
    return SmallTask(tables(tiny_model())[1], byte_tokenizer(), text, SmallShape(**{"hidden_size": 16, "layers": 1, **shape}), 0)


def trainer(task: Any, folder: Path, steps: int = 12, say: Any = lambda _: None, **course: Any) -> Trainer:
    settings = Course(steps, **{"batch": 32, "rate": 3e-3, "checks": 4, "held_out": 8, **course})
    return Trainer(task, settings, folder, {"a": 1}, lambda progress: {"mlxspec": {"step": progress.step}}, say)


def weights(task: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in tree_flatten(task.network.parameters())}


def small_options(target: Path, out: Path, **more: Any) -> TrainOptions:
    settings = {"text_tokens": 600, "text_batch": 8, "steps": 8, "batch": 16}
    return TrainOptions(**{"kind": "redrafter", "model": str(target), "out": out, **settings, **more})


# -- the loss


def test_overlap_counts_a_column_once() -> None:
    """Two tokens of the target may be one column of the drafter: their probabilities are added before the smaller is taken."""
    ids, probs, ours = np.array([[3, 3, 5], [1, 2, 4]]), np.array([[0.3, 0.2, 0.4], [0.3, 0.2, 0.4]]), np.array([[0.6, 0.6, 0.1], [0.6, 0.1, 0.1]])
    assert shared(ids, probs, ours).tolist() == pytest.approx([0.5 + 0.1, 0.3 + 0.1 + 0.1])


def test_the_loss_and_its_gradient_are_those_of_autodiff(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(head, "CHUNK", 16)
    x, w = (mx.array(rng.normal(size=size).astype(np.float32)) for size in ((40, 12), (30, 12)))
    mix = mx.array(rng.normal(size=(12, 12)).astype(np.float32) * 0.3)
    ids, probs, scale = rng.integers(0, 30, (40, 4)), rng.random((40, 4)).astype(np.float32), rng.random(40)
    ids[0] = 7  # the same label four times

    def plain(mix: mx.array, w: mx.array) -> mx.array:
        logits = (x @ mix) @ w.T
        logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return -(mx.take_along_axis(logs, mx.array(ids), axis=-1) * mx.array((probs * scale[:, None]).astype(np.float32))).sum()

    expected = mx.value_and_grad(plain, argnums=(0, 1))(mix, w)
    for run in (head._numpy, head._mlx):
        monkeypatch.setattr(head, "_numpy", run)
        monkeypatch.setattr(head, "_mlx", run)
        value, gradients = mx.value_and_grad(lambda mix, w: cross_entropy(x @ mix, w, ids, probs, scale), argnums=(0, 1))(mix, w)
        assert abs(value.item() - expected[0].item()) < 1e-3
        for one, other in zip(gradients, expected[1], strict=True):
            assert mx.abs(one - other).max().item() < 1e-4


# -- the text


def test_rows_belong_to_the_tokens_of_answers(text: TrainingText) -> None:
    model = tiny_model()
    for one in text.answers[:5]:
        tokens = one.record.tokens
        assert text.tokens[one.rows].tolist() == tokens[one.record.prompt :]
        assert text.left[one.rows].tolist() == list(range(one.length, 0, -1))
        states = np.array(model.model(mx.array([tokens[:-1]]))[0, one.record.prompt - 1 :])
        assert np.abs(text.hidden_at(one.rows) - states).max() < 0.02
    rows = np.array([len(text) - 1, 0, len(text) // 2])
    assert (text.hidden_at(rows)[1] == text.hidden_at(np.array([0]))[0]).all()


def test_a_part_is_held_out_and_no_prompt_stands_in_both(text: TrainingText) -> None:
    held = {tuple(one.record.tokens[: one.record.prompt]) for one in text.answers if one.held_out}
    trained = {tuple(one.record.tokens[: one.record.prompt]) for one in text.training_answers()}
    assert held and trained and not held & trained
    assert all(one.record.temperature == 0 for one in text.held_out(99))


def test_batches_follow_from_the_steps_number() -> None:
    places = np.arange(50)
    from_start, from_seven = shuffled(places, 8, 3, 0), shuffled(places, 8, 3, 7)
    batches = [next(from_start) for _ in range(20)]
    assert all((next(from_seven) == batch).all() for batch in batches[7:])
    assert len(set(np.concatenate(batches[:6]).tolist())) == 48
    assert not (batches[0] == batches[6]).all()


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    store = TextStore(tmp_path)
    features = {"hidden": np.zeros((9, 4), np.float16), "ids": np.zeros((9, 3), np.int32), "logprobs": np.zeros((9, 3), np.float16)}
    store.add(0, [Record(list(range(10)), 1, 0.0, 0, "short")], features)
    with pytest.raises(UsageError, match="too few"):
        TrainingText(store.shards())
    (store.shards()[0] / "hidden.npy").write_bytes(b"cut")
    with pytest.raises(ModelError, match="damaged"):
        TrainingText(store.shards())


# -- the tasks


def test_rounds_start_where_the_last_one_ended() -> None:
    answer = Answer(Record([0] * 8, 1, 0.0, 0, ""), 2, True)  # seven tokens, rows 2 to 8
    matches = np.zeros(10, np.int32)
    assert rounds([answer], matches) == 1
    matches[2], matches[5] = 2, 9
    assert rounds([answer], matches) == 3  # rows 2 → 5 → 8: six tokens in two rounds


def test_the_estimate_is_the_networks_own_greedy_chain(text: TrainingText) -> None:
    task = redrafter(text, steps=3)
    rows = text.held_out(3)[0].rows[:-1]
    chain, tree, first = task._matches(rows)
    ids = task.ids
    for row, count in zip(rows, chain, strict=True):
        state, right = None, 0
        for k in range(1, min(3, text.left[row] - 1) + 1):
            state = task.network.step(mx.array(task.table[text.tokens[row + k - 1]]), state)
            logits = task.network.logits(mx.array(text.hidden_at(np.array([row]))[0]), state)
            if ids[int(logits.argmax().item())] != text.tokens[row + k]:
                break
            right += 1
        assert right == count
    assert (tree >= 0).all() and first.shape == (3, len(rows))


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_a_redrafter_learns(text: TrainingText, tmp_path: Path, labels: str) -> None:
    task = redrafter(text, soft=labels == "soft")
    some = task.places[:128]
    before, scored = task.loss(some, 0).item(), task.held_out(20)["tokens_per_round"]
    progress = trainer(task, tmp_path, 60, batch=128, rate=1e-2).run()
    assert task.loss(some, 0).item() < before - 0.05
    assert progress.best >= scored
    network = load(tmp_path)
    assert network.args.draft_vocab_size == 200
    assert json.loads((tmp_path / "config.json").read_text())["mlxspec"]["step"] == progress.best_step


@pytest.mark.parametrize("shape", [{}, {"exit_dim": 2 * WIDTH}, {"exit_dim": WIDTH // 2}, {"exit_dim": WIDTH + 8}, {"rnn": False}])
def test_a_redrafter_starts_from_what_a_regression_finds(text: TrainingText, shape: dict[str, Any]) -> None:
    """Before any step it is nearer to the target than the same network from a random start, whose loss is about that of knowing nothing."""
    task = redrafter(text, **shape)
    started = task.held_out(8)["loss"]
    mx.random.seed(1)
    task.network = ReDrafter(task.network.args, task.network.d2t)
    assert started < task.held_out(8)["loss"] - 0.005


def test_a_small_model_learns(text: TrainingText, tmp_path: Path) -> None:
    task = small(text)
    before = task.held_out(20)["loss"]
    progress = trainer(task, tmp_path, 60, batch=8, rate=1e-2).run()
    assert (progress.history or [])[-1]["loss"] < 0.9 * before
    assert load_model(Options(model=str(tmp_path)), lambda _: None).config["model_type"] == "llama"


def test_a_cut_projection_gives_the_targets_logits() -> None:
    rng = np.random.default_rng(0)
    head, hidden = rng.normal(size=(50, 12)), rng.normal(size=(400, 4)) @ rng.normal(size=(4, 12))
    cut, reader = projected(head, hidden, 5)
    assert cut.shape == (50, 5) and reader.shape == (12, 5)
    logits = hidden @ head.T
    assert np.abs(hidden @ reader @ cut.T - logits).max() < 0.01 * np.abs(logits).max()
    assert 0.5 < np.square(hidden @ reader)[:, :4].mean() < 1.5
    cut, reader = projected(head, hidden, 16)
    assert cut.shape == (50, 16) and not cut[:, 12:].any()


# -- runs


@pytest.mark.parametrize("kind", [redrafter, small])
def test_a_run_that_was_killed_resumes_to_the_same_weights(kind: Any, text: TrainingText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    whole = kind(text)
    trainer(whole, tmp_path / "whole").run()
    killed = kind(text)
    loss, calls = killed.loss, []

    def dies(batch: np.ndarray, step: int) -> mx.array:
        calls.append(step)
        if len(calls) == 8:
            raise SystemExit(9)
        return loss(batch, step)

    monkeypatch.setattr(killed, "loss", dies)
    with pytest.raises(SystemExit):
        trainer(killed, tmp_path / "killed").run()
    arrays, progress, course, options = read_checkpoint(tmp_path / "killed")
    assert progress.step == 7 and options == {"a": 1} and course.steps == 12
    again = kind(text)
    second = trainer(again, tmp_path / "killed")
    second.load_checkpoint(arrays, progress)
    assert second.run().step == 12
    for name, value in weights(whole).items():
        assert (value == weights(again)[name]).all(), name
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (tmp_path / "killed" / "model.safetensors").read_bytes()


def test_nan_stops_and_keeps_the_last_good_weights(text: TrainingText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = redrafter(text)
    loss = task.loss
    monkeypatch.setattr(task, "loss", lambda batch, step: loss(batch, step) * (mx.nan if step == 5 else 1))
    with pytest.raises(ModelError, match=r"loss is nan at step 5.*keeps the weights of step"):
        trainer(task, tmp_path).run()
    assert all(np.isfinite(value).all() for value in weights(task).values())
    assert load(tmp_path)


def test_a_full_disk_keeps_the_checkpoint_of_before(text: TrainingText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(redrafter(text), tmp_path)
    run.progress.step = 3
    run.save_checkpoint()
    run.progress.step = 4

    def full(path: str, *rest: Any, **more: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(ModelError, match=r"No space left on device.*are kept"):
        run.save_checkpoint()
    assert read_checkpoint(tmp_path)[1].step == 3
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_training_ends_where_it_no_longer_helps(text: TrainingText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = redrafter(text)
    said: list[str] = []
    monkeypatch.setattr(task, "held_out", lambda count: {"tokens_per_round": 1.5})
    progress = trainer(task, tmp_path, 40, say=said.append, checks=10, patience=3).run()
    assert progress.step == 20 and "no gain since step 0" in said[-1]  # trained weights get worse before they get better


def test_a_shipped_drafter_is_gone_on_from_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert started("smollm2-135m-redrafter") == WEIGHTS / "smollm2-135m-redrafter" and (WEIGHTS / "smollm2-135m-redrafter").is_dir()
    (tmp_path / "smollm2-135m-redrafter").mkdir()
    assert started("smollm2-135m-redrafter") == Path("smollm2-135m-redrafter")
    assert started("nowhere") == Path("nowhere")


def test_ctrl_c_says_how_to_go_on(text: TrainingText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = redrafter(text)
    said: list[str] = []
    loss = task.loss

    def interrupted(batch: np.ndarray, step: int) -> mx.array:
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return loss(batch, step)

    monkeypatch.setattr(task, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer(task, tmp_path, say=said.append).run()
    assert "--resume" in said[-1]
    assert read_checkpoint(tmp_path)[1].step == 7


def test_the_rate_rises_then_falls() -> None:
    rates = [schedule(step, 1000) for step in range(1000)]
    assert rates[0] < 0.05 and max(rates) == 1 and rates[-1] < 0.03
    assert rates.index(1.0) <= 50 and schedule(0, 1) == 1


# -- the command


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_from_a_model_to_a_drafter_that_serves_it(family: str, target: Path, tmp_path: Path) -> None:
    if family != "llama":
        target = save_folder(tmp_path / family, family)
    said: list[str] = []
    result = train(small_options(target, tmp_path / "out"), said.append)
    assert result["complete"] and result["figures"]["tokens_per_round"] >= 1 and any("GB" in line for line in said)
    model = load_model(Options(model=str(target)), lambda _: None)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["mlxspec"]["target_digest"] == model.digest
    assert not (tmp_path / "out" / CHECKPOINT).exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "mlxspec train redrafter" in card and "| step |" in card
    drafter = RecurrentDrafter.load(tmp_path / "out", model.model, VOCAB)
    plain = tiny_engine("none", model.model).generate("hello", max_tokens=24, temperature=0.8, seed=5)
    speculative = tiny_engine(drafter, model.model).generate("hello", max_tokens=24, temperature=0.8, seed=5)
    assert plain.tokens == speculative.tokens


def test_a_small_model_is_an_ordinary_folder(target: Path, tmp_path: Path) -> None:
    train(small_options(target, tmp_path / "out", kind="small", hidden_size=64, layers=1, batch=4), lambda _: None)
    loaded = load_model(Options(model=str(tmp_path / "out")), lambda _: None)
    model = load_model(Options(model=str(target)), lambda _: None).model
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization"] == {"group_size": 64, "bits": 6, "mode": "affine"}
    assert loaded.tokenizer.get_vocab() == byte_tokenizer().get_vocab()
    plain = tiny_engine("none", model).generate("hello", max_tokens=20, temperature=0)
    speculative = tiny_engine(SmallDrafter(loaded.model), model).generate("hello", max_tokens=20, temperature=0)
    assert speculative.tokens == plain.tokens


def test_minutes_become_steps(target: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = train(small_options(target, tmp_path / "out", steps=None, minutes=0.005), said.append)
    assert any("steps, about" in line for line in said)
    assert result["course"]["steps"] >= 10


def test_changed_options_are_refused_by_name(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    out = tmp_path / "out"
    broken = TrainOptions
    loss = ReDrafterTask.loss

    def dies(self: ReDrafterTask, batch: np.ndarray, step: int) -> mx.array:
        if step == 5:
            raise KeyboardInterrupt
        return loss(self, batch, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ReDrafterTask, "loss", dies)
        train(small_options(target, out), lambda _: None)
    with pytest.raises(UsageError, match=r"--rate 0.5 \(was None\), --seed 1 \(was 0\)"):
        train(broken(kind="redrafter", out=out, resume=True, seed=1, rate=0.5), lambda _: None, frozenset({"kind", "out", "resume", "seed", "rate"}))
    with pytest.raises(UsageError, match="--kind small"):
        train(broken(kind="small", out=out, resume=True), lambda _: None, frozenset({"kind", "out", "resume"}))
    with pytest.raises(UsageError, match="--resume goes on with it"):
        train(small_options(target, out), lambda _: None)
    resumed = train(broken(kind="redrafter", out=out, resume=True), lambda _: None, frozenset({"kind", "out", "resume"}))
    whole = train(small_options(target, tmp_path / "whole"), lambda _: None)
    assert resumed["figures"]["tokens_per_round"] == whole["figures"]["tokens_per_round"]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="no checkpoint"):
        train(broken(kind="redrafter", out=out, resume=True), lambda _: None, frozenset({"kind", "out", "resume"}))


def test_a_run_of_before_is_resumed_though_a_default_of_the_other_kind_has_changed() -> None:
    before = {**TrainOptions(kind="small", steps=7).shaping, "draft_vocab": 8192, "exit_dim": None}
    assert as_before(TrainOptions(kind="small", resume=True), before, frozenset({"kind"})).steps == 7


def test_going_on_from_trained_weights(target: Path, tmp_path: Path) -> None:
    first = train(small_options(target, tmp_path / "one"), lambda _: None)
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": f"number {i}"}) for i in range(20)))
    more = small_options(target, tmp_path / "two", start=tmp_path / "one", data=data, text_tokens=None)
    second = train(more, lambda _: None)
    assert second["text"] != first["text"] and second["complete"]
    other = save_folder(tmp_path / "other", seed=3)
    with pytest.raises(DrafterError, match="was trained for target"):
        train(small_options(other, tmp_path / "three", start=tmp_path / "one"), lambda _: None)


def test_going_on_with_a_smaller_draft_vocabulary(text: TrainingText, tmp_path: Path) -> None:
    """The tokens said most often stay, each with its own row of the head; whatever else the start has is kept, and cannot be asked to differ."""
    wide = redrafter(text, exit_dim=WIDTH + 8, layers=1)
    wide.save(tmp_path / "wide", {})
    table, head = tables(tiny_model())

    def on(**shape: Any) -> ReDrafterTask:
        return ReDrafterTask(table, head, text, ReDrafterShape(**{"steps": 3, **shape}), 0, tmp_path / "wide")

    assert on().network.args == wide.network.args
    cut = on(draft_vocab=50)
    ids = np.array(cut.network.d2t)
    assert set(ids) == set(text.draft_vocabulary(50, len(table), np.array(wide.network.d2t))) and len(ids) == 50 == cut.network.args.head_size
    rows = {int(token): np.array(row) for token, row in zip(np.array(wide.network.d2t), np.array(wide.network.lm_head[-1].weight), strict=True)}
    for token, row in zip(ids, np.array(cut.network.lm_head[-1].weight), strict=True):
        assert np.allclose(row, rows[int(token)], atol=2e-3)  # through a file in float16
    assert np.isfinite(cut.held_out(8)["loss"])
    for shape, words in ({"draft_vocab": 201}, "can draft 200 tokens"), ({"exit_dim": WIDTH}, f"has {WIDTH + 8}"), ({"layers": 2}, "which has 1"):
        with pytest.raises(UsageError, match=words):
            on(**shape)


def test_a_users_own_text(target: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    lines: list[dict[str, Any]] = [{"text": "a text of the user's own, number " + str(i) * 9} for i in range(9)]
    lines += [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "an answer as it is"}]} for i in range(9)]
    lines += [{"messages": [{"role": "user", "content": f"question {i}"}]} for i in range(3)]
    data.write_text("\n\n".join(json.dumps(line) for line in lines))
    result = train(small_options(target, tmp_path / "out", data=data, text_tokens=None), lambda _: None)
    assert result["text_tokens"] > 9 * 40 + 9 * 18
    both = train(small_options(target, tmp_path / "both", data=data, text_tokens=400), lambda _: None)
    assert both["text_tokens"] > result["text_tokens"] + 300


def test_answers_that_were_kept_are_text_to_train_on(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this model alone."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    digest = load_model(Options(model=str(target)), lambda _: None).digest
    for number in range(30):
        told = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": f"{number} is what was answered"}]
        learned.add(told, "target", digest if number % 2 else "other")
    said = list[str]()
    result = train(small_options(target, tmp_path / "out", learned=True, text_tokens=None), said.append)
    assert "15 lines of mlxspec learned are run through the target once." in said
    assert 15 * 22 <= result["text_tokens"] <= 15 * 30
    learned.delete(learned.names())
    with pytest.raises(UsageError, match="no answers of target are kept"):
        train(small_options(target, tmp_path / "none", learned=True, text_tokens=None), lambda _: None)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"text": "\xff\xfe"}', "is not UTF-8"),
        (b'{"text": "fine"}\n{"no": 1}', "line 2"),
        (b"[1]", "line 1"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "line 1"),
        (b'{"prompt": 7}', "line 1"),
        (b'{"text": "short"}', "too few"),
    ],
)
def test_bad_data_is_said_in_one_line(content: bytes, told: str, target: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_bytes(content)
    with pytest.raises(MlxspecError, match=told) as caught:
        train(small_options(target, tmp_path / "out", data=data, text_tokens=None), lambda _: None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "small or redrafter"),
        (["large", "--out", "x"], "'large' was given"),
        (["small"], "--out DIR"),
        (["small", "--out", "x", "--minutes", "0"], "--minutes 0"),
        (["small", "--out", "x", "--minutes", "2", "--steps", "3"], "exclude each other"),
        (["small", "--out", "x", "--exit-dim", "3"], "--exit-dim is no option of train small"),
        (["redrafter", "--out", "x", "--labels", "odd"], "--labels odd"),
        (["redrafter", "--out", "x", "--data", "nowhere.jsonl"], "does not exist"),
        (["redrafter", "--out", "x", "--resume"], "to resume from"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_model_is_loaded(argv: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=told):
        verb(argv, Terminal(io.StringIO(), io.StringIO(), {}), {})


def test_the_verb_prints_one_object(target: Path, tmp_path: Path) -> None:
    import io

    out = io.StringIO()
    argv = f"redrafter --model {target} --out {tmp_path / 'out'} --steps 3 --text-tokens 300 --text-batch 8 --exit-dim 16 --json".split()
    assert verb(argv, Terminal(out, io.StringIO(), {}), {}) == 0
    assert json.loads(out.getvalue())["kind"] == "redrafter"
    assert Target(tiny_model()).vocab_size == VOCAB


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc's own way with freed memory")
def test_freed_memory_is_kept_while_training() -> None:
    """Page faults of a loop over arrays of 64 MB each, in processes of their own: at most a tenth of what they are otherwise."""
    work = "import resource, sys, mlx.core as mx; from mlxspec.training.loop import keep_memory; {}; a = mx.zeros((4096, 4096)); mx.eval(a * 2)\n"
    work += "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\nfor _ in range(6): mx.eval(a * 2 + 1)\n"
    work += "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    runs = (subprocess.run([sys.executable, "-c", work.format(first)], capture_output=True, check=True) for first in ("pass", "keep_memory()"))
    faults = [int(run.stdout) for run in runs]
    assert faults[1] < faults[0] / 10


def test_a_card_tells_the_command_that_makes_it_again() -> None:
    """Switches without a value; what was left to its default as it was then."""
    options = {"model": "ada", "kind": "redrafter", "data": "prompts.jsonl", "start": None, "learned": False, "seed": 3, "minutes": 9.0}
    about = {"kind": "redrafter", "options": options, "course": {"steps": 40}}
    assert command(about) == "mlxspec train redrafter --model ada --data prompts.jsonl --seed 3 --steps 40 --out DIR"
    assert " --learned --seed" in command({**about, "options": {**options, "learned": True}})
