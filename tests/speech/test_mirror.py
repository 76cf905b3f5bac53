"""The two approximate rules: the hidden label has the target's law, nothing masked is emitted, and how far tokens stray is bounded and said.

12 tokens; groups overlap on tokens 0 to 8, the others stand alone, 11 ends. Laws are known, so a G-test compares counts with them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxspec.audio.codes.groups import Groups
from mlxspec.core.accept import ratio
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import NoDrafter
from mlxspec.core.events import Step as Round
from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.core.sampling import Context, Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.redrafter import RecurrentDrafter
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import DrafterError, UsageError
from mlxspec.models.redrafter import ReDrafter, ReDrafterArgs
from mlxspec.speech.labels import Labels, MirrorSampler
from mlxspec.speech.mirror import Labelled, Mirror, Pcg, Step
from tests.core.test_law import false_alarm
from tests.tiny import MarkovModel

V, END = 12, 11
GROUPS = Groups.of(V, [(0, [1, 2, 3]), (2, [3, 4, 5]), (3, [5, 6]), (6, [7]), (7, [8, 0]), (8, [1])])
LABELS = Labels(GROUPS)
ALONE = Labels(Groups.of(V, []))
HISTORY = [0, 5, 2, 10]
RNG = np.random.default_rng(5)
TARGET = RNG.normal(0, 1.0, (V, V))
DRAFT = TARGET + RNG.normal(0, 1.3, (V, V))
SETTINGS: dict[str, dict[str, Any]] = {"plain": {}, "top-p": {"top_p": 0.8}, "top-k": {"top_k": 6}}


def draw(rule: str, seed: int, limit: int = 2, labels: Labels = LABELS, width: int = 1, capped: float | None = None, **setting: Any) -> Any:
    """One round with the small drafter: the proposal and the verdict."""
    drafter = SmallDrafter(MarkovModel(DRAFT))
    drafter.begin(HISTORY[:-1], {}, 0)
    if rule == "mirror":
        sampler: Sampler = MirrorSampler(labels, V, temperature=1.0, seed=seed, **setting)
    else:
        sampler = Sampler(V, temperature=1.0, seed=seed, **setting)
    context = sampler.at(HISTORY, coupled=rule == "mirror", width=width)
    proposal = drafter.propose(HISTORY[-1], limit, context)
    logits = mx.array(TARGET[[HISTORY[-1], *proposal.tokens]], mx.float32)
    policy = {"mirror": Mirror(labels, capped), "pcg": Pcg(labels, capped), "ratio": ratio}[rule]
    return proposal, policy(proposal, logits, context)


def emitted(proposal: Proposal, verdict: Verdict) -> list[int]:
    return [*(proposal.tokens[row] for row in verdict.path), verdict.token]


def probs(row: np.ndarray, top_p: float = 1.0, top_k: int = 0) -> np.ndarray:
    """The law of a row, its masks written out."""
    p = np.exp(row - row.max())
    p /= p.sum()
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    if top_p < 1:
        p[order[1:][np.cumsum(p[order])[:-1] >= top_p]] = 0
    return np.asarray(p / p.sum())


def label_law(p: np.ndarray) -> dict[tuple[int, ...], float]:
    """The law of the label's name, from the groups as they were written down."""
    sets = [(int(GROUPS.seeds[i]), set(GROUPS.members[GROUPS.offsets[i] : GROUPS.offsets[i + 1]].tolist())) for i in range(len(GROUPS))]
    sets += [(t, {t}) for t in range(9, V)]
    count = Counter(t for _, members in sets for t in members)
    law = {(name,): float(sum(p[t] / count[t] for t in members)) for name, members in sets}
    return {name: mass for name, mass in law.items() if mass > 0}


