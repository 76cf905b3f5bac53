"""Adaptive drafting: the same text, rows by cost, a pause where drafting loses, drafters in step whoever was asked."""

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mlxspec.core.accept import POLICIES
from mlxspec.core.cache import keep_rows
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Request, Target
from mlxspec.drafters.adaptive import MEMORY, AdaptiveDrafter, Member, cut, merged
from mlxspec.drafters.cost import ROWS, CostCurve, measure, measured, save
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import UsageError
from tests.tiny import VOCAB, tiny_engine, tiny_model

PROMPT = [10, 20, 30, 10, 20, 40, 10, 20, 30, 10]


class Noise(Drafter):
    """Proposes what it likes, with confidence."""

    name = "noise"

    def __init__(self, clock: "Clock | None" = None) -> None:
        self.rng = random.Random(1)
        self.calls = 0
        self.clock = clock

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        self.calls += limit > 0
        if self.clock is not None:
            self.clock.now += 0.004 * limit
        return Proposal.chain([self.rng.randrange(VOCAB) for _ in range(min(limit, 4))])


class Clock:
    """Time that passes as the cost curve says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedSequence(TokenSequence):
    clock = Clock()

    def run(self, token: int, proposal: Proposal, taps: Sequence[str], context: Context) -> Any:
        self.clock.now += CostCurve.flat().seconds(1 + len(proposal), 0)
        return super().run(token, proposal, taps, context)


def run(sequence: TokenSequence, drafter: Any, tokens: int, **setting: Any) -> tuple[list[int], list[Step]]:
    loop = decode(sequence, drafter, POLICIES["coupled"], Sampler(VOCAB, **setting), PROMPT, Limits(max_tokens=tokens))
    steps = [event for event in loop if isinstance(event, Step)]
    return [t for step in steps for t in step.tokens], steps


@pytest.mark.parametrize("setting", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 5}], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "qwen3_next", "mamba2", "falcon_h1"])
def test_several_drafters_say_what_plain_decoding_says(family: str, setting: dict[str, Any]) -> None:
    """Whoever is asked in a round, and however its rows are cut."""
    sequence = TimedSequence(Target(tiny_model(family)))
    sequence.target.probe()
    plain, _ = run(sequence, NoDrafter(), 60, **setting)
    members = [LookupDrafter(), SmallDrafter(tiny_model(family))]
    text, steps = run(sequence, AdaptiveDrafter(members, CostCurve.flat(), TimedSequence.clock), 60, **setting)
    assert text == plain
    assert sum(len(step.path) for step in steps) > 20
    assert {step.drafter for step in steps[1:]} <= {"lookup", "small", "lookup+small"}


def test_every_member_stays_in_step() -> None:
    """After any mixture of rounds each member proposes what a fresh one on the same history would."""
    sequence = TokenSequence(Target(tiny_model()))
    small = SmallDrafter(tiny_model(seed=3))
    adaptive = AdaptiveDrafter([LookupDrafter(), small], CostCurve.flat())
    text, _ = run(sequence, adaptive, 50, temperature=0.8, seed=2)
    fresh = SmallDrafter(tiny_model(seed=3))
    fresh.begin([*PROMPT, *text[:-1]], {}, 0)
    context = Sampler(VOCAB, temperature=0.8, seed=2).at([*PROMPT, *text])
    assert small.propose(text[-1], 4, context) == fresh.propose(text[-1], 4, context)


class Sure(Drafter):
    """Offers a chain with chances of its own, and takes some time for it."""

    def __init__(self, name: str, tokens: Sequence[int], values: Sequence[float], clock: Clock, seconds: float) -> None:
        self.name, self.tokens, self.values, self.clock, self.seconds = name, tokens, values, clock, seconds

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        if not limit:
            return Proposal()
        self.clock.now += self.seconds
        return replace(Proposal.chain(list(self.tokens)), values=tuple(self.values))


def test_the_best_offer_is_verified_whoever_was_asked_last() -> None:
    """What the last drafter took is spent: where its offer promises less, the other one is verified; where nobody offers, the loss is its.

    Rows are dear here, so that the two are not verified together.
    """
    clock, context = Clock(), Sampler(VOCAB).at([0])
    dear = CostCurve((1, 3, 4, 5), [0.02, 0.021, 0.06, 0.06], [0.0] * 4)
    for weak, strong, chosen in ((0.5, 0.2, "first"), (0.5, 0.9, "last"), (0.0, 0.0, "last")):
        first = Sure("first", [1, 2], [weak, 0.5 * weak], clock, 0.0)
        last = Sure("last", [3, 4], [strong, 0.5 * strong], clock, 0.002)
        adaptive = AdaptiveDrafter([first, last], dear, clock)
        adaptive.members[1].emitted, adaptive.members[1].seconds = 3.0, 0.02  # a record for which it is asked
        proposal = adaptive.propose(0, 4, context)
        assert adaptive.spent == pytest.approx(0.002) and adaptive.name == chosen
        assert proposal.tokens == (((1, 2) if chosen == "first" else (3, 4)) if strong else ())


def test_two_offers_are_verified_as_one_tree_where_rows_are_cheap() -> None:
    """Each drafter learns from its own rows alone, whoever else had them; the round is told by both names."""
    clock, context = Clock(), Sampler(VOCAB).at([0])
    first, last = Sure("first", [1, 2], [0.5, 0.4], clock, 0.0), Sure("last", [1, 5], [0.6, 0.3], clock, 0.0)
    adaptive = AdaptiveDrafter([first, last], CostCurve.flat(), clock)
    proposal = adaptive.propose(0, 4, context)
    assert (proposal.tokens, proposal.parents, adaptive.name) == ((1, 2, 5), (-1, 0, 0), "first+last")
    assert proposal.values == pytest.approx((0.6, 0.4 * 0.6 / 0.7, 0.3 * 0.6 / 0.7))  # 0.4 and 0.3 cannot both be below 0.6
    clock.now += 0.02
    adaptive.accept((0, 1), 9, {})
    one, two = adaptive.members
    assert one.survival[:2] == pytest.approx([0.7 + MEMORY * 0.3, 0.49 + MEMORY * 0.51])
    assert two.survival[:2] == pytest.approx([0.7 + MEMORY * 0.3, 0.49 * (1 - MEMORY)])
    assert (one.hoped, one.got) == pytest.approx((1 - 0.02 * 0.1, 1 + 0.02)) and (two.hoped, two.got) == pytest.approx((1 - 0.02 * 0.1, 1.0))
    assert one.emitted == two.emitted == 3


def test_a_merged_tree_is_a_tree_of_both() -> None:
    """Property: on random trees every prefix is there once, parents come first, and siblings have no more chance together than their parent."""
    rng = random.Random(3)
    for _ in range(300):
        offers = []
        for _ in range(rng.choice((1, 2, 3))):
            tokens, parents, values, seen = list[int](), list[int](), list[float](), set[tuple[int, int]]()
            for _ in range(rng.randrange(10)):
                parent, token = rng.randrange(-1, len(tokens)), rng.randrange(4)
                if (parent, token) not in seen:
                    seen.add((parent, token))
                    tokens.append(token)
                    parents.append(parent)
                    values.append(rng.random() * (values[parent] if parent >= 0 else 1.0))
            offers.append((Proposal(tuple(tokens), tuple(parents)), values))
        tree = merged(offers)
        tree.check(4)
        paths = {tuple(tree.tokens[row] for row in tree.path_to(i)) for i in range(len(tree))}
        wanted = {tuple(offer.tokens[row] for row in offer.path_to(i)) for offer, _ in offers for i in range(len(offer))}
        assert paths == wanted and len(tree) == len(wanted)
        values = [*(tree.values or ()), 1.0]
        for row in range(-1, len(tree)):
            below = [values[i] for i in range(len(tree)) if tree.parents[i] == row]
            assert sum(below) <= values[row] + 1e-9


def test_noise_is_paused_within_twelve_rounds_and_tried_again() -> None:
    """On a clock that runs by the cost curve: 256 tokens take at most a twentieth longer than plain decoding."""
    sequence = TimedSequence(Target(tiny_model()))
    sequence.clock = clock = Clock()
    noise = Noise(clock)
    adaptive = AdaptiveDrafter([noise], CostCurve.flat(), clock)
    text, steps = run(sequence, adaptive, 257)
    assert text == run(TokenSequence(Target(tiny_model())), NoDrafter(), 257)[0]
    drafted = [i for i, step in enumerate(steps[1:], 1) if step.proposal]
    assert drafted[0] == 1 and not [i for i in drafted if 12 <= i < 24]
    assert clock.now <= 256 * 0.02 / 0.95
    assert adaptive.state == "paused"
    assert adaptive.reason is not None and "slower than plain" in adaptive.reason
    assert 6 <= noise.calls <= 20


def test_rows_follow_the_cost() -> None:
    """The same chances on a machine where rows are nearly free, and on one where eight cost as eight."""
    offer = Proposal((1, 2, 3, 4, 5), (-1, 0, 1, -1, 3), values=(0.8, 0.6, 0.4, 0.15, 0.05))
    context = Sampler(VOCAB).at([0])
    rows = range(1, 9)
    cheap = CostCurve(rows, [1 + 0.01 * r for r in rows], [0.0] * 8)
    dear = CostCurve(rows, [float(r) for r in rows], [0.0] * 8)
    cliff = CostCurve(rows, [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0], [0.0] * 8)
    member = Member(LookupDrafter())
    assert len(cut(offer, member.believed(offer), 1.0, cheap, context)[0]) == 5
    assert len(cut(offer, member.believed(offer), 1.0, dear, context)[0]) == 0
    assert cut(offer, member.believed(offer), 1.0, cliff, context)[0] == Proposal((1, 2, 3), (-1, 0, 1), values=(0.8, 0.6, 0.4))


def test_sampled_rows_are_never_cut() -> None:
    """Under ratio, dropping a token for its own probability would bend the law."""
    offer = Proposal.chain((1, 2), [None, None])
    dear = CostCurve((1, 2, 3), [1.0, 50.0, 90.0], [0.0] * 3)
    assert cut(offer, (0.7, 0.5), 1.0, dear, Sampler(VOCAB).at([0]))[0] is offer


def test_depth_follows_what_was_accepted() -> None:
    member = Member(SmallDrafter(tiny_model()))
    member.step = 0.1
    curve = CostCurve(range(1, 9), [1 + 0.05 * r for r in range(8)], [0.0] * 8)
    for _ in range(80):
        member.learn(Proposal.chain((1, 2, 3, 4)), (0, 1, 2, 3), 1.0)
    assert member.reach(8, 1.0, curve, 0) == 4
    for _ in range(80):
        member.learn(Proposal.chain((1, 2, 3, 4)), (), 1.0)
    assert member.reach(8, 1.0, curve, 0) == 1


def test_a_drafter_with_a_poor_record_is_asked_again() -> None:
    """At once, after two rounds, then every fourth; a record that promises more than the rest ends the waiting."""
    member = Member(SmallDrafter(tiny_model()))
    curve = CostCurve.flat()
    plain = curve.seconds(1, 0)
    member.learn(Proposal.chain((1, 2)), (), 2 * plain)
    asked = [turn for turn in range(100) if not member.passed_over(0.0, 1 / plain, curve, 0)]
    assert asked == [0, *range(2, 100, 4)]
    for _ in range(60):
        member.learn(Proposal.chain((1, 2)), (0, 1), 1.5 * plain)
    assert [member.passed_over(0.0, 1 / plain, curve, 0) for _ in range(3)] == [False] * 3 and member.patience == 1


def test_another_text_is_another_chance() -> None:
    """A drafter that was asked every fourth round by the end of a reply it was bad at is asked in the first round of the next one."""
    curve = CostCurve.flat()
    plain = curve.seconds(1, 0)
    adaptive = AdaptiveDrafter([LookupDrafter(), Noise()], curve)
    member = adaptive.members[1]
    member.learn(Proposal.chain((1, 2)), (), 2 * plain)
    assert [turn for turn in range(9) if not member.passed_over(0.0, 1 / plain, curve, 0)] == [0, 2, 6]
    adaptive.begin(PROMPT, {}, 0)
    assert [turn for turn in range(9) if not member.passed_over(0.0, 1 / plain, curve, 0)] == [0, 2, 6]


def test_options_choose_between_fixed_adaptive_and_none() -> None:
    engine = tiny_engine("lookup")
    text = "one two one two one two one two one"
    fixed = engine.generate(text, temperature=0, max_tokens=30, draft_tokens=3)
    assert fixed.stats["speculation"] == "on"
    assert max(fixed.stats["accepted_by_depth"], default=0) >= 0 and len(fixed.stats["accepted_by_depth"]) <= 3
    off = engine.generate(text, temperature=0, max_tokens=30, draft_tokens=0)
    assert (off.stats["drafted"], off.stats["speculation"], off.stats["reason"]) == (0, "off", "--draft-tokens 0")
    with pytest.raises(UsageError, match="exclude each other"):
        engine.generate(text, draft_tokens=0, require_spec=True)
    assert engine.generate(text, temperature=0, max_tokens=30).tokens == fixed.tokens


def test_cost_curve_between_and_beyond_what_was_measured() -> None:
    curve = CostCurve((1, 2, 4), [1.0, 1.2, 2.0], [0.0, 0.0, 0.01])
    assert [curve.seconds(r, 0) for r in (1, 2, 3, 4)] == pytest.approx([1.0, 1.2, 1.6, 2.0])
    assert curve.seconds(8, 0) == pytest.approx(4.0)
    assert curve.seconds(4, 100) == pytest.approx(3.0)


def test_live_rounds_move_the_curve_and_hiccups_do_not() -> None:
    curve = CostCurve((1, 2), [1.0, 2.0], [0.0, 0.0])
    for _ in range(60):
        curve.see(2, 0, 2.6)
    assert curve.seconds(2, 0) == pytest.approx(2.6, rel=0.01)
    assert 1.1 < curve.seconds(1, 0) < 1.25  # the whole machine is slower, as far as is known
    for _ in range(60):
        curve.see(1, 0, 1.0)
    assert curve.seconds(1, 0) == pytest.approx(1.0, rel=0.01)
    curve.see(1, 0, 50.0)
    assert curve.seconds(1, 0) < 1.15


def test_what_a_recurrent_target_reads_again_is_part_of_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows but the last are kept, so that its layers replay as many as they ever must; where nothing is replayed all are dropped."""
    kept: list[tuple[int, int]] = []

    def watched(cache: Any, rows: int, path: Sequence[int]) -> None:
        kept.append((rows, len(path)))
        keep_rows(cache, rows, path)

    monkeypatch.setattr("mlxspec.drafters.cost.keep_rows", watched)
    measure(Target(tiny_model("mamba2"), context_length=512), repeats=1)
    assert kept and all(length == rows - 1 for rows, length in kept)
    kept.clear()
    measure(Target(tiny_model("llama"), context_length=512), repeats=1)
    assert kept and all(length == 0 for _, length in kept)


