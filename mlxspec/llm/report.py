"""A finished reply as the command line shows it: one JSON object, or one line of statistics. Pure."""

from typing import Any

from mlxspec.core.events import Done


def report(done: Done) -> dict[str, Any]:
    """The object of ``generate --json``."""
    return {
        "text": done.text,
        "tokens": len(done.tokens),
        "finish_reason": done.finish_reason,
        "model": done.model,
        "drafter": done.drafter,
        "accept": done.accept,
        "exact": done.exact,
        "seed": done.seed,
        "stats": done.stats,
    }


def stats_line(done: Done, dot: str) -> str:
    """``64 tokens · 27.8 tok/s · 2.33 tokens/round · accepted 36/96 · prefill 0.9 s · lookup, coupled, seed 7``."""
    stats = done.stats
    parts = [f"{len(done.tokens)} token{'' if len(done.tokens) == 1 else 's'}"]
    if stats.get("tokens_per_second"):
        parts.append(f"{stats['tokens_per_second']:.1f} tok/s")
    if stats.get("rounds") and stats.get("tokens_per_round"):
        parts.append(f"{stats['tokens_per_round']:.2f} tokens/round")
    if stats.get("drafted"):
        parts.append(f"accepted {stats['accepted']}/{stats['drafted']}")
    if (prefill := stats.get("seconds", {}).get("prefill")) is not None:
        parts.append(f"prefill {prefill:.1f} s")
    parts.append(f"{done.drafter}, {done.accept}, seed {done.seed}")
    if stats.get("speculation") == "off":
        parts.append(f"speculation off ({stats.get('reason')})")
    ends = {"length": "cut at the token limit or the context", "interrupted": "interrupted"}
    if done.finish_reason in ends:
        parts.append(ends[done.finish_reason])
    return dot.join(parts)


def details(done: Done, dot: str) -> str:
    """What --verbose adds: the model, the prompt, where the time went, memory."""
    stats = done.stats
    seconds = stats.get("seconds", {})
    parts = [done.model, f"{stats.get('prompt_tokens')} prompt tokens"]
    parts += [f"{part} {seconds[part]:.2f} s" for part in ("draft", "verify", "other", "decode") if part in seconds]
    if (first := stats.get("time_to_first_token")) is not None:
        parts.append(f"first token after {first:.2f} s")
    if stats.get("accepted_by_depth"):
        parts.append(f"accepted by depth {' '.join(map(str, stats['accepted_by_depth']))}")
    if stats.get("peak_memory_bytes"):
        parts.append(f"peak memory {stats['peak_memory_bytes'] / 1e9:.2f} GB")
    return dot.join(parts)
