"""Training a drafter for a target, from nothing but the target: its own text, a task, a course of steps, a folder. What ``mlxspec train`` does.

Knows no command line. The order: the target is loaded, the text is written (or found, or read), the target leaves the memory, the drafter is trained.
"""

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxspec.drafters.choose import tokens_digest
from mlxspec.drafters.kinds import TRAINED
from mlxspec.errors import DrafterError, UsageError
from mlxspec.loading.load import Loaded, load_model
from mlxspec.sessions import learned
from mlxspec.settings.options import Options
from mlxspec.speech import voice_folder
from mlxspec.training.card import foreign, model_card, trains
from mlxspec.training.data import TrainingText
from mlxspec.training.distil import ANSWER_LIMIT, TextStore, TextWriter, answer_tokens, read_records
from mlxspec.training.fast_exp import in_llama
from mlxspec.training.loop import CHECKPOINT, Course, Progress, Trainer, keep_memory, read_checkpoint, replace_text
from mlxspec.training.user_text import Line, line_of, read_lines, store_lines
from mlxspec.version import __version__

Say = Callable[[str], None]
TEXT_TOKENS = 400_000
MINUTES = 30.0
PATHS = ("data", "start")  # what is told of them outside this machine is their names
NOT_OF_THE_RUN = ("out", "resume", "offline", "yes", "force")  # options that do not shape the result


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """What to train, on what, for how long. None stands for the default of the kind."""

    kind: str
    model: str = "smollm2-135m"
    out: Path = Path()
    data: Path | None = None
    learned: bool = False
    text_tokens: int | None = None
    minutes: float | None = None
    steps: int | None = None
    resume: bool = False
    start: Path | None = None
    seed: int = 0
    labels: str = "soft"
    exit_dim: int | None = None
    draft_vocab: int | None = None
    layers: int | None = None
    hidden_size: int = 256
    draft_steps: int = 5
    batch: int | None = None
    rate: float | None = None
    text_batch: int = 64
    offline: bool = False
    yes: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.kind not in TRAINED:
            raise UsageError(f"train {self.kind} is unknown: give {' or '.join(TRAINED)}.")
        if self.minutes is not None and self.steps is not None:
            raise UsageError("--minutes and --steps exclude each other: give one of them.")
        if self.labels not in ("soft", "hard"):
            raise UsageError(f"--labels {self.labels} is unknown: give soft or hard.")
        default = {item.name: item.default for item in fields(self)}
        for name in foreign(self.kind):
            if getattr(self, name) != default[name]:
                raise UsageError(f"--{name.replace('_', '-')} is no option of train {self.kind}: leave it out.")

    @property
    def shaping(self) -> dict[str, Any]:
        """The options that decide what comes out, as JSON can hold them."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in NOT_OF_THE_RUN}
        return {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in values.items()}


@in_llama()
def train(options: TrainOptions, say: Say, given: frozenset[str] | None = None) -> dict[str, Any]:
    """Train, and return the figures of the result. ``given`` names the options that were asked for, which --resume holds against those of the run."""
    resumed = None
    if options.resume:
        resumed = read_checkpoint(options.out)
        options = as_before(options, resumed[3]["options"], given if given is not None else frozenset(options.shaping))
    elif not options.force and options.out.exists() and any(options.out.iterdir()):
        what = "a run that was broken off: --resume goes on with it" if (options.out / CHECKPOINT).is_file() else "files already"
        raise UsageError(f"{options.out} holds {what}, --force overwrites it, or give another --out.")
    keep_memory()
    lines_checked(options)
    place = str(voice_folder.find_voice(options.model).folder) if options.model in voice_folder.names() else options.model
    loaded = load_model(Options(model=place, offline=options.offline, yes=options.yes, force=options.force), say)
    text, seconds = written(options, loaded, say)
    if resumed is not None and resumed[3]["text"] != text.digest:
        raise UsageError("The training text is not that of the run to resume (its cache was changed): start again without --resume.")
    if options.start is not None:
        check_start(options.start, loaded)
    kind = trains(options.kind)
    task = kind.task(options, loaded, text, alike(place))
    target = {"target": loaded.name, "target_digest": loaded.digest, "tokens_digest": tokens_digest(loaded.tokenizer)}
    del loaded
    gc.collect()
    about = {
        "mlxspec": __version__,
        "kind": options.kind,
        **target,
        "text": text.digest,
        "text_tokens": len(text),
        "text_seconds": round(seconds),
        "options": {name: Path(value).name if name in PATHS and value else value for name, value in options.shaping.items()},
    }

    def card(progress: Progress) -> dict[str, Any]:
        best = max(progress.history or [], key=lambda one: one["tokens_per_round"], default={})
        return {"mlxspec": {**about, "complete": False, "step": progress.step, "figures": best}}

    rate, batch = options.rate or kind.RATE, options.batch or kind.BATCH
    kept = {"options": options.shaping, "text": text.digest}
    course = resumed[2] if resumed else Course(options.steps or 1, batch, rate, options.seed)
    trainer = Trainer(task, course, options.out, kept, card, say)
    if resumed:
        trainer.load_checkpoint(resumed[0], resumed[1])
    else:
        pace = trainer.calibrate()
        steps = options.steps
        if steps is None:
            steps = max(10, int(((options.minutes or MINUTES) * 60 - pace.check * course.checks) / pace.step))
            trainer.course = Course(steps, batch, rate, options.seed)
        minutes = (steps * pace.step + course.checks * pace.check) / 60
        memory = 16 * trainer.parameters() + 4 * sum(array.size for array in (text.ids, text.logprobs)) + task.table_bytes
        say(f"Training: {trainer.parameters() / 1e6:.1f} M numbers, {steps} steps, about {minutes:.0f} minutes and {memory / 1e9:.1f} GB of memory.")
    progress = trainer.run()
    return finish(options, about, progress, trainer, say)


def as_before(options: TrainOptions, before: dict[str, Any], given: frozenset[str]) -> TrainOptions:
    """The options of the run that is resumed. Raises UsageError where another value was asked for, and names all such options."""
    asked = options.shaping
    changed = [name for name in sorted(given) if name in before and asked.get(name) != before[name]]
    if changed:
        told = ", ".join(f"--{_flag(name)} {asked[name]} (was {before[name]})" for name in changed)
        raise UsageError(f"--resume goes on with the options of the run, and these differ: {told}. Leave them out, or start again without --resume.")
    own = {name: value for name, value in before.items() if name not in foreign(before["kind"])}  # of the other kind's, defaults were recorded too
    values = {name: Path(value) if name in PATHS and value is not None else value for name, value in own.items()}
    return TrainOptions(**{**values, **{name: getattr(options, name) for name in NOT_OF_THE_RUN}})


def _flag(name: str) -> str:
    return {"start": "from"}.get(name, name.replace("_", "-"))


def lines_checked(options: TrainOptions) -> None:
    """What is wrong with --data or --from is said before a model is loaded, as far as it shows without one."""
    for name, path in (("--data", options.data), ("--from", options.start)):
        if path is not None and not path.exists():
            raise UsageError(f"{name} {path} does not exist: give one that does.")
    if options.data is not None and options.data.stat().st_size == 0:
        raise UsageError(f"--data {options.data} is empty: give one JSON object a line, with messages, prompt or text.")


def written(options: TrainOptions, loaded: Loaded, say: Say) -> tuple[TrainingText, float]:
    """The training text, and the seconds spent on writing it now."""
    started = time.perf_counter()
    shards: list[Path] = []
    width = int(tables_width(loaded))
    given = list[tuple[str, list[Line]]]()
    if options.data is not None:
        given.append((str(options.data), read_lines(options.data, loaded.tokenizer)))
    if options.learned:
        given.append(("mlxspec learned", learned_lines(loaded)))
    for name, lines in given:
        say(f"{len(lines)} lines of {name} are run through the target once.")
        shards += store_lines(lines, loaded, options.seed, options.text_batch).shards()
    goal = options.text_tokens or (0 if given else TEXT_TOKENS)
    limit = None
    if goal:
        store = TextStore.of(loaded.digest, options.seed)
        have = sum(answer_tokens(read_records(shard)) for shard in store.shards())
        weights: Any = tree_flatten(loaded.model.parameters())
        memory = sum(value.nbytes for _, value in weights) + options.text_batch * (width * 60 + 4 * ANSWER_LIMIT * width * 12)
        say(
            f"Text: {min(have, goal)} of {goal} tokens of answers are in {store.folder}"
            + (
                f"; the target writes the rest (about {memory / 1e9:.1f} GB of memory, {goal * (2 * width + 96) / 1e9:.1f} GB of disk)."
                if have < goal
                else "."
            )
        )
        TextWriter(loaded.model, loaded.tokenizer, store, seed=options.seed, batch=options.text_batch).write(goal, say)
        shards += store.shards()
        limit = None if given else goal
    return TrainingText(shards, limit), time.perf_counter() - started


def learned_lines(loaded: Loaded) -> list[Line]:
    """The answers of this model that are kept here."""
    found = [line_of({"messages": one.messages}, loaded.tokenizer) for one in learned.entries() if one.digest == loaded.digest]
    if not found:
        raise UsageError(f"--learned: no answers of {loaded.name} are kept in {learned.folder()}: mlxspec generate --learn keeps them.")
    return found


def tables_width(loaded: Loaded) -> int:
    """The hidden size, as the config says it."""
    config = loaded.config
    return int(config.get("hidden_size") or config.get("text_config", {}).get("hidden_size") or config.get("n_embd") or 1024)


def alike(model: str) -> list[int]:
    """Tokens that a drafter need not tell apart: the names of a voice's symbols, among which the text chooses."""
    folder = Path(model).expanduser()
    return sorted(voice_folder.read_voice(folder).layout.names) if (folder / voice_folder.VOICE).is_file() else []


