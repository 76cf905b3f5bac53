"""The ReDrafter drafter: its beams against a search written out in NumPy, its tree, its noise, its context, and the text it must not change."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

import mlxspec.drafters.redrafter as module
from mlxspec.core.accept import POLICIES
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target, result
from mlxspec.drafters.redrafter import RecurrentDrafter, embedding_of
from mlxspec.errors import DrafterError
from mlxspec.models.redrafter import Quantization, ReDrafter, ReDrafterArgs, save
from tests.tiny import VOCAB, tiny_engine, tiny_model

HIDDEN = 32
TRIMMED = np.random.default_rng(0).permutation(VOCAB)[:90].tolist()
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "plain": {"temperature": 0.8},
    "top-p": {"temperature": 0.7, "top_p": 0.9},
    "top-k": {"temperature": 1.2, "top_k": 40},
    "top-k of more than are drafted": {"temperature": 1.2, "top_k": 200},
    "min-p": {"temperature": 1.0, "min_p": 0.02},
    "penalty": {"temperature": 0.9, "repetition_penalty": 1.4, "repetition_context_size": 3},
    "greedy penalty": {"repetition_penalty": 1.4, "logit_bias": {7: 2.0, TRIMMED[0]: 3.0}},
    "bias": {"temperature": 1.0, "logit_bias": {TRIMMED[3]: 2.5, TRIMMED[9]: -4.0}},
    "all": {"temperature": 0.9, "top_p": 0.95, "min_p": 0.01, "top_k": 60, "repetition_penalty": 1.2, "logit_bias": {TRIMMED[5]: 2.0}},
}


def network(trimmed: bool = True, seed: int = 0, vocab_size: int = VOCAB, **changes: Any) -> ReDrafter:
    """Seeded, with weights large enough that beams differ."""
    args = ReDrafterArgs(HIDDEN, vocab_size, **{"exit_dim": 48, "draft_vocab_size": len(TRIMMED) if trimmed else None, **changes})
    result = ReDrafter(args, TRIMMED if trimmed else None)
    rng = np.random.default_rng(seed)
    result.apply(lambda x: mx.array(rng.normal(0, 1.5, x.shape) / x.shape[-1] ** 0.5, mx.float32))
    return result


def table(seed: int = 0, vocab_size: int = VOCAB) -> nn.Embedding:
    embedding = nn.Embedding(vocab_size, HIDDEN)
    embedding.weight = mx.array(np.random.default_rng(seed + 100).normal(0, 1, (vocab_size, HIDDEN)), mx.float32)
    return embedding


def drafter_of(result: ReDrafter, embedding: Any = None, **shape: Any) -> RecurrentDrafter:
    """A drafter that offers all it finds, unless told otherwise; its context is seeded."""
    drafter = RecurrentDrafter(result, embedding or table())
    for name, value in {"worth": 0.0, "stop": 0.0, "rows": 1000, "carried": 100, **shape}.items():
        setattr(drafter, name, value)
    drafter.begin((), {"last": mx.array(np.random.default_rng(5).normal(0, 1, (2, HIDDEN)), mx.float32)}, 0)
    return drafter


def context_of(setting: dict[str, Any], history: Sequence[int] = (3, 1, 4, 1, 5), seed: int = 0, vocab_size: int = VOCAB, **shape: Any) -> Context:
    return Sampler(vocab_size, seed=seed, **setting).at(list(history), **shape)


def prefixes(proposal: Proposal) -> list[tuple[int, ...]]:
    return [tuple(proposal.tokens[i] for i in proposal.path_to(row)) for row in range(len(proposal))]


def searched(drafter: RecurrentDrafter, token: int, depth: int, context: Context, noisy: bool) -> dict[tuple[int, ...], float]:
    """Every prefix a beam search meets, with its probability. Logits are spread over the target's tokens and go through the context itself."""
    network, sampler = drafter.network, context.sampler
    ids: Any = list(range(network.args.head_size)) if network.d2t is None else network.d2t.tolist()
    met: dict[tuple[int, ...], float] = {}
    beams: list[tuple[tuple[int, ...], float, Any]] = [((), 0.0, None)]
    for _ in range(depth):
        grown = []
        for said, value, state in beams:
            after = network.step(drafter.embed(mx.array([said[-1] if said else token])), state)
            logits = np.full(max(sampler.vocab_size, 1 + max(ids)), -np.inf, np.float32)
            logits[ids] = np.array(network.logits(drafter.hidden, after)[0])
            row = mx.array(logits[: sampler.vocab_size])
            scores = np.array(context.perturbed(row, said) if noisy else context.scores(row, said), dtype=np.float64)
            if noisy or sampler.temperature == 0:
                scores = scores * (sampler.temperature or 1.0) / drafter.stray
            with np.errstate(divide="ignore"):
                logs = scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
            grown += [((*said, i), value + logs[i], after) for i in range(sampler.vocab_size) if logs[i] > -np.inf]
        grown = sorted(grown, key=lambda beam: -beam[1])[: drafter.width]
        met |= {said: float(np.exp(value)) for said, value, _ in grown}
        beams = grown[: drafter.carried]
    return met


