"""A tree in one forward is each path by itself, and a kept cache is a recomputed one: on nine families, within and past the window."""

import io
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ConcatenateKVCache, RotatingKVCache

from mlxspec.core.cache import WindowCache, keep_rows, make_cache
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Rows, Target, result
from mlxspec.errors import DrafterError, ModelError, RollbackError
from tests.tiny import FAMILIES, RECURRENT, SLIDING, VOCAB, MarkovModel, tiny_fused_rope, tiny_model

CONTEXT = Sampler(VOCAB).at([0])


def read(sequence: TokenSequence, prompt: Sequence[int], taps: Sequence[str] = ()) -> Rows:
    rows: Rows = result(sequence.read(prompt, taps))
    return rows


def random_tree(rng: np.random.Generator, rows: int) -> Proposal:
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < rows:
        parent = int(rng.integers(-1, len(tokens))) if rng.random() < 0.5 else len(tokens) - 1
        token = int(rng.integers(0, VOCAB))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
    return Proposal(tuple(tokens), tuple(parents))


def difference(one: mx.array, other: mx.array) -> float:
    return float(mx.abs(one - other).max().item())


@pytest.mark.parametrize("family", FAMILIES)
def test_probe_finds_trees(family: str) -> None:
    sequence = TokenSequence(Target(tiny_model(family)))
    sequence.target.probe()
    assert (sequence.target.shape, sequence.target.reason) == ("tree", None)
    assert sequence.target.vocab_size == VOCAB