def test_a_busy_machines_curve_is_not_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows that take longer than three single ones: used with care, measured again, and so is such a curve of before."""
    target, said = Target(tiny_model(), context_length=512), list[str]()
    busy = CostCurve((1, 2, 3), [0.1, 0.15, 1.1], [0.0] * 3)
    monkeypatch.setattr("mlxspec.drafters.cost.measure", lambda _: CostCurve(busy.rows, busy.base, busy.slope))
    curve = measured(target, "digest", said.append, tmp_path)
    assert curve.base == pytest.approx([0.1, 0.15, 0.3]) and curve.path is None and not list(tmp_path.glob("*.json")) and "busy" in said[-1]
    monkeypatch.setattr("mlxspec.drafters.cost.measure", lambda _: CostCurve((1, 2, 3), [0.1, 0.15, 0.16], [0.0] * 3))
    kept = measured(target, "digest", said.append, tmp_path).path
    assert kept is not None and measured(target, "digest", said.append, tmp_path).base == [0.1, 0.15, 0.16] and len(said) == 3
    save(busy, kept)
    assert measured(target, "digest", said.append, tmp_path).base == [0.1, 0.15, 0.16] and len(said) == 4


def test_a_curve_that_is_wrong_is_found_out_by_live_rounds() -> None:
    """Rows that are believed to cost twice as much are never worth it, so nobody would see that they are cheap: now and then they are tried."""
    believed = CostCurve((1, 2, 4), [1.0, 1.9, 3.6], [0.0] * 3)
    true = CostCurve((1, 2, 4), [1.0, 1.2, 1.4], [0.0] * 3)
    offer = Proposal((1, 2, 3), (-1, 0, 1), values=(0.7, 0.5, 0.3))
    context, member, sizes = Sampler(VOCAB).at([0]), Member(LookupDrafter()), list[int]()
    for _ in range(3000):
        rows = 1 + len(cut(offer, member.believed(offer), 1.0, believed, context)[0])
        believed.see(rows, 0, true.seconds(rows, 0))
        sizes.append(rows)
    assert set(sizes[:128]) == {1} and sizes[128] == 4
    assert sizes[:1000].count(4) > 500 and set(sizes[-500:]) == {4}
    assert believed.seconds(4, 0) == pytest.approx(1.4, rel=0.1)


def test_looks_at_rows_that_are_dear_cost_next_to_nothing() -> None:
    """On a curve that is right: one after 128 rounds, then half as often each time, however many sizes the offers have."""
    rows, costs = (1, 2, 3, 4, 6, 8), [1.0, 1.9, 2.8, 3.6, 5.4, 7.0]
    curve, true = CostCurve(rows, costs, [0.0] * 6), CostCurve(rows, costs, [0.0] * 6)
    context, member, sizes = Sampler(VOCAB).at([0]), Member(LookupDrafter()), list[int]()
    for i in range(4000):
        length = (1, 2, 3, 5, 7)[i % 5]
        offer = Proposal(tuple(range(length)), tuple(range(-1, length - 1)), values=tuple(0.6 * 0.7**row for row in range(length)))
        size = 1 + len(cut(offer, member.believed(offer), 1.0, curve, context)[0])
        curve.see(size, 0, true.seconds(size, 0))
        sizes.append(size)
    looks = [i for i, size in enumerate(sizes) if size > 1]
    assert looks[0] == 128 and len(looks) == 5  # 128, and after 256, 512, 1024 and 2048 more
    assert curve.base == pytest.approx(costs)


def test_a_slow_machines_curve_reaches_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is up after three sizes they are 1, 2 and 8."""
    monkeypatch.setattr("mlxspec.drafters.cost.BUDGET", 0.0)
    assert measure(Target(tiny_model(), context_length=512), repeats=1).rows == (1, 2, 8)


