"""An engine of words for the chat: seeded, drafted in trees, some of it rejected; it goes as fast or as slow as a gate lets it. No MLX arrays.

The conversation over it is the real mlxspec.llm.chat.Chat, so prompts, edits and going on are what they are with a model.
"""

import random
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlxspec.llm.chat  # here, not in the engine's thread: mlx_lm that is first imported in another thread may abort when Python ends
from mlxspec.core.events import Done, Event, Prefill, Step, Text
from mlxspec.core.proposal import Proposal
from mlxspec.errors import DrafterError, ModelError, UsageError
from mlxspec.settings.options import Options

WORDS = ("the quick brown fox jumps over a lazy dog", "and then it sleeps under an old tree until dawn comes")
END = 0
PATIENCE = 10.0  # seconds after which a thread that should have done something has not


class Gate:
    """Lets rounds through: all of them while open, else as many as ``let`` allows. ``reached`` counts those that came to it since
    it was closed."""

    def __init__(self, open: bool = True) -> None:
        self._condition = threading.Condition()
        self._open = open
        self._passes = 0
        self.reached = 0

    def open(self) -> None:
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def close(self) -> None:
        """From now on rounds wait; they are counted from 0."""
        with self._condition:
            self._open = False
            self.reached = 0

    def let(self, rounds: int) -> None:
        with self._condition:
            self._passes += rounds
            self._condition.notify_all()

    def arrive(self, cancel: threading.Event | None) -> None:
        """Called by the engine before a round; a cancelled one need not wait."""
        with self._condition:
            self.reached += 1
            self._condition.notify_all()
            while not self._open and not self._passes and not (cancel is not None and cancel.is_set()):
                self._condition.wait(0.01)
            self._passes -= not self._open and self._passes > 0

    def wait_for(self, rounds: int) -> None:
        """Wait until so many rounds came to the gate."""
        with self._condition:
            assert self._condition.wait_for(lambda: self.reached >= rounds, PATIENCE), f"{self.reached} rounds came, {rounds} were awaited"


class Words:
    """Token N is the Nth word it met; token 0 ends a reply."""

    chat_template = "fake"
    eos_token_ids = (END,)

    def __init__(self) -> None:
        self.words = ["</s>"]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        found = []
        for word in text.replace(" ", "\0 ").split("\0"):
            if word and word not in self.words:
                self.words.append(word)
            if word:
                found.append(self.words.index(word))
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[token] for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.words[token]


@dataclass
class FakeTarget:
    context_length: int | None = 4096


