"""``mlxspec generate``: one reply, streamed to stdout or as one JSON object. Knows the API of the engine and nothing below it."""

import secrets
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mlxspec.cli import prompt as prompts
from mlxspec.cli.arguments import Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.core.events import Done, Event, Prefill, Text
from mlxspec.errors import DrafterError, UsageError
from mlxspec.llm.report import details, report, stats_line
from mlxspec.llm.trace import TraceWriter
from mlxspec.sessions import last_exchange, learned
from mlxspec.settings import config
from mlxspec.settings.options import Options, names
from mlxspec.settings.values import flag, read_value
from mlxspec.version import __version__

if TYPE_CHECKING:
    from mlxspec.llm.engine import Engine

LONG_PROMPT = 512  # tokens from which a prefill shows its progress
INCOMPLETE, INTERRUPTED = 3, 130
Events = Generator[Event, None, None]


def parser() -> Parser:
    result = Parser(
        "generate",
        "[PROMPT ...]",
        "Answer a prompt. The answer goes to stdout, everything else to stderr.",
        epilog="Piped stdin is the prompt, or, where there is one already, a document that is appended to it.\n"
        "Settings may also stand in config.toml (mlxspec paths) or in MLXSPEC_NAME variables; flags come first.",
    )
    source = result.add_argument_group("prompt")
    result.one("-p", "--prompt", help="the prompt; - reads stdin", metavar="TEXT", to=source)
    result.one("-f", "--file", help="read the prompt from a file", metavar="FILE", to=source)
    result.switch("-c", "--continue", help="go on with the last exchange, its model and settings", to=source)
    result.options()
    result.switch("--learn", help="keep the answer on this machine, to train drafters on (mlxspec learned lists and deletes)", to=source)
    same = result.add_argument_group("spellings of mlx-lm")
    result.one("--draft-model", help="the same as --drafter small:REPO", kind=lambda text: f"small:{text}", dest="drafter", metavar="REPO", to=same)
    number: Callable[[str], Any] = lambda text: read_value("draft_tokens", text)  # noqa: E731
    result.one("--num-draft-tokens", help="the same as --draft-tokens", kind=number, dest="draft_tokens", metavar="N", to=same)
    output = result.add_argument_group("output")
    result.switch("--json", help="print one JSON object in place of the text", to=output)
    result.one("--trace", help="write one JSON line a round to FILE, for mlxspec inspect", metavar="FILE", to=output)
    result.switch("--stats", help="a line of statistics on stderr (default: where stderr is a terminal)", negative=True, to=output)
    result.one(
        "--verbose",
        help="more statistics (True or False, as mlx-lm has it)",
        kind=lambda text: read_value("verbose", text),
        metavar="[BOOL]",
        to=output,
    )
    result.common(output)
    return result


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, checked."""

    options: Options
    settings: dict[str, Any]  # what was asked for by flag, exchange, environment or file, by option name
    prompt: str
    before: tuple[last_exchange.Message, ...]  # of the exchange that goes on
    json: bool
    stats: bool
    verbose: bool
    trace: str | None
    learn: bool


def generate(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb. Returns the exit code."""
    request = requested(argv, terminal, environ)
    trace = TraceWriter(Path(request.trace), request.options.force) if request.trace is not None else None
    try:
        with terminal.stdout_guarded():
            engine = open_engine(request.options, terminal.notice, request.options.drafter)
            if request.options.require_spec and engine.speculation == "off":
                raise incomplete(f"Speculation is off ({engine.reason}) and --require-spec asks for it: give another --drafter.")
            done = reply(request, engine, terminal, trace)
    finally:
        if trace is not None:
            trace.close()
    if trace is not None and trace.failure is not None:
        terminal.error(f"mlxspec: {trace.failure}")  # not raised: the answer is out already
        return trace.failure.exit_code
    return exit_code(done, request, terminal)