# ---- The law of the label ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", ["mirror", "pcg"])
def test_logged_labels_have_the_targets_law(rule: str, setting: str) -> None:
    """At the first place, and at the second given each token that came first. 700 rounds, seeds fixed; odds of a false alarm 1 in 100,000 a test."""
    first: Counter[tuple[int, ...]] = Counter()
    second: dict[int, Counter[tuple[int, ...]]] = {}
    for seed in range(700):
        proposal, verdict = draw(rule, seed, **SETTINGS[setting])
        first[(verdict.note[0].label,)] += 1
        if len(verdict.note) > 1:
            second.setdefault(emitted(proposal, verdict)[0], Counter())[(verdict.note[1].label,)] += 1
    assert false_alarm(first, label_law(probs(TARGET[HISTORY[-1]], **SETTINGS[setting]))) > 1e-5
    often = {token: counts for token, counts in second.items() if counts.total() >= 50}
    assert often
    for token, counts in often.items():
        assert false_alarm(counts, label_law(probs(TARGET[token], **SETTINGS[setting]))) > 1e-5 / len(often)


@pytest.mark.parametrize("rule", ["mirror", "pcg"])
def test_labels_drawn_again_from_the_tokens_fail(rule: str) -> None:
    """The negative control: with overlapping groups only the hidden label has the law (400 rounds, 1 in 100,000)."""
    groups = Groups.of(3, [(0, [1]), (1, [2])])
    labels = Labels(groups)
    p, q = np.log([0.9, 0.05, 0.05]), np.log([0.05, 0.9, 0.05])
    law = {(0,): 0.05 + 0.45, (1,): 0.45 + 0.05}
    logged: Counter[tuple[int, ...]] = Counter()
    again: Counter[tuple[int, ...]] = Counter()
    rng = np.random.default_rng(3)
    for seed in range(400):
        sampler: Sampler = MirrorSampler(labels, 3, temperature=1.0, seed=seed) if rule == "mirror" else Sampler(3, temperature=1.0, seed=seed)
        context = sampler.at([0], coupled=rule == "mirror")
        if rule == "mirror":
            proposal = Proposal.chain([int(context.draw(mx.array(p, mx.float32)).item())])
        else:
            law_of_p = mx.array(np.exp(p), mx.float32)
            proposal = Proposal.chain([int(context.sample(law_of_p, 0, "draft").item())], [law_of_p])
        verdict = (Mirror(labels) if rule == "mirror" else Pcg(labels))(proposal, mx.array(np.stack([q, q]), mx.float32), context)
        token = emitted(proposal, verdict)[0]
        logged[(verdict.note[0].label,)] += 1
        again[(labels.name(int(rng.choice(labels.labels_of(token)))),)] += 1
    assert false_alarm(logged, law) > 1e-5 > false_alarm(again, law)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_trees_of_groups_keep_the_law_and_are_accepted_more_often(width: int) -> None:
    """Odds of a false alarm: 1 in 100,000. More children, more accepted: counted on the same 400 seeds."""
    labels: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(400):
        proposal, verdict = draw("mirror", seed, limit=1, width=width)
        assert len(proposal) == width
        labels[(verdict.note[0].label,)] += 1
        accepted += len(verdict.path)
    assert false_alarm(labels, label_law(probs(TARGET[HISTORY[-1]]))) > 1e-5
    least = {1: 190, 2: 290, 4: 350}
    assert accepted >= least[width]


def test_noise_on_the_groups_is_worth_its_price() -> None:
    """A drafter that knows groups and not what is inside them: coupling on groups accepts far more than coupling on tokens (300 seeds)."""
    groups = Groups.of(30, [(t - t % 3, [t - t % 3 + 1, t - t % 3 + 2]) for t in range(30)])
    labels, rng = Labels(groups), np.random.default_rng(8)
    coarse = np.repeat(rng.normal(0, 1.5, 10), 3)
    q, p = coarse + rng.normal(0, 2, 30), coarse + rng.normal(0, 2, 30)
    got = Counter[str]()
    for seed in range(300):
        for rule, sampler in (
            ("mirror", MirrorSampler(labels, 30, temperature=1.0, seed=seed)),
            ("coupled", Sampler(30, temperature=1.0, seed=seed)),
        ):
            context = sampler.at([0])
            proposal = Proposal.chain([int(context.draw(mx.array(p, mx.float32)).item())])
            logits = mx.array(np.stack([q, q]), mx.float32)
            if rule == "mirror":
                got[rule] += len(Mirror(labels)(proposal, logits, context).path)
            else:
                got[rule] += proposal.tokens[0] == context.draw(logits[0]).item()
    assert got["mirror"] > 1.3 * got["coupled"]


