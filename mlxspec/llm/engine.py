"""The public face: a loaded model with its drafter, a prompt in, events out. Knows no terminal and no sound card."""

import secrets
import sys
from collections.abc import Generator, Sequence
from dataclasses import fields
from threading import Event as CancelEvent
from typing import Any

import mlx.core as mx
from mlx_lm.utils import maybe_set_recommended_wired_limit

from mlxspec.core.accept import rule
from mlxspec.core.decode import decode
from mlxspec.core.events import Done, Event, Prefill, Text, finished
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Sampler, number
from mlxspec.core.sequence import Interrupted, TokenSequence
from mlxspec.core.stats import Stats
from mlxspec.core.target import Rows, Target, result
from mlxspec.drafters.cost import CostCurve
from mlxspec.drafters.drafting import Drafting, limits
from mlxspec.drafters.kinds import check_name
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.llm.chat import Chat, full, too_many
from mlxspec.llm.prompt import MARK, PromptReader, check_text
from mlxspec.llm.text import TextStream
from mlxspec.loading.load import Loaded, Say, context_length, load_model
from mlxspec.settings.options import Options, known, names

Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def load(model: str = "smollm2-135m", *, drafter: Any = "auto", say: Say | None = None, **options: Any) -> "Engine":
    """Load a model and a drafter for it.

    ``model``: built-in name, local folder, .gguf file or hub id. ``drafter``: a name, or any object with the Drafter methods.
    ``options`` are those of Options with ``when="load"``: dtype, max_kv_size, kv_bits, offline, yes, force.
    ``say`` takes one-line notices (default: stderr).
    Raises UsageError, ModelError or DrafterError.
    """
    say = say or _to_stderr
    wish = drafter if isinstance(drafter, str) else "auto"
    check_name(wish)
    settings = Options(model=model, drafter=wish, **known(options, "load"))
    loaded = load_model(settings, say)
    maybe_set_recommended_wired_limit()  # on Metal only, as mlx-lm does for its own loop
    target = Target(loaded.model, context_length=context_length(loaded.config), max_kv_size=settings.max_kv_size, kv_bits=settings.kv_bits)
    return Engine(loaded, TokenSequence(target), drafter, settings, say)