def same_tree(drafter: RecurrentDrafter, proposal: Proposal, expected: dict[tuple[int, ...], float]) -> None:
    got = dict(zip(prefixes(proposal), drafter.values, strict=True))
    assert got.keys() == expected.keys()
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize(("width", "carried", "depth"), [(1, 1, 4), (3, 3, 4), (5, 2, 3), (300, 4, 2)])
def test_greedy_beams_equal_a_plain_beam_search(width: int, carried: int, depth: int, trimmed: bool) -> None:
    """With stray 1 a value is the product of the drafter's probabilities: the classical beam search."""
    drafter = drafter_of(network(trimmed), width=width, carried=carried, stray=1.0, rows=100_000)
    expected = searched(drafter, 7, depth, context_of({}), noisy=True)
    expected = {said: value for said, value in expected.items() if value > 0}
    same_tree(drafter, drafter.propose(7, depth, context_of({})), expected)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("kind", ["coupled", "plain", "ratio"])
def test_beams_are_processed_as_the_target_is(kind: str, trimmed: bool, setting: str) -> None:
    """Warps, penalties and noise over the draft vocabulary equal the target's own over its tokens. Plain beams, and any under ratio, use no noise."""
    drafter = drafter_of(network(trimmed), width=3, stray=0.6, coupled=kind != "plain")
    context = context_of(SETTINGS[setting], coupled=kind != "ratio")
    expected = searched(drafter, 7, 3, context, noisy=kind == "coupled" or not context.sampler.temperature)
    expected = {said: value for said, value in expected.items() if value > 0}
    same_tree(drafter, drafter.propose(7, 3, context), expected)


