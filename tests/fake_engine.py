"""An engine of words instead of a model, for tests of the command line. ``python -m tests.fake_engine VERB …`` is ``mlxspec VERB …`` with it.

Environment of a process that runs it: FAKE_WORDS (the answer, split at spaces; ``*N`` after the last word repeats the answer N times),
FAKE_PAUSE (seconds a round), FAKE_FAIL (an error in the middle), FAKE_PRINT (text a library prints on stdout).
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from mlxspec.cli import generate as cli_generate
from mlxspec.cli.main import main
from mlxspec.core.events import Done, Event, Prefill, Step, Text
from mlxspec.core.proposal import Proposal
from mlxspec.errors import DrafterError
from mlxspec.settings.options import Options

ANSWER = "Gravity pulls things down , always ."


class WordTokenizer:
    """Token N is the Nth word it met."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def token(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.words[token] for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.words[token]


class FakeEngine:
    """Says its words, two a round: the first of them drafted, beside a wrong guess."""

    model_name = "fake"
    loaded = SimpleNamespace(digest="fake-digest")
    defaults: dict[str, Any] = {}  # noqa: RUF012 - as on the real engine

    def __init__(self, options: Options, say: Callable[[str], None], drafter: Any) -> None:
        self.options = options
        self.drafter_name = "lookup" if drafter == "auto" else str(drafter)
        self.speculation = "off" if drafter == "none" else "on"
        self.reason = "--drafter none" if drafter == "none" else None
        self.tokenizer = WordTokenizer()
        self.prompts: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        say("Model fake from nowhere")

    def fitted(self, messages: list[dict[str, str]], **asked: Any) -> list[dict[str, str]]:
        return messages

    def stream(self, prompt: Any, *, cancel: threading.Event | None = None, **asked: Any) -> Iterator[Event]:
        self.prompts.append(prompt)
        self.asked.append(asked)
        load = {name: getattr(self.options, name) for name in ("model", "drafter", "dtype", "max_kv_size", "kv_bits", "offline", "yes", "force")}
        return self._reply(Options(**{**load, **self.defaults, **asked}), cancel or threading.Event())

    def _reply(self, options: Options, cancel: threading.Event) -> Iterator[Event]:
        if os.environ.get("FAKE_PRINT"):
            print(os.environ["FAKE_PRINT"])
        words, _, times = os.fsencode(os.environ.get("FAKE_WORDS", ANSWER)).decode().partition("*")
        said = [word if number == 0 else f" {word}" for number, word in enumerate(words.split(" "))]
        said = [word for _ in range(int(times or 1)) for word in said]
        limit = options.max_tokens if options.max_tokens >= 0 else len(said)
        finish = "length" if limit < len(said) else "stop"
        said = said[:limit]
        tokens = [self.tokenizer.token(word) for word in said]
        wrong = self.tokenizer.token(" wrong")
        total = int(os.environ.get("FAKE_PROMPT", "5"))
        for done in range(0, total + 1, max(total // 4, 1)):
            yield Prefill(done, total)
        emitted = rounds = 0
        while emitted < len(said):
            time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
            if cancel.is_set():
                finish = "interrupted"
                break
            if emitted > 2 and os.environ.get("FAKE_FAIL"):
                raise DrafterError(os.environ["FAKE_FAIL"])
            step = Step(tuple(tokens[:1]))
            if emitted:
                now = tuple(tokens[emitted : emitted + 2])
                drafted = Proposal((now[0], wrong), (-1, -1)) if len(now) > 1 else Proposal((wrong,), (-1,))
                step = Step(now, drafted, (0,) if len(now) > 1 else (), {"draft": 0.01, "verify": 0.03, "other": 0.0}, self.drafter_name)
                rounds += 1
            yield Text("".join(self.tokenizer.words[token] for token in step.tokens), step)
            emitted += len(step.tokens)
        text = "".join(self.tokenizer.words[token] for token in tokens[:emitted])
        stats: dict[str, Any] = {"prompt_tokens": total, "rounds": rounds, "drafted": 2 * rounds, "accepted": rounds, "emitted": max(emitted - 1, 0)}
        stats |= {"tokens_per_round": 2.0, "acceptance": 0.5, "accepted_by_depth": [rounds], "seconds": {"prefill": 0.1, "decode": 0.5}}
        stats |= {"tokens_per_second": 27.84, "time_to_first_token": 0.1, "peak_memory_bytes": 0}
        stats |= {"speculation": self.speculation, "reason": self.reason, "options": asdict(options)}
        yield Done(text, tuple(tokens[:emitted]), finish, "fake", self.drafter_name, options.accept, True, options.seed or 1, stats)


class Opened:
    """Stands in for ``open_engine``; keeps the engines it made."""

    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []

    def __call__(self, options: Options, say: Callable[[str], None], drafter: Any) -> FakeEngine:
        self.engines.append(FakeEngine(options, say, drafter))
        return self.engines[-1]

    @property
    def prompt(self) -> Any:
        return self.engines[-1].prompts[-1]


def install(patch: pytest.MonkeyPatch) -> Opened:
    """Let ``mlxspec generate`` use fake engines."""
    opened = Opened()
    patch.setattr(cli_generate, "open_engine", opened)
    return opened


def isolate(patch: pytest.MonkeyPatch, home: Any) -> None:
    """A home of its own, a UTF-8 locale, and no settings from outside."""
    for name in [name for name in os.environ if name.startswith(("MLXSPEC_", "FAKE_", "LC_", "XDG_"))] + ["NO_COLOR", "PYTHONIOENCODING"]:
        patch.delenv(name, raising=False)
    patch.setenv("LANG", "en_US.UTF-8")
    patch.setenv("TERM", "xterm-256color")
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        patch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))


def failing(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """The exit code of a command that fails, and its one line."""
    code = main(argv)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[-1].startswith("mlxspec: ")
    assert all(line.startswith("Model ") for line in lines[:-1])
    return code, lines[-1]


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["generate", "--json", *argv]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out)
    return result


if __name__ == "__main__":
    install(pytest.MonkeyPatch())
    sys.exit(main())