def check_start(folder: Path, loaded: Loaded) -> None:
    """Refuse to go on from weights that were trained for another target."""
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("mlxspec", {})
    except (OSError, ValueError) as error:
        raise DrafterError(f"--from {folder} has no config.json that can be read: give a folder that mlxspec train wrote.") from error
    if about.get("target_digest") not in (None, loaded.digest):
        raise DrafterError(f"--from {folder} was trained for {about.get('target')}, not for this {loaded.name}: give a drafter of the same model.")


def finish(options: TrainOptions, about: dict[str, Any], progress: Progress, trainer: Trainer, say: Say) -> dict[str, Any]:
    """Mark the folder as complete, write its card, drop the checkpoint."""
    history = progress.history or []
    best = max(history, key=lambda one: one["tokens_per_round"], default={})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    result = {
        **about,
        "complete": True,
        "step": progress.best_step,
        "steps": progress.step,
        "course": asdict(trainer.course),
        "seconds": round(progress.seconds),
        "peak_memory_bytes": max(peak, mx.get_peak_memory()),
        "parameters": trainer.parameters(),
        "figures": best,
    }
    config = json.loads((options.out / "config.json").read_text(encoding="utf-8"))
    config["mlxspec"] = result
    replace_text(options.out / "README.md", model_card(result, history))
    replace_text(options.out / "config.json", json.dumps(config, indent=2) + "\n")
    (options.out / CHECKPOINT).unlink(missing_ok=True)
    say(
        f"Trained in {progress.seconds / 60:.1f} minutes: {best.get('tokens_per_round', 0):.2f} tokens per round expected. "
        f"Use it with --drafter {options.kind}:{options.out}"
    )
    return result
