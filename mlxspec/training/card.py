"""The model card of a trained drafter: how it was made, and what was measured while it was. Knows figures only."""

from collections.abc import Mapping, Sequence
from typing import Any

WHAT = {
    "redrafter": "A ReDrafter (recurrent drafter, arXiv 2403.09919): reads the target's last hidden state and offers a tree of continuations.",
    "small": "A small Llama over the target's whole vocabulary, for classical speculative decoding; an ordinary mlx-lm folder.",
}
ASIDE = ("model", "kind", "text_batch", "minutes", "steps")
FOREIGN = {"small": ("exit_dim", "draft_vocab", "draft_steps"), "redrafter": ("hidden_size",)}  # options of the other kind
NAMES = {"start": "from"}


def command(about: Mapping[str, Any]) -> str:
    """The command line that trains the same drafter again."""
    options = about["options"]
    words = [f"mlxspec train {about['kind']} --model {options['model']}"]
    for name, value in options.items():
        if name not in (*ASIDE, *FOREIGN[about["kind"]]) and value is not None and value is not False:
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
            WHAT[about["kind"]],
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
