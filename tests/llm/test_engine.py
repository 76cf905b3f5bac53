"""Whole replies: options, prompts, ends, counts, interruptions, and which drafters a target takes."""

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxspec.core.events import Done, Prefill, Text
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import number
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import result
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.llm.engine import Engine, load
from tests.tiny import VOCAB, MarkovModel, byte_tokenizer, save_folder, tiny_engine, tiny_model

EOS = VOCAB - 2
PROMPT = "one two one two one two one"
SECONDS = {"prefill", "draft", "verify", "other", "decode"}
COUNTS = {"prompt_tokens", "rounds", "drafted", "accepted", "emitted", "tokens_per_round", "acceptance", "accepted_by_depth", "drafters", "seconds"}
STATS = COUNTS | {"tokens_per_second", "time_to_first_token", "peak_memory_bytes", "speculation", "reason"}
NO_PROMPTS: list[Any] = [
    "",
    "  \n\t",
    [],
    (),
    None,
    5,
    b"ab",
    [VOCAB],
    [-1],
    [1.5],
    [True],
    ["a"],
    [[1]],
    "x" * 600,
    {"role": "user", "content": "a"},
]
NO_MESSAGES: list[Any] = [[{"role": "user"}], [{"content": "a"}], [{"role": "user", "content": 5}], [{"role": "user", "content": "a"}, "b"]]


class Script:
    """A drafter that knows the answer: a chain of the right tokens, or a tree with a wrong child before each right one."""

    name, depth = "script", 6

    def __init__(self, answer: Sequence[int], tree: bool = False) -> None:
        self.answer, self.tree = tuple(answer), tree

    def begin(self, prompt: Sequence[int], hidden: Any, reused: int) -> None:
        self.at = 0  # of the pending token

    def propose(self, token: int, limit: int, context: Any) -> Proposal:
        right = self.answer[self.at + 1 : self.at + 1 + limit]
        self.rows = tuple(range(1, 2 * len(right), 2)) if self.tree else tuple(range(len(right)))
        if not self.tree:
            return Proposal.chain(right)
        tokens = [token for t in right for token in ((t + 1) % VOCAB, t)]
        return Proposal(tuple(tokens), tuple(max(row - row % 2 - 1, -1) for row in range(len(tokens))))

    def accept(self, path: Sequence[int], token: int, hidden: Any) -> None:
        assert tuple(path) == self.rows[: len(path)]
        self.at += len(path) + 1


@pytest.fixture(scope="module")
def plain() -> Engine:
    return tiny_engine()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("small") / "little", seed=5)


@pytest.fixture(scope="module")
def engines(plain: Engine, folder: Path) -> dict[str, Engine]:
    """One target with each drafter."""
    twin = SmallDrafter(tiny_model(), "twin")
    found = {name: plain.with_drafter(wish) for name, wish in (("lookup", "lookup"), ("small", f"small:{folder}"))}
    found |= {"none": plain, "twin": plain.with_drafter(twin)}
    return found


EACH = pytest.mark.parametrize("name", ["none", "lookup", "small", "twin"])


def cached(engine: Engine) -> set[int]:
    """Tokens in the cache, the same in every layer."""
    return {layer.offset for layer in engine.sequence.cache}


def chain_model(tokens: Sequence[int]) -> MarkovModel:
    """A target that says these (different) tokens one after another, in a ring."""
    table = np.zeros((VOCAB, VOCAB))
    for one, other in zip(tokens, [*tokens[1:], tokens[0]], strict=True):
        table[one, other] = 50
    return MarkovModel(table)


def test_load_reads_a_folder_and_says_what_it_chose(folder: Path) -> None:
    said: list[str] = []
    engine = load(str(folder), say=said.append)
    assert (engine.drafter_name, engine.speculation, engine.reason) == ("lookup", "on", None)
    assert any(str(folder) in line for line in said) and any("lookup" in line for line in said)
    assert (
        engine.generate(PROMPT, max_tokens=8, temperature=0).tokens
        == tiny_engine(model=tiny_model(seed=5)).generate(PROMPT, max_tokens=8, temperature=0).tokens
    )


