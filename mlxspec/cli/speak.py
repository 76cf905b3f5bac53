"""``mlxspec speak``: text to the loudspeaker, a file or a pipe, as it is drawn. Knows the API of voices and nothing below it."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxspec.cli import prompt as prompts
from mlxspec.cli.arguments import Parser, above_zero, share
from mlxspec.cli.generate import INCOMPLETE, INTERRUPTED, conflicts, incomplete, interruptible
from mlxspec.cli.terminal import Terminal
from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.settings import config
from mlxspec.settings.options import Options, SpeechOptions, names
from mlxspec.settings.values import flag

if TYPE_CHECKING:
    from mlxspec.core.events import Spoken

LEFT_OUT = ("model", "dtype", "max_kv_size", "kv_bits", "yes", "strict", "system_prompt", "chat_template_config", "max_tokens", "stop", "logit_bias")
FROM_CONFIG = ("offline",)  # sampling and drafters that suit a chat need not suit a voice
GROUPED: dict[str, Callable[[str], Any]] = {"group_size": above_zero("--group-size"), "group_source": str, "capped": share("--capped")}


def parser() -> Parser:
    result = Parser(
        "speak",
        "[TEXT ...]",
        "Say a text aloud, or write it to a sound file. Without -o it is played.",
        epilog="Piped stdin is the text where there is no other. --voice '?' lists the voices.",
    )
    source = result.add_argument_group("text and voice")
    result.one("-f", "--file", help="read the text from a file (- is stdin)", metavar="FILE", to=source)
    result.one("-v", "--voice", help="a voice's name or folder; ? lists them (default: the one that ships)", metavar="NAME", to=source)
    output = result.add_argument_group("output")
    result.one("-o", "--output", help="write a .wav, .flac or .ogg file; - writes WAV to stdout", metavar="FILE", to=output)
    result.switch("--raw", help="with -o -: bare 16-bit samples", to=output)
    result.switch("-i", "--interactive", help="show each sentence as it begins", to=output)
    result.switch("--json", help="print one JSON object", to=output)
    result.switch("--stats", help="statistics on stderr (default: where it is a terminal)", negative=True, to=output)
    result.common(output)
    result.options(LEFT_OUT)
    mirror = result.add_argument_group("approximate speech")
    result.switch("--mirror", help="the same as --accept mirror: faster drafts, approximately the same speech", to=mirror)
    for item in fields(SpeechOptions):
        if item.name in GROUPED:
            result.one(flag(item.name), help=item.metadata["help"], kind=GROUPED[item.name], metavar=item.metadata["metavar"], to=mirror)
    return result


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, checked. ``output`` None plays, "-" is stdout."""

    text: str
    voice: str | None
    output: str | None
    raw: bool
    show: bool
    json: bool
    stats: bool
    force: bool
    options: Options
    reply: dict[str, Any] = field(default_factory=dict)


