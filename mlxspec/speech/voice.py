"""Text to speech: a voice in memory, text in, sound out, as one pipeline of the speech model and the codec. Knows no sound card and no terminal.

The model runs in one thread and the codec in another; only tokens that are final reach the codec. With a seed the coupled rule gives the same samples
every time, with any drafter, streamed or whole.
"""

import math
import secrets
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.utils import maybe_set_recommended_wired_limit

from mlxspec.audio.codes.codec import Codec, NeuralCodec
from mlxspec.audio.codes.groups import Size
from mlxspec.audio.text.front_end import FrontEnd, Segment
from mlxspec.core.accept import Policy, rule
from mlxspec.core.events import Audio, Sentence, SpeechEvent, Spoken
from mlxspec.core.sampling import Sampler
from mlxspec.core.stats import Stats
from mlxspec.core.target import Target
from mlxspec.drafters.cost import CostCurve
from mlxspec.drafters.drafting import Drafting, limits
from mlxspec.drafters.kinds import check_name
from mlxspec.errors import AudioError, MlxspecError, ModelError, UsageError
from mlxspec.loading.load import Loaded, Say, context_length, load_model
from mlxspec.settings.options import Options, SpeechOptions, known
from mlxspec.speech.groups import voice_groups
from mlxspec.speech.labels import Labels, MirrorSampler
from mlxspec.speech.mirror import Mirror, Pcg
from mlxspec.speech.pipeline import pipeline
from mlxspec.speech.stages import Interrupted, Linked, Task, Wrong, drawn, sounded
from mlxspec.speech.stats import LabelLog, pace, together
from mlxspec.speech.utterance import Speaking
from mlxspec.speech.voice_folder import VoiceFiles, find_voice

CERTAIN = 1.2  # seconds of repeated tokens that leave no doubt
LEAD = 0.5  # seconds of silence around a segment, at most
MLX_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "repetition_context_size")


def load_voice(voice: str | None = None, *, drafter: Any = "auto", say: Say | None = None, **options: Any) -> "Voice":
    """Load a voice and a drafter for it.

    ``voice``: a name or a folder, by default the voice that ships. ``drafter``: a name, or any object with the Drafter methods.
    Raises UsageError, ModelError or DrafterError.
    """
    say = say or (lambda text: None)
    files = find_voice(voice)
    wish = drafter if isinstance(drafter, str) else "auto"
    check_name(wish)
    settings = Options(model=str(files.folder), drafter=wish, **known(options, "load"))
    try:
        codec = NeuralCodec.load(files.codec)
    except AudioError as error:
        raise ModelError(str(error)) from error
    loaded = load_model(settings, say)
    maybe_set_recommended_wired_limit()
    return Voice(files, loaded, codec, drafter, settings, say)


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """Sound, and how it came about."""

    samples: np.ndarray
    spoken: Spoken

    @property
    def sample_rate(self) -> int:
        return self.spoken.sample_rate

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.spoken.duration

    def save(self, path: str | Path) -> None:
        """Write a .wav, .flac or .ogg file, over whatever stands there."""
        from mlxspec.audio.sound.files import SoundFile

        with SoundFile(path, self.sample_rate) as file:
            file.write(self.samples)


