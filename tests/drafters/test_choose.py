"""A user's own drafter, well-formed or not, and which drafters a target takes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask

from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.drafters.choose import check_same_tokens
from mlxspec.drafters.small import SmallDrafter, dense
from mlxspec.errors import DrafterError, ModelError, UsageError
from mlxspec.llm.engine import Engine, load
from mlxspec.loading.load import load_model, runs_on_cpu
from mlxspec.loading.memory import needed
from mlxspec.settings.options import Options
from tests.tiny import VOCAB, save_folder, tiny_engine, tiny_model

PROMPT = "one two one two one two one"


# A user's own


class Own:
    """A user's drafter that does as it is told."""

    def __init__(self, propose: Callable[[int, int, Context], Any] | None = None) -> None:
        self.told = propose

    def propose(self, token: int, limit: int, context: Context) -> Any:
        return self.told(token, limit, context) if self.told and limit > 2 else Proposal()


UNIFORM = mx.ones(VOCAB) / VOCAB
MALFORMED: dict[str, Any] = {
    "parents out of order": Proposal((1, 2, 3), (-1, 2, 0)),
    "its own parent": Proposal((1,), (0,)),
    "duplicate children": Proposal((1, 1), (-1, -1)),
    "token too large": Proposal((VOCAB,), (-1,)),
    "token negative": Proposal((-1,), (-1,)),
    "no token": Proposal(("a",), (-1,)),
    "too deep": Proposal.chain([1] * 60),
    "a parent too few": Proposal((1, 2), (-1,)),
    "parents alone": Proposal((), (-1,)),
    "rest with tokens": Proposal((1,), (-1,), rest=True),
    "a list": [1, 2],
    "nothing": None,
    "too few distributions": Proposal.chain((1, 2), [UNIFORM]),
    "narrow distributions": Proposal.chain((1,), [mx.ones(5) / 5]),
    "wide distributions": Proposal.chain((1,), [mx.ones(VOCAB + 1) / VOCAB]),
    "distributions that are lists": Proposal.chain((1,), [[1.0] * VOCAB]),
    "a sampled tree": Proposal((1, 2), (-1, -1), [UNIFORM, UNIFORM]),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_proposals_are_one_line_and_leave_the_engine_usable(kind: str) -> None:
    own = Own(lambda token, limit, context: MALFORMED[kind])
    engine = tiny_engine(own)
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "seed": 2, "accept": "ratio"}
    expected = tiny_engine().generate(PROMPT, **options).tokens
    for _ in range(2):
        with pytest.raises(DrafterError) as caught:
            engine.generate(PROMPT, **options)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    own.told = None
    assert engine.generate(PROMPT, **options).tokens == expected
    assert engine.with_drafter("lookup").generate(PROMPT, **options).tokens == expected


def test_a_drafter_that_rests_in_words_only_is_found_out() -> None:
    turns = iter([Proposal(rest=True), Proposal.chain([1])])
    with pytest.raises(DrafterError, match="rest"):
        tiny_engine(Own(lambda *_: next(turns, Proposal()))).generate(PROMPT, max_tokens=9)


def test_padding_ids_may_not_be_proposed() -> None:
    engine = tiny_engine(Own(lambda *_: Proposal.chain((299,), [UNIFORM])), tiny_model(vocab_size=300))
    with pytest.raises(DrafterError, match="token 299"):
        engine.generate(PROMPT, max_tokens=8, accept="ratio")


def test_propose_alone_makes_a_drafter() -> None:
    engine = tiny_engine(Own(lambda token, limit, context: Proposal.chain([token, token])))
    assert (engine.drafter_name, engine.speculation) == ("Own", "on")
    done = engine.generate(PROMPT, max_tokens=12, temperature=0)
    assert done.stats["drafted"] > 5 and set(done.stats["drafters"]) == {"Own"}
    with pytest.raises(DrafterError, match="int is no drafter"):
        tiny_engine(5)


def test_a_class_or_a_senseless_depth_is_refused_before_the_first_round() -> None:
    with pytest.raises(DrafterError, match="Own"):
        tiny_engine(Own)
    own = Own()
    own.depth = "far"  # type: ignore[attr-defined]
    with pytest.raises(DrafterError, match="depth"):
        tiny_engine(own)


class Tapping:
    """Keeps what it is told, and proposes trees."""

    name, depth = "tapping", 3

    def __init__(self, *taps: str) -> None:
        self.taps = taps
        self.told: list[Any] = []

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        self.told = [(list(prompt), None, (), None, hidden)]
        assert reused == 0

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        self.token = token
        self.proposal = Proposal((3, 9, 4, 5), (-1, -1, 0, 0)) if limit > 1 else Proposal()
        return self.proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        self.told.append((self.token, self.proposal, path, token, hidden))


def hidden_by_hand(model: Any, tokens: Sequence[int]) -> dict[str, mx.array]:
    """The states of a tiny llama without a cache: after the final norm, and after each layer."""
    x = model.model.embed_tokens(mx.array([tokens]))
    mask = create_attention_mask(x, None)
    found = {}
    for i, layer in enumerate(model.layers):
        x = layer(x, mask, None)
        found[f"layer:{i}"] = x[0]
    return {**found, "last": model.model.norm(x)[0]}