class FakeChatEngine:
    """Says seeded words; each round's tree has a chain of right guesses, as long as a seeded die says, and wrong ones beside and below it."""

    def __init__(self, model: str = "fake", drafter: str = "auto", *, gate: Gate | None = None, length: int = 24, context: int | None = 4096) -> None:
        self.model_name = model
        self.drafter_name = "lookup" if drafter == "auto" else drafter
        self.speculation = "off" if drafter == "none" else "on"
        self.reason: str | None = "--drafter none" if drafter == "none" else None
        self.defaults: dict[str, Any] = {}
        self.state: tuple[str, str | None] | None = None  # what it reports, where a test says so
        self.asides = 0
        self.tokenizer = Words()
        self.reader = self
        self.target = FakeTarget(context)
        self.loaded = type("Loaded", (), {"digest": f"digest of {model}", "name": model})()
        self.settings = Options(model=model, drafter=drafter if drafter in ("auto", "none", "lookup") else "auto")
        self.gate = gate or Gate()
        self.length = length
        self.script: list[str] = []  # replies to say in place of seeded words, first come first served
        self.fails_after: int | None = None  # rounds
        self.say: Callable[[str], None] = lambda text: None
        self.remark: str | None = None  # said with the first reply, as the cost of a round is
        self.odd_plain = False  # plain decoding says another last word: what may never be
        self.prompts: list[str] = []
        self.looked: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.threads: set[str] = set()

    # ---- What Engine has -----------------------------------------------------------------------------------------------------------------

    def chat(self, *, system: str | None = None, **options: Any) -> Any:
        return mlxspec.llm.chat.Chat(self, system, **options)

    def with_drafter(self, drafter: Any) -> "FakeChatEngine":
        if drafter not in ("none", "auto", "lookup") and not str(drafter).startswith(("small:", "redrafter:")):
            raise UsageError(f"--drafter {drafter} is unknown: give none, lookup, small:MODEL, redrafter:FOLDER or auto.")
        if drafter == "small:other-tokens":
            raise DrafterError("other-tokens speaks 9 tokens and the target 20: they need the same tokenizer.")
        other = FakeChatEngine(self.model_name, drafter, gate=self.gate, length=self.length, context=self.target.context_length)
        other.tokenizer, other.prompts, other.asked, other.script = self.tokenizer, self.prompts, self.asked, self.script
        return other

    def aside(self) -> "FakeChatEngine":
        self.asides += 1
        return self.with_drafter("none")

    def report(self) -> tuple[str, str | None]:
        return self.state or (self.speculation, self.reason)

    def render(self, messages: Sequence[Mapping[str, str]], template_config: str | None = None) -> str:
        return "".join(f"[{message['role']}] {message['content']} ;" for message in messages) + "[assistant]"

    marked = render

    def literal(self, text: str) -> str:
        return text

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def prompt_tokens(self, prompt: Any, settings: Options | None = None) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = list(prompt) if prompt and isinstance(prompt[0], int) else self.tokenizer.encode(self.render(prompt))
        limit = self.target.context_length
        if limit is not None and len(tokens) >= limit:
            raise UsageError(f"The prompt has {len(tokens)} tokens and {self.model_name} reads at most {limit}: shorten it.")
        return tokens

    def checked(self, options: dict[str, Any]) -> Options:
        return Options(**options)

    def chances(
        self, tokens: Sequence[int], proposal: Proposal, *, cancel: threading.Event | None = None, **options: Any
    ) -> tuple[float, ...] | None:
        self.looked.append(self.tokenizer.decode(tokens))
        self.gate.arrive(cancel)
        return None if cancel is not None and cancel.is_set() else tuple(1 / (depth + 1) for depth in proposal.depths)

    def gap(self, tokens: Sequence[int], one: int, other: int, *, seed: int = 0, **options: Any) -> tuple[float, str]:
        return 1e-6, "score"

    def stream(self, prompt: Any, *, cancel: threading.Event | None = None, reuse: bool = False, **options: Any) -> Generator[Event, None, None]:
        self.threads.add(threading.current_thread().name)
        tokens = self.prompt_tokens(prompt)
        settings = Options(**options)
        if self.remark is not None:
            self.say(self.remark)
            self.remark = None
        self.prompts.append(self.tokenizer.decode(tokens))
        self.asked.append(options)
        return self._reply(tokens, settings, cancel)

    def _reply(self, prompt: list[int], options: Options, cancel: threading.Event | None) -> Generator[Event, None, None]:
        seed = 1 if options.seed is None else options.seed
        plain = options.draft_tokens == 0 or self.speculation == "off"
        words = self._words(f"{seed}:{self.tokenizer.decode(prompt)}")
        if plain and self.odd_plain:
            words[-1] = " differently"
        said = [self.tokenizer.encode(word)[0] for word in words] + [END]
        dice = random.Random(seed)
        limit = min(len(said), options.max_tokens if options.max_tokens >= 0 else len(said))
        emitted = rounds = drafted = accepted = 0
        by_depth: list[int] = []
        finish = "length" if limit < len(said) else "stop"
        for done in (0, len(prompt)):
            yield Prefill(done, len(prompt))
        out: list[str] = []
        while emitted < limit:
            self.gate.arrive(cancel)
            if cancel is not None and cancel.is_set():
                finish = "interrupted"
                break
            if self.fails_after is not None and rounds >= self.fails_after:
                raise RuntimeError("[metal::malloc] too much\nsecond \x1b[2J line")
            if not emitted:
                step = Step((said[0],))
            else:
                step = self._round(said[emitted:limit], 0 if plain else dice.randint(0, 3), options.draft_tokens)
                rounds += 1
                drafted += len(step.proposal or ())
                accepted += len(step.path)
                by_depth += [0] * (len(step.path) - len(by_depth))
                for depth in range(len(step.path)):
                    by_depth[depth] += 1
            emitted += len(step.tokens)
            text = self.tokenizer.decode([token for token in step.tokens if token != END])
            out.append(text)
            yield Text(text, step)
        stats: dict[str, Any] = {"prompt_tokens": len(prompt), "reused_tokens": 0, "rounds": rounds, "drafted": drafted, "accepted": accepted}
        stats |= {"emitted": max(emitted - 1, 0), "tokens_per_round": max(emitted - 1, 0) / rounds if rounds else 0.0}
        stats |= {"acceptance": accepted / drafted if drafted else 0.0, "accepted_by_depth": by_depth, "drafters": {}}
        stats |= {"seconds": {"prefill": 0.1, "draft": 0.01 * rounds, "verify": 0.03 * rounds, "other": 0.001 * rounds, "decode": 0.05 * rounds}}
        stats |= {"tokens_per_second": 20.0 if plain else 41.5, "time_to_first_token": 0.1, "peak_memory_bytes": 0}
        stats |= {"speculation": self.speculation, "reason": self.reason}
        yield Done("".join(out), tuple(said[:emitted]), finish, self.model_name, self.drafter_name, options.accept, True, seed, stats)

    def _words(self, seed: str) -> list[str]:
        if self.script:
            text = self.script.pop(0)
            return [word if number == 0 else f" {word}" for number, word in enumerate(text.split(" "))]
        dice = random.Random(seed)
        return [(" " if number else "") + dice.choice(" ".join(WORDS).split()) for number in range(self.length)]

    def _round(self, ahead: list[int], right: int, wanted: int | None) -> Step:
        """A tree: the right tokens one below the other, a wrong one beside the first and one below the last."""
        right = min(right, len(ahead) - 1, wanted if wanted is not None else right)
        if wanted == 0 or self.speculation == "off":
            return Step((ahead[0],), Proposal(), (), {"draft": 0.0, "verify": 0.03, "other": 0.001})
        wrong, worse = (self.tokenizer.encode(word)[0] for word in (" wrong", " worse"))
        tokens = (*ahead[:right], wrong, worse)
        parents = (*range(-1, right - 1), -1, right - 1)
        if right == 0:
            parents = (-1, -1)
        values = (*(round(0.9 / (row + 1), 3) for row in range(right)), 0.05, 0.02)
        seconds = {"draft": 0.01, "verify": 0.03, "other": 0.001}
        return Step((*ahead[:right], ahead[right]), Proposal(tokens, parents, None, values), tuple(range(right)), seconds, self.drafter_name)


