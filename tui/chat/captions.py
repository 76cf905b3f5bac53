"""The sentences of the screen, from the state of the conversation: the line on top, the status, what stands below a reply. Pure."""

from collections.abc import Mapping
from typing import Any

from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.message import ChatMessage
from mlxspec.tui.chat.reports import Ready, Speech
from mlxspec.tui.chat.tally import Tally, bar

ENDS = {"length": "cut at the limit", "interrupted": "stopped", "stop_string": "ended at a stop string", None: "cut off"}
AHEAD = 5.0  # seconds of sound that fill the gauge: a player keeps about that
WELCOME = """\
Three things to try:

1  Ask something: Why is the sky blue? Enter sends it.
2  Press F3 after the reply: which words were guessed ahead?
3  Type /compare: the same reply with and without guesses, timed.

F1 help · F4 model · ctrl+o saved chats · ctrl+p everything"""


def top(talk: Conversation, width: int) -> str:
    """Title, model, drafter, state, context, memory; on a narrow screen what matters most."""
    ready, model, state, context, memory = talk.ready, "", "", "", ""
    if ready is not None:
        model = ready.model + (f" ◂ {ready.drafter}" if ready.speculation != "off" else "")
        now = talk.speculation.state if talk.speculation is not None else ready.speculation
        state = f"SPEC {('off' if not talk.speculating else now).upper()}"
        memory = f"{ready.memory / 1e9:.1f} GB" if ready.memory else ""
    if talk.context is not None:
        context = gauge(talk.context.used, talk.context.limit)
    title = (talk.title or "")[:40]
    for parts in (
        ("mlxspec", title, model, state, context, memory),
        (title, model, state, context, memory),
        (model, state, context),
        (model, state, context.rpartition(" ")[2]),
        (state, context.rpartition(" ")[2]),
    ):
        line = "   ".join(part for part in parts if part)
        if len(line) <= width:
            break
    return line


def status(talk: Conversation, tally: Tally, behind: bool, editing: int | None, stopping: bool) -> str:
    """What is going on, and what the user can do about it."""
    below = "   ↓ more below (ctrl+end)" if behind else ""
    if stopping:
        return "stopping …" + below
    if talk.loading is not None and not (talk.answering and tally.tokens):
        share = talk.loading.share
        return (f"{bar(share, 20)} {share:.0%}  " if share is not None else "◌ ") + talk.loading.text + below
    if talk.answering:
        if talk.prefill is not None and not tally.tokens and talk.prefill.total:
            share = talk.prefill.done / talk.prefill.total
            return f"reading {talk.prefill.total} tokens {bar(share, 12)} {share:.0%}   esc stops" + below
        if not tally.tokens:
            return "waiting for the engine …   esc gives up" + below
        speed = f"{now:.1f} tok/s" if (now := tally.recent()) is not None else ""
        if tally.loops.now:
            return f"the reply repeats itself: esc stops it   {tally.tokens} tokens" + below
        return f"answering  {tally.tokens} tokens  {speed}   esc stops" + below
    if editing is not None:
        return f"editing message {editing + 1}: enter sends it, esc gives up" + below
    if talk.aloud.hearing is not None:
        return f"{talk.aloud.hearing.newest.about or 'speaking …'}   esc stops" + below
    if talk.working == "compare":
        return "comparing …" + below
    if talk.working == "baseline":
        return "measuring plain decoding on this machine …" + below
    if talk.ready is None:
        return "no model is loaded: F4" + below
    return "ready" + below


def speech(now: Speech) -> list[str]:
    """What speaks and by which rule (or what it is at before that), and from the first sound on its numbers."""
    if not now.voice:
        return [now.about or "speaking"]
    lines = [f"speaking · {now.voice}", "rule: mirror (approximate)" if now.mirror else "rule: coupled (exact)"]
    if now.pace is not None:
        lines.append(f"first sound after {now.pace.time_to_first_audio:.2f} s")
        lines.append(f"{now.pace.seconds_per_audio_second:.2f} s for a second of sound")
        lines += [f"accepted {now.pace.accepted}/{now.pace.drafted} drafted rows"] if now.pace.drafted else ["nothing was drafted"]
    if now.count:
        lines.append(f"drawn: sentence {now.number} of {now.count}")
    return lines


def buffer(seconds: float) -> str:
    """Sound ahead of the ear, against the most that is kept.

    >>> buffer(2.5)
    'buffer ██████       2.5 s'
    """
    return f"buffer {bar(seconds / AHEAD, 12)} {seconds:.1f} s"


def gauge(used: int, limit: int | None) -> str:
    """How full the context is.

    >>> gauge(1200, 2048)
    'ctx ████▋    1.2k/2k'
    """
    return f"ctx {short(used)}" if limit is None else f"ctx {bar(used / limit, 8)} {short(used)}/{short(limit)}"


def short(count: int) -> str:
    """1200 as 1.2k."""
    return str(count) if count < 1000 else f"{count / 1000:.1f}".removesuffix(".0") + "k"


def arrived(ready: Ready) -> str:
    """What was loaded, how long it took, and what became of the memory."""
    memory = ""
    if ready.memory is not None:
        before = f"{ready.memory_before / 1e9:.1f} GB before, " if ready.memory_before else ""
        freed = (
            f"{ready.memory_freed_to / 1e9:.1f} GB once the old model was gone, " if ready.memory_before and ready.memory_freed_to is not None else ""
        )
        memory = f"; memory: {before}{freed}{ready.memory / 1e9:.1f} GB now"
    return f"{ready.model} with {ready.drafter}, in {ready.seconds:.1f} s{memory}"


def loop(about: Mapping[str, Any]) -> str:
    """How much of a reply (its ``about``) is a loop."""
    return f"repeats itself ({about['repeated']} tokens)"


def about(said: ChatMessage) -> str:
    """Below a reply: what it cost and gained, and how it ended."""
    stats: dict[str, Any] = said.about.get("stats") or {}
    parts = []
    if emitted := stats.get("emitted"):
        parts.append(f"{emitted + 1} tokens")
    if speed := stats.get("tokens_per_second"):
        parts.append(f"{speed:.1f} tok/s")
    if stats.get("drafted"):
        parts += [f"{stats['tokens_per_round']:.2f} tok/round", f"accepted {stats['accepted']}/{stats['drafted']}"]
    if said.about.get("repeated"):
        parts.append(loop(said.about))
    if said.finish in ENDS and (said.text or said.finish is not None):
        parts.append(ENDS[said.finish] + (" (c goes on)" if said.stopped else ""))
    if said.about.get("model"):
        parts.append(f"{said.about['model']}" + (f", {said.about['drafter']}" if stats.get("drafted") else ""))
    return " · ".join(parts)
