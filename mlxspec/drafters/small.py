"""The classical drafter: a smaller model with the same tokens (Leviathan et al. 2211.17192), drawing with the target's own noise.

Under ``coupled`` its draws are argmax(log q + G) with the G that the target will use, so both say the same wherever q is close to p. Under ``ratio``
it samples with noise of its own and hands over q.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from mlxspec.core.cache import keep_rows, make_cache
from mlxspec.core.drafter import Drafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, whole
from mlxspec.core.target import Target
from mlxspec.drafters.choose import check_same_tokens, check_trained_for
from mlxspec.errors import DrafterError, RollbackError
from mlxspec.loading.load import Loaded, Say, context_length, dequantise, load_model, runs_on_cpu
from mlxspec.loading.memory import needed, preflight
from mlxspec.settings.options import Options

FORWARDS = 64  # how many steps a recurrent small model can go back over
BEHIND = 8  # tokens not read yet above which all but the last are read without their logits


class SmallDrafter(Drafter):
    """A chain of the small model's draws; with ``width`` above 1 the runners-up of each step hang beside it as leaves.

    The model reads each token once: what it drafted itself and was accepted stays in its cache, the rest is fed with the next proposal.
    """

    depth = 4
    width = 1
    chunk = 512

    def __init__(self, model: nn.Module, name: str = "small", *, max_kv_size: int | None = None, kv_bits: int | None = None) -> None:
        self.model = model
        self.name = name
        self.max_kv_size, self.kv_bits = max_kv_size, kv_bits
        for layer in make_cache(model, max_kv_size, kv_bits):
            if not layer.is_trimmable():
                raise DrafterError(
                    f"{name} cannot draft: its {type(layer).__name__} cannot drop rejected tokens. Pass --drafter lookup, or another small model."
                )
        self.read: list[int] = []  # what the cache holds
        self.drafted = 0
        self.begin((), {}, 0)

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        known = self._rewind_to(prompt) if reused and not self.drafted else 0
        if not known:
            self.cache = make_cache(self.model, self.max_kv_size, self.kv_bits, forwards=FORWARDS)
        self.read = list(prompt[:known])
        self._fill(prompt[known:])
        self.unread: list[int] = []  # emitted, but not in the cache
        self.proposal = Proposal()
        self.drafted = 0  # rows 0 to drafted - 1 are the chain; the cache has read all but its last

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        self.unread.append(token)
        width = min(context.width or self.width, context.sampler.vocab_size) if context.coupled else 1
        budget = context.rows or limit * width
        self.drafted = min(limit, budget, FORWARDS)
        drawn: list[mx.array] = []  # (width,) a step, the best first; not evaluated before the last is drawn
        probs: list[mx.array] | None = None if context.coupled else []
        if self.drafted and len(self.unread) > BEHIND:
            self._fill(self.unread[:-1])
            self.unread = self.unread[-1:]
        feed = mx.array(self.unread, mx.uint32)
        for step in range(self.drafted):
            logits = self._read(feed, context.sampler.vocab_size)
            best = [tokens[0] for tokens in drawn]
            if probs is None:
                tokens = _top(context.perturbed(logits, best), width)
            else:
                probs.append(context.probs(logits, best))
                tokens = context.sample(probs[-1], step, "draft")[None]
            mx.async_eval(tokens)
            drawn.append(tokens)
            feed = tokens[:1]
        if self.drafted:
            self.read += self.unread
            self.unread = []
        self.proposal = _comb([[whole(token) for token in tokens] for tokens in drawn], probs, budget)
        return self.proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        if not self.drafted:
            return
        followed = sum(row == step for step, row in enumerate(path))
        read = min(followed, self.drafted - 1)
        keep_rows(self.cache, self.drafted - 1, range(read))
        self.read += self.proposal.tokens[:read]
        self.drafted = 0
        self.unread = [self.proposal.tokens[row] for row in path[read:]]

    def _fill(self, tokens: Sequence[int]) -> None:
        """Read tokens whose logits nobody asks for: those are not computed."""
        for start in range(0, len(tokens), self.chunk):
            self.model(mx.array([tokens[start : start + self.chunk]], mx.uint32), cache=self.cache)
            mx.eval([layer.state for layer in self.cache])
        self.read += tokens

    def _rewind_to(self, prompt: Sequence[int]) -> int:
        """Go back to the longest common prefix with a prompt; 0 where the cache cannot."""
        common = next((i for i, (a, b) in enumerate(zip(self.read, prompt, strict=False)) if a != b), min(len(self.read), len(prompt)))
        try:
            keep_rows(self.cache, len(self.read) - common, ())
        except RollbackError:
            return 0
        return common

    def _read(self, tokens: mx.array, vocab_size: int) -> mx.array:
        """Logits after the last of ``tokens``, (vocab_size,): a padded vocabulary is cut, a narrower one filled with -inf."""
        logits = self.model(tokens[None], cache=self.cache)[0, -1]
        missing = vocab_size - logits.size
        return mx.concatenate([logits, mx.full((missing,), -mx.inf, logits.dtype)]) if missing > 0 else logits[:vocab_size]


def opened(model: str, wish: str, target: Target, loaded: Loaded, options: Options, say: Say) -> SmallDrafter:
    """The drafter of ``--drafter small:MODEL``. Raises DrafterError unless it has the target's tokens, ModelError where it does not fit."""
    if (Path(model).expanduser() / "config.json").is_file():
        check_trained_for(Path(model), wish, loaded, say)
    small = load_model(replace(options, model=model), say, loaded.memory)
    check_same_tokens(loaded.tokenizer, small.tokenizer, small.name)
    network = loaded.model if small.digest == loaded.digest else dense(small.model)  # the target drafting for itself is in memory once
    need = needed(network, context_length(small.config), options.max_kv_size, options.kv_bits)
    if loaded.memory + need.total > small.memory:
        preflight(f"{small.name}, unpacked", need, loaded.memory, options.force, say)
    return SmallDrafter(network, wish, max_kv_size=options.max_kv_size, kv_bits=options.kv_bits)


def dense(model: nn.Module) -> nn.Module:
    """On the CPU a drafter's quantised layers are unpacked: a row through them takes two to five times what it takes through dense ones there."""
    return dequantise(model) if runs_on_cpu() else model


def _top(scores: mx.array, width: int) -> mx.array:
    """The ``width`` best, best first, (width,)."""
    if width == 1:
        return mx.argmax(scores, keepdims=True)
    best = mx.argpartition(-scores, kth=width - 1)[:width]
    return best[mx.argsort(-scores[best])]


def _comb(steps: Sequence[Sequence[int]], probs: Sequence[mx.array] | None, budget: int) -> Proposal:
    """The chain of first choices, rows 0 to n - 1, then the runners-up as leaves beside it, as far as the budget goes.

    >>> _comb([[5, 6], [7, 8]], None, 4)
    Proposal(tokens=(5, 7, 6, 8), parents=(-1, 0, -1, 0), probs=None, values=None, rest=False)
    """
    leaves = [(token, step - 1) for step, tokens in enumerate(steps) for token in tokens[1:]][: budget - len(steps)]
    tokens = (*(tokens[0] for tokens in steps), *(token for token, _ in leaves))
    parents = (*range(-1, len(steps) - 1), *(parent for _, parent in leaves))
    return Proposal(tokens, parents, probs)