# ---- What can be emitted -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["mirror", "pcg"])
def test_what_the_sampler_masks_is_never_emitted(rule: str) -> None:
    """The drafter's favourite lies in the target's favourite group, and outside the target's nucleus."""
    setting = {"top_k": 2}
    p = probs(TARGET[HISTORY[-1]], **setting)
    kept = set(np.flatnonzero(p).tolist())
    for seed in range(12):
        sampler: Any = MirrorSampler(LABELS, V, temperature=1.0, seed=seed, **setting)
        if rule == "pcg":
            sampler = Sampler(V, temperature=1.0, seed=seed, **setting)
        for masked in sorted(set(range(V)) - kept):
            certain = mx.array(np.arange(V) == masked, mx.float32)
            proposal = Proposal.chain([masked], None if rule == "mirror" else [certain])
            logits = mx.array(TARGET[[HISTORY[-1], masked]], mx.float32)
            verdict = (Mirror(LABELS) if rule == "mirror" else Pcg(LABELS))(proposal, logits, sampler.at(HISTORY))
            assert verdict.path == () and verdict.token in kept


@pytest.mark.parametrize("rule", ["mirror", "pcg"])
def test_an_end_token_is_only_what_the_target_said_itself(rule: str) -> None:
    """Drafted against a target that almost never ends, it passes no oftener than under the ratio rule; 120 seeds."""
    never = np.where(np.arange(V) == END, -40.0, 0.0)
    certain = mx.array(np.arange(V) == END, mx.float32)
    for seed in range(120):
        sampler: Any = MirrorSampler(LABELS, V, temperature=1.0, seed=seed) if rule == "mirror" else Sampler(V, temperature=1.0, seed=seed)
        proposal = Proposal.chain([END], None if rule == "mirror" else [certain])
        logits = mx.array(np.stack([never, never]), mx.float32)
        verdict = (Mirror(LABELS) if rule == "mirror" else Pcg(LABELS))(proposal, logits, sampler.at(HISTORY))
        assert END not in emitted(proposal, verdict)


def test_a_rejection_at_the_last_place_draws_nothing_more() -> None:
    """Disjoint supports: the drafted tokens never pass, and what the target says instead is the last token of the round."""
    p = mx.array(np.arange(V) == 9, mx.float32)
    logits = np.full((3, V), -50.0)
    logits[:, 10] = 0
    for length in (1, 2):
        tokens = [10] * (length - 1) + [9]
        drafted = [mx.array(np.arange(V) == 10, mx.float32)] * (length - 1) + [p]
        verdict = Pcg(LABELS)(
            Proposal.chain(tokens, drafted), mx.array(logits[: length + 1], mx.float32), Sampler(V, temperature=1.0, seed=4).at(HISTORY)
        )
        assert verdict.path == tuple(range(length - 1)) and verdict.token == 10
        assert [entry.label for entry in verdict.note] == [10] * length


# ---- Against the exact rule --------------------------------------------------------------------------------------------------------------


def test_without_groups_pcg_decides_as_ratio_does() -> None:
    """The same uniforms, the same acceptances, seed by seed; the law of the token that is drawn instead, on 400 seeds: 1 in 100,000."""
    ours: Counter[tuple[int, ...]] = Counter()
    for seed in range(400):
        proposal, verdict = draw("pcg", seed, labels=ALONE)
        same, exact = draw("ratio", seed)
        assert proposal.tokens == same.tokens and verdict.path == exact.path
        ours[(emitted(proposal, verdict)[0],)] += 1
    p = probs(TARGET[HISTORY[-1]])
    assert false_alarm(ours, {(t,): float(p[t]) for t in range(V)}) > 1e-5


