"""ReDrafter (Cheng et al. 2403.09919): beams of a recurrent network that reads the target's last hidden state, offered as a tree of their prefixes.

Under ``coupled`` the beams are drawn with the target's own noise: a token ranks by log q + G, with the G the target will use at that place, so the
beams follow what the target is about to say rather than what is likely. At temperature 0, or with ``coupled`` False, it is plain beam search.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import exp
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxspec.core.drafter import Drafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Rule
from mlxspec.core.target import Target
from mlxspec.drafters.choose import check_trained_for
from mlxspec.errors import DrafterError
from mlxspec.loading.load import Loaded, Say
from mlxspec.loading.memory import Need, preflight
from mlxspec.models.redrafter import WEIGHTS, CheckpointError, ReDrafter, load
from mlxspec.settings.options import Options

Embed = Callable[[mx.array], mx.array]
Step = tuple[mx.array, mx.array, mx.array]  # prefixes of one length, best first: the beam each grew from, its last token, its log-probability
NUCLEUS = 512  # top-p, min-p and top-k look at this many of a row's likeliest tokens, not at all of them


class RecurrentDrafter(Drafter):
    """Beam search of ``width`` beams and ``depth`` steps. Of all prefixes met, the ``rows`` likeliest to be what the target says are offered.

    How likely: the target's logits are taken for the drafter's with Gumbel errors of scale ``stray``, so that a token is what the target says with
    probability softmax((logits + T G) / stray), G its noise.
    """

    taps: tuple[str, ...] = ("last",)
    depth = 4
    width = 8
    carried = 3  # of the ``width`` prefixes of one length, those that grow on; the others can only be offered
    rows = 15
    stray = 1.0
    worth = 0.02  # a row less likely than this is not offered
    stop = 0.2  # the search ends where the beams have lost what the target says but for this probability
    coupled = True  # draw with the target's noise where the rule allows it; False gives plain beams, to compare with

    def __init__(self, network: ReDrafter, embed: Embed, name: str = "redrafter") -> None:
        """``embed`` is the target's embedding table: tokens (n,) -> (n, hidden_size)."""
        size = embed(mx.array([0])).shape[-1]
        if size != network.args.hidden_size:
            raise DrafterError(
                f"{name} was trained for a target of hidden size {network.args.hidden_size} and this one has {size}: "
                "pass --drafter lookup, or a drafter trained for this model."
            )
        self.network = network
        self.embed = embed
        self.name = name
        self.lag = 0 if _on_cpu() else 1  # steps under way while one is looked at
        self.vocabulary = Vocabulary(network, network.args.vocab_size)
        self.begin((), {"last": mx.zeros((1, network.args.hidden_size))}, 0)

    @staticmethod
    def bytes(folder: Path) -> int:
        """What its weights will take in memory, about: as many as on disk, on the CPU twice those of float16."""
        try:
            return (folder / WEIGHTS).stat().st_size * (2 if _on_cpu() else 1)
        except OSError:
            return 0  # what is wrong there, load says

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module, vocab_size: int, name: str = "redrafter") -> "RecurrentDrafter":
        """The drafter of a checkpoint folder, for a mlx-lm model whose logits are ``vocab_size`` wide; in its dtype, on the CPU dense in float32."""
        try:
            network = load(folder)
        except CheckpointError as error:
            raise DrafterError(str(error)) from error
        if network.args.vocab_size != vocab_size:
            raise DrafterError(
                f"{name} was trained for a target of {network.args.vocab_size} tokens and this one has {vocab_size}: "
                "pass --drafter lookup, or a drafter trained for this model."
            )
        embed = embedding_of(model)
        if _on_cpu():
            network.dequantise()
        network.set_dtype(mx.float32 if _on_cpu() else embed(mx.array([0])).dtype)
        weights: Any = network.parameters()  # type: ignore[no-untyped-call]
        mx.eval(weights)
        return cls(network, embed, name)

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        self.hidden = hidden["last"][-1]  # the target's, where it said the pending token
        self.values: tuple[float, ...] = ()  # how likely each row of the last proposal was held to be

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        steps = self._search(token, limit, context)
        proposal, self.values = _tree(steps, context.rows or self.rows, self.worth)
        return proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        self.hidden = hidden["last"][path[-1] + 1 if path else 0]

    def _search(self, token: int, limit: int, context: Context) -> list[Step]:
        width = context.width or self.width
        carried = min(self.carried, width)
        if self.vocabulary.size != context.sampler.vocab_size:
            self.vocabulary = Vocabulary(self.network, context.sampler.vocab_size)
        draws = Draws(context, self.vocabulary, self.coupled and context.coupled, self.stray)
        steps: list[Step] = []
        tokens, state, value = mx.array([token]), None, mx.zeros((1, 1))  # (beams,), (beams, hidden_size), (beams, 1)
        said: list[mx.array] = []  # tokens of the beams, (beams,) a step
        for step in range(limit):
            state = self.network.step(self.embed(tokens), state)
            scores, ids = draws.scores(self.network.logits(self.hidden, state), said)  # (beams, n)
            chances = (scores + (value - mx.logsumexp(scores, axis=-1, keepdims=True))).reshape(-1)
            best = _top(chances, width)
            beams, columns, values = best // scores.shape[-1], best % scores.shape[-1], chances[best]
            tokens = columns if ids is None else mx.broadcast_to(ids, scores.shape)[beams, columns]
            steps.append((beams, tokens, values))
            mx.async_eval(steps[-1])
            if step + 1 == limit or (step >= self.lag and _chance(steps[step - self.lag], carried) < self.stop):
                break
            beams, tokens, value = beams[:carried], tokens[:carried], values[:carried, None]
            state = state[beams]
            said = [*(earlier[beams] for earlier in said), tokens]
        return steps


