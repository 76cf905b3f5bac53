"""Who drafts, how far, and how many rows: what promises the most tokens a second, by the drafters' chances, their record, and the cost curve.

A wrapper around other drafters that reads feedback and cost and nothing else. When drafting loses time it pauses, and tries again now and then.
Source of the rule: SpecDec++ (2405.19715) and EAGLE-2 (2406.16858) stop by confidence; here confidence is weighed against
this machine's cost of a row.
"""

import math
import time
from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxspec.core.drafter import Drafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.drafters.cost import CostCurve

MEMORY = 0.04  # weight of the latest round in running means
SLOW = 0.02  # the same for what needs many rounds to be known
DEBT = 3.0  # plain forwards lost, in a sum that forgets, before a pause
TRIAL = 1.2  # and in the trial that ends one
FORGET = 0.98
SHORTEST, LONGEST = 24, 384  # rounds of a pause; each fruitless one is twice the one before
PATIENCE = 1, 4  # rounds for which a drafter with a poor record is passed over; each look that changes nothing doubles them
NOTICED = 0.02  # of a plain forward: drafting that takes less costs nothing


class AdaptiveDrafter(Drafter):
    """Asks the drafters that cost nothing first, and the last one where it promises more. What several offer is verified as one tree where that pays.

    Under ``coupled`` the rows least likely to be reached are cut; under ``ratio`` sampled rows never are, since that would bend the law.
    """

    def __init__(self, members: Sequence[Drafter], cost: CostCurve, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.members = [Member(drafter) for drafter in members]
        self.cost = cost
        self.taps: tuple[str, ...] = tuple(dict.fromkeys(tap for drafter in members for tap in drafter.taps))
        self.depth = max(drafter.depth for drafter in members)
        self.name = members[-1].name
        self.state = "on"
        self.reason: str | None = None
        self.pause = SHORTEST
        self.resting = 0  # rounds left of a pause
        self.chosen: tuple[int, ...] = ()  # whose rows are verified
        self.won = 0.0  # plain forwards won by drafting, in a sum that forgets
        self.gain = 1.0  # tokens a second against plain decoding, a running mean
        self.tokens, self.seconds = 1.0, cost.seconds(1, 0) / 1.2  # of a round, running means

    def known(self, prompt: Sequence[int]) -> int:
        return min(member.drafter.known(prompt) for member in self.members)

    def report(self) -> tuple[str, str | None]:
        return self.state, self.reason

    def keep(self) -> None:
        self.cost.keep()

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        for member in self.members:
            member.waited, member.patience = 0, PATIENCE[0]  # in another text a drafter that did badly may do well
            member.drafter.begin(prompt, hidden, reused)

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        self.token, self.context = token, context
        self.offers: dict[int, Proposal] = {}
        self.spent = 0.0
        self.chosen = tuple[int, ...]()
        proposal = self._rest() if self.resting else self._best(token, limit, context)
        self.proposal = proposal
        names = [self.members[i].drafter.name for i in self.chosen]
        self.name = "+".join(names) or self.members[-1].drafter.name
        self.proposed = self.clock()
        return proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        seconds = self.clock() - self.proposed
        context = self.context.position
        self.cost.see(1 + len(self.proposal), context, seconds)
        said = [*(self.proposal.tokens[row] for row in path), token]
        rows = [0, *(row + 1 for row in path)]
        for i, member in enumerate(self.members):
            offer = self.offers.get(i)
            if offer is None:
                offer = member.drafter.propose(self.token, 0, self.context)
            _tell(member.drafter, offer, said, {tap: value[mx.array(rows)] for tap, value in hidden.items()} if hidden else {}, self.context)
        for i in self.chosen:
            self.members[i].learn(*_share(self.proposal, path, self.offers[i]), self.spent + seconds, len(said))
        if not self.resting:
            self.tokens += SLOW * (len(said) - self.tokens)
            self.seconds += SLOW * (self.spent + seconds - self.seconds)
        if self.chosen:
            self._weigh(len(said), self.spent + seconds, self.cost.seconds(1, context))

    def _rest(self) -> Proposal:
        self.resting -= 1
        if not self.resting:
            self.won = TRIAL - DEBT
        return Proposal(rest=self.resting > 0)

    def _best(self, token: int, limit: int, context: Context) -> Proposal:
        pace = self.tokens / self.seconds
        plain = self.cost.seconds(1, context.position)
        best, best_worth = Proposal(), 1 - pace * plain
        for i, member in enumerate(self.members):
            last = i == len(self.members) - 1
            if last and len(self.members) > 1 and member.passed_over(best_worth, pace, self.cost, context.position):
                break
            started = self.clock()
            offer = self.offers[i] = member.drafter.propose(token, member.reach(limit, pace, self.cost, context.position), context)
            spent = self.clock() - started
            member.took(spent, offer)
            self.spent += spent
            proposal, worth = cut(offer, member.believed(offer), pace, self.cost, context)
            for_nothing = last and not self.chosen and self.spent > NOTICED * plain  # is that drafter's loss
            if worth > best_worth or for_nothing:
                best, best_worth, self.chosen = proposal, worth, (i,)
        several = [i for i, offer in self.offers.items() if len(offer) and offer.probs is None]
        if len(several) > 1 and context.width is None:  # a width, such as a chain's, would have to be cut out of the tree
            tree = merged([(self.offers[i], self.members[i].believed(self.offers[i])) for i in several])
            tree = _only(tree, range(min(len(tree), context.rows or len(tree))))
            proposal, worth = cut(tree, tree.values or (), pace, self.cost, context)
            if worth > best_worth:
                best, self.chosen = proposal, tuple(i for i in several if len(_share(proposal, (), self.offers[i])[0]))
        return best

    def _weigh(self, tokens: int, seconds: float, plain: float) -> None:
        """Pause where drafting has lost time for a while."""
        self.gain += MEMORY * (tokens * plain / seconds - self.gain)
        self.won = FORGET * self.won + tokens - seconds / plain
        if self.won > 0:
            self.state, self.reason, self.pause = "on", None, SHORTEST
        elif self.won < -DEBT:
            self.state = "paused"
            self.reason = f"drafting was slower than plain decoding ({self.gain:.2f} x of late); tried again every {self.pause} rounds"
            self.resting, self.pause = self.pause, min(2 * self.pause, LONGEST)


class Member:
    """A drafter with what was learnt of it: acceptance by depth, how far its own chances can be believed, its time a step."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.survival = [0.7**depth for depth in range(1, drafter.depth + 1)]  # chance that the draft is right down to each depth
        self.hoped, self.got = 1.0, 1.0  # sums of chances and of accepted rows, fading
        self.step = 0.0  # seconds of a step of drafting
        self.rows = 1.0  # rows offered a step
        self.emitted, self.seconds = 0.0, 0.0  # of its rounds, fading
        self.waited, self.patience = 0, PATIENCE[0]

    def expected(self, pace: float, cost: CostCurve, context: int) -> float:
        """What a round of its own is worth: the tokens it gives less those that its time would give at the pace of late."""
        if self.seconds > 0:
            return self.emitted - pace * self.seconds
        depth = len(self.survival)
        return 1 + sum(self.survival) - pace * (depth * self.step + cost.seconds(1 + depth, context))

    def passed_over(self, worth: float, pace: float, cost: CostCurve, context: int) -> bool:
        """Whether something else promises as much. A record ages while nobody asks: now and then the drafter is asked all the same."""
        if worth < self.expected(pace, cost, context):
            self.waited, self.patience = 0, PATIENCE[0]
            return False
        self.waited += 1
        if self.waited < self.patience:
            return True
        self.waited, self.patience = 0, min(2 * self.patience, PATIENCE[1])
        return False

    def reach(self, limit: int, pace: float, cost: CostCurve, context: int) -> int:
        """How far to draft: what was accepted at each depth against the time of a step and of its rows."""
        best, best_worth, hope = min(1, limit), -math.inf, 1.0
        for depth, chance in enumerate(self.survival[:limit], 1):
            hope += chance
            worth = hope - pace * (depth * self.step + cost.seconds(1 + round(depth * self.rows), context))
            if worth >= best_worth:
                best, best_worth = depth, worth
        return best

    def took(self, seconds: float, offer: Proposal) -> None:
        depth = max(offer.depths, default=0)
        if depth:
            self.step += 0.2 * (seconds / depth - self.step) if self.step else seconds / depth
            self.rows += 0.2 * (len(offer) / depth - self.rows)

    def believed(self, offer: Proposal) -> list[float]:
        """How likely each row is reached and right, by what came of such words before."""
        trust = min(1.25, max(0.5, self.got / self.hoped))
        return [min(1.0, trust * chance) for chance in self.chances(offer)]

    def chances(self, offer: Proposal) -> Sequence[float]:
        """How likely each row is reached and right: the drafter's own word, or else its record at that depth (siblings share what is left)."""
        if offer.values is not None:
            return offer.values
        chances: list[float] = []
        firsts: set[int] = set()
        for parent, depth in zip(offer.parents, offer.depths, strict=True):
            above = chances[parent] if parent >= 0 else 1.0
            record = self.survival[min(depth, len(self.survival)) - 1] / (self.survival[depth - 2] if 1 < depth <= len(self.survival) else 1.0)
            chances.append(above * (record if parent not in firsts else 0.25 * (1 - record)))
            firsts.add(parent)
        return chances

    def learn(self, verified: Proposal, path: Sequence[int], seconds: float, tokens: int | None = None) -> None:
        """What came of rows of its own in a round of so many seconds and tokens (None: its own accepted rows and the target's token)."""
        depths = verified.depths
        deepest = max(depths, default=0)
        for depth in range(1, min(deepest, len(self.survival)) + 1):
            self.survival[depth - 1] += MEMORY * ((len(path) >= depth) - self.survival[depth - 1])
        for depth in range(max(deepest, 1) + 1, len(self.survival) + 1):  # not tried: drifts to where the record of the shallower ones points
            above = self.survival[depth - 2]
            ratio = above / (self.survival[depth - 3] if depth >= 3 else 1.0)
            self.survival[depth - 1] += MEMORY * (above * min(1.0, max(ratio, 0.05)) - self.survival[depth - 1])
        if verified.values is not None:
            self.hoped += SLOW * (sum(verified.values) - self.hoped) if len(verified) else 0.0
            self.got += SLOW * (len(path) - self.got) if len(verified) else 0.0
        tokens = tokens or 1 + len(path)
        self.emitted += MEMORY * (tokens - self.emitted) if self.seconds else tokens
        self.seconds += MEMORY * (seconds - self.seconds) if self.seconds else seconds


def cut(offer: Proposal, chances: Sequence[float], pace: float, cost: CostCurve, context: Context) -> tuple[Proposal, float]:
    """The rows worth their cost by their chances, and what verifying them is worth: its tokens less those that its time would give at this pace.

    What drafting took is spent either way. Where nobody has seen for long what so many rows cost, all are verified, to see it.
    """
    order = sorted(range(len(offer)), key=lambda row: -chances[row])
    fixed = offer.probs is not None
    best, best_worth, hope = 0, -math.inf, 1.0
    for rows in range(len(offer) + 1):
        hope += chances[order[rows - 1]] if rows else 0.0
        worth = hope - pace * cost.seconds(1 + rows, context.position)
        if worth > best_worth or (fixed and rows == len(offer)):
            best, best_worth = rows, worth
    if best < len(offer) and cost.stale(1 + len(offer)):
        return offer, math.inf
    return _only(offer, sorted(order[:best])), best_worth


def merged(offers: Sequence[tuple[Proposal, Sequence[float]]]) -> Proposal:
    """One tree of what several drafters offer with their chances, likeliest rows first.

    A row that two of them have is as likely as the surer one holds it to be; where they contradict each other, their rows share what there is.
    """
    chances: dict[tuple[int, ...], float] = {}
    for offer, values in offers:
        prefixes: list[tuple[int, ...]] = []
        for token, parent, chance in zip(offer.tokens, offer.parents, values, strict=True):
            prefixes.append((*(prefixes[parent] if parent >= 0 else ()), token))
            chances[prefixes[-1]] = max(chance, chances.get(prefixes[-1], 0.0))
    below: dict[tuple[int, ...], float] = {}  # what the children of a prefix have together
    for prefix, chance in chances.items():
        below[prefix[:-1]] = below.get(prefix[:-1], 0.0) + chance
    share: dict[tuple[int, ...], float] = {(): 1.0}
    for prefix in sorted(chances, key=len):
        above = prefix[:-1]
        share[prefix] = share[above] * min(1.0, chances.get(above, 1.0) / below[above]) if below[above] else 0.0
    likely = {prefix: chance * share[prefix] for prefix, chance in chances.items()}
    order = sorted(likely, key=lambda prefix: (-likely[prefix], len(prefix)))  # a parent is as likely as its children at least
    place = {prefix: row for row, prefix in enumerate(order)}
    parents = tuple(place.get(prefix[:-1], -1) for prefix in order)
    return Proposal(tuple(prefix[-1] for prefix in order), parents, values=tuple(likely[prefix] for prefix in order))


def _share(verified: Proposal, path: Sequence[int], offer: Proposal) -> tuple[Proposal, list[int]]:
    """Of the rows that were verified those that a drafter had offered, as its own proposal, and which of these were accepted."""
    place = {-1: -1}
    for row, (token, parent) in enumerate(zip(verified.tokens, verified.parents, strict=True)):
        own = offer.child(place[parent], token) if parent in place else None
        if own is not None:
            place[row] = own
    rows = sorted(own for own in place.values() if own >= 0)
    return _only(offer, rows), [rows.index(place[row]) for row in path if row in place]


def _only(offer: Proposal, rows: Sequence[int]) -> Proposal:
    """The rows alone; each has its parent among them."""
    if len(rows) == len(offer):
        return offer
    place = {-1: -1, **{row: i for i, row in enumerate(rows)}}
    return Proposal(
        tuple(offer.tokens[row] for row in rows),
        tuple(place[offer.parents[row]] for row in rows),
        None if offer.probs is None else [offer.probs[row] for row in rows],
        None if offer.values is None else tuple(offer.values[row] for row in rows),
    )


def _tell(drafter: Drafter, offer: Proposal, said: Sequence[int], hidden: dict[str, mx.array], context: Context) -> None:
    """Tell a drafter what was said after its offer: its rows that agree were accepted, the rest came as in rounds without drafts.

    ``hidden`` has the row from which each token of ``said`` was drawn.
    """
    path: list[int] = []
    for token in said[:-1]:
        child = offer.child(path[-1] if path else -1, token)
        if child is None:
            break
        path.append(child)
    places = [0] * (1 + len(offer))
    for i, row in enumerate(path):
        places[row + 1] = i + 1
    drafter.accept(path, said[len(path)], {tap: value[mx.array(places)] for tap, value in hidden.items()})
    for i in range(len(path), len(said) - 1):
        drafter.propose(said[i], 0, context)
        drafter.accept((), said[i + 1], {tap: value[i + 1 : i + 2] for tap, value in hidden.items()})