def speak(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb. Returns the exit code."""
    given, words = parser().read(argv)
    if getattr(given, "voice", None) == "?":
        return list_voices(terminal)
    request = requested(vars(given), words, terminal, environ)

    from mlxspec.core.events import Audio, Sentence, Spoken
    from mlxspec.speech.voice import load_voice

    done: Spoken | None = None
    path = _checked(request)
    with ExitStack() as stack:
        stack.enter_context(terminal.stdout_guarded())
        loading = {name: getattr(request.options, name) for name in FROM_CONFIG}
        voice = load_voice(request.voice, drafter=request.options.drafter, say=terminal.notice, **loading)
        if request.options.require_spec and voice.speculation == "off":
            raise incomplete(f"Speculation is off ({voice.reason}) and --require-spec asks for it: give another --drafter.")
        cancel = stack.enter_context(interruptible())
        early = request.output in (None, "-")  # a file can wait for a second try, an ear cannot
        events = stack.enter_context(closing(voice.stream(request.text, cancel=cancel, early=early, **request.reply)))
        sink = stack.enter_context(sinks(request, path, voice.sample_rate, cancel, terminal))
        for event in events:
            if isinstance(event, Audio):
                sink.write(event.samples)
                if cancel.is_set():
                    sink.silence()
            elif isinstance(event, Sentence):
                if request.show:
                    terminal.error(one_line(event.text))
            elif isinstance(event, Spoken):
                done = event
    assert done is not None
    if request.json:
        terminal.json({**report(done), "output": sink.name})
    if request.stats:
        terminal.error(stats_line(done, sink.name, terminal.dot))
    elif not done.exact:
        terminal.notice(f"This speech is approximate ({approximate(done)}).")
    for fault in done.faults:
        terminal.error(f"mlxspec: {fault}: try another --seed.")
    if done.interrupted or cancel.is_set():
        return INTERRUPTED
    return INCOMPLETE if done.faults else sink.code


def requested(given: dict[str, Any], words: list[str], terminal: Terminal, environ: Mapping[str, str]) -> Request:
    """Everything that can be wrong with a request is found here, before anything is loaded."""
    conflicts(given)
    terminal.quiet = given.get("quiet", False)
    mirror, as_json = given.get("mirror", False), given.get("json", False)
    flags = {name: value for name, value in given.items() if name in names()}
    if mirror and flags.setdefault("accept", "mirror") != "mirror":
        raise UsageError(f"--mirror and --accept {flags['accept']} contradict each other: give one of them.")
    accept = flags.get("accept", "coupled")
    grouped = {name: given[name] for name in GROUPED if given.get(name) is not None}
    if grouped and accept not in ("mirror", "pcg"):
        raise UsageError(f"{flag(next(iter(grouped)))} is for approximate speech: add --mirror, or leave it out.")
    output, raw = given.get("output"), given.get("raw", False)
    if raw and output != "-":
        raise UsageError("--raw writes bare samples to stdout: add -o -, or leave it out.")
    if as_json and output == "-":
        raise UsageError("--json and -o - would both write to stdout: give the sound a file.")
    if output is None and not terminal.out_tty:
        raise UsageError("Sound is played where stdout is a terminal, and it is none: give -o FILE, or -o - for WAV on stdout.")
    settings = {name: value for name, value in config.settings(environ).items() if name in FROM_CONFIG}
    options = Options(**{**settings, **flags})
    file = given.get("file")
    if not words and file is None and not prompts.piped():
        raise UsageError('There is no text: give it as an argument (mlxspec speak "Hello there."), by --file, or on stdin.')
    text = prompts.gather(words, None, file, terminal.notice)
    reply = {name: value for name, value in flags.items() if name in names("reply")} | grouped
    stats = given.get("stats", terminal.err_tty and not as_json) and not terminal.quiet
    force = flags.get("force", False)
    return Request(text, given.get("voice"), output, raw, given.get("interactive", False), as_json, stats, force, options, reply)


def list_voices(terminal: Terminal) -> int:
    """One voice a line."""
    from mlxspec.speech import voice_folder

    found = voice_folder.names()
    for name in found:
        terminal.print(one_line(name))
    if not found:
        terminal.notice("There is no voice yet: a voice's folder goes by --voice FOLDER.")
    return 0


def _checked(request: Request) -> Path | None:
    """The file to write, refused now where it cannot be."""
    from mlxspec.audio.sound.files import check_path
    from mlxspec.errors import AudioError

    if request.output in (None, "-"):
        return None
    try:
        return check_path(str(request.output), request.force)
    except AudioError as error:
        raise UsageError(str(error)) from error


# ---- Where sound goes --------------------------------------------------------------------------------------------------------------------


class Sink:
    """One of: a file, a pipe, a player. ``code`` is the exit code where all else went well."""

    def __init__(self, to: Any, name: str, code: int = 0, stop: Callable[[], None] | None = None) -> None:
        self.to, self.name, self.code = to, name, code
        self._stop = stop
        self.silent = False

    def write(self, samples: Any) -> None:
        if not self.silent:
            self.to.write(samples)

    def silence(self) -> None:
        """Interrupted: a player stops at once. What is written to a file stays."""
        if self._stop is not None and not self.silent:
            self.silent = True
            self._stop()


@contextmanager
def sinks(request: Request, path: Path | None, sample_rate: int, cancel: threading.Event, terminal: Terminal) -> Iterator[Sink]:
    """What takes the sound. Without a way to play it goes to a file, that is said, and the exit code says so too."""
    from mlxspec.audio.sound.files import SoundFile, SoundPipe
    from mlxspec.audio.sound.playback import open_player

    if request.output == "-":
        yield Sink(SoundPipe(_stdout(terminal), sample_rate, request.raw), "stdout")
        return
    code = 0
    if path is None:
        try:
            player = open_player(sample_rate, cancel)
        except MlxspecError as error:
            path, code = _free_name(), 1
            terminal.error(f"mlxspec: {error} This speech goes to {path}.")
        else:
            sink = Sink(player, "loudspeaker", stop=player.stop)
            try:
                yield sink
            except BaseException:
                sink.silence()
                raise
            if not sink.silent:
                player.finish()
            if player.underruns:
                terminal.notice(f"Sound ran out {player.underruns} times: this machine speaks slower than one listens.")
            return
    with SoundFile(path, sample_rate) as file:
        yield Sink(file, str(path), code)


def _stdout(terminal: Terminal) -> Any:
    """stdout for bytes."""
    buffer = getattr(terminal.out, "buffer", None)
    if buffer is None or terminal.out_tty:
        raise UsageError("Sound on a terminal is noise: send stdout to a file or a player, or give -o FILE.")
    return buffer


def _free_name() -> Path:
    return next(path for path in (Path(f"speech{f'-{i}' if i else ''}.wav") for i in range(10**6)) if not path.exists())


# ---- What is told ------------------------------------------------------------------------------------------------------------------------


def report(done: "Spoken") -> dict[str, Any]:
    """The object of ``speak --json``."""
    stats = dict(done.stats)
    upper = {key: stats.pop(key) for key in ("seconds_per_audio_second", "time_to_first_audio", "sentences")}
    return {
        "text": done.text,
        "voice": done.voice,
        "drafter": done.drafter,
        "accept": done.accept,
        "exact": done.exact,
        "seed": done.seed,
        "sample_rate": done.sample_rate,
        "samples": done.samples,
        "duration": done.duration,
        **upper,
        "cut": bool(done.faults),
        "faults": list(done.faults),
        "interrupted": done.interrupted,
        "stats": stats,
    }


def approximate(done: "Spoken") -> str:
    """How far from exact, in a few words."""
    mirror = done.stats["mirror"] or {"mean_group_size": 1.0, "within_group_distance": 0.0}
    return f"groups of {mirror['mean_group_size']:.1f}, {mirror['within_group_distance']:.2f} apart inside"


def stats_line(done: "Spoken", name: str, dot: str) -> str:
    """``out.wav · 2.4 s of sound · 0.41 s a second · first sound after 0.20 s · 2.31 tokens/round · redrafter, coupled, seed 7``."""
    stats = done.stats
    parts = [name, f"{done.duration:.1f} s of sound"]
    if stats["seconds_per_audio_second"] is not None:
        parts += [f"{stats['seconds_per_audio_second']:.2f} s a second", f"first sound after {stats['time_to_first_audio']:.2f} s"]
    if stats["rounds"]:
        parts.append(f"{stats['tokens_per_round']:.2f} tokens/round")
    if stats["drafted"]:
        parts.append(f"accepted {stats['accepted']}/{stats['drafted']}")
    if not done.exact:
        parts.append(f"approximate: {approximate(done)}")
    parts.append(f"{done.drafter}, {done.accept}, seed {done.seed}")
    if done.interrupted:
        parts.append("interrupted")
    return dot.join(parts)