# Prompts


@pytest.mark.parametrize("prompt", [*NO_PROMPTS, *NO_MESSAGES, [{"role": "user", "content": " "}]], ids=lambda prompt: repr(prompt)[:30])
def test_what_is_no_prompt_is_refused_in_one_line(plain: Engine, prompt: Any) -> None:
    with pytest.raises(UsageError) as caught:
        plain.stream(prompt)
    assert "\n" not in str(caught.value)


def test_prompt_tokens_stay_within_the_tokens_that_exist() -> None:
    padded = tiny_engine(model=tiny_model(vocab_size=300))
    assert padded.vocab_size == VOCAB
    with pytest.raises(UsageError, match=f"0 to {VOCAB - 1}"):
        padded.prompt_tokens([5, 299])  # a penalty on it would write beyond the logits


def test_a_prompt_may_fill_the_context_but_for_one_token() -> None:
    engine = tiny_engine(context=20)
    done = engine.generate([7] * 19, temperature=0)
    assert (len(done.tokens), done.finish_reason) == (1, "length")
    with pytest.raises(UsageError, match="20 tokens and tiny reads at most 20"):
        engine.stream([7] * 20)


def test_text_goes_through_the_chat_template(plain: Engine) -> None:
    encode = plain.tokenizer.encode
    assert plain.prompt_tokens("hi") == encode("hi:") == plain.prompt_tokens([{"role": "user", "content": "hi"}])
    several = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert plain.prompt_tokens(several) == encode("abc:")
    assert plain.prompt_tokens((1, 2, 3)) == [1, 2, 3]
    prefill = next(iter(plain.stream("hi", system_prompt="S.")))
    assert prefill == Prefill(0, len(encode("S.hi:")))


def test_a_template_takes_further_arguments_and_may_refuse() -> None:
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.chat_template = "{% if bad %}{{ raise_exception('no such role') }}{% endif %}{{ messages[0]['content'] }}{{ tail }}"
    engine = tiny_engine(tokenizer=tokenizer)
    assert [next(iter(engine.stream("ab", chat_template_config=c))) for c in (None, '{"tail": "xyz"}')] == [Prefill(0, 2), Prefill(0, 5)]
    with pytest.raises(UsageError, match="no such role"):
        engine.stream("ab", chat_template_config='{"bad": true}')


@pytest.mark.parametrize("config", ['{"tokenize": false}', '{"return_tensors": "np"}'])
def test_template_arguments_cannot_change_what_it_returns(plain: Engine, config: str) -> None:
    """Refused in one line, or without effect."""
    try:
        done = plain.generate("hi", chat_template_config=config, max_tokens=3, temperature=0)
    except UsageError as error:
        assert "chat-template-config" in str(error)
    else:
        assert done.tokens == plain.generate("hi", max_tokens=3, temperature=0).tokens


@pytest.mark.parametrize("template", [True, False])
def test_text_that_is_no_unicode_is_refused(template: bool) -> None:
    with pytest.raises(UsageError):
        tiny_engine(tokenizer=byte_tokenizer(template=template)).stream("a\ud800b")


def test_without_a_template_the_text_is_read_as_it_is() -> None:
    engine = tiny_engine(tokenizer=byte_tokenizer(template=False))
    assert engine.prompt_tokens("hi") == engine.tokenizer.encode("hi")
    assert next(iter(engine.stream("hi", system_prompt="S"))) == Prefill(0, len("S\n\nhi"))


# Ends


@EACH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_max_tokens_is_kept_to_the_token(engines: dict[str, Engine], name: str, temperature: float) -> None:
    tokens = [1, 2, 3, 1, 2]
    longest = engines["none"].generate(tokens, max_tokens=40, temperature=temperature, seed=2).tokens
    for count in (0, 1, 2, 3, 7, 40):
        done = engines[name].generate(tokens, max_tokens=count, temperature=temperature, seed=2)
        assert done.tokens == longest[:count]
        assert done.finish_reason == "length"
        assert cached(engines[name]) == {5 + count - 1} or count == 0