def test_the_curve_is_measured_once_and_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(tiny_model(), context_length=512)
    said: list[str] = []
    curve = measured(target, "digest", said.append, tmp_path)
    assert len(said) == 1 and all(t > 0 for t in curve.base)
    again = measured(target, "digest", said.append, tmp_path)
    assert len(said) == 1 and again.base == curve.base
    slower = 1.5 * again.seconds(2, 0)
    for _ in range(300):
        again.see(2, 0, slower)
    again.keep()
    taught = measured(target, "digest", said.append, tmp_path)
    assert len(said) == 1 and taught.base == again.base != curve.base and taught.pace == 1.0
    again.see(2, 0, 1.0)
    again.keep()  # one round more is not worth a file
    assert measured(target, "digest", said.append, tmp_path).base == taught.base != again.base
    next(tmp_path.glob("*.json")).write_text("{")
    measured(target, "digest", said.append, tmp_path)
    assert len(said) == 2
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # with other threads rows cost something else
    measured(target, "digest", said.append, tmp_path)
    assert len(said) == 3 and len(list(tmp_path.glob("*.json"))) == 2
    save(curve, tmp_path / "file.json" / "impossible" / "x.json")


def test_a_row_count_dearer_than_more_rows_stays_so_in_the_curve_and_a_hiccup_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own: 12 rows take longer than 16 on this machine, and the machine was held up while 8 and 4 were timed first."""
    target = Target(tiny_model("llama"), context_length=128)
    now, runs, true = [0.0], list[int](), {rows: 0.01 + 0.0005 * rows + 0.01 * (9 <= rows <= 12) for rows in ROWS}
    forward = target.forward

    def timed(requests: Sequence[Request]) -> Any:
        if requests[0].answers:
            rows = requests[0].tokens.size
            runs.append(rows)
            now[0] += true[rows] * (1.8 if rows in (4, 8) and runs.count(rows) < 5 else 1.0)
        return forward(requests)

    monkeypatch.setattr(target, "forward", timed)
    monkeypatch.setattr("mlxspec.drafters.cost.time", SimpleNamespace(perf_counter=lambda: now[0]))
    curve = measure(target)
    assert curve.rows == ROWS
    assert [curve.seconds(rows, 0) for rows in ROWS] == pytest.approx(list(true.values()), rel=1e-6)


def test_rows_are_added_where_more_of_them_cost_less() -> None:
    """A cliff at 16 rows: of 15 offered rows all are verified, though the last are unlikely, or few; never a number in between."""
    curve = CostCurve((1, 4, 8, 12, 16, 17), [1.0, 1.4, 1.5, 2.2, 1.4, 1.8], [0.0] * 6)
    chances = tuple(0.5 * 0.8**row for row in range(15))
    offer = Proposal(tuple(range(15)), (-1,) * 15, values=chances)
    context, member = Sampler(VOCAB).at([0]), Member(LookupDrafter())
    assert len(cut(offer, member.believed(offer), 1.0, curve, context)[0]) == 15
    dear = CostCurve((1, 4, 8, 12, 16, 17), [1.0, 1.4, 1.5, 2.2, 2.3, 2.4], [0.0] * 6)
    assert len(cut(offer, member.believed(offer), 1.0, dear, context)[0]) < 8


def test_live_rounds_tell_what_a_long_context_costs() -> None:
    """A slope that was measured in a bad moment is found out by rounds at short and at long contexts; the base stays what it was."""
    curve, rng = CostCurve((1, 2, 8), [1.0, 1.2, 1.5], [0.0004] * 3), random.Random(0)
    for _ in range(2000):
        context, rows = rng.randrange(1000), rng.choice((1, 8))
        curve.see(rows, context, (1.0 + 0.0001 * context) if rows == 1 else (1.5 + 0.0008 * context))
    for rows, context, seconds in ((1, 0, 1.0), (1, 900, 1.09), (8, 0, 1.5), (8, 900, 2.22)):
        assert curve.seconds(rows, context) == pytest.approx(seconds, rel=0.06)