def random_case(seed: int) -> tuple[Labels, np.ndarray, np.ndarray]:
    """Overlapping groups, a drafter and a target that masks some tokens."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(4, 20))
    surroundings = [(t, rng.choice(size, rng.integers(0, 4), replace=False).tolist()) for t in range(size) if rng.random() < 0.7]
    p, q = rng.dirichlet(np.full(size, 0.6)), rng.dirichlet(np.full(size, 0.6))
    q = np.where(q >= np.quantile(q, rng.choice([0, 0.3, 0.6])), q, 0)
    return Labels(Groups.of(size, surroundings)), p, q / q.sum()


@pytest.mark.parametrize("capped", [None, 0.0, 0.3])
def test_pcg_accepts_no_less_than_ratio_and_strays_no_further_than_it_says(capped: float | None) -> None:
    """On 300 random cases: sum of min(P, Q) is at least sum of min(p, q), and TV(emitted, target) at most what accepted labels are apart."""
    for seed in range(300):
        labels, p, q = random_case(seed)
        step = Step(labels, p, q, capped)
        assert step.draft.sum() == pytest.approx(1) and step.target.sum() == pytest.approx(1)
        common = np.minimum(step.draft, step.target)
        assert common.sum() >= np.minimum(p, q).sum() - 1e-12
        law = np.zeros(len(p))
        for label in np.flatnonzero(step.draft + step.target):
            members = labels.members(label) if label < step.own else np.array([label - step.own])
            for mass, own in ((common[label], p), (step.target[label] - common[label], q)):
                shares = np.where(q[members] > 0, own[members], 0) * labels.weights[members] if label < step.own else np.ones(1)
                law[members] += mass * shares / shares.sum() if mass > 0 else 0
        assert law.sum() == pytest.approx(1)
        apart = np.concatenate([step.apart, np.zeros(len(p))])
        assert np.abs(law - q).sum() / 2 <= (common * apart).sum() + 1e-9
        if capped == 0.0:
            assert np.abs(law - q).sum() / 2 < 1e-9
        assert capped is None or not common[: step.own][step.apart > capped].any()


@pytest.mark.parametrize("rule", ["mirror", "pcg"])
def test_tokens_stray_no_further_than_the_log_says(rule: str) -> None:
    """TV between emitted and target's law, 600 seeds, sampling error 0.06 allowed for (12 cells: beyond it once in 100,000 runs)."""
    counts, bounds = np.zeros(V), []
    for seed in range(600):
        proposal, verdict = draw(rule, seed, limit=1)
        counts[emitted(proposal, verdict)[0]] += 1
        bounds.append(verdict.note[0].bound)
    strayed = np.abs(counts / 600 - probs(TARGET[HISTORY[-1]])).sum() / 2
    assert np.mean(bounds) > 0.01 and strayed <= np.mean(bounds) + 0.06


@pytest.mark.parametrize("rule", ["mirror", "pcg"])
def test_capped_rules_accept_nothing_further_apart(rule: str) -> None:
    loose = [entry for seed in range(120) for entry in draw(rule, seed)[1].note]
    tight = [entry for seed in range(120) for entry in draw(rule, seed, capped=0.2)[1].note]
    assert max(entry.apart for entry in loose) > 0.3
    assert max(entry.apart for entry in tight) <= 0.2


def test_thinning_and_the_residual_written_out_agree() -> None:
    """3,000 draws each of one case, against the residual of the labels; odds of a false alarm 1 in 100,000 each."""
    labels, p, q = LABELS, probs(DRAFT[3]), probs(TARGET[3], top_k=7)
    step = Step(labels, p, q, None)
    rest = np.maximum(step.target - step.draft, 0)
    law = {(i,): float(mass) for i, mass in enumerate(rest / rest.sum()) if mass > 0}
    sampler = Sampler(V, temperature=1.0, seed=1)
    rng = np.random.default_rng(0)
    thinned = Counter((step.residual(sampler.at([0] * i), 0)[1],) for i in range(1, 3001))
    written = Counter((step.written_out(*rng.random(2))[1],) for _ in range(3000))
    assert false_alarm(thinned, law) > 1e-5 and false_alarm(written, law) > 1e-5
    token, label = step.written_out(0.5, 0.5)
    assert token in labels.members(label) and q[token] > 0