def requested(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> Request:
    """Everything that can be wrong with a request is found here, before a model is loaded."""
    given, words = parser().read(argv)
    flags = {name: value for name, value in vars(given).items() if name in names()}
    as_json = getattr(given, "json", False)
    terminal.quiet = getattr(given, "quiet", False)
    conflicts(vars(given))
    for name in ("draft_tokens", "draft_width", "draft_rows"):
        if flags.get("drafter") == "none" and flags.get(name):
            terminal.notice(f"{flag(name)} has no effect with --drafter none.")
    before: tuple[last_exchange.Message, ...] = ()
    settings = config.settings(environ)
    stats = settings.pop("stats", terminal.err_tty and not as_json)
    if getattr(given, "continue", False):
        last = last_exchange.load()
        before = last.messages
        settings |= last.settings
        system = [message["content"] for message in before if message["role"] == "system"]
        settings["system_prompt"] = system[0] if system else None
    settings |= flags
    options = Options(**settings)
    trace = getattr(given, "trace", None)
    if trace == "-":
        raise UsageError("--trace - would mix with the answer on stdout: give the name of a file.")
    prompt = prompts.gather(words, getattr(given, "prompt", None), getattr(given, "file", None), terminal.notice)
    verbose = getattr(given, "verbose", None)
    stats = getattr(given, "stats", stats if verbose is None else verbose) and not terminal.quiet
    learn = getattr(given, "learn", False)
    return Request(options, settings, prompt, before, as_json, stats, bool(verbose), trace, learn)


def conflicts(given: Mapping[str, Any]) -> None:
    """Refuse flags that contradict each other."""
    speaks = "--stats" if given.get("stats") else "--verbose" if given.get("verbose") else None
    silent = "--quiet" if given.get("quiet") else "--no-stats" if given.get("stats") is False else None
    if given.get("stats") and given.get("verbose") is False:
        silent = "--verbose False"
    if speaks and silent:
        raise UsageError(f"{speaks} and {silent} contradict each other: give one of them.")


def open_engine(options: Options, say: Callable[[str], None], drafter: Any) -> "Engine":
    """The model in memory, with its drafter."""
    from mlxspec.llm.engine import load

    rest = {name: getattr(options, name) for name in names("load") if name not in ("model", "drafter")}
    return load(options.model, drafter=drafter, say=say, **rest)


def reply(request: Request, engine: "Engine", terminal: Terminal, trace: TraceWriter | None) -> Done:
    """Streams one reply, and keeps the exchange for -c."""
    asked = {name: value for name, value in request.settings.items() if name in names("reply")}
    messages = [message for message in request.before if message["role"] != "system"] + [{"role": "user", "content": request.prompt}]
    seen = engine.fitted(messages, **asked) if request.before else messages
    prompt: str | list[dict[str, str]] = seen if request.before else request.prompt
    if trace is not None and asked.get("seed") is None:
        asked["seed"] = secrets.randbits(32)  # so that a trace says it in its first line
    done, read = None, 0
    with interruptible() as cancel, closing(engine.stream(prompt, cancel=cancel, **asked)) as events:
        for event in events:
            if isinstance(event, Prefill):
                read = event.total
                if read >= LONG_PROMPT:
                    terminal.progress("reading the prompt", event.done, read)
            elif isinstance(event, Text):
                if trace is not None:
                    trace.begin(header(engine, request.options, asked["seed"], read))
                    trace.add(event, engine.tokenizer)
                if not request.json:
                    terminal.answer(event.text)
            else:
                done = event
    if done is None:
        raise RuntimeError("the stream ended without Done")
    if trace is not None:
        trace.begin(header(engine, request.options, done.seed, read or done.stats["prompt_tokens"]))
        trace.end(done)
    if not request.json:
        terminal.end_answer()
    keep(messages, done, request, terminal)
    if request.learn:
        learn(seen, done, request, engine, terminal)
    if request.json:
        terminal.json(report(done))
    if request.stats:
        terminal.error(stats_line(done, terminal.dot))
        if request.verbose:
            terminal.error(details(done, terminal.dot))
    return done


def keep(messages: list[last_exchange.Message], done: Done, request: Request, terminal: Terminal) -> None:
    """Store the exchange for -c. Where that fails the answer still stands."""
    system = request.options.system_prompt
    before = [{"role": "system", "content": system}] if system else []
    try:
        last_exchange.save([*before, *messages, {"role": "assistant", "content": done.text}], request.settings)
    except OSError as error:
        terminal.notice(f"The exchange was not kept for -c: {last_exchange.exchange_file()}: {error.strerror}.")


def learn(messages: list[last_exchange.Message], done: Done, request: Request, engine: "Engine", terminal: Terminal) -> None:
    """Keep the answer for training. Where that fails the answer still stands. A cut one is not kept: nobody knows how it would have ended."""
    if done.finish_reason != "stop":
        terminal.notice(f"The answer was not kept for training: it was not finished ({done.finish_reason}).")
        return
    system = request.options.system_prompt
    before = [{"role": "system", "content": system}] if system else []
    try:
        name = learned.add([*before, *messages, {"role": "assistant", "content": done.text}], engine.model_name, engine.loaded.digest)
        terminal.notice(f"Kept for training: {name} (mlxspec learned lists and deletes).")
    except OSError as error:
        terminal.notice(f"The answer was not kept for training: {learned.folder()}: {error.strerror}.")


def header(engine: "Engine", options: Options, seed: int, prompt_tokens: int) -> dict[str, Any]:
    """The first line of a trace."""
    return {
        "mlxspec": __version__,
        "model": engine.model_name,
        "drafter": engine.drafter_name,
        "accept": options.accept,
        "seed": seed,
        "prompt_tokens": prompt_tokens,
    }


def exit_code(done: Done, request: Request, terminal: Terminal) -> int:
    if done.finish_reason == "interrupted":
        return INTERRUPTED
    if request.options.require_spec and done.stats.get("speculation") == "off":
        terminal.error(f"mlxspec: Speculation went off ({done.stats.get('reason') or 'no reason given'}) and --require-spec asks for it.")
        return INCOMPLETE
    if request.options.strict and done.finish_reason == "length":
        terminal.error(f"mlxspec: The reply was cut after {len(done.tokens)} tokens (--strict): give a larger --max-tokens, or a shorter prompt.")
        return INCOMPLETE
    return 0


def incomplete(message: str) -> DrafterError:
    """An error that exits with 3."""
    error = DrafterError(message)
    error.exit_code = INCOMPLETE
    return error


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """The first Ctrl-C asks the reply to end with what it has; a second one ends at once."""
    cancel = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield cancel
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)