def test_taps_bring_a_row_for_each_token_read() -> None:
    taps = ("last", "layer:0", "layer:1")
    own = Tapping(*taps)
    engine = tiny_engine(own)
    engine.target.chunk = 8  # the prompt comes in several chunks
    engine.generate(PROMPT, max_tokens=12, temperature=0)
    (prompt, _, _, _, hidden), *rounds = own.told
    expected = hidden_by_hand(engine.target.model, prompt)
    for tap in taps:
        assert hidden[tap].shape == (len(prompt), 32)
        assert mx.allclose(hidden[tap], expected[tap], atol=1e-3)
    history = list(prompt)
    assert len(rounds) > 4 and any(len(proposal) == 4 for _, proposal, _, _, _ in rounds)
    for token, proposal, path, _, hidden in rounds:
        history.append(token)
        for row in range(-1, len(proposal)):
            ancestors = [proposal.tokens[i] for i in proposal.path_to(row)]
            expected = hidden_by_hand(engine.target.model, [*history, *ancestors])
            for tap in taps:
                assert hidden[tap].shape == (1 + len(proposal), 32)
                assert mx.allclose(hidden[tap][row + 1], expected[tap][-1], atol=1e-3)
        history += [proposal.tokens[i] for i in path]


@pytest.mark.parametrize("tap", ["layer:2", "layer:-1", "first", ""])
def test_a_tap_that_is_not_there_is_named(tap: str) -> None:
    with pytest.raises(DrafterError, match=f"no hidden state '{tap}'"):
        tiny_engine(Tapping(tap)).generate(PROMPT, max_tokens=8)


# What a target takes


@pytest.mark.parametrize(
    ("wish", "part"),
    [
        ("lookpu", "meant lookup"),
        ("smal:x", "meant small"),
        ("Auto", "meant auto"),
        ("zzzz", "zzzz is unknown: give none"),
        ("small", "No small drafter comes with tiny"),
        ("small:", "No small drafter comes with tiny"),
    ],
)
def test_a_name_that_is_none_gets_the_nearest(wish: str, part: str) -> None:
    with pytest.raises(DrafterError if "small" in part and "meant" not in part else UsageError, match=part):
        tiny_engine(wish)


def test_kv_bits_that_do_not_fit_the_heads_are_one_line() -> None:
    with pytest.raises(ModelError, match="--kv-bits"):
        tiny_engine("none", kv_bits=4)  # heads of 8, where a group has 64


def test_speculation_that_is_off_says_why() -> None:
    engine = tiny_engine("none")
    assert (engine.speculation, engine.reason) == ("off", "--drafter none")
    with pytest.raises(DrafterError, match="--drafter none"):
        engine.stream(PROMPT, require_spec=True)
    assert engine.with_drafter("auto").generate(PROMPT, require_spec=True, max_tokens=3).drafter == "lookup"


def test_a_target_that_takes_no_drafts_is_plain_under_auto_and_refuses_names() -> None:
    engine = tiny_engine("none")
    engine.target.probed, engine.target.shape, engine.target.reason = True, "none", "it forgets"
    said: list[str] = []
    plain = Engine(engine.loaded, engine.sequence, "auto", engine.settings, said.append)
    assert (plain.drafter_name, plain.speculation) == ("none", "off") and "it forgets" in str(plain.reason) and "it forgets" in said[0]
    for wish in ("lookup", Own()):
        with pytest.raises(DrafterError, match=r"takes no drafts \(it forgets\)"):
            engine.with_drafter(wish)


def test_a_target_of_chains_gets_chains() -> None:
    engine = tiny_engine("none")
    engine.target.probed, engine.target.shape, engine.target.reason = True, "chain", "its own rope"
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0}
    expected = engine.generate(PROMPT, **options).tokens
    widths: list[int | None] = []

    def tree(token: int, limit: int, context: Context) -> Proposal:
        widths.append(context.width)
        return Proposal((1, 2), (-1, -1))

    with pytest.raises(DrafterError, match=r"chains only \(its own rope\)"):
        engine.with_drafter(Own(tree)).generate(PROMPT, **options)
    assert widths == [1]  # it was told
    lookup = engine.with_drafter("lookup").generate(PROMPT, draft_tokens=6, draft_width=3, **options)
    assert lookup.tokens == expected and lookup.stats["drafted"] > 0


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.0, "repetition_penalty": 1.6, "repetition_context_size": 5},
        {"temperature": 0.0, "logit_bias": {40: 9.0, 41: 8.0}},
        {"temperature": 1.2, "top_p": 0.9, "min_p": 0.02, "top_k": 30, "repetition_penalty": 1.3, "logit_bias": {40: 2.0}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "shape", [{}, {"draft_tokens": 0}, {"draft_tokens": 1}, {"draft_tokens": 9, "draft_width": 3}, {"draft_width": 4, "draft_rows": 7}], ids=str
)
def test_every_drafter_and_every_shape_gives_the_same_text(setting: dict[str, Any], shape: dict[str, int]) -> None:
    options: dict[str, Any] = {"max_tokens": 14, "seed": 6, **setting}
    plain = tiny_engine()
    expected = plain.generate(PROMPT, **options).tokens
    fair = tiny_model()
    fair.update({"model": {"norm": {"weight": fair.model.norm.weight * 1.3}}})  # often right, not always
    rounds = []
    for wish in ("lookup", SmallDrafter(fair), Own(lambda token, limit, context: Proposal((40, 41, 40), (-1, -1, 0)))):
        done = plain.with_drafter(wish).generate(PROMPT, **options, **shape)
        assert done.tokens == expected
        rounds.append(done.stats["rounds"])
    assert min(rounds) < 13 or shape.get("draft_tokens") == 0