@pytest.mark.parametrize("setting", ["top-p", "top-k", "min-p", "all"])
def test_warps_on_the_likeliest_tokens_only(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the nucleus fits into them nothing is lost but rounding."""
    monkeypatch.setattr(module, "NUCLEUS", 80)
    drafter = drafter_of(network(False), width=3)
    context = context_of({"temperature": 0.5, **{k: v for k, v in SETTINGS[setting].items() if k != "temperature"}})
    proposal = drafter.propose(7, 3, context)
    assert prefixes(proposal)
    got = dict(zip(prefixes(proposal), drafter.values, strict=True))
    expected = searched(drafter, 7, 3, context, noisy=True)
    assert got.keys() == expected.keys() - {said for said, value in expected.items() if value == 0}


def test_rows_are_distinct_prefixes_within_the_limits() -> None:
    """300 seeded rounds of all shapes and settings: a tree in order, no prefix twice, no more alternatives, rows and depth than asked for."""
    rng = np.random.default_rng(3)
    drafter = drafter_of(network(), table())
    for _ in range(300):
        setting = SETTINGS[str(rng.choice(list(SETTINGS)))]
        drafter.width, drafter.carried, drafter.rows = int(rng.integers(1, 7)), int(rng.integers(1, 5)), int(rng.integers(1, 12))
        drafter.worth, drafter.stop = float(rng.choice([0.0, 0.02, 0.2])), float(rng.choice([0.0, 0.3]))
        width, rows = (None if rng.random() < 0.5 else int(rng.integers(1, 6)) for _ in range(2))
        limit = int(rng.integers(0, 6))
        context = context_of(setting, rng.integers(0, VOCAB, 6).tolist(), int(rng.integers(1000)), width=width, rows=rows)
        drafter.hidden = mx.array(rng.normal(0, 1, HIDDEN), mx.float32)
        proposal = drafter.propose(int(rng.integers(VOCAB)), limit, context)
        proposal.check(VOCAB, limit)
        assert len(set(prefixes(proposal))) == len(proposal) == len(drafter.values) <= (rows or drafter.rows)
        assert all(list(proposal.parents).count(parent) <= (width or drafter.width) for parent in proposal.parents)
        assert all(list(proposal.depths).count(depth) <= (width or drafter.width) for depth in proposal.depths)
        assert set(proposal.tokens) <= set(TRIMMED)
        assert all(drafter.worth <= value <= 1 for value in drafter.values)
        assert all(value <= (drafter.values[parent] if parent >= 0 else 1) for value, parent in zip(drafter.values, proposal.parents, strict=True))
        if (width or drafter.width) == 1:
            assert proposal.is_chain
        if limit == 0:
            assert not len(proposal)


def test_the_rows_kept_are_the_likeliest() -> None:
    drafter = drafter_of(network(), width=4)
    context = context_of(SETTINGS["plain"])
    drafter.propose(7, 4, context)
    everything = sorted(drafter.values, reverse=True)
    drafter.rows = 6
    few = drafter.propose(7, 4, context)
    assert sorted(drafter.values, reverse=True) == everything[:6]
    likeliest = max((i for i, parent in enumerate(few.parents) if parent < 0), key=lambda i: drafter.values[i])
    assert likeliest == 0  # the likeliest branch stands first, so that keeping it moves no rows
    drafter.rows, drafter.worth = 1000, everything[3]
    assert len(drafter.propose(7, 4, context)) == 4
    drafter.worth = 1.1
    assert len(drafter.propose(7, 4, context)) == 0


@pytest.mark.parametrize("lag", [0, 1])
def test_the_search_ends_where_the_beams_are_lost(lag: int) -> None:
    drafter = drafter_of(network(), width=3)
    drafter.lag = lag
    context = context_of(SETTINGS["plain"])
    full = drafter.propose(7, 5, context)
    by_depth = [sum(v for v, d in zip(drafter.values, full.depths, strict=True) if d == depth) for depth in range(1, 6)]
    for stop in (0.01, 0.1, 0.5, 0.9):
        drafter.stop = stop
        lost = next((depth for depth, chance in enumerate(by_depth, 1) if chance < stop), 5)
        proposal = drafter.propose(7, 5, context)
        assert max(proposal.depths) == min(lost + lag, 5)
        assert set(prefixes(proposal)) == {said for said in prefixes(full) if len(said) <= lost + lag}


def test_tokens_of_padding_are_never_offered() -> None:
    """The model's logits are wider than the tokens that exist: neither a map nor a whole vocabulary may reach into the padding."""
    for trimmed in (True, False):
        for setting in SETTINGS.values():
            few = {**setting, "logit_bias": None, "top_k": min(setting.get("top_k", 0), 60)}
            drafter = drafter_of(network(trimmed), width=4)
            context = context_of(few, vocab_size=100)
            proposal = drafter.propose(7, 3, context)
            proposal.check(100, 3)
            expected = searched(drafter, 7, 3, context, noisy=True)
            same_tree(drafter, proposal, {said: value for said, value in expected.items() if value > 0})


class Markov(nn.Module):
    """A target whose next token depends on the last one only, with the modules that taps and embeddings are found by."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        size = len(logits)
        self.embed_tokens = nn.Embedding(size, size)
        self.embed_tokens.weight = mx.eye(size)
        self.lm_head = nn.Linear(size, size, bias=False)
        self.lm_head.weight = mx.array(logits.T, mx.float32)
        self.layers: list[nn.Module] = []

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        blank = mx.zeros((1, 1, inputs.shape[1], 8))
        cache[0].update_and_fetch(blank, blank)
        return self.lm_head(self.embed_tokens(inputs))


def knowing(logits: np.ndarray, embedding: Any) -> RecurrentDrafter:
    """A ReDrafter whose logits are a Markov table: its state is the one-hot of the last token, its context is not read."""
    size = len(logits)
    result = ReDrafter(ReDrafterArgs(size, size, exit_dim=2 * size, num_draft_layers=0))
    result.rnn_u.weight, result.rnn_u.bias = mx.zeros((size, size)), mx.zeros((size,))
    result.rnn_w.weight = 30 * mx.eye(size)  # SiLU(30) = 30 in float32
    result.lm_head[0].weight = mx.concatenate([mx.zeros((size, size)), mx.array(logits.T / 30, mx.float32)], axis=1)
    return RecurrentDrafter(result, embedding)


def steps_of(drafter: Drafter, model: nn.Module, setting: dict[str, Any], seed: int, tokens: int = 30, **limits: Any) -> Iterator[Step]:
    sampler = Sampler(Target(model).vocab_size, seed=seed, **setting)
    accept = limits.pop("accept", "coupled")
    for step in decode(
        TokenSequence(Target(model)), drafter, POLICIES[accept], sampler, [1, 2, 3], Limits(tokens, coupled=accept == "coupled", **limits)
    ):
        if isinstance(step, Step):
            yield step


def text(steps: Iterator[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_drafter_that_knows_the_target_is_always_followed(setting: str) -> None:
    """q = p: noise, warps and penalties of every position are the target's. A chain is accepted whole, a tree at least by its first row."""
    law = np.random.default_rng(1).normal(0, 1.5, (VOCAB, VOCAB))
    model = Markov(law)
    drafter = knowing(law, embedding_of(model))
    drafter.worth = drafter.stop = 0.0
    for width in (1, 3):
        rounds = [step for seed in range(3) for step in steps_of(drafter, model, SETTINGS[setting], seed, width=width) if step.proposal]
        assert len(rounds) >= 15
        assert all(len(step.path) == len(step.proposal) if width == 1 else step.path for step in rounds)


def test_the_targets_noise_is_worth_more_than_wide_beams() -> None:
    """A drafter off by about one in its logits, temperature 1: beams drawn with the noise are followed at least 1.5 times as far as plain ones."""
    law = np.random.default_rng(1).normal(0, 1.5, (50, 50))
    model = Markov(law)
    followed = []
    for coupled in (True, False):
        drafter = knowing(law + np.random.default_rng(2).normal(0, 0.7, law.shape), embedding_of(model))
        drafter.worth = drafter.stop = 0.0
        drafter.width = drafter.carried = 3
        drafter.coupled = coupled
        rounds = [step for seed in range(8) for step in steps_of(drafter, model, {"temperature": 1.0}, seed, 60) if step.proposal is not None]
        followed.append(sum(len(step.path) for step in rounds) / len(rounds))
    assert followed[0] > 1.5 * followed[1]


def test_values_are_honest() -> None:
    """Where the target differs from the drafter by Gumbel noise of scale ``stray``, rows are right as often as they say: 4 bins, 3 sigma."""
    rng = np.random.default_rng(4)
    size, stray = 30, 0.7
    hits: list[tuple[float, bool]] = []
    for trial in range(40):
        law = rng.normal(0, 1.5, (size, size))
        model = Markov(law + rng.gumbel(0, stray, law.shape))
        drafter = knowing(law, embedding_of(model))
        drafter.stray, drafter.worth, drafter.stop = stray, 0.01, 0.0
        for step in steps_of(drafter, model, {"temperature": 0.8} if trial % 2 else {}, trial, 10):
            if step.proposal:
                hits += [(value, row in step.path) for row, (value, depth) in enumerate(zip(drafter.values, step.proposal.depths, strict=True))
                         if depth == 1]  # fmt: skip
    for low, high in ((0.01, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 1.0)):
        inside = [(value, right) for value, right in hits if low <= value < high]
        expected = sum(value for value, _ in inside)
        sigma = sum(value * (1 - value) for value, _ in inside) ** 0.5
        assert len(inside) > 20 and abs(sum(right for _, right in inside) - expected) < 3 * sigma + 0.02 * len(inside)


@pytest.mark.parametrize(("family", "setting"), [("llama", name) for name in SETTINGS] + [("qwen3", "greedy"), ("gemma3_text", "plain")])
def test_the_text_is_that_of_plain_decoding(family: str, setting: str) -> None:
    model = tiny_model(family)
    drafter = RecurrentDrafter(network(seed=3), embedding_of(model))
    drafter.worth = drafter.stop = 0.0
    shapes: list[dict[str, Any]] = [{}, {"draft_tokens": 2, "rows": 3}, {"width": 1}, {"accept": "ratio"}]
    for seed, limits in enumerate(shapes):
        expected = text(steps_of(NoDrafter(), model, SETTINGS[setting], seed))
        assert text(steps_of(drafter, model, SETTINGS[setting], seed, **limits)) == expected


def test_a_target_that_takes_chains_is_given_chains() -> None:
    model = tiny_model()
    sequence = TokenSequence(Target(model))
    sequence.target.shape = "chain"
    drafter = RecurrentDrafter(network(), embedding_of(model))
    drafter.worth = drafter.stop = 0.0
    sampler = Sampler(VOCAB, temperature=0.8, seed=1)
    steps = [s for s in decode(sequence, drafter, POLICIES["coupled"], sampler, [1, 2], Limits(20)) if isinstance(s, Step)]
    assert all(step.proposal.is_chain for step in steps if step.proposal is not None)
    assert any(len(step.proposal) == drafter.depth for step in steps if step.proposal is not None)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_context_is_the_targets_last_hidden_state(family: str) -> None:
    """After random trees and random accepted paths it equals that of reading the whole text anew."""
    model = tiny_model(family)
    sequence, again = TokenSequence(Target(model)), TokenSequence(Target(tiny_model(family)))
    drafter = RecurrentDrafter(network(), embedding_of(model))
    rng = np.random.default_rng(7)
    said = [5, 6, 7, 8]
    rows = result(sequence.read(said, drafter.taps))
    drafter.begin(said, rows.hidden, 0)
    token = 9
    for _ in range(12):
        assert mx.abs(drafter.hidden - result(again.read(said, ("last",))).hidden["last"][-1]).max().item() < 1e-4
        tree: list[tuple[int, int]] = []
        while len(tree) < rng.integers(1, 9):
            node = (int(rng.integers(VOCAB)), int(rng.integers(-1, len(tree))))
            tree += [node] * (node not in tree)
        proposal = Proposal(tuple(t for t, _ in tree), tuple(p for _, p in tree))
        rows = result(sequence.run(token, proposal, drafter.taps, context_of({})))
        mx.eval(rows.logits)
        path = proposal.path_to(int(rng.integers(-1, len(proposal))))
        sequence.keep(path)
        said += [token, *(proposal.tokens[row] for row in path)]
        token = int(rng.integers(VOCAB))
        drafter.accept(path, token, rows.hidden)


def test_a_reply_in_an_engine() -> None:
    model = tiny_model()
    engine = tiny_engine(RecurrentDrafter(network(), embedding_of(model), "redrafter:tiny"), model)
    for temperature in (0.0, 0.8):
        replies = [e.generate("abc", max_tokens=40, temperature=temperature, seed=3) for e in (engine, engine.with_drafter("none"))]
        assert replies[0].text == replies[1].text and replies[0].tokens == replies[1].tokens
        assert replies[0].drafter == "redrafter:tiny"


def test_the_embedding_is_the_raw_table() -> None:
    for family in ("llama", "gemma3_text", "qwen3"):
        model = tiny_model(family)
        TokenSequence(Target(model))
        weight: Any = model.model.embed_tokens.weight
        assert mx.array_equal(embedding_of(model)(mx.array([4, 9])), weight[mx.array([4, 9])])
    coarse = nn.Sequential(nn.QuantizedEmbedding.from_embedding(model.model.embed_tokens, 32, 8))
    assert mx.abs(embedding_of(coarse)(mx.array([4, 9])) - weight[mx.array([4, 9])]).max().item() < 0.1

    class Scaled(nn.Embedding):
        def __call__(self, x: mx.array) -> mx.array:
            return 5 * self.weight[x]

    model = nn.Sequential(Scaled(10, 4))
    assert mx.array_equal(embedding_of(model)(mx.array([3])), model.layers[0].weight[3:4])
    for tables in (0, 2):
        with pytest.raises(DrafterError, match=f"{tables} embedding tables"):
            embedding_of(nn.Sequential(*(nn.Embedding(4, 4) for _ in range(tables))))


def test_a_folder_becomes_a_drafter(tmp_path: Path) -> None:
    """Half precision and a quantised head are read; on the CPU both compute in float32."""
    result = network(exit_dim=64)
    result.set_dtype(mx.float16)
    result.quantise(Quantization(8, 64))
    save(tmp_path, result)
    model = tiny_model()
    drafter = RecurrentDrafter.load(tmp_path, model, VOCAB, "redrafter:x")
    assert drafter.name == "redrafter:x" and drafter.network.rnn_w.weight.dtype == mx.float32
    assert drafter.network.d2t is not None and drafter.network.d2t.tolist() == TRIMMED
    assert isinstance(drafter.network.lm_head[-1], nn.Linear)
    drafter.begin([1], {"last": mx.ones((1, HIDDEN))}, 0)
    drafter.worth = 0.0
    assert len(drafter.propose(7, 3, context_of({})))


def test_a_drafter_for_another_target_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "d", network())
    with pytest.raises(DrafterError, match=r"^redrafter was trained for a target of hidden size 32 and this one has 48: pass --drafter lookup"):
        RecurrentDrafter.load(tmp_path / "d", tiny_model(hidden_size=48), VOCAB)
    with pytest.raises(DrafterError, match=r"^redrafter was trained for a target of 258 tokens and this one has 300: pass --drafter lookup"):
        RecurrentDrafter.load(tmp_path / "d", tiny_model(vocab_size=300), 300)
    with pytest.raises(DrafterError, match=r"holds no ReDrafter: it has no config.json"):
        RecurrentDrafter.load(tmp_path / "nothing", tiny_model(), VOCAB)
    (tmp_path / "d" / "model.safetensors").write_bytes(b"")
    with pytest.raises(DrafterError, match="damaged or cut short"):
        RecurrentDrafter.load(tmp_path / "d", tiny_model(), VOCAB)


def test_a_trimmed_vocabulary_crosses_threads() -> None:
    """Made in one thread and read in another, as a chat on a screen or a speaking voice does: MLX arrays must be evaluated for that."""
    network = ReDrafter(ReDrafterArgs(16, 100, 32, 1, True, 40), d2t=range(60, 100))
    vocabulary = module.Vocabulary(network, 90)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: vocabulary.gather(mx.array(list(range(90)))).tolist()).result() == list(range(60, 90))
