"""``mlxspec chat``: the terminal chat, in a screen or in lines; in a pipe one reply, as ``generate``. Knows which of them it is, not how they look.

Which one is decided before anything of the screen is imported.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxspec.cli.arguments import Once, Parser
from mlxspec.cli.terminal import Terminal
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.extras import need
from mlxspec.paths import config_file, data_dir
from mlxspec.sessions.store import Store
from mlxspec.settings import config
from mlxspec.settings.options import Options, names

if TYPE_CHECKING:
    from mlxspec.tui.chat.conversation import Conversation
    from mlxspec.tui.chat.reports import Offers

LINES, SCREEN = "lines", "screen"
End = Callable[[int], Any]


def parser() -> Parser:
    result = Parser(
        "chat",
        "[MESSAGE ...]",
        "Talk with a model. What drafting gains is shown while it answers.",
        epilog="Where stdin or stdout is piped this is mlxspec generate: one reply, its text on stdout.\n"
        "Conversations are saved as they go (mlxspec sessions). /help in the chat lists its commands.",
    )
    chat = result.add_argument_group("chat")
    help = "go on with a saved conversation (default: the latest)"
    chat.add_argument("-c", "--resume", "--continue", action=Once, nargs="?", const="", dest="resume", metavar="ID", help=help)
    result.switch("--save", help="keep the conversation on the disk (default)", negative=True, to=chat)
    result.switch("--plain", help="lines in place of a screen", to=chat)
    result.switch("--stats", help="with --plain: a line of statistics after each reply (default)", negative=True, to=chat)
    result.switch("--debug", help="show a traceback where something fails", to=chat)
    result.options(leave_out=("strict",))
    return result


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, checked."""

    message: str | None
    resume: str | None
    save: bool
    plain: bool
    flags: dict[str, Any]  # options given as flags
    settings: dict[str, Any]  # options from environment and config file


def chat(argv: list[str], terminal: Terminal, environ: Mapping[str, str], end: End = os._exit) -> int:
    """The verb. Returns the exit code, where ``end`` does not end the process with it."""
    if "-h" not in argv and "--help" not in argv and piped(terminal):
        from mlxspec.cli.generate import generate

        return generate(for_generate(argv), terminal, environ)
    given, words = parser().read(argv)
    settings, theme, keys, fault = configured(environ)
    stats = settings.pop("stats", True)
    flags = {name: value for name, value in vars(given).items() if name in names()}
    Options(**{**settings, **flags})
    message = " ".join(words) or None
    request = Request(message, getattr(given, "resume", None), getattr(given, "save", True), getattr(given, "plain", False), flags, settings)
    kind = face(terminal, request.plain)
    if kind == SCREEN and hasattr(given, "stats"):
        raise UsageError("--stats and --no-stats are for the line mode: add --plain, or leave them out (F2 shows the numbers).")
    if kind == LINES and not request.plain:
        terminal.notice("TERM=dumb has no screen: this is the line mode (--plain).")
    talk = opened(request)
    if fault is not None:
        talk.tell(fault)
    try:
        if kind == SCREEN:
            from mlxspec.tui.app import run

            code = run(talk, theme=theme, keys=keys)
        else:
            from mlxspec.tui.chat.prompt_history import History, history_file
            from mlxspec.tui.plain import Plain

            history = History(history_file() if request.save else None)
            code = Plain(talk, terminal, environ, history, stats=getattr(given, "stats", stats)).run()
    finally:
        told: list[str] = []
        talk.tell = told.append
        saved = talk.session_id
        talk.leave()
    for line in told:
        terminal.error(line)
    if saved is not None and talk.said:
        terminal.notice(f"Saved: mlxspec chat -c {saved}")
    return leave(code, terminal, end)


def configured(environ: Mapping[str, str]) -> tuple[dict[str, Any], str | None, dict[str, Any], str | None]:
    """Settings, theme, keys, and what is wrong with the config file: a chat starts without a file that cannot be used, and says so."""
    try:
        return config.settings(environ), *config.for_screen(config_file()), None
    except UsageError as error:
        settings = config.from_environment(environ)  # what is wrong there is an error
        return settings, None, {}, f"{error} The chat started without the config file."


def face(terminal: Terminal, plain: bool) -> str:
    """Screen or lines. A screen that could not be seen is refused."""
    if plain or terminal.dumb:
        return LINES
    if not terminal.err_tty:
        raise UsageError("The screen is drawn on stderr, which is redirected: leave stderr to the terminal, or pass --plain.")
    need("textual", "chat", "The chat", "; without it, mlxspec generate -c talks in turns")
    return SCREEN


