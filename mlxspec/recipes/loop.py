"""The loop that trains a codec or a speech model: steps, rates, checkpoints, minutes turned into steps. Knows no network and no data.

A checkpoint is one file that appears whole. Batches follow from the number of the step alone, so that a run that goes on ends as an unbroken one.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map, tree_unflatten

from mlxspec.core.sampling import number
from mlxspec.errors import ModelError, UsageError
from mlxspec.recipes.two_processes import Team
from mlxspec.training.loop import interrupts, open_checkpoint, write_checkpoint

SAVE_EVERY = 120.0  # seconds
CALIBRATION = 4  # steps


class Task(Protocol):
    """What is trained. The network's trainable parameters get gradients; ``state`` are further arrays that change by a rule of the task's own."""

    state: dict[str, mx.array]

    @property
    def network(self) -> nn.Module: ...

    def loss(self, step: int) -> tuple[mx.array, Any]:
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
    optimizer = _optimizer(task, plan)
    gradient = nn.value_and_grad(task.network, task.loss)
    step, seconds, history = 0, 0.0, list[dict[str, float]]()
    if resume:
        step, seconds, history, plan = _restored(task, optimizer, folder, settings)
    elif minutes is not None:
        pace = team.agreed(_pace(task, gradient, plan, team))
        plan = replace(plan, steps=max(20, int(60 * minutes / pace)))
        say(f"{pace:.2f} s a step: {plan.steps} steps in {minutes:g} minutes.")
    started, saved, losses = time.perf_counter() - seconds, time.perf_counter(), list[float]()
    with interrupts() as interrupted:
        while step < plan.steps:
            losses.append(_step(task, gradient, optimizer, plan, step, team))
            step += 1
            seconds = time.perf_counter() - started
            if step % max(1, plan.steps // plan.checks) == 0 or step == plan.steps:
                figures = {name: round(value, 4) for name, value in task.check().items()}
                history.append({"step": step, "seconds": round(seconds, 1), "loss": round(sum(losses) / len(losses), 4), **figures})
                left = seconds / step * (plan.steps - step) / 60
                shown = ", ".join(f"{name} {value:g}" for name, value in history[-1].items() if name != "seconds")
                say(f"{shown}; {left:.1f} min left")
                losses.clear()
            stop = team.any(interrupted.is_set())
            if team.leads and (stop or time.perf_counter() - saved > SAVE_EVERY or step == plan.steps):
                parts = {"weights": task.network.parameters(), "moments": optimizer.state, "state": task.state}
                told = {"step": step, "seconds": seconds, "history": history, "plan": asdict(plan), "settings": dict(settings)}
                write_checkpoint(folder, parts, told)
                saved = time.perf_counter()
            if stop:
                say(f"Interrupted at step {step} of {plan.steps}: --resume goes on.")
                raise KeyboardInterrupt
    record = {"steps": plan.steps, "minutes": round(seconds / 60, 1), "processes": team.size, "settings": dict(settings), "history": history}
    if team.leads:
        task.save(record)
    return record


def _optimizer(task: Task, plan: Plan) -> Any:
    """With moments of zero."""
    optimizer = optim.AdamW(plan.rate, betas=list(plan.betas), weight_decay=plan.weight_decay, bias_correction=True)
    optimizer.init(task.network.trainable_parameters())
    return optimizer


def _step(task: Task, gradient: Any, optimizer: Any, plan: Plan, step: int, team: Team) -> float:
    optimizer.learning_rate = plan.rate_at(step)
    (loss, seen), gradients = gradient(step)
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


def _pace(task: Task, gradient: Any, plan: Plan, team: Team) -> float:
    """Seconds of a step, with nothing left changed."""
    optimizer = _optimizer(task, plan)
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


def _restored(task: Task, optimizer: Any, folder: Path, settings: Mapping[str, Any]) -> tuple[int, float, list[dict[str, float]], Plan]:
    def read(told: Any) -> tuple[Any, tuple[int, float, list[dict[str, float]], Plan]]:
        plan = Plan(**{**told["plan"], "betas": tuple(told["plan"]["betas"])})
        return told["settings"], (told["step"], told["seconds"], told["history"], plan)

    arrays, (before, where) = open_checkpoint(folder, read)
    if before != json.loads(json.dumps(dict(settings))):
        raise UsageError(f"The run in {folder} was started with other settings ({before}): give the same, or start again without --resume.")
    parts = tree_unflatten(arrays)
    task.network.update(parts["weights"])
    optimizer.state = parts["moments"]
    task.state.update(parts.get("state", {}))
    mx.eval(task.network.parameters(), optimizer.state, task.state)
    return where
