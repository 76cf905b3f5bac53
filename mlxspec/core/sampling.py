"""From logits to tokens: penalties, warps, temperature, and noise keyed by position. Knows no model and no drafter.

A token is drawn as argmax(log p + G), G the Gumbel noise of (seed, position): what the target says at a position depends on the seed, the
position and the tokens before it alone, so the text is the same with any drafter or none. At temperature 0 the noise is zero.
Background: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978.

Penalties and warps are mlx-lm's own functions, in its order: bias and penalty, top-p, min-p, top-k, then temperature.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from mlxspec.core.proposal import Proposal
from mlxspec.errors import ModelError, UsageError

Seen = Sequence[int | mx.array]  # tokens, the last of them perhaps not yet evaluated


class Rule(Protocol):
    """What may be said next, by all that was said."""

    def __call__(self, history: Seen, ancestors: Seen, logits: mx.array) -> tuple[mx.array, mx.array]:
        """``ancestors``: tokens drafted below the history, each one token, or one a row. Logits (rows, vocab) -> those of the tokens that may be
        said, (rows, n), and which these are, (n,) or (rows, n).
        """
        ...

    def over(self, ids: Sequence[int]) -> "Rule":
        """The same rule for logits (rows, ids) of some tokens alone."""
        ...


PURPOSES = ("target", "draft", "accept", "residual", "label")
_MASK = (1 << 64) - 1
NO_NUMBER, NO_TOKEN = -1, -2  # in place of a token; as indices they count from the end, so that a step started on one is harmless


def mix(*parts: int) -> int:
    """Hash whole numbers to 64 bits (splitmix64 over each part), so that nearby seeds and positions share nothing."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _MASK)) & _MASK
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class Sampler:
    """How a reply is drawn. One object makes p for the target and q for the drafter.

    ``vocab_size`` counts the tokens that exist: logits of a padded vocabulary are cut to it, so a padding id has probability 0.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        repetition_context_size: int = 20,
        logit_bias: Mapping[int, float] | None = None,
        rule: Rule | None = None,
        seed: int = 0,
    ) -> None:
        """``rule`` says what may be said next by all that was said; it is asked after penalties and before warps."""
        self.vocab_size = vocab_size
        self.temperature = temperature
        self.seed = seed
        self.rule = rule
        self.penalised = repetition_penalty != 1.0
        self.window = repetition_context_size
        self.processors = make_logits_processors(
            logit_bias=dict(logit_bias) if logit_bias else None,
            repetition_penalty=repetition_penalty if self.penalised else None,
            repetition_context_size=repetition_context_size,
        )
        self.warps: list[Callable[[mx.array], mx.array]] = []
        if temperature > 0:
            if top_p < 1:
                self.warps += [_normalise, lambda x: apply_top_p(x, top_p)]
            if min_p > 0:
                self.warps.append(lambda x: apply_min_p(x, min_p))
            if 0 < top_k < vocab_size:
                self.warps.append(lambda x: apply_top_k(x, top_k))
        self._noise: dict[tuple[int, ...], mx.array] = {}

    def at(self, history: Sequence[int], **shape: Any) -> "Context":
        """The draw that follows ``history`` (prompt, answer and pending token): its position is ``len(history)``."""
        return Context(self, history, **shape)

    def scores(self, logits: mx.array, tokens: Seen) -> mx.array:
        """Processed log-probabilities, up to a constant, temperature included: (rows, vocab) -> (rows, vocab) float32; -inf where masked.

        The rule is left out: it is the context that knows all tokens so far.
        """
        return self.warped(self.biased(logits, tokens))

    def biased(self, logits: mx.array, tokens: Seen) -> mx.array:
        """Logits after bias and penalty, (rows, vocab) float32."""
        x = logits[..., : self.vocab_size].astype(mx.float32)
        if self.processors:
            x = mx.array(x)  # the processors write into their argument
            seen = _concatenate(tokens[-self.window :]) if self.penalised else mx.array([], mx.int32)
            for process in self.processors:
                x = process(seen, x)
        return x

    def warped(self, x: mx.array) -> mx.array:
        """Logits (rows, n) after warps and temperature."""
        for warp in self.warps:
            x = warp(x)
        return x * (1 / self.temperature) if self.temperature > 0 else x

    def noise(self, position: int, purpose: str, salt: int = 0) -> mx.array | float:
        """Gumbel noise over the token ids, (vocab,) float32; 0 at temperature 0. Kept for a few positions, since drafter and target share it."""
        if self.temperature == 0:
            return 0.0
        key = (position, PURPOSES.index(purpose), salt)
        if key not in self._noise:
            if len(self._noise) > 64:
                self._noise = {k: v for k, v in self._noise.items() if k[0] >= position - 1}
            self._noise[key] = mx.random.gumbel((self.vocab_size,), key=mx.random.key(mix(self.seed, *key)))
        return self._noise[key]

    def perturb(self, scores: mx.array, position: int, ids: mx.array | None = None) -> mx.array:
        """Scores plus the target's noise: the target says their argmax, a coupled drafter offers their top. ``ids``: the columns' tokens."""
        noise = self.noise(position, "target")
        return scores + noise if ids is None or isinstance(noise, float) else scores + noise[ids]

    def uniform(self, position: int, purpose: str, salt: int = 0) -> float:
        """A number in [0, 1) for the same kind of key, with 53 bits."""
        return (mix(self.seed, position, PURPOSES.index(purpose), salt, 1) >> 11) / (1 << 53)


class Context:
    """One round's draws. Row 0 predicts the token at ``position``; a row ``d`` steps below it the one at ``position + d``.

    ``coupled`` says that drafters draw with the target's noise; otherwise with their own, and they say from which probabilities.
    ``width`` and ``rows`` are the user's wishes for the shape of a proposal, None for the drafter's own choice.
    """

    def __init__(
        self,
        sampler: Sampler,
        history: Seen,
        *,
        coupled: bool = True,
        width: int | None = None,
        rows: int | None = None,
    ) -> None:
        self.sampler = sampler
        self.history = history
        self.position = len(history)
        self.coupled = coupled
        self.width = width
        self.rows = rows
        self._first: mx.array | None = None

    def scores(self, logits: mx.array, ancestors: Seen = ()) -> mx.array:
        """Scores of one row, (vocab,), its ancestors (tokens below the pending one) appended to the history that penalties see."""
        x = self.biased(logits, ancestors)
        if self.sampler.rule is None:
            return self.sampler.warped(x)[0]
        allowed, ids = self.sampler.rule(self.history, ancestors, x)
        scores = mx.full(x.shape[1:], -mx.inf)
        scores[ids.reshape(-1)] = self.sampler.warped(allowed)[0]
        return scores

    def biased(self, logits: mx.array, ancestors: Seen = ()) -> mx.array:
        """One row's logits (vocab,) after bias and penalty, (1, vocab)."""
        tokens = [*self.history[-self.sampler.window :], *ancestors] if self.sampler.window else [*self.history, *ancestors]
        return self.sampler.biased(logits[None], tokens)

    def probs(self, logits: mx.array, ancestors: Seen = ()) -> mx.array:
        """Probabilities of one row, (vocab,) float32; at temperature 0 all on the likeliest token."""
        scores = self.scores(logits, ancestors)
        if self.sampler.temperature == 0:
            return (mx.arange(scores.size) == mx.argmax(scores)).astype(mx.float32)
        return mx.softmax(scores, precise=True)

    def perturbed(self, logits: mx.array, ancestors: Seen = ()) -> mx.array:
        """Scores plus the target's noise, (vocab,): the target says their argmax, a coupled drafter offers their top."""
        return self.sampler.perturb(self.scores(logits, ancestors), self.position + len(ancestors))

    def draw(self, logits: mx.array, ancestors: Seen = ()) -> mx.array:
        """What the target says after one row of its logits: a token, not yet evaluated."""
        return drawn(self.perturbed(logits, ancestors))

    def first(self, logits: mx.array) -> mx.array:
        """The draw of row 0, not yet evaluated, and remembered: ``target_tokens`` will not draw it again."""
        if self._first is None:
            self._first = self.draw(logits[0])
        return self._first

    def after(self, token: mx.array) -> "Context":
        """The context one token further on, the token not yet evaluated."""
        return Context(self.sampler, [*self.history, token], coupled=self.coupled, width=self.width, rows=self.rows)

    def remember(self, drawn: mx.array) -> None:
        """Row 0 was drawn already."""
        self._first = drawn

    def target_tokens(self, proposal: Proposal, logits: mx.array) -> Callable[[int], int]:
        """What the target says below each row (-1: the pending token), drawn when asked for, so that a round pays only for rows it visits.

        Without noise, penalties and warps the draw is one argmax, and all rows are read in one go.
        """
        sampler = self.sampler
        if self._first is None and len(proposal) and sampler.temperature == 0 and not sampler.penalised and sampler.rule is None:
            tokens: list[int] = drawn(sampler.scores(logits, ())).tolist()  # type: ignore[assignment]
            return lambda row: token_of(tokens[row + 1])

        def token_below(row: int) -> int:
            if row < 0:
                return whole(self.first(logits))
            return whole(self.draw(logits[row + 1], [proposal.tokens[i] for i in proposal.path_to(row)]))

        return token_below

    def sample(self, probs: mx.array, depth: int, purpose: str) -> mx.array:
        """A token from ``probs`` with noise of its own, keyed by round and depth, so that no draw serves twice; not yet evaluated."""
        return drawn(mx.log(probs) + self.sampler.noise(self.position + depth, purpose, salt=self.position))

    def uniform(self, depth: int, purpose: str, trial: int = 0) -> float:
        """A uniform number of this round and depth; trials count up where one is not enough."""
        return self.sampler.uniform(self.position + depth, purpose, salt=self.position + (trial << 40))