def opened(request: Request) -> "Conversation":
    """A conversation, new or resumed, whose model is being loaded; its first message waits for that."""
    from mlxspec.tui.chat.baseline import Cache
    from mlxspec.tui.chat.conversation import Conversation
    from mlxspec.tui.chat.keep_awake import Awake
    from mlxspec.tui.chat.worker import Worker

    store = Store() if request.save else None
    worker = Worker(load_engine, load_voice=load_voice, list_offers=offers, measured=Cache())
    talk = Conversation(worker, store, {}, None, Awake())
    stored: dict[str, Any] = {}
    if request.resume is not None:
        session = talk.resume(_session(request.resume, store))
        stored = {"model": session.model, "drafter": session.drafter, "system_prompt": session.system, **talk.settings}
        stored = {name: value for name, value in stored.items() if value is not None or name == "system_prompt"}
    elif store is not None:
        offer_cut_off(store, talk)
    settings = {**request.settings, **stored, **request.flags}
    options = Options(**settings)
    talk.system = settings.pop("system_prompt", None)
    talk.settings = {name: value for name, value in settings.items() if name in names("reply")}
    loading = {name: getattr(options, name) for name in names("load") if name not in ("model", "drafter")}
    model = os.path.abspath(os.path.expanduser(options.model)) if options.model.startswith((".", "~")) else options.model
    talk.load(model, options.drafter, **loading)
    if request.message is not None:
        talk.send(request.message)
    return talk


def offer_cut_off(store: Store, talk: "Conversation") -> None:
    """Say that a conversation was cut off, if one was. A folder that cannot be read is said too, and keeps nobody from talking."""
    try:
        cut = store.cut_off()
    except MlxspecError as error:
        talk.tell(str(error))
        return
    if cut is not None:
        talk.tell(f"A conversation was cut off: {cut.title} ({cut.turns} messages). /load {cut.id} goes on with it.")


def load_engine(model: str, drafter: str, options: Mapping[str, Any], say: Any) -> Any:
    """mlxspec.load for a thread that has no terminal: nothing is drawn, and nothing is asked."""
    from huggingface_hub.utils import disable_progress_bars

    from mlxspec.llm.engine import load

    disable_progress_bars()
    return load(model, drafter=drafter, say=say, **options)


def load_voice(name: str | None, say: Any) -> Any:
    """mlxspec.load_voice for the chat: what is wrong is said in the words of ``/speak``."""
    from mlxspec.speech import voice_folder

    if name is None and not voice_folder.names():
        raise UsageError(f"There is no voice yet: put one in {data_dir() / 'voices'}, or give its folder (/speak FOLDER).")
    from mlxspec.speech.voice import load_voice

    return load_voice(name, say=say)


def offers(engine: Any, folders: Sequence[Path]) -> "Offers":
    """What could be loaded, for the lists of the chat."""
    from mlxspec.drafters import available
    from mlxspec.tui.chat.reports import Offer, Offers

    found = [[Offer(**asdict(fit)) for fit in listed(engine, folders)] for listed in (available.models, available.drafters)]
    return Offers(tuple(found[0]), tuple(found[1]))


def leave(code: int, terminal: Terminal, end: End) -> int:
    """End the process here: Python's own ending would tear down MLX under the feet of the thread that uses it, or used it, and abort."""
    for stream in (terminal.out, terminal.err):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    end(code)
    return code


def _session(word: str, store: Store | None) -> str:
    if store is None:
        raise UsageError("--resume and --no-save contradict each other: leave one of them out.")
    if word:
        return word
    if (latest := store.latest()) is None:
        raise UsageError("There is no saved conversation to go on with: start one with mlxspec chat.")
    return latest.id


def piped(terminal: Terminal) -> bool:
    """Whether one reply is wanted: nobody sits at stdin, or nobody reads stdout as it comes."""
    return not terminal.out_tty or sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty()


def for_generate(argv: list[str]) -> list[str]:
    """The words for ``generate``. It speaks in lines anyway; what else is the chat's alone has no effect there and is refused."""
    end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[:end]:
        if word.partition("=")[0] in ("-c", "--resume", "--continue", "--save", "--no-save"):
            raise UsageError(f"{word} is for a chat, and in a pipe there is one reply only: leave it out, or run mlxspec generate -c.")
    return [word for place, word in enumerate(argv) if word != "--plain" or place >= end]
