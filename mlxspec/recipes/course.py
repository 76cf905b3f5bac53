"""The loop that trains a codec or a speech model: steps, rates, checkpoints, minutes turned into steps. Knows no network and no data.

A checkpoint is one file that appears whole. Batches follow from the number of the step alone, so that a run that goes on ends as an unbroken one.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mlxspec.errors import ModelError, UsageError
from mlxspec.recipes.both_cores import Team
from mlxspec.sampling import number

CHECKPOINT = "checkpoint.safetensors"
SAVE_EVERY = 120.0  # seconds
CALIBRATION = 4  # steps


class Task(Protocol):
    """What is trained. The network's trainable parameters get gradients; ``state`` are further arrays that change by a rule of the task's own."""

    state: dict[str, mx.array]

    @property
    def network(self) -> nn.Module: ...

    def loss(self, step: int, steps: int) -> tuple[mx.array, Any]:
        """The loss of this process's part of a step, and what ``after`` needs of it."""

    def after(self, step: int, seen: Any) -> None:
        """Once the step is made."""

    def check(self) -> Mapping[str, float]:
        """Figures of the held-out part."""

    def save(self, record: Mapping[str, Any]) -> None:
        """Write what has been trained, ready for use."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``decay``: the last share of the steps, over which the rate falls; ``shape``: in a line, or by a cosine over all steps."""

    steps: int
    rate: float
    warm: int = 60
    decay: float = 0.4
    shape: str = "linear"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    checks: int = 12

    def rate_at(self, step: int) -> float:
        warm = min(1.0, (step + 1) / max(1, min(self.warm, self.steps // 10)))
        if self.shape == "cosine":
            return self.rate * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * step / self.steps)) / 2)
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return self.rate * warm * max(0.02, min(1.0, left))


def work_folder(out: Path) -> Path:
    """Where a run keeps what it needs and nobody else does, beside its result."""
    return out.with_name(out.name + ".work")


def train(
    task: Task, folder: Path, plan: Plan, minutes: float | None, resume: bool, settings: Mapping[str, Any], team: Team, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train to the end of the plan and save. ``minutes`` sets its number of steps by a few that are timed first.

    ``folder`` is for the checkpoint; ``settings`` are kept in the checkpoint: a run can only go on with the same.
    """
    optimizer = optim.AdamW(plan.rate, betas=list(plan.betas), weight_decay=plan.weight_decay, bias_correction=True)
    optimizer.init(task.network.trainable_parameters())
    gradient = nn.value_and_grad(task.network, task.loss)
    step, seconds, history = 0, 0.0, list[dict[str, float]]()
    if resume:
        step, seconds, history, plan = _restored(task, optimizer, folder, settings)
    elif minutes is not None:
        pace = team.agreed(_pace(task, gradient, optimizer, plan, team))
        plan = Plan(**{**asdict(plan), "steps": max(20, int(60 * minutes / pace)), "betas": plan.betas})
        optimizer.init(task.network.trainable_parameters())
        say(f"{pace:.2f} s a step: {plan.steps} steps in {minutes:g} minutes.")
    stopping: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: stopping.append(number))
    started, saved, losses = time.perf_counter() - seconds, time.perf_counter(), list[float]()
    try:
        while step < plan.steps:
            losses.append(_step(task, gradient, optimizer, plan, step, team))
            step += 1
            seconds = time.perf_counter() - started
            if step % max(1, plan.steps // plan.checks) == 0 or step == plan.steps:
                figures = {name: round(value, 4) for name, value in task.check().items()}
                history.append({"step": step, "seconds": round(seconds, 1), "loss": round(sum(losses) / len(losses), 4), **figures})
                left = seconds / step * (plan.steps - step) / 60
                told = ", ".join(f"{name} {value:g}" for name, value in history[-1].items() if name != "seconds")
                say(f"{told}; {left:.1f} min left")
                losses.clear()
            stop = team.any(bool(stopping))
            if team.leads and (stop or time.perf_counter() - saved > SAVE_EVERY or step == plan.steps):
                _save(task, optimizer, folder, step, seconds, history, plan, settings)
                saved = time.perf_counter()
            if stop:
                say(f"Interrupted at step {step} of {plan.steps}: --resume goes on.")
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
    record = {"steps": plan.steps, "minutes": round(seconds / 60, 1), "processes": team.size, "settings": dict(settings), "history": history}
    if team.leads:
        task.save(record)
    return record


def _step(task: Task, gradient: Any, optimizer: Any, plan: Plan, step: int, team: Team) -> float:
    optimizer.learning_rate = plan.rate_at(step)
    (loss, seen), gradients = gradient(step, plan.steps)
    gradients, norm = optim.clip_grad_norm(team.averaged(gradients), plan.clip)
    loss = team.total(loss) / team.size
    mx.eval(loss, norm)
    value = number(loss)
    if not math.isfinite(value) or not math.isfinite(number(norm)):
        raise ModelError(f"The loss is {value} at step {step}, so training stops: go on from the checkpoint with a smaller --rate.")
    optimizer.update(task.network, gradients)
    task.after(step, seen)
    mx.eval(task.network.parameters(), optimizer.state, task.state)
    return value


def _pace(task: Task, gradient: Any, optimizer: Any, plan: Plan, team: Team) -> float:
    """Seconds of a step, with nothing left changed."""
    weights = tree_map(lambda x: x, task.network.parameters())
    state = dict(task.state)
    times = []
    for step in range(CALIBRATION):
        started = time.perf_counter()
        _step(task, gradient, optimizer, plan, step, team)
        times.append(time.perf_counter() - started)
    task.network.update(weights)
    task.state.update(state)
    return sorted(times[1:])[len(times[1:]) // 2]


def _save(task: Task, optimizer: Any, folder: Path, step: int, seconds: float, history: list[Any], plan: Plan, settings: Mapping[str, Any]) -> None:
    weights: Any = tree_flatten(task.network.parameters())
    moments: Any = tree_flatten(optimizer.state)
    arrays = {f"weights.{name}": value for name, value in weights} | {f"moments.{name}": value for name, value in moments}
    arrays |= {f"state.{name}": value for name, value in task.state.items()}
    told = json.dumps({"step": step, "seconds": seconds, "history": history, "plan": asdict(plan), "settings": dict(settings)})
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{os.getpid()}.{CHECKPOINT}"
    try:
        mx.save_safetensors(str(draft), arrays, metadata={"mlxspec": told})
        os.replace(draft, folder / CHECKPOINT)
    finally:
        draft.unlink(missing_ok=True)


def _restored(task: Task, optimizer: Any, folder: Path, settings: Mapping[str, Any]) -> tuple[int, float, list[dict[str, float]], Plan]:
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UsageError(f"{folder} has no {CHECKPOINT} to resume from: leave out --resume.")
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        told = json.loads(metadata["mlxspec"])
        plan = Plan(**{**told["plan"], "betas": tuple(told["plan"]["betas"])})
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged ({str(error).splitlines()[0]}): start again without --resume.") from error
    if told["settings"] != json.loads(json.dumps(dict(settings))):
        raise UsageError(f"{path} was started with other settings ({told['settings']}): give the same, or start again without --resume.")

    def part(prefix: str) -> list[tuple[str, mx.array]]:
        return [(name.removeprefix(prefix), value) for name, value in arrays.items() if name.startswith(prefix)]

    task.network.update(tree_unflatten(part("weights.")))
    optimizer.state = tree_unflatten(part("moments."))
    task.state.update(dict(part("state.")))
    mx.eval(task.network.parameters(), optimizer.state, task.state)
    return told["step"], told["seconds"], told["history"], plan
