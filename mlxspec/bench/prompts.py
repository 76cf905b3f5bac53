"""Prompt files of the benchmark: one JSON object a line. Knows no model and no tokenizer.

A line holds ``turns`` (a list of strings, of which the first is used) or ``prompt``; optional ``task`` groups the prompts.
Spec-Bench's own files load as they are: there ``category`` groups, and its eight MT-bench categories are one task, as in its paper.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.display import one_line
from mlxspec.errors import UsageError

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
UNGROUPED = "ungrouped"


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt, the group it counts in, and the name a report calls it by (the file's own id, else its line number)."""

    id: str | int
    task: str
    text: str


def read_prompts(path: Path) -> list[BenchPrompt]:
    """All prompts of a file, in order. Empty lines are skipped; anything else that is no prompt is an error with its line number."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"Cannot read the prompt file {path}: {error.strerror or error}. Give a file with one JSON object a line.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"The prompt file {path} is not UTF-8 (byte {error.start}): save it as UTF-8.") from None
    prompts = [_prompt(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UsageError(f"The prompt file {path} holds no prompt: give one JSON object a line, with 'turns' or 'prompt'.")
    return prompts


def select(prompts: Sequence[BenchPrompt], tasks: Sequence[str] = (), per_task: int | None = None, limit: int | None = None) -> list[BenchPrompt]:
    """The prompts to run, in the file's order.

    ``per_task`` keeps the first N of each task. ``limit`` keeps N in all, dealt out over the tasks one by one, so that each has
    the same number (the first tasks one more where it does not come out even, the others where a task runs out).

    >>> limit 5 of a a a a b b b c → a a b b c
    """
    known = list(dict.fromkeys(prompt.task for prompt in prompts))
    for task in tasks:
        if task not in known:
            raise UsageError(f"No prompt has the task {task!r}: the file has {', '.join(map(one_line, known))}.")
    seen: dict[str, int] = {}
    ranked: list[tuple[int, int, int]] = []  # (how many of its task came before, place of its task, place in the file)
    for place, prompt in enumerate(prompts):
        if tasks and prompt.task not in tasks:
            continue
        rank = seen.get(prompt.task, 0)
        seen[prompt.task] = rank + 1
        if per_task is None or rank < per_task:
            ranked.append((rank, known.index(prompt.task), place))
    kept = sorted(ranked)[:limit]
    return [prompts[place] for place in sorted(place for _, _, place in kept)]


def _prompt(line: str, number: int, path: Path) -> BenchPrompt:
    def bad(what: str, remedy: str) -> UsageError:
        return UsageError(f"Line {number} of {path} {what}: {remedy}.")

    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise bad("is no JSON", 'write one object a line, such as {"prompt": "What is gravity?", "task": "qa"}') from None
    if not isinstance(entry, dict):
        raise bad("is no JSON object", 'write {"prompt": ...} or {"turns": [...]}')
    if "turns" in entry:
        turns = entry["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise bad("has 'turns' that are no list of strings", 'write {"turns": ["first", "second"]}')
        text = turns[0]
    elif "prompt" in entry:
        text = entry["prompt"]
        if not isinstance(text, str):
            raise bad("has a 'prompt' that is no string", 'write {"prompt": "..."}')
    else:
        raise bad("has neither 'turns' nor 'prompt'", "add one of them")
    if not text.strip():
        raise bad("has an empty prompt", "write some text, or take the line out")
    name = entry.get("id", entry.get("question_id", number))
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise bad(f"has the id {name!r}", "give a string or a whole number")
    return BenchPrompt(name, _task(entry, bad), text)


def _task(entry: dict[str, Any], bad: Any) -> str:
    task = entry.get("task")
    if task is None:
        task = entry.get("category", UNGROUPED)
        if "question_id" in entry and isinstance(task, str) and task in MT_BENCH:
            task = "mt_bench"
    if not isinstance(task, str) or not task.strip():
        raise bad(f"has the task {task!r}", "give a name")
    return task