class Vocabulary:
    """The draft vocabulary beside the ``size`` tokens of the target that exist: which columns of the logits count, and the target's ids of these."""

    def __init__(self, network: ReDrafter, size: int) -> None:
        self.size = size
        self._ruled: Any = (None, None)
        self.ids: mx.array | None = None  # None: the columns are the ids
        self.kept: mx.array | None = None  # None: the first ``size`` columns
        if network.d2t is not None or network.args.head_size < size:
            self.ids = mx.arange(network.args.head_size) if network.d2t is None else network.d2t
            ids: Any = self.ids.tolist()
            if max(ids) >= size:
                self.kept = mx.array([column for column, token in enumerate(ids) if token < size], mx.int32)
                self.ids = self.ids[self.kept]
                mx.eval(self.ids)  # another thread may draft with it, and arrays cross threads evaluated

    def cut(self, logits: mx.array) -> mx.array:
        """The columns that count."""
        return logits[..., : self.size] if self.kept is None else logits[..., self.kept]

    def gather(self, values: mx.array) -> mx.array:
        """From the target's tokens to the columns."""
        return values if self.ids is None else values[..., self.ids]

    def spread(self, rows: mx.array) -> mx.array:
        """From the columns to the target's tokens, (..., size), -inf where a token cannot be drafted."""
        if self.ids is None:
            return rows
        spread = mx.full((*rows.shape[:-1], self.size), -mx.inf)
        spread[..., self.ids] = rows
        return spread

    def ruled(self, rule: Rule) -> Rule:
        """A rule for rows of these columns; kept, since it serves a whole decode."""
        if self.ids is None:
            return rule
        if self._ruled[0] is not rule:
            ids: Any = self.ids.tolist()
            self._ruled = rule, rule.over(ids)
        return self._ruled[1]

    def tokens_of(self, columns: mx.array) -> mx.array:
        """The target's ids of some columns."""
        return columns if self.ids is None else self.ids[columns]


class Draws:
    """One round's logits as the target's sampler would process them, with the noise it is going to draw with."""

    def __init__(self, context: Context, vocabulary: Vocabulary, coupled: bool, stray: float) -> None:
        self.context = context
        self.sampler = sampler = context.sampler
        self.vocabulary = vocabulary
        self.noisy = coupled and sampler.temperature > 0
        self.scale = 1.0 if sampler.temperature > 0 and not coupled else (sampler.temperature or 1.0) / stray

    def scores(self, logits: mx.array, said: Sequence[mx.array]) -> tuple[mx.array, mx.array | None]:
        """Logits (beams, draft vocabulary) after the tokens ``said`` by each beam -> scores (beams, n), and of which tokens: (n,) or (beams, n) ids.

        None where the columns are the ids.
        """
        sampler, ids = self.sampler, self.vocabulary.ids
        x = self.vocabulary.cut(logits).astype(mx.float32)
        if sampler.processors:  # they know the target's ids
            rows = [self.context.biased(row, [tokens[beam] for tokens in said]) for beam, row in enumerate(self.vocabulary.spread(x))]
            x = self.vocabulary.gather(mx.concatenate(rows))
        if sampler.rule is not None:
            x, ids = self.vocabulary.ruled(sampler.rule)(self.context.history, said, x)
        elif sampler.warps and x.shape[-1] > NUCLEUS:
            columns = mx.argpartition(-x, NUCLEUS - 1, axis=-1)[:, :NUCLEUS]
            x, ids = mx.take_along_axis(x, columns, axis=-1), self.vocabulary.tokens_of(columns)
        for warp in sampler.warps:
            with suppress(ValueError):  # mlx-lm's top-k of more tokens than there are here: it would mask none
                x = warp(x)
        if sampler.temperature > 0:
            x = x * (1 / sampler.temperature)
        if self.noisy:
            x = sampler.perturb(x, self.context.position + len(said), ids)
        return x * self.scale, ids