def drawn(scores: mx.array) -> mx.array:
    """The token with the highest score, (..., vocab) -> (...) int32, not yet evaluated. Where there is none it says why: ``token_of`` reads that.

    So whoever reads the token learns of a fault by the same read.
    """
    token = mx.argmax(scores, axis=-1, keepdims=True)
    best = mx.take_along_axis(scores, token, axis=-1).squeeze(-1)  # NaN where the scores are: no second look at all of them is needed
    fault = mx.where(best == -mx.inf, NO_TOKEN, NO_NUMBER)
    return mx.where(mx.abs(best) < mx.inf, token.squeeze(-1).astype(mx.int32), fault)


def token_of(value: int) -> int:
    """What ``drawn`` gave, once it is read; an error where that is no token."""
    if value == NO_NUMBER:
        raise no_numbers("")
    if value == NO_TOKEN:
        raise UsageError("No token is left to draw: --logit-bias or the model itself bars all of them. Let some have a chance.")
    return value


def no_numbers(dtype: str) -> ModelError:
    """The error for logits that are NaN or infinite, ``dtype`` being what they are in, where that is known."""
    others = " or ".join(name for name in ("float32", "bfloat16") if name != dtype)
    if dtype == "float32":
        return ModelError("The model's logits are no numbers (NaN or infinite) in float32: its weights are damaged. Fetch it again.")
    where = f" in {dtype}" if dtype else ""
    return ModelError(
        f"The model's logits are no numbers (NaN or infinite){where}: give --dtype {others}; where that changes nothing its weights are damaged."
    )


def whole(x: mx.array) -> int:
    """The value of an array of one whole number, such as a drawn token, evaluated."""
    return token_of(int(x.item()))  # type: ignore[arg-type]


def number(x: mx.array) -> float:
    """The value of an array of one real number, evaluated."""
    return float(x.item())  # type: ignore[arg-type]


def _normalise(x: mx.array) -> mx.array:
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def _concatenate(tokens: Seen) -> mx.array:
    """Token ids, some of them not yet evaluated, as one vector."""
    if all(isinstance(token, int) for token in tokens):
        return mx.array(list(tokens), mx.int32)
    return mx.stack([mx.array(token, mx.int32) if isinstance(token, int) else token.astype(mx.int32) for token in tokens])