@EACH
def test_without_a_limit_the_context_ends_a_reply(engines: dict[str, Engine], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines[name].target, "context_length", 60)
    done = engines[name].generate([1, 2, 3, 1, 2], max_tokens=-1, temperature=1.0, seed=1)
    assert (len(done.tokens), done.finish_reason) == (55, "length")
    assert EOS not in done.tokens


@pytest.mark.parametrize("drafter", ["none", "chain", "tree", "small", "lookup"])
@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 8])
def test_a_stop_token_inside_an_accepted_run_ends_everything(drafter: str, stop_at: int) -> None:
    """The model would go on behind it, and the draft knows how: nothing of that is emitted, counted or cached."""
    answer = [*range(20, 20 + stop_at), EOS, *range(60, 70)]
    model = chain_model([5, *answer])
    prompt = [*answer, 5] if drafter == "lookup" else [5]
    wish = {"chain": Script(answer), "tree": Script(answer, tree=True), "small": SmallDrafter(chain_model([5, *answer]))}.get(drafter, drafter)
    engine = tiny_engine(wish, model)
    done = engine.generate(prompt, max_tokens=50, temperature=0)
    assert done.tokens == tuple(answer[: stop_at + 1])
    assert done.finish_reason == "stop"
    assert done.text == engine.tokenizer.decode(answer[:stop_at])
    assert cached(engine) == {len(prompt) + stop_at}
    stats = done.stats
    assert stats["emitted"] == stop_at == stats["accepted"] + stats["rounds"]
    if drafter in ("chain", "tree", "small") and stop_at > 1:
        assert stats["accepted"] > 0


def test_a_stop_token_at_once_is_the_whole_reply() -> None:
    done = tiny_engine("lookup", chain_model([5, EOS])).generate([5], temperature=0)
    assert (done.text, done.tokens, done.finish_reason, done.stats["rounds"]) == ("", (EOS,), "stop", 0)


@pytest.mark.parametrize("seed", range(3))
def test_stop_strings_end_every_drafters_text_at_the_same_token(engines: dict[str, Engine], seed: int) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": seed, "max_tokens": 30}
    whole = engines["none"].generate(PROMPT, **options)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        start, length = int(rng.integers(len(whole.text) - 4)), int(rng.integers(1, 5))
        stop = whole.text[start : start + length]
        replies = [engine.generate(PROMPT, stop=(stop, "never said"), **options) for engine in engines.values()]
        for done in replies:
            assert done.text == whole.text[: whole.text.index(stop)]
            assert done.finish_reason == "stop_string"
            assert done.tokens == replies[0].tokens == whole.tokens[: len(done.tokens)]
            assert done.stats["emitted"] + 1 == len(done.tokens) and done.stats["emitted"] == done.stats["accepted"] + done.stats["rounds"]


def test_a_stop_string_met_only_when_the_reply_ends_is_reported() -> None:
    byte = byte_tokenizer().encode("中")[0]  # the first of three bytes
    done = tiny_engine(model=chain_model([5, byte])).generate([5], max_tokens=1, temperature=0, stop="\ufffd")
    assert (done.text, done.finish_reason) == ("", "stop_string")


# Counts


