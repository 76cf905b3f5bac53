"""The loop that trains a task: warm-up and cosine, AdamW, checkpoints, early stop. Knows no network and no text.

A checkpoint is one file that appears whole: weights and moments in float32, and as its metadata the step, the best score and the options it was
started with. Batches follow from the step's number alone, so a run that goes on from a checkpoint ends with the weights of an unbroken one.
"""

import ctypes
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mlxspec.errors import MlxspecError, ModelError, UsageError
from mlxspec.paths import replacing
from mlxspec.training.data import shuffled

CHECKPOINT = "checkpoint.safetensors"
SAVE_EVERY = 60.0  # seconds between checkpoints
KEEP = ((-8, 1), (-4, 0), (-1, 2**31 - 1), (-2, 2**26))  # glibc's M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
Say = Callable[[str], None]
Card = Callable[["Progress"], dict[str, Any]]


class Task(Protocol):
    """What is trained. ``places`` are the things a batch is drawn from."""

    kind: str
    network: nn.Module
    places: np.ndarray
    table_bytes: int

    def loss(self, batch: np.ndarray, step: int) -> mx.array: ...

    def held_out(self, count: int) -> dict[str, float]:
        """``tokens_per_round`` decides; the other figures are shown."""
        ...

    def save(self, folder: Path, extra: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Course:
    """How a task is trained."""

    steps: int
    batch: int
    rate: float
    seed: int = 0
    decay: float = 0.01
    patience: int = 6  # looks without a gain before it stops early, in the second half: before, the rate is too high to tell
    checks: int = 24  # looks at the held-out part
    held_out: int = 48  # answers


@dataclass(slots=True)
class Progress:
    """Where a run stands; part of its checkpoint."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that a step and a look at the held-out part take."""

    step: float
    check: float


class Trainer:
    """Trains a task into a folder: the best weights so far as a usable drafter, and a checkpoint to go on from."""

    def __init__(self, task: Task, course: Course, folder: Path, options: dict[str, Any], card: Card, say: Say) -> None:
        """``options`` are kept in the checkpoint; ``card`` gives what the drafter's config is to say of its training."""
        self.task, self.course, self.folder, self.options, self.card, self.say = task, course, folder, options, card, say
        self.progress = Progress(history=[])
        self._fresh()

    def _fresh(self) -> None:
        """Moments of zero."""
        self.optimizer = optim.AdamW(learning_rate=self.course.rate, betas=[0.9, 0.98], weight_decay=self.course.decay, bias_correction=True)
        self.optimizer.init(self.task.network.trainable_parameters())

    def run(self) -> Progress:
        """Train to the end, or to where it no longer helps."""
        task, course, progress = self.task, self.course, self.progress
        every = max(1, course.steps // course.checks)
        gradient = nn.value_and_grad(task.network, lambda batch, step: task.loss(batch, step))
        batches = shuffled(task.places, min(course.batch, len(task.places)), course.seed, progress.step)
        started, saved = time.perf_counter() - progress.seconds, time.perf_counter()
        losses: list[float] = []
        with interrupts() as interrupted:
            if progress.step == 0:
                self._check(losses)
                self.save_checkpoint()
            while progress.step < course.steps and not (progress.step >= course.steps // 2 and self._stalled()):
                losses.append(self._step(gradient, next(batches)))
                progress.step += 1
                progress.seconds = time.perf_counter() - started
                if progress.step % every == 0 or progress.step == course.steps:
                    self._check(losses)
                    losses.clear()
                if time.perf_counter() - saved > SAVE_EVERY or interrupted.is_set():
                    self.save_checkpoint()
                    saved = time.perf_counter()
                if interrupted.is_set():
                    self.say(f"Interrupted at step {progress.step}: --resume goes on from the checkpoint in {self.folder}.")
                    raise KeyboardInterrupt
        if progress.step < course.steps:
            self.say(f"Stopped at step {progress.step} of {course.steps}: no gain since step {progress.best_step}.")
        return progress

    def _stalled(self) -> bool:
        """Whether none of the last looks at the held-out part was better than the one before them."""
        looks = [one["tokens_per_round"] for one in self.progress.history or ()][-self.course.patience - 1 :]
        return len(looks) > self.course.patience and max(looks[1:]) <= looks[0]

    def _step(self, gradient: Any, batch: np.ndarray) -> float:
        course, network, step = self.course, self.task.network, self.progress.step
        self.optimizer.learning_rate = course.rate * schedule(step, course.steps)
        loss, gradients = gradient(batch, step)
        gradients, norm = optim.clip_grad_norm(gradients, 1.0)
        mx.eval(loss, norm)
        value = float(loss.item())
        if not math.isfinite(value) or not math.isfinite(float(norm.item())):
            raise ModelError(
                f"The loss is {value} at step {step}, so training stops: {self.folder} keeps the weights of step {self.progress.best_step}. "
                "Try a smaller --rate."
            )
        self.optimizer.update(network, gradients)
        mx.eval(network.parameters(), self.optimizer.state)
        return value

    def _check(self, losses: list[float]) -> None:
        """Look at the held-out part; keep the weights where they are the best so far."""
        progress, course = self.progress, self.course
        figures = self.task.held_out(course.held_out)
        score = figures["tokens_per_round"]
        assert progress.history is not None
        progress.history.append({"step": progress.step, "seconds": round(progress.seconds, 1), **{k: round(v, 4) for k, v in figures.items()}})
        if score > progress.best:
            progress.best, progress.best_step = score, progress.step
            with storing(self.folder):
                self.task.save(self.folder, self.card(progress))
        pace = progress.seconds / max(1, progress.step)
        said = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in figures.items())
        trained = f"loss {np.mean(losses):.3f}, " if losses else ""
        self.say(f"step {progress.step}/{course.steps}: {trained}held out: {said}; {pace * (course.steps - progress.step) / 60:.1f} min left")

    def calibrate(self, steps: int = 4) -> Pace:
        """How long a step and a check take, measured without leaving a trace."""
        network = self.task.network
        before = tree_map(lambda x: x, network.parameters())
        gradient = nn.value_and_grad(network, lambda batch, step: self.task.loss(batch, step))
        batches = shuffled(self.task.places, min(self.course.batch, len(self.task.places)), self.course.seed, 0)
        times = []
        for _ in range(steps):
            started = time.perf_counter()
            self._step(gradient, next(batches))
            times.append(time.perf_counter() - started)
        network.update(before)
        self._fresh()
        started = time.perf_counter()
        self.task.held_out(self.course.held_out)
        return Pace(float(np.median(times[1:] or times)), time.perf_counter() - started)

    def parameters(self) -> int:
        """How many numbers are trained."""
        found: Any = tree_flatten(self.task.network.parameters())
        return sum(value.size for _, value in found)

    def save_checkpoint(self) -> None:
        parts = {"weights": self.task.network.parameters(), "moments": self.optimizer.state}
        write_checkpoint(self.folder, parts, {"options": self.options, "course": asdict(self.course), "progress": asdict(self.progress)})

    def load_checkpoint(self, arrays: dict[str, mx.array], progress: Progress) -> None:
        """Go on from a checkpoint that ``read_checkpoint`` gave."""
        parts = tree_unflatten(arrays)
        self.task.network.update(parts["weights"])
        self.optimizer.state = parts["moments"]
        self.progress = progress
        mx.eval(self.task.network.parameters(), self.optimizer.state)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """The first Ctrl-C is noted, so that a step is finished and stored; a second one ends at once."""
    noted = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


class storing:
    """Turns what a disk may say into one line; the files that were there before stay as they were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._told(error) from error

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError | RuntimeError) and not isinstance(error, MlxspecError):
            raise self._told(error) from error

    def _told(self, error: BaseException) -> ModelError:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        return ModelError(f"{self.folder} cannot be written ({reason}): the files of before are kept. Make room, or give another --out.")


def replace_text(path: Path, text: str) -> None:
    """Write a small file whole, or leave the old one."""
    with storing(path.parent), replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_checkpoint(folder: Path, parts: dict[str, Any], told: dict[str, Any]) -> None:
    """``parts`` are trees of arrays; with them stands what is told of them. The file appears whole, or the one of before stays."""
    arrays: Any = tree_flatten(parts, destination={})
    with storing(folder), replacing(folder / CHECKPOINT) as draft:
        mx.save_safetensors(str(draft), arrays, metadata={"mlxspec": json.dumps(told)})


def open_checkpoint(folder: Path, read: Callable[[Any], Any]) -> tuple[dict[str, mx.array], Any]:
    """The arrays of a folder's checkpoint, flat, and what ``read`` makes of what was told. Raises UsageError where there is none."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UsageError(f"{folder} has no {CHECKPOINT} to resume from: leave out --resume, or give the folder of a run that was broken off.")
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        mx.eval(arrays)
        return arrays, read(json.loads(metadata["mlxspec"]))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged or cut short ({str(error).splitlines()[0]}): start again without --resume.") from error


def read_checkpoint(folder: Path) -> tuple[dict[str, mx.array], Progress, Course, dict[str, Any]]:
    """Arrays, progress, course and options of a folder's checkpoint. Raises UsageError where there is none."""

    def read(told: Any) -> tuple[Progress, Course, dict[str, Any]]:
        return Progress(**told["progress"]), Course(**told["course"]), told["options"]

    arrays, (progress, course, options) = open_checkpoint(folder, read)
    return arrays, progress, course, options


def keep_memory() -> None:
    """Let the C library keep what is freed. Elsewhere than with glibc nothing is done.

    It gives large blocks back to the system at once, and each of their pages comes again by a fault: a third of a training's time was the kernel's.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            for parameter, value in KEEP:
                library.mallopt(parameter, value)


def schedule(step: int, steps: int) -> float:
    """Share of the full rate: up in a line over the first twentieth, then a cosine down to one fiftieth."""
    warm = max(1, min(200, steps // 20))
    if step < warm:
        return (step + 1) / warm
    along = (step - warm) / max(1, steps - warm)
    return 0.02 + 0.98 * (1 + math.cos(math.pi * along)) / 2