def test_a_residual_that_rounding_has_emptied_is_the_targets_law() -> None:
    """p = q: thinning can keep nothing, ends after its trials, and what is drawn then has law q (1,000 draws, 1 in 100,000)."""
    q = probs(TARGET[4])
    step = Step(LABELS, q, q, None)
    counts = Counter((step.residual(Sampler(V, temperature=1.0, seed=2).at([0] * i), 0)[0],) for i in range(1, 1001))
    assert false_alarm(counts, {(t,): float(q[t]) for t in range(V)}) > 1e-5


# ---- In the loop -------------------------------------------------------------------------------------------------------------------------


def run(make: Callable[[], Any], labels: Labels, seed: int, length: int, rule: str = "mirror") -> tuple[list[int], list[Labelled]]:
    sampler: Sampler = MirrorSampler(labels, V, temperature=1.0, seed=seed) if rule == "mirror" else Sampler(V, temperature=1.0, seed=seed)
    policy = Mirror(labels) if rule == "mirror" else Pcg(labels)
    limits = Limits(max_tokens=length, stop_tokens=frozenset({END}), coupled=rule == "mirror")
    steps = [step for step in decode(TokenSequence(Target(MarkovModel(TARGET))), make(), policy, sampler, HISTORY, limits) if isinstance(step, Round)]
    return [token for step in steps for token in step.tokens], [entry for step in steps[1:] for entry in step.note[: len(step.tokens)]]


class Mates:
    """A user's drafter: some tokens of the group that the last token is in, as two children."""

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        around = [int(t) for t in GROUPS.around(token)[:2]]
        return Proposal(tuple(around), (-1,) * len(around)) if limit else Proposal()

    name, depth = "mates", 1
    taps: tuple[str, ...] = ()

    def begin(self, prompt: Sequence[int], hidden: Any, reused: int) -> None: ...

    def accept(self, path: Sequence[int], token: int, hidden: Any) -> None: ...


@pytest.mark.parametrize("rule", ["mirror", "pcg"])
@pytest.mark.parametrize("make", [NoDrafter, LookupDrafter, lambda: SmallDrafter(MarkovModel(DRAFT)), Mates], ids=["none", "lookup", "small", "own"])
def test_every_emitted_token_is_labelled_in_the_loop(make: Callable[[], Any], rule: str) -> None:
    """And is one of its label's tokens; nothing follows an end token. Under pcg certain guesses are judged as under coupled, in a tree too."""
    for seed in range(8):
        tokens, note = run(make, LABELS, seed, 24, rule)
        assert len(note) == len(tokens) - 1 and END not in tokens[:-1]
        for token, entry in zip(tokens[1:], note, strict=True):
            label = next(i for i in range(len(LABELS.names)) if LABELS.name(i) == entry.label)
            assert token in LABELS.members(label) and entry.size == len(LABELS.members(label))
            assert entry.bound in (0, 1) or rule == "pcg"


def test_mirror_without_drafts_is_the_targets_law() -> None:
    """Two levels give the token law q: 600 first tokens, 1 in 100,000. And the same seed gives the same tokens with a drafter of no group."""
    counts = Counter((run(NoDrafter, LABELS, seed, 1)[0][0],) for seed in range(600))
    q = probs(TARGET[HISTORY[-1]])
    assert false_alarm(counts, {(t,): float(q[t]) for t in range(V)}) > 1e-5
    for seed in range(20):
        assert run(NoDrafter, ALONE, seed, 16)[0] == run(lambda: SmallDrafter(MarkovModel(DRAFT)), ALONE, seed, 16)[0]


def test_a_target_drafting_for_itself_is_always_accepted() -> None:
    for seed in range(10):
        drafter = SmallDrafter(MarkovModel(TARGET))
        sampler = MirrorSampler(LABELS, V, temperature=1.0, seed=seed)
        steps = decode(TokenSequence(Target(MarkovModel(TARGET))), drafter, Mirror(LABELS), sampler, HISTORY, Limits(max_tokens=16))
        for step in steps:
            assert not isinstance(step, Round) or step.proposal is None or len(step.path) == len(step.proposal)