@pytest.mark.parametrize("length", [3, 11, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_tree_equals_path_by_path(family: str, length: int) -> None:
    """Prompts before, at and past the window of 12."""
    rng = np.random.default_rng(length)
    model = tiny_model(family)
    prompt = [int(t) for t in rng.integers(0, VOCAB, length)]
    tree = random_tree(rng, 9)
    sequence = TokenSequence(Target(model))
    read(sequence, prompt)
    together = result(sequence.run(5, tree, (), CONTEXT)).logits
    for row in range(-1, len(tree)):
        alone = TokenSequence(Target(model))
        read(alone, prompt)
        chain = Proposal.chain([tree.tokens[i] for i in tree.path_to(row)])
        logits = result(alone.run(5, chain, (), CONTEXT)).logits
        assert difference(together[row + 1], logits[-1]) < 2e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_cache_equals_recomputed_cache(family: str) -> None:
    """Many rounds of random trees and paths, far past the window; the taps too."""
    rng = np.random.default_rng(7)
    model = tiny_model(family)
    sequence = TokenSequence(Target(model, chunk=5))
    history = [int(t) for t in rng.integers(0, VOCAB, 7)]
    read(sequence, history)
    token = int(rng.integers(0, VOCAB))
    for turn in range(24):
        tree = random_tree(rng, int(rng.integers(0, 9)))
        result(sequence.run(token, tree, (), CONTEXT))
        path = tree.path_to(int(rng.integers(-1, len(tree))))
        sequence.keep(path)
        history += [token, *(tree.tokens[i] for i in path)]
        token = int(rng.integers(0, VOCAB))
        if turn % 6 == 5:
            fresh = TokenSequence(Target(model, chunk=64))
            read(fresh, history)
            got = result(sequence.run(token, Proposal(), ("last", "layer:0"), CONTEXT))
            expected = result(fresh.run(token, Proposal(), ("last", "layer:0"), CONTEXT))
            assert difference(got.logits, expected.logits) < 2e-4
            for tap in ("last", "layer:0"):
                assert difference(got.hidden[tap], expected.hidden[tap]) < 2e-4
            sequence.keep(())
            history.append(token)


@pytest.mark.parametrize("family", SLIDING)
def test_plain_steps_past_the_window_equal_mlx_lm(family: str) -> None:
    """Against mlx-lm's own rotating cache, token by token."""
    rng = np.random.default_rng(3)
    model = tiny_model(family)
    tokens = [int(t) for t in rng.integers(0, VOCAB, 50)]
    theirs = model.make_cache()
    expected = [model(mx.array([[t]]), cache=theirs)[0, -1] for t in tokens]
    sequence = TokenSequence(Target(tiny_model(family)))
    read(sequence, tokens[:1])
    for token, logits in zip(tokens[1:], expected[1:], strict=True):
        got = result(sequence.run(token, Proposal(), (), CONTEXT)).logits[0]
        sequence.keep(())
        assert difference(got, logits) < 2e-4


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_max_kv_size_keeps_the_first_four_and_the_last(family: str) -> None:
    """A limited cache gives what full attention over the allowed positions gives, in chunks, steps and trees alike."""
    rng = np.random.default_rng(4)
    limit, model = 16, tiny_model(family)
    sequence = TokenSequence(Target(model, max_kv_size=limit, chunk=9))
    history = [int(t) for t in rng.integers(0, VOCAB, 30)]
    read(sequence, history)
    other = TokenSequence(Target(model, max_kv_size=limit, chunk=64))
    read(other, history[:20])
    for token in history[20:]:
        result(other.run(token, Proposal(), (), CONTEXT))
        other.keep(())
    for turn in range(60):
        tree = random_tree(rng, 6)
        token = int(rng.integers(0, VOCAB))
        result(sequence.run(token, tree, (), CONTEXT))
        path = tree.path_to(int(rng.integers(-1, 6)))
        sequence.keep(path)
        for step in [token, *(tree.tokens[i] for i in path)]:
            result(other.run(step, Proposal(), (), CONTEXT))
            other.keep(())
        if turn % 10 == 9:
            got, expected = (result(t.run(1, Proposal(), (), CONTEXT)).logits for t in (sequence, other))
            sequence.keep(())
            other.keep(())
            assert difference(got, expected) < 2e-4
    if family == "llama":
        assert all(isinstance(layer, WindowCache) and layer.keep == 4 for layer in sequence.cache)
        theirs = [RotatingKVCache(max_size=limit, keep=4) for _ in model.layers]
        expected = [model(mx.array([[t]]), cache=theirs)[0, -1] for t in history][-1]
        single = TokenSequence(Target(model, max_kv_size=limit, chunk=1))
        assert difference(read(single, history).logits[0], expected) < 2e-4


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_cache_keeps_rows_as_they_are(bits: int) -> None:
    """Rows are moved, never quantised again: bit for bit what a chain of the same rows leaves."""
    rng = np.random.default_rng(6)
    model = tiny_model("llama", head_dim=64)
    sequence, other = TokenSequence(Target(model, kv_bits=bits)), TokenSequence(Target(model, kv_bits=bits))
    prompt = [int(t) for t in rng.integers(0, VOCAB, 9)]
    read(sequence, prompt)
    read(other, prompt)
    tree = random_tree(rng, 8)
    path = tree.path_to(7)
    result(sequence.run(3, tree, (), CONTEXT))
    before = [mx.array(part) for part in sequence.cache[0].keys]
    sequence.keep(path)
    size = 10 + len(path)
    for part, old in zip(sequence.cache[0].keys, before, strict=True):
        kept = mx.array([9, *(10 + i for i in path)])
        assert mx.array_equal(part[..., 9:size, :], old[..., kept, :])
    result(other.run(3, Proposal.chain([tree.tokens[i] for i in path]), (), CONTEXT))
    other.keep(range(len(path)))
    got, expected = (result(t.run(1, Proposal(), (), CONTEXT)).logits for t in (sequence, other))
    assert difference(got, expected) < 0.5 * float(mx.abs(expected).mean().item())


def test_memory_of_a_window_is_flat() -> None:
    """1,500 rounds of 5 rows: the buffer never grows beyond window, spare rows, one growth step and a round."""
    cache = WindowCache(max_size=32)
    rng = np.random.default_rng(0)
    for _ in range(1500):
        rows = int(rng.integers(1, 6))
        cache.update_and_fetch(mx.zeros((1, 1, rows, 4)), mx.zeros((1, 1, rows, 4)))
        cache.keep_rows(rows, range(int(rng.integers(0, rows)) + 1))
        assert cache.keys is not None and cache.keys.shape[2] <= 32 + cache.spare + 2 * cache.step + 5


def test_a_window_says_when_it_cannot_drop() -> None:
    cache = WindowCache(max_size=8)
    for _ in range(600):
        cache.update_and_fetch(mx.zeros((1, 1, 1, 4)), mx.zeros((1, 1, 1, 4)))
    with pytest.raises(RollbackError, match="window of 8"):
        cache.trim(590)


def test_caches_that_cannot_rewind_are_found_at_load() -> None:
    """An unknown kind of cache takes no drafts, with the reason, before the first request."""

    class Stubborn(ConcatenateKVCache):  # type: ignore[misc]
        def is_trimmable(self) -> bool:
            return False

    model = tiny_model()
    model.make_cache = lambda: [Stubborn() for _ in model.layers]
    sequence = TokenSequence(Target(model))
    sequence.target.probe()
    assert sequence.target.shape == "none"
    assert sequence.target.reason is not None and "Stubborn cannot drop" in sequence.target.reason
    with pytest.raises(DrafterError, match="takes no drafts"):
        sequence.target.admit(Proposal.chain([1]), 4, VOCAB)


@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_layers_rewind(family: str) -> None:
    """Rounds of random chains and cuts: logits as if the rejected rows had never been read, for pure, hybrid and mixed-in-one-layer models."""
    rng = np.random.default_rng(11)
    model = tiny_model(family, scale=2.0)
    sequence = TokenSequence(Target(model, chunk=6))
    sequence.target.probe()
    assert sequence.target.shape == "chain"
    assert sequence.target.reason == "tree: A recurrent layer reads rows in a chain: it cannot verify a tree."
    history = [int(t) for t in rng.integers(0, VOCAB, 9)]
    read(sequence, history)
    token = int(rng.integers(0, VOCAB))
    for turn in range(18):
        chain = Proposal.chain([int(t) for t in rng.integers(0, VOCAB, int(rng.integers(0, 7)))])
        result(sequence.run(token, chain, (), CONTEXT))
        kept = int(rng.integers(0, len(chain) + 1))
        sequence.keep(range(kept))
        history += [token, *chain.tokens[:kept]]
        token = int(rng.integers(0, VOCAB))
        if turn % 6 == 5:
            fresh = TokenSequence(Target(model, chunk=64))
            read(fresh, history)
            got, expected = (result(t.run(token, Proposal(), (), CONTEXT)).logits for t in (sequence, fresh))
            assert difference(got, expected) < 2e-4
            sequence.keep(())
            history.append(token)


@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_layers_go_back_over_several_forwards(family: str) -> None:
    """Into the middle of an earlier forward of several rows, as a small drafter's cache must."""
    model = tiny_model(family, scale=2.0)
    for drop in range(1, 8):
        cache = make_cache(model, forwards=64)
        for part in ([1, 2], [3, 4, 5], [6, 7, 8]):
            mx.eval(model(mx.array([part]), cache=cache))
        keep_rows(cache, drop, ())
        got = model(mx.array([[9]]), cache=cache)
        fresh = make_cache(model, forwards=64)
        expected = model(mx.array([[*range(1, 9 - drop), 9]]), cache=fresh)
        assert difference(got[0, -1], expected[0, -1]) < 2e-4


def test_a_recurrent_layer_says_when_it_cannot_go_back() -> None:
    sequence = TokenSequence(Target(tiny_model("mamba", scale=2.0)))
    read(sequence, [1, 2, 3])
    result(sequence.run(4, Proposal.chain([5, 6]), (), CONTEXT))
    sequence.keep((0, 1))
    with pytest.raises(RollbackError, match="rows back"):
        keep_rows(sequence.cache, 9, ())


def test_a_model_whose_rope_is_out_of_reach_verifies_chains() -> None:
    sequence = TokenSequence(Target(tiny_fused_rope()))
    sequence.target.probe()
    assert sequence.target.shape == "chain"
    assert sequence.target.reason is not None and sequence.target.reason.startswith("tree: ")
    assert sequence.target.admit(Proposal.chain([1, 3, 4]), 4, VOCAB) == Proposal.chain([1, 3, 4])
    with pytest.raises(DrafterError, match="chains only"):
        sequence.target.admit(Proposal((1, 2, 3, 4), (-1, -1, 0, 2)), 4, VOCAB)


def test_an_unknown_tap_is_named() -> None:
    sequence = TokenSequence(Target(tiny_model()))
    with pytest.raises(DrafterError, match="layer:9"):
        read(sequence, [1, 2], ("layer:9",))


def test_weights_and_their_names_are_untouched() -> None:
    from mlx.utils import tree_flatten

    model = tiny_model()
    before = [name for name, _ in tree_flatten(model.parameters())]
    TokenSequence(Target(model))
    assert [name for name, _ in tree_flatten(model.parameters())] == before
    assert type(model.layers[0].self_attn).__name__ == "Attention"


def test_each_forward_of_the_probe_is_evaluated_before_the_next() -> None:
    """A model in several processes sends within its forward: with two of them open the messages cross. This one says so."""
    model = tiny_model()
    plain = type(model).__call__
    last: list[mx.array] = []

    def unevaluated(x: mx.array) -> bool:
        graph = io.StringIO()
        mx.export_to_dot(graph, x)
        return "->" in graph.getvalue()

    class Pipelined(type(model)):  # type: ignore[misc]
        def __call__(self, *args: object, **kwargs: object) -> mx.array:
            if last and unevaluated(last[-1]):
                raise RuntimeError("two forwards are open")
            last.append(plain(self, *args, **kwargs))
            return last[-1]

    target = Target(model)
    model.__class__ = Pipelined
    target.probe()
    assert (target.shape, target.reason) == ("tree", None)
    assert len(last) > 6


@pytest.mark.parametrize(("dtype", "remedy"), [(mx.float16, "--dtype float32 or bfloat16"), (mx.float32, "Fetch it again")])
def test_the_probe_refuses_logits_that_are_no_numbers(dtype: mx.Dtype, remedy: str) -> None:
    """One damaged number in one matrix is enough."""
    model = tiny_model()
    model.set_dtype(dtype)
    model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")
    with pytest.raises(ModelError, match=remedy) as caught:
        Target(model).probe()
    assert str(dtype).rpartition(".")[2] in str(caught.value)


def test_logits_of_minus_infinity_are_no_damage() -> None:
    """A model may bar tokens for good."""
    table = np.zeros((6, 6))
    table[:, 2] = -np.inf
    target = Target(MarkovModel(table))
    target.probe()
    assert target.probed