class Engine:
    """A target with a drafter and one text. One reply at a time: starting another ends the one before it."""

    def __init__(self, loaded: Loaded, sequence: TokenSequence, drafter: Any, settings: Options, say: Say, cost: CostCurve | None = None) -> None:
        self.loaded = loaded
        self.sequence = sequence
        self.target = target = sequence.target
        self.settings = settings
        self.say = say
        self.drafting = Drafting(drafter, target, loaded, settings, say, cost)
        self.speculation, self.reason = self.drafting.speculation, self.drafting.reason
        self.tokenizer = loaded.tokenizer
        self._fast_tokenizer: Any = self.tokenizer.backend_tokenizer if self.tokenizer.is_fast else None  # decodes in 1 us, transformers in 20
        self.model_name = loaded.name
        self.drafter_name = self.drafting.name
        self.defaults = loaded.defaults
        self.reader = PromptReader(self.tokenizer, loaded.name, say)
        self.vocab_size = min(target.vocab_size, 1 + max(self.tokenizer.get_vocab().values()))

    def with_drafter(self, drafter: Any) -> "Engine":
        """The same target in memory, and the same text, with another drafter."""
        return self._with(self.sequence, drafter)

    def aside(self) -> "Engine":
        """The same target in memory with a text of its own and no drafter: what is said there leaves this one's text alone."""
        return self._with(TokenSequence(self.target), "none")

    def _with(self, sequence: TokenSequence, drafter: Any) -> "Engine":
        other = Engine(self.loaded, sequence, drafter, self.settings, self.say, self.drafting.cost)
        other.reader = self.reader
        return other

    def report(self) -> tuple[str, str | None]:
        """Whether drafts are made now (on, paused, off), and the reason where they are not."""
        return (self.drafting.adaptive or self.drafting.asked[-1]).report()

    def generate(self, prompt: Prompt, **options: Any) -> Done:
        """The whole reply at once; options as for ``stream``."""
        return finished(self.stream(prompt, **options))

    def stream(self, prompt: Prompt, *, cancel: CancelEvent | None = None, reuse: bool = False, **options: Any) -> Generator[Event, None, None]:
        """Yield Prefill, Text and at last Done.

        ``prompt``: a user message, a list of messages, or tokens as they are. ``options`` are those of Options with ``when="reply"``.
        ``cancel`` ends the reply within a round, with what it has. ``reuse`` starts from what the caches hold of the prompt already.
        Raises UsageError at once for what makes no sense.
        """
        settings = self.checked(options)
        tokens = self.prompt_tokens(prompt, settings)
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        return self._reply(tokens, settings, self.sampler(settings, seed), cancel, reuse)

    def chat(self, *, system: str | None = None, **options: Any) -> Chat:
        """A conversation that keeps the caches over its turns; ``options`` are reply options for all of them."""
        system = options.pop("system_prompt", None) if system is None else system
        self.checked(options)
        return Chat(self, system, **options)

    def prompt_tokens(self, prompt: Prompt, settings: Options | None = None) -> list[int]:
        """The tokens a prompt becomes: text and messages through the chat template, tokens unchanged."""
        settings = settings or self.checked({})
        if not isinstance(prompt, str | list | tuple):
            raise UsageError(f"A prompt is text, a list of messages or a list of tokens, and {prompt!r:.60} is none of them.")
        if isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], dict)):
            tokens = self._templated(prompt, settings)
        else:
            tokens = [token for token in prompt if isinstance(token, int) and not isinstance(token, bool)]
            if len(tokens) != len(prompt):
                raise UsageError(f"The prompt has tokens outside 0 to {self.vocab_size - 1}: give whole numbers in that range.")
        self._check_rows(tokens)
        if not tokens:
            raise UsageError("The prompt is empty: give some text.")
        limit = self.target.context_length
        if limit is not None and len(tokens) >= limit:
            raise UsageError(f"The prompt has {len(tokens)} tokens and {self.model_name} reads at most {limit}: shorten it.")
        return tokens

    def fitted(self, messages: Sequence[dict[str, str]], **options: Any) -> list[dict[str, str]]:
        """Messages without the oldest turns where the context has no room for them and a reply, as a chat leaves them out; that is said."""
        settings = self.checked(options)
        limit = self.target.context_length

        def count(left: Sequence[dict[str, str]]) -> int:
            return len(self._templated(left, settings))

        dropped = too_many(list(messages), count, limit, settings.max_tokens)
        if dropped:
            self.say(full(limit, dropped))
        return list(messages)[dropped:]

    def _check_rows(self, tokens: Sequence[int]) -> None:
        """Raise for a token the model has no row for: it would read whatever stands behind its embeddings."""
        outside = next((token for token in tokens if not 0 <= token < self.vocab_size), None)
        if outside is None:
            return
        spelling = next((f"{text!r} ({number})" for text, number in self.tokenizer.get_vocab().items() if number == outside), outside)
        what = f"{self.model_name} has tokens 0 to {self.vocab_size - 1}"
        raise UsageError(f"The prompt has the token {spelling}, and {what}: leave it out, or give a model and a tokenizer that belong together.")

    def sampler(self, settings: Options, seed: int) -> Sampler:
        """The sampler of a reply."""
        chosen = {f.name: getattr(settings, f.name) for f in fields(Options) if f.name in _SAMPLING}
        outside = [token for token in settings.logit_bias or {} if token >= self.vocab_size]
        if outside:
            raise UsageError(f"--logit-bias names token {outside[0]}: {self.model_name} has tokens 0 to {self.vocab_size - 1}.")
        return Sampler(self.vocab_size, seed=seed, **chosen)

    def gap(self, tokens: Sequence[int], one: int, other: int, *, seed: int = 0, **options: Any) -> tuple[float, str]:
        """How close two candidates for the token after ``tokens`` are, and in which measure: a small gap is a tie of float rounding.

        The difference of their scores (noise and temperature included), or of a masked one's distance from the edge of the nucleus.
        """
        settings = self.checked(options)
        self._end_reply()
        rows: Rows = result(TokenSequence(self.target).read(tokens))
        context = self.sampler(settings, seed).at(tokens)
        scores = context.perturbed(rows.logits[-1])
        a, b = number(scores[one]), number(scores[other])
        if a > -mx.inf and b > -mx.inf:
            return abs(a - b), "score"
        return _edge_distance(self.sampler(settings, seed).at(tokens), rows.logits[-1], one if a == -mx.inf else other, settings.top_p), "edge"

    def chances(self, tokens: Sequence[int], proposal: Proposal, *, cancel: CancelEvent | None = None, **options: Any) -> tuple[float, ...] | None:
        """How likely the target holds each row of a proposal to be reached and right after ``tokens``: what ``Proposal.values`` is to the drafter.

        For whoever looks at a round afterwards: all is read anew, in a cache of its own. At temperature 0 the chances are those before the likeliest
        token is taken. None where ``cancel`` is set.
        """
        settings = self.checked(options)
        self._end_reply()
        sequence = TokenSequence(self.target)
        try:
            result(sequence.read(tokens[:-1], cancel=cancel))
        except Interrupted:
            return None
        context = self.sampler(settings, 0).at(tokens)
        logits = result(sequence.run(tokens[-1], proposal, (), context)).logits
        found: list[float] = []
        for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
            ancestors = [proposal.tokens[row] for row in proposal.path_to(parent)]
            share = number(mx.softmax(context.scores(logits[parent + 1], ancestors), precise=True)[token])
            found.append(share * (found[parent] if parent >= 0 else 1.0))
        return tuple(found)

    def _reply(self, prompt: list[int], settings: Options, sampler: Sampler, cancel: CancelEvent | None, reuse: bool) -> Generator[Event, None, None]:
        policy = rule(settings.accept)
        assert policy is not None
        stop_tokens = frozenset(self.tokenizer.eos_token_ids)
        ends = limits(settings, policy, max_tokens=settings.max_tokens, stop_tokens=stop_tokens, cancel=cancel, reuse=reuse)
        drafter = self.drafting.of(settings, policy)
        stats = Stats(len(prompt), *drafter.report())
        text = TextStream(self._decode_text, settings.stop, stop_tokens)
        emitted: list[int] = []
        finish = "interrupted"
        self._end_reply()
        steps = self.sequence.user = decode(self.sequence, drafter, policy, sampler, prompt, ends)
        try:
            while True:
                try:
                    event = next(steps)
                except StopIteration as end:
                    finish = end.value or "interrupted"  # taken over by another reply
                    break
                if isinstance(event, Prefill):
                    stats.reused_tokens = self.sequence.reused
                    yield event
                    continue
                piece, step = text.push(event)
                emitted += step.tokens
                stats.add(step)
                yield Text(piece, step)
                if text.stopped:
                    finish = "stop_string"
                    break
                if stats.rounds % 256 == 255:
                    mx.clear_cache()
        finally:
            steps.close()
        stats.speculation, stats.reason = drafter.report()
        drafter.keep()
        rest = text.flush()
        finish = "stop_string" if text.stopped else finish
        if rest:
            yield Text(rest, None)
        yield Done(
            text=text.text,
            tokens=tuple(emitted),
            finish_reason=finish,
            model=self.model_name,
            drafter=self.drafter_name,
            accept=policy.name,
            exact=policy.exact,
            seed=sampler.seed,
            stats=stats.report(),
        )

    def _end_reply(self) -> None:
        """End the reply that has the target's cache now, if any."""
        if self.sequence.user is not None:
            try:
                self.sequence.user.close()
            except ValueError:
                raise MlxspecError("This model is answering in another thread: wait for it, or load the model twice.") from None

    def checked(self, options: dict[str, Any]) -> Options:
        """The settings of a reply with these options. Raises UsageError or DrafterError where they make no sense."""
        fixed = {name: getattr(self.settings, name) for name in names("load")}
        settings = Options(**{**fixed, **self.defaults, **known(options, "reply")})
        if rule(settings.accept) is None:
            said = f"--accept {settings.accept} compares tokens by their sound, and {self.model_name} has no audio alphabet"
            raise UsageError(f"{said}: use --accept coupled, or mlxspec speak with a voice.")
        self.drafting.check(settings)
        return settings

    def _templated(self, prompt: Any, settings: Options) -> list[int]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("content"), str) or not isinstance(message.get("role"), str):
                raise UsageError(f"A message needs a role and a content: {message!r:.80} has not.")
        check_text(messages)
        if not "".join(message["content"] for message in messages).strip():
            raise UsageError("The prompt is empty: give some text.")
        if settings.system_prompt is not None:
            messages = [{"role": "system", "content": settings.system_prompt}, *messages]
        return self.reader.tokens(messages, settings.chat_template_config)

    def render(self, messages: Sequence[dict[str, str]], template_config: str | None = None) -> str:
        """Messages as the text the model reads, ready for its reply; without a chat template just the contents, a blank line between."""
        return self.reader.marked(messages, template_config).replace(MARK, "")

    def _decode_text(self, tokens: Sequence[int]) -> str:
        if self._fast_tokenizer is not None:
            return str(self._fast_tokenizer.decode(tokens, skip_special_tokens=False))
        return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "repetition_context_size", "logit_bias")


def _edge_distance(context: Context, logits: mx.array, token: int, top_p: float) -> float:
    """How far the mass above a masked token is from the edge of the nucleus."""
    probs = mx.softmax(logits[: context.sampler.vocab_size].astype(mx.float32), precise=True)
    return abs(number(mx.where(probs > probs[token], probs, 0).sum()) - top_p)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)