class Loader:
    """Stands in for mlxspec.load; keeps the engines it made. ``gate`` holds a load back, ``broken`` models cannot be loaded."""

    def __init__(self, **engine: Any) -> None:
        self.engine = engine
        self.engines: list[FakeChatEngine] = []
        self.gate = Gate()
        self.broken = {"broken"}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, model: str, drafter: str, options: Mapping[str, Any], say: Callable[[str], None]) -> FakeChatEngine:
        self.asked.append((model, drafter, dict(options)))
        say(f"Model {model} from \x1b[1mnowhere.")
        self.gate.arrive(None)
        if model in self.broken:
            raise ModelError(f"There is no model at {model}: give another.")
        self.engines.append(FakeChatEngine(model, drafter, **self.engine))
        self.engines[-1].say = say
        return self.engines[-1]


def install(loader: Loader) -> None:
    """Let ``mlxspec chat`` use fake engines."""
    from mlxspec.cli import chat as cli_chat

    cli_chat.load_engine = loader


if __name__ == "__main__":  # python -m tests.tui.fake_chat chat … is mlxspec chat … with a fake engine; FAKE_HANG: rounds after which it hangs
    import os
    import sys

    from mlxspec.cli.main import main

    gate = Gate()
    if os.environ.get("FAKE_HANG"):
        gate.close()
        gate.let(int(os.environ["FAKE_HANG"]))
    install(Loader(gate=gate, length=int(os.environ.get("FAKE_LENGTH", "24"))))
    sys.exit(main())