@EACH
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "seed": 3, "accept": "ratio"}], ids=str
)
def test_the_counts_add_up(engines: dict[str, Engine], name: str, options: dict[str, Any]) -> None:
    events = list(engines[name].stream(PROMPT, max_tokens=50, draft_tokens=4, logit_bias={EOS: -math.inf}, **options))
    done = events[-1]
    assert isinstance(done, Done) and json.dumps(done.stats)
    stats = done.stats
    assert set(stats) >= STATS and set(stats["seconds"]) >= SECONDS
    texts = [event for event in events if isinstance(event, Text)]
    rounds = [event.step for event in texts if event.step and event.step.proposal is not None]
    assert "".join(event.text for event in texts) == done.text
    assert tuple(t for event in texts if event.step for t in event.step.tokens) == done.tokens
    assert stats["prompt_tokens"] == len(PROMPT) + 1
    assert stats["emitted"] + 1 == len(done.tokens) == 50
    assert stats["rounds"] == len(rounds) == stats["emitted"] - stats["accepted"]
    assert stats["drafted"] == sum(len(step.proposal or ()) for step in rounds)
    assert stats["accepted"] == sum(stats["accepted_by_depth"]) <= stats["drafted"]
    assert stats["accepted_by_depth"] == sorted(stats["accepted_by_depth"], reverse=True)
    assert stats["tokens_per_round"] == stats["emitted"] / stats["rounds"]
    assert stats["acceptance"] == (stats["accepted"] / stats["drafted"] if stats["drafted"] else 0)
    for key in ("rounds", "drafted", "accepted"):
        assert sum(one[key] for one in stats["drafters"].values()) == stats[key]
    seconds = stats["seconds"]
    assert 0 < seconds["draft"] + seconds["verify"] + seconds["other"] <= seconds["decode"]
    assert stats["tokens_per_second"] == stats["emitted"] / seconds["decode"] and stats["time_to_first_token"] > 0
    assert (stats["speculation"], stats["reason"] is None) == (("off", False) if name == "none" else ("on", True))
    if name == "none":
        assert stats["tokens_per_round"] == 1.0 and stats["drafted"] == 0
    if name == "twin":
        assert stats["accepted"] == stats["drafted"] > 30


# Interruptions and one reply after another


@EACH
def test_two_replies_after_one_another_equal_fresh_ones(engines: dict[str, Engine], name: str) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 25}
    first, second = (engines[name].generate(prompt, **options) for prompt in (PROMPT, "two one two"))
    assert second.tokens == tiny_engine().generate("two one two", **options).tokens
    assert first.tokens == tiny_engine().generate(PROMPT, **options).tokens == engines[name].generate(PROMPT, **options).tokens


@EACH
def test_cancelling_ends_within_a_round_with_what_there_is(engines: dict[str, Engine], name: str) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 60}
    whole = engines[name].generate(PROMPT, **options)
    cancel, seen = threading.Event(), list[Any]()
    for event in engines[name].stream(PROMPT, cancel=cancel, **options):
        seen.append(event)
        if sum(isinstance(one, Text) for one in seen) == 4:
            cancel.set()
    done = seen[-1]
    assert done.finish_reason == "interrupted"
    steps = [event.step for event in seen if isinstance(event, Text) and event.step]
    assert len(steps) == 4  # none after the flag was set
    assert done.tokens == tuple(t for step in steps for t in step.tokens) == whole.tokens[: len(done.tokens)]
    assert whole.text.startswith(done.text.rstrip("\ufffd")) and done.text
    assert done.stats["rounds"] == 3
    assert cached(engines[name]) == {len(PROMPT) + len(done.tokens)}  # with the template's colon; the last token is pending
    assert engines[name].generate(PROMPT, **options).tokens == whole.tokens


def test_cancelling_stops_between_chunks_of_a_long_prompt() -> None:
    engine = tiny_engine()
    engine.target.chunk = 16
    cancel, events = threading.Event(), list[Any]()
    for event in engine.stream("x" * 200, cancel=cancel):
        events.append(event)
        if event == Prefill(32, 201):
            cancel.set()
    assert events[:3] == [Prefill(0, 201), Prefill(16, 201), Prefill(32, 201)]
    (done,) = events[3:]
    assert (done.text, done.tokens, done.finish_reason, done.stats["time_to_first_token"]) == ("", (), "interrupted", None)


@EACH
def test_a_second_reply_ends_the_one_before_it(engines: dict[str, Engine], name: str) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 30}
    engine = engines[name]
    whole = engine.generate(PROMPT, **options)
    first = engine.stream(PROMPT, **options)
    begun = [next(first) for _ in range(6)]
    assert engine.generate("two one two", **options).tokens == tiny_engine().generate("two one two", **options).tokens
    (done,) = [event for event in first if isinstance(event, Done)]
    assert done.finish_reason == "interrupted"
    assert (
        done.tokens
        == tuple(t for event in begun if isinstance(event, Text) and event.step for t in event.step.tokens)
        == whole.tokens[: len(done.tokens)]
    )