# ---- The sampler and the labels ----------------------------------------------------------------------------------------------------------


def test_offers_begin_with_the_draw_and_name_each_group_once() -> None:
    for seed in range(20):
        sampler = MirrorSampler(LABELS, V, temperature=0.7, seed=seed)
        scores = mx.array(TARGET[:3], mx.float32)
        offers = sampler.perturb(scores, 9)
        for row in range(3):
            label, token = LABELS.draw(scores[row], sampler.noise(9, "label"), sampler.noise(9, "target"))
            assert token == mx.argmax(offers[row]).item() == mx.argmax(sampler.perturb(scores[row], 9)).item()
            assert token in LABELS.members(label)
        columns = mx.array([11, 3, 5, 0])
        some = sampler.perturb(scores[:, columns], 9, columns)
        bare = mx.full((3, V), -mx.inf)
        bare[:, columns] = scores[:, columns]
        assert mx.array_equal(some, sampler.perturb(bare, 9)[:, columns])


def test_a_redrafter_offers_the_groups_its_network_would_name() -> None:
    """It knows nothing of groups: its beams are the top of what the sampler gives it."""
    mx.random.seed(3)
    network = ReDrafter(ReDrafterArgs(8, V, 16, 1))
    table = mx.random.normal((V, 8))
    drafter = RecurrentDrafter(network, lambda tokens: table[tokens])
    drafter.worth = 0.0
    for seed in range(20):
        sampler = MirrorSampler(LABELS, V, temperature=1.0, seed=seed)
        drafter.begin(HISTORY, {"last": mx.random.normal((1, 8))}, 0)
        proposal = drafter.propose(HISTORY[-1], 2, sampler.at(HISTORY, width=3, rows=12))
        state = network.step(table[mx.array([HISTORY[-1]])])
        leading = sampler.perturb(network.logits(drafter.hidden, state), len(HISTORY))[0]
        order = mx.argsort(-leading)[:3].tolist()
        first = [token for token, parent in zip(proposal.tokens, proposal.parents, strict=True) if parent < 0]
        assert set(first) == {token for token in order if leading[token].item() > -mx.inf}
        logits = mx.array(TARGET[[HISTORY[-1], *proposal.tokens]], mx.float32)
        verdict = Mirror(LABELS)(proposal, logits, sampler.at(HISTORY))
        assert len(verdict.note) == len(verdict.path) + 1


def test_masses_of_labels_are_the_same_in_both_places() -> None:
    q = probs(TARGET[1])
    noisy, _ = LABELS._noisy(mx.array(np.log(q), mx.float32)[None], mx.zeros(V))
    assert np.allclose(np.exp(np.array(noisy[0])), LABELS.masses(q), atol=1e-6)
    assert LABELS.masses(q).sum() == pytest.approx(1)


def test_distance_inside_a_label() -> None:
    target, draft = np.array([0.3, 0.1, 0.0, 0.6]), np.array([0.1, 0.3, 0.2, 0.4])
    labels = Labels(Groups.of(4, [(0, [1])]))
    assert labels.distance(0, 0, target, None) == pytest.approx(0.25)
    assert labels.distance(0, 0, target, draft) == pytest.approx(0.5)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="--temperature 0 draws nothing"):
        MirrorSampler(LABELS, V, temperature=0.0)
    with pytest.raises(UsageError, match="groups are for 12 tokens and the model speaks 13"):
        MirrorSampler(LABELS, 13, temperature=1.0)
    half = mx.full((V,), 1 / V)
    with pytest.raises(DrafterError, match="pcg judges chains"):
        Pcg(LABELS)(Proposal((1, 2), (-1, -1), [half, half]), mx.zeros((3, V)), Sampler(V, temperature=1.0).at(HISTORY))
    with pytest.raises(DrafterError, match=r"give an mx\.array of 12"):
        Pcg(LABELS)(Proposal.chain([1], [mx.zeros(3)]), mx.zeros((2, V)), Sampler(V, temperature=1.0).at(HISTORY))
    assert not Mirror.exact and not Pcg.exact