class Voice:
    """A speech model with its codec, layout and drafters. One piece of speech at a time."""

    def __init__(
        self, files: VoiceFiles, loaded: Loaded, codec: Codec, drafter: Any, settings: Options, say: Say, cost: CostCurve | None = None
    ) -> None:
        if codec.codes != files.layout.codes:
            said = f"The codec of {files.name} has {codec.codes} codes a slot and its speech model {files.layout.codes}"
            raise ModelError(f"{said}: they belong to different voices. Fetch or train the voice again.")
        self.target = Target(loaded.model, context_length=context_length(loaded.config))
        if self.target.vocab_size < files.layout.vocab_size:
            said = f"The speech model of {files.name} speaks {self.target.vocab_size} tokens and its layout names {files.layout.vocab_size}"
            raise ModelError(f"{said}: they belong to different voices. Fetch or train the voice again.")
        self.files, self.loaded, self.codec, self.settings, self.say = files, loaded, codec, settings, say
        self.layout = files.layout
        self.drafting = Drafting(drafter, self.target, loaded, settings, say, cost)
        self.speculation, self.reason, self.drafter_name = self.drafting.speculation, self.drafting.reason, self.drafting.name
        self._labels: dict[tuple[Any, ...], Labels] = {}
        self._front: FrontEnd | None = None
        self._barred = None if self.layout.phases else dict.fromkeys(self.layout.silent(), -math.inf)  # with phases a rule does it
        self._speaking = threading.Lock()

    @property
    def sample_rate(self) -> int:
        return self.codec.sample_rate

    @property
    def tokens_per_second(self) -> float:
        """Tokens of a second of sound, about where symbols are named among them."""
        codes = self.codec.sample_rate / self.codec.hop * self.layout.tokens_per_frame
        each = self.files.tokens_per_symbol
        return codes * each / (each - 1) if self.layout.phases else codes

    def with_drafter(self, drafter: Any) -> "Voice":
        """The same voice in memory with another drafter."""
        other = Voice(self.files, self.loaded, self.codec, drafter, self.settings, self.say, self.drafting.cost)
        other._speaking = self._speaking  # one model in memory says one thing at a time
        return other

    def speak(self, text: str, **options: Any) -> Speech:
        """The whole speech at once, by default not ``early``; options as for ``stream``. What is wrong with it, ``spoken.faults`` says."""
        parts, spoken = [np.zeros(0, np.float32)], None
        for event in self.stream(text, **{"early": False, **options}):
            if isinstance(event, Audio):
                parts.append(event.samples)
            elif isinstance(event, Spoken):
                spoken = event
        assert spoken is not None
        return Speech(np.concatenate(parts), spoken)

    def stream(self, text: str, *, cancel: threading.Event | None = None, **options: Any) -> Generator[SpeechEvent, None, None]:
        """Yield Sentence and Audio, and at last Spoken.

        ``options``: temperature, top_p, top_k, min_p, repetition_penalty, seed, accept, the draft_... ones, and those of SpeechOptions.
        ``cancel`` ends the speech within a round. Raises UsageError at once for what makes no sense.
        """
        settings = self.checked(options)
        segments = self._segments(text)
        policy, sampler = self._rule(settings)
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        return self._run(text, segments, settings, policy, sampler, seed, Linked(cancel or threading.Event()))

    def play(
        self, text: str, *, cancel: threading.Event | None = None, on: Callable[[SpeechEvent, float], None] | None = None, **options: Any
    ) -> Spoken:
        """Say it aloud, and return when it has been heard; ``cancel`` silences at once.

        ``on`` is told of every event as it comes, and how many seconds of sound are still to be heard before it.

        Raises MlxspecError where nothing can play. Options as for ``stream``.
        """
        from mlxspec.audio.sound.playback import open_player

        cancel = cancel or threading.Event()
        events = self.stream(text, cancel=cancel, **options)
        player = open_player(self.sample_rate, cancel)
        spoken: Spoken | None = None
        try:
            for event in events:
                if on is not None:
                    on(event, player.ahead)
                if isinstance(event, Audio) and not cancel.is_set():
                    player.write(event.samples)
                elif isinstance(event, Spoken):
                    spoken = event
            player.finish()
        except BaseException:
            player.stop()
            raise
        finally:
            events.close()
        assert spoken is not None
        return spoken

    def labels(self, settings: SpeechOptions) -> Labels:
        """The groups that the mirror mode is to use: the voice's own choice but for what is asked for."""
        choice = self.files.groups
        key = (settings.group_source or choice.source, choice.measure, settings.group_size or choice.mean)
        if key not in self._labels:
            source, measure, mean = key
            try:
                size = Size(mean=mean)
            except ValueError as error:
                raise UsageError(str(error)) from error
            groups = voice_groups(self.loaded.model, self.loaded.digest, self.layout, self.codec, source, measure, size, self.say)  # type: ignore[arg-type]
            self._labels[key] = Labels(groups)
        return self._labels[key]

    # ---- How it runs -----------------------------------------------------------------------------------------------------------------

    def _run(
        self, text: str, segments: list[Segment], settings: SpeechOptions, policy: Policy, sampler: Any, seed: int, cancel: threading.Event
    ) -> Generator[SpeechEvent, None, None]:
        if not self._speaking.acquire(blocking=False):
            raise MlxspecError("This voice is speaking already: wait for it, or load the voice twice.")
        started = time.perf_counter()
        stats: list[Stats] = []
        log = LabelLog()
        drafter = self.drafting.of(settings, policy)
        ends = limits(settings, policy, stop_tokens=frozenset({self.layout.end}), cancel=cancel)
        certain = round(CERTAIN * self.tokens_per_second)
        layout = self.layout
        speaking = Speaking(self.target, drafter, policy, sampler, ends, layout, certain)

        expected = [round(len(one.symbols) * self.files.tokens_per_symbol + LEAD * self.tokens_per_second) for one in segments]
        task = Task(segments, expected, layout, seed, settings.early)
        samples, first, faults, interrupted = 0, None, list[str](), False
        line = pipeline(lambda: drawn(task, speaking, stats, log), [lambda items: sounded(items, self.codec, task)], cancel, room=64)
        try:
            for item in line:
                if isinstance(item, Sentence):
                    yield item
                elif isinstance(item, Wrong):
                    faults.append(item.text)
                elif isinstance(item, Interrupted):
                    interrupted = True
                elif len(item):
                    first = time.perf_counter() - started if first is None else first
                    samples += len(item)
                    yield Audio(item, self.sample_rate, pace(stats, self.tokens_per_second, first))
            seconds = time.perf_counter() - started
            report = together(stats, *drafter.report())
            drafter.keep()
            report |= {"sentences": len(segments), "time_to_first_audio": first, "wall_seconds": seconds, "tries": len(stats), "mirror": log.report()}
            report["seconds_per_audio_second"] = seconds * self.sample_rate / samples if samples else None
            if not samples and not interrupted:
                raise ModelError(f"{self.files.name} said nothing at all ({'; '.join(faults) or 'no sound came out'}): try another --seed.")
            judged = policy.name, policy.exact
            yield Spoken(text, samples, self.sample_rate, self.files.name, self.drafter_name, *judged, seed, tuple(faults), interrupted, report)
        finally:
            line.close()
            self._speaking.release()

    def _segments(self, text: str) -> list[Segment]:
        if not isinstance(text, str):
            raise UsageError(f"Speech is made of text, and {text!r:.60} is none: give a string.")
        try:
            self._front = self._front or FrontEnd()
            return self._front.segments(text.encode("utf-8", "replace").decode("utf-8"))
        except AudioError as error:
            raise UsageError(str(error)) from error

    def checked(self, options: dict[str, Any]) -> SpeechOptions:
        everything = {f.name for f in fields(SpeechOptions)}
        for name in options:
            if name not in everything:
                raise UsageError(f"Unknown option {name}: leave it out.")
        settings = SpeechOptions(**{**self.loaded.defaults, **options})
        self.drafting.check(settings)
        return settings

    def _rule(self, settings: SpeechOptions) -> tuple[Policy, Any]:
        """The policy that judges, and what makes a sampler from a seed and a rule."""
        chosen = {name: getattr(settings, name) for name in MLX_NAMES} | {"logit_bias": self._barred}
        size = self.layout.vocab_size
        if (policy := rule(settings.accept)) is not None:
            return policy, lambda seed, rule: Sampler(size, seed=seed, rule=rule, **chosen)
        labels = self.labels(settings)
        if settings.accept == "pcg":
            return Pcg(labels, settings.capped), lambda seed, rule: Sampler(size, seed=seed, rule=rule, **chosen)
        return Mirror(labels, settings.capped), lambda seed, rule: MirrorSampler(labels, size, seed=seed, rule=rule, **chosen)