@pytest.mark.parametrize("wish", ["lookup", "none"])
def test_another_drafter_may_be_made_while_a_reply_is_suspended(wish: str) -> None:
    engine = tiny_engine("none")
    whole = engine.generate(PROMPT, temperature=0, max_tokens=20)
    reply = engine.stream(PROMPT, temperature=0, max_tokens=20)
    for _ in range(6):
        next(reply)
    engine.with_drafter(wish)
    assert list(reply)[-1].tokens == whole.tokens


@EACH
def test_closing_a_reply_midway_leaves_the_model_usable(engines: dict[str, Engine], name: str) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 20}
    whole = engines[name].generate(PROMPT, **options).tokens
    for count in (1, 3, 5):
        reply: Any = engines[name].stream(PROMPT, **options)
        assert [next(reply) for _ in range(count)]
        reply.close()
    assert engines[name].generate(PROMPT, **options).tokens == whole


def test_a_reply_in_another_thread_is_told_apart() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Script):
        def propose(self, token: int, limit: int, context: Any) -> Proposal:
            entered.set()
            leave.wait(20)
            return super().propose(token, 0, context)

    engine = tiny_engine(Slow([]))
    thread = threading.Thread(target=lambda: engine.generate([1, 2], max_tokens=3))
    thread.start()
    try:
        assert entered.wait(20)
        with pytest.raises(MlxspecError, match="another thread"):
            engine.generate([1, 2], max_tokens=3)
    finally:
        leave.set()
        thread.join()
    assert engine.generate([1, 2], max_tokens=3, temperature=0).finish_reason == "length"


def test_seeds_are_fresh_and_reported_and_repeat_a_reply(plain: Engine) -> None:
    replies = [plain.generate(PROMPT, temperature=1.0, max_tokens=12) for _ in range(3)]
    assert len({done.seed for done in replies}) == len({done.tokens for done in replies}) == 3
    for done in replies:
        assert plain.generate(PROMPT, temperature=1.0, max_tokens=12, seed=done.seed).tokens == done.tokens
    assert plain.generate(PROMPT, max_tokens=1, seed=2**64 - 1).seed == 2**64 - 1


@pytest.mark.parametrize(("temperature", "options"), [(0.0, {}), (0.7, {}), (1.0, {"top_k": 40, "repetition_penalty": 1.3})])
def test_the_chances_of_a_tree_are_those_of_its_paths(plain: Engine, temperature: float, options: dict[str, Any]) -> None:
    """Each row by itself: the target reads the path above it, and its probability is multiplied in. The caches of a reply stay."""
    engine, tokens = plain, [1, 5, 9, 5, 9]
    proposal = Proposal((3, 9, 5, 7, 5), (-1, -1, 0, 2, 1))
    asked = {"temperature": temperature, **options}
    first = engine.generate(tokens, max_tokens=4, seed=1, **asked)
    found = engine.chances(tokens, proposal, **asked)
    assert found is not None
    settings = engine.checked(asked)
    for row in range(len(proposal)):
        expected, read = 1.0, list(tokens)
        for step in proposal.path_to(row):
            rows = result(TokenSequence(engine.target).read(read))
            scores = engine.sampler(settings, 0).at(read).scores(rows.logits[-1])
            expected *= number(mx.softmax(scores)[proposal.tokens[step]])
            read.append(proposal.tokens[step])
        assert found[row] == pytest.approx(expected, abs=1e-5)
    engine.generate(tokens, max_tokens=4, seed=1, **asked)
    engine.chances([1, 2, 3], proposal)
    again = list(engine.stream(tokens, max_tokens=4, seed=1, reuse=True, **asked))[-1]
    assert isinstance(again, Done) and again.tokens == first.tokens and again.stats["reused_tokens"] == len(tokens) - 1


def test_looking_can_be_given_up(plain: Engine) -> None:
    cancel = threading.Event()
    cancel.set()
    assert plain.chances([1, 2, 3], Proposal((4,), (-1,)), cancel=cancel) is None