@pytest.mark.parametrize(("ours", "theirs"), [(VOCAB, 320), (300, VOCAB), (300, 320)])
def test_padded_vocabularies_of_the_same_tokens_fit(tmp_path: Path, ours: int, theirs: int) -> None:
    folder = save_folder(tmp_path / "padded", seed=5)
    target = tiny_model(vocab_size=ours)
    if theirs != VOCAB:
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(tiny_model(seed=5, vocab_size=theirs).parameters())))
        config = folder / "config.json"
        config.write_text(config.read_text().replace(f'"vocab_size": {VOCAB}', f'"vocab_size": {theirs}'))
    engine = tiny_engine(f"small:{folder}", target)
    for options in ({"temperature": 0.0}, {"temperature": 1.5, "seed": 1}):
        done = engine.generate(PROMPT, max_tokens=16, draft_tokens=2, **options)  # fixed: a busy machine may find that drafting does not pay
        assert done.tokens == tiny_engine(model=target).generate(PROMPT, max_tokens=16, **options).tokens
        assert done.stats["drafted"] > 0
    assert max(engine.generate(PROMPT, max_tokens=40, temperature=3.0, seed=1, accept="ratio").tokens) < VOCAB


def test_another_tokenizer_is_refused_with_both_numbers(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "other", vocab_size=200)
    with pytest.raises(DrafterError, match=r"speaks 200 tokens and the target 258, \d+ of them differ"):
        tiny_engine(f"small:{folder}")


def test_the_texts_of_tokens_are_compared_and_not_their_number() -> None:
    class Vocabulary(dict[str, int]):
        def get_vocab(self) -> dict[str, int]:
            return self

    ours = Vocabulary(a=0, b=1, c=2)
    check_same_tokens(ours, Vocabulary(c=2, a=0, b=1), "same")
    with pytest.raises(DrafterError, match="swapped speaks 3 tokens and the target 3, 2 of them differ"):
        check_same_tokens(ours, Vocabulary(a=1, b=0, c=2), "swapped")


def test_a_target_that_drafts_for_itself_is_in_memory_once(tmp_path: Path) -> None:
    folder = str(save_folder(tmp_path / "one"))
    engine = load(folder, drafter=f"small:{folder}", say=lambda _: None)
    assert isinstance(engine.drafting.drafter, SmallDrafter) and engine.drafting.drafter.model is engine.target.model
    done = engine.generate(PROMPT, max_tokens=20, temperature=0.8, seed=3, draft_tokens=3)
    assert done.stats["accepted"] == done.stats["drafted"] > 0
    assert done.tokens == load(folder, drafter="none", say=lambda _: None).generate(PROMPT, max_tokens=20, temperature=0.8, seed=3).tokens


def test_a_quantised_drafter_runs_dense_where_its_kernels_gain_nothing(tmp_path: Path) -> None:
    """As mlx-lm would save it; on a GPU it stays as it is."""
    folder = save_folder(tmp_path / "small", hidden_size=64, intermediate_size=64)
    network = load_model(Options(model=str(folder)), lambda _: None).model
    nn.quantize(network, 32, 8)
    packed = network(mx.array([[1, 2, 3]]))
    loose = dense(network)
    kinds = {type(module) for module in loose.modules()}
    assert (nn.QuantizedLinear in kinds) != runs_on_cpu() and mx.abs(loose(mx.array([[1, 2, 3]])) - packed).max().item() < 1e-3


def test_a_drafter_is_held_against_the_memory_as_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times its size on disk does not fit where its size on disk does; nothing is said twice of one that is not packed."""
    folder = save_folder(tmp_path / "small")
    network = load_model(Options(model=str(folder)), lambda _: None).model
    monkeypatch.setattr("mlxspec.loading.memory.limit", lambda: 2 * needed(network, 512).total)
    engine = tiny_engine("none")
    engine.with_drafter(f"small:{folder}")
    monkeypatch.setattr("mlxspec.drafters.small.dense", lambda _: tiny_model("llama", hidden_size=256, intermediate_size=2048))
    with pytest.raises(ModelError, match="small, unpacked"):
        engine.with_drafter(f"small:{folder}")