def opened(model: str, wish: str, target: Target, loaded: Loaded, options: Options, say: Say) -> RecurrentDrafter:
    """The drafter of ``--drafter redrafter:FOLDER``. Raises DrafterError where it was trained for another target."""
    path = Path(model).expanduser()
    check_trained_for(path, wish, loaded, say)
    preflight(wish, Need(RecurrentDrafter.bytes(path), 0, 0), loaded.memory, options.force, say)
    return RecurrentDrafter.load(path, loaded.model, target.vocab_size, wish)


def embedding_of(model: nn.Module) -> Embed:
    """A mlx-lm model's embedding table as a function, tokens (n,) -> (n, hidden_size), without the factor some families multiply it by."""
    tables = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding | nn.QuantizedEmbedding)}
    named = [table for name, table in tables.items() if name.rpartition(".")[2] == "embed_tokens"]
    found = named or list(tables.values())
    if len(found) != 1:
        raise DrafterError(f"The target has {len(found)} embedding tables and a ReDrafter reads one: pass --drafter lookup.")
    table: Any = found[0]
    call: Any = (nn.QuantizedEmbedding if isinstance(table, nn.QuantizedEmbedding) else nn.Embedding).__call__  # not that of a kind that scales
    return lambda tokens: call(table, tokens)


def _on_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def _top(values: mx.array, count: int) -> mx.array:
    """Places of the ``count`` highest, highest first."""
    if count == 1:
        return mx.argmax(values, keepdims=True)
    best = mx.argpartition(-values, count - 1)[:count] if count < values.size else mx.arange(values.size, dtype=mx.uint32)
    return best[mx.argsort(-values[best])]


def _chance(step: Step, carried: int) -> float:
    """How likely it is that what the target says is among the beams carried on."""
    values: Any = step[2].tolist()
    return sum(exp(value) for value in values[:carried])


def _tree(steps: Sequence[Step], most: int, worth: float) -> tuple[Proposal, tuple[float, ...]]:
    """The ``most`` likeliest prefixes of at least ``worth`` as rows, with their probabilities; the likeliest branch comes first and in one piece.

    No prefix comes twice: those of one length differ in the beam they grew from or in their last token, and beams differ.
    """
    nodes: list[tuple[float, int, int, int]] = []  # probability, step, rank in the step, place of the parent in its step
    before: list[float] = [1.0]
    tokens: list[Any] = []
    for step, (beams, said, values) in enumerate(steps):
        grew: Any = beams.tolist()
        chances: Any = values.tolist()
        tokens.append(said.tolist())
        here = [min(exp(chance), before[beam]) for chance, beam in zip(chances, grew, strict=True)]  # rounding may put a child above its parent
        nodes += [(chance, step, rank, grew[rank]) for rank, chance in enumerate(here) if chance >= worth and chance > 0]
        before = here
    nodes = sorted(nodes, key=lambda node: (-node[0], node[1], node[2]))[:most]  # a parent comes before its children
    children: dict[tuple[int, int], list[tuple[float, int, int, int]]] = {}
    for node in nodes:
        children.setdefault((node[1] - 1, node[3] if node[1] else 0), []).append(node)
    rows: list[tuple[int, int, float]] = []

    def grow(step: int, rank: int, row: int) -> None:
        for chance, _, child, _ in children.get((step, rank), ()):
            rows.append((tokens[step + 1][child], row, chance))
            grow(step + 1, child, len(rows) - 1)

    grow(-1, 0, -1)
    likely = tuple(row[2] for row in rows)
    return Proposal(tuple(row[0] for row in rows), tuple(row[1] for row in rows), values=likely), likely
