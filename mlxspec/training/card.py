"""The model card of a trained drafter: how it was made, and what was measured while it was. Knows figures only."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from mlxspec.drafters.kinds import KINDS, TRAINED

ASIDE = ("model", "kind", "text_batch", "minutes", "steps")
NAMES = {"start": "from"}


def trains(kind: str) -> Any:
    """The module that trains a kind of drafter: it has ``ABOUT``, ``OWN`` (options of train that only it has), ``RATE``, ``BATCH`` and ``task``."""
    return import_module(KINDS[kind].trainer)


def foreign(kind: str) -> list[str]:
    """Options of ``mlxspec train`` that only other kinds have."""
    return [name for other in TRAINED if other != kind for name in trains(other).OWN]


def command(about: Mapping[str, Any]) -> str:
    """The command line that trains the same drafter again."""
    options = about["options"]
    words = [f"mlxspec train {about['kind']} --model {options['model']}"]
    for name, value in options.items():
        if name not in (*ASIDE, *foreign(about["kind"])) and value is not None and value is not False:
            words.append(f"--{NAMES.get(name, name).replace('_', '-')}" + ("" if value is True else f" {value}"))
    return " ".join([*words, f"--steps {about['course']['steps']}", "--out DIR"])


def model_card(about: Mapping[str, Any], history: Sequence[Mapping[str, float]]) -> str:
    """README.md of the folder."""
    names = [name for name in history[-1] if name not in ("step", "seconds")] if history else []
    table = ["| step | minutes | " + " | ".join(name.replace("_", " ") for name in names) + " |", "|---" * (len(names) + 2) + "|"]
    for row in history:
        table.append(f"| {row['step']:.0f} | {row['seconds'] / 60:.1f} | " + " | ".join(f"{row[name]:.3f}" for name in names) + " |")
    data = about["options"].get("data")
    source = f"of the file {data}" if data else "text the target wrote itself (given the first words of a request, it asks and answers)"
    return "\n".join(
        [
            f"# {about['kind']} for {about['target']}",
            "",
            trains(about["kind"]).ABOUT,
            "",
            f"- target: {about['target']}, weights {about['target_digest']}",
            f"- command: `{command(about)}`",
            f"- text: {about['text_tokens']} tokens of answers, {source}; sha256 {about['text'][:16]}",
            f"- training: {about['steps']} steps in {about['seconds'] / 60:.0f} minutes; the weights are those of step {about['step']}",
            f"- parameters: {about['parameters']}; peak memory {about['peak_memory_bytes'] / 1e9:.1f} GB; mlxspec {about['mlxspec']}",
            "",
            "On answers held out from training (greedy ones), by teacher forcing; what a run measures on real prompts is another number:",
            "",
            *table,
            "",
        ]
    )
