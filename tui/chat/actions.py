"""What the slash commands do, for whichever face is on: the line mode or the screen. Knows the conversation and a small face; knows no widget.

A face may make a class of its own from this one, to show in a window what is here said in lines.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from mlxspec.display import one_line
from mlxspec.errors import UsageError
from mlxspec.llm.report import details, stats_line
from mlxspec.sessions.export import as_markdown, export
from mlxspec.sessions.store import Session
from mlxspec.settings.options import Options, names
from mlxspec.settings.values import read_value
from mlxspec.tui.chat import captions
from mlxspec.tui.chat.commands import OFF, ON, help_lines, help_of
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.markdown import code_blocks

ELSEWHERE = {"system_prompt": "/system", "draft_tokens": "/k", "require_spec": None, "strict": None}  # options that /set does not take, and who does
SHORT = {"temp": "temperature", "max": "max_tokens", "n": "max_tokens"}
SETTABLE = tuple(name for name in names("reply") if name not in ELSEWHERE)


class Face(Protocol):
    """What talks with the user."""

    dot: str  # stands between the parts of a line

    def say(self, text: str) -> None:
        """Show lines of ours (foreign parts are cleaned already)."""

    def pick(self, what: str) -> None:
        """Let the user choose a model, a drafter or a session (``what``), or list them."""

    def compose(self, text: str) -> None:
        """Let the user change a text; what comes back goes to ``Actions.edited``."""

    def copy(self, text: str) -> str:
        """To the clipboard; the name of the one it went to."""

    def leave(self) -> None:
        """End the chat."""


class Actions:
    """See commands.Actions. Raises MlxspecError, one line, where something cannot be done."""

    def __init__(self, talk: Conversation, face: Face) -> None:
        self.talk = talk
        self.face = face

    # ---- Model and speculation -----------------------------------------------------------------------------------------------------------

    def model(self, name: str | None, yes: bool = False) -> None:
        if name is None:
            self.face.pick("model")
        else:
            self.talk.load(name, None, **({"yes": True} if yes else {}))

    def draft(self, name: str | None) -> None:
        if name is None:
            self.face.pick("drafter")
        else:
            self.talk.switch_drafter(name)

    def draft_tokens(self, number: int | None) -> None:
        self.change("draft_tokens", number)
        self.face.say(f"Draft tokens: {'auto' if number is None else number}.")

    def speculate(self, on: bool | None) -> None:
        if on is not None:
            self.talk.speculating = on
        now = self.talk.speculation
        if not self.talk.speculating:
            self.face.say("Speculation: off (/spec off), from the next reply on." if on is not None else "Speculation: off (/spec off).")
        elif now is not None and now.state == "off":
            self.face.say(f"Speculation: off ({now.reason}).")
        else:
            reason = f" ({now.reason})" if now is not None and now.reason else ""
            self.face.say(f"Speculation: {now.state if now is not None else 'on'}{reason}.")

    def baseline(self) -> None:
        self.talk.worker.baseline(again=True)
        self.face.say("Plain decoding is measured as soon as there is nothing else to do.")

    def compare(self) -> None:
        self.talk.compare()

    def speak(self, what: str | None, mirror: bool = False) -> None:
        if what is not None and what.lower() in (*ON, *OFF):
            self.talk.aloud.always = what.lower() in ON
            self.face.say("Every reply is spoken." if self.talk.aloud.always else "Replies are not spoken.")
            return
        self.talk.speak(voice=what, mirror=mirror)

    # ---- Settings ------------------------------------------------------------------------------------------------------------------------

    def system(self, text: str | None) -> None:
        if text is not None:
            self.talk.change_system(None if text == "-" else text)
        self.face.say(f"System prompt: {one_line(self.talk.system) if self.talk.system else 'none'}.")

    def set(self, name: str | None, value: str | None) -> None:
        if name is None:
            self.face.say("\n".join(self.settings()))
            return
        name = option_named(name)
        if value is not None:
            self.change(name, None if value == "default" else read_value(name, value), drop=value == "default")
        self.face.say(self._line(name))

    def change(self, name: str, value: Any, drop: bool = False) -> None:
        """Set one reply option, if it makes sense with the others."""
        changed = {**self.talk.settings, name: value}
        if drop:
            del changed[name]
        Options(**{option: value for option, value in changed.items() if option != "require_spec"})
        self.talk.change(changed)

    def settings(self) -> list[str]:
        """Each option with its value."""
        return [self._line(name) for name in SETTABLE]

    def _line(self, name: str) -> str:
        default = {f.name: f.default for f in fields(Options)}[name]
        model = self.talk.ready.defaults.get(name) if self.talk.ready is not None else None
        if name in self.talk.settings:
            return f"{name} = {shown(self.talk.settings[name])}"
        if model is not None:
            return f"{name} = {shown(model)} (the model's own)"
        return f"{name} = {shown(default)} (default)"

    # ---- What there is to know -----------------------------------------------------------------------------------------------------------

    def stats(self) -> None:
        talk = self.talk
        if talk.done is None:
            self.face.say("There is no reply yet.")
            return
        lines = [stats_line(talk.done, self.face.dot), details(talk.done, self.face.dot)]
        if talk.last_reply is not None and talk.last_reply.about.get("repeated"):
            lines.append(f"the reply {captions.loop(talk.last_reply.about)}, so its speed-up says nothing")
        elif talk.baseline is not None:
            speed, plain = talk.done.stats["tokens_per_second"], talk.baseline.tokens_per_second
            lines.append(f"{speed / plain:.2f}× plain decoding as measured on this machine ({plain:.1f} tok/s at {talk.baseline.context} tokens)")
        if talk.speculation is not None:
            lines.append(f"speculation {talk.speculation.state}" + (f" ({talk.speculation.reason})" if talk.speculation.reason else ""))
        self.face.say("\n".join(one_line(line) for line in lines))

    def context(self) -> None:
        used, limit = (self.talk.context.used, self.talk.context.limit) if self.talk.context is not None else (0, None)
        share = f" of {limit} ({100 * used // limit} %)" if limit else ""
        self.face.say(f"Context: {used}{share} tokens in {len(self.talk.said)} messages.")

    def help(self, name: str | None) -> None:
        self.face.say(help_of(name) if name is not None else "\n".join(help_lines()))

    # ---- The conversation ----------------------------------------------------------------------------------------------------------------

    def regenerate(self) -> None:
        self.talk.regenerate()

    def proceed(self) -> None:
        self.talk.proceed()

    def undo(self) -> None:
        self.face.say(f"Taken back: {one_line(self.talk.undo())[:60]}")

    def edit(self, text: str | None) -> None:
        at = self.talk.last_asked
        if at < 0:
            raise UsageError("There is no message to edit: send one.")
        if text is None:
            self.face.compose(self.talk.said[at].text)
        else:
            self.edited(text)

    def edited(self, text: str) -> None:
        """The last message as the user changed it."""
        self.talk.edit(self.talk.last_asked, text)

    def clear(self) -> None:
        self.talk.clear()
        self.face.say("A new conversation.")

    # ---- Sessions ------------------------------------------------------------------------------------------------------------------------

    def save(self, title: str | None) -> None:
        if self.talk.store is None:
            raise UsageError("Nothing is saved in this run (--no-save): /export FILE writes the conversation.")
        if title is not None:
            self.talk.rename(one_line(title))
        place = f"as {self.talk.session_id}" if self.talk.session_id is not None else "with the first message"
        self.face.say(f"Saved {place}: {self.talk.snapshot().name}.")

    def load(self, word: str | None) -> None:
        if word is None:
            self.face.pick("session")
            return
        session = self.talk.resume(word)
        self.face.say(f"Going on with {session.name} ({len(session.turns)} messages).")

    def search(self, words: str) -> None:
        hits = list(self.talk.saved.search(words))
        lines = [f"{hit.id}  {hit.title[:30]}  {hit.role}: {hit.excerpt}" for hit in hits[:20]]
        more = [f"… and {len(hits) - 20} more (mlxspec sessions search)"] if len(hits) > 20 else []
        self.face.say("\n".join([*lines, *more]) or "Nothing was found.")

    def export(self, path: str | None) -> None:
        session = self.talk.snapshot()
        if not session.turns:
            raise UsageError("There is nothing to export yet: send a message.")
        self.write(session, path)

    def write(self, session: Session, path: str | None = None) -> None:
        """Write a conversation to a file, and say to which."""
        target = Path(os.path.expanduser(path or f"mlxspec-{session.id}.md"))
        export(session, target)
        self.face.say(f"Written: {one_line(str(target))}.")

    def copy(self, what: str | None) -> None:
        last = self.talk.last_reply
        text = last.text if last is not None else ""
        if what == "all" and self.talk.said:
            text = as_markdown(self.talk.snapshot())
        if what == "code":
            blocks = code_blocks(text)
            if not blocks:
                raise UsageError("The last reply has no code block: /copy takes all of it.")
            text = blocks[-1]
        if not text:
            raise UsageError("There is nothing to copy yet.")
        count = len(text)
        self.face.say(f"Copied {count} character{'' if count == 1 else 's'} by {self.face.copy(text)}.")

    def leave(self) -> None:
        self.face.leave()


def option_named(name: str) -> str:
    """A reply option by the name, flag or short form the user wrote."""
    name = name.lstrip("-").replace("-", "_").lower()
    name = SHORT.get(name, name)
    if name in ELSEWHERE:
        other = ELSEWHERE[name]
        raise UsageError(f"/set does not take {name}: " + (f"use {other}." if other else "it is for mlxspec generate."))
    if name not in SETTABLE:
        near = difflib.get_close_matches(name, SETTABLE, n=1)
        raise UsageError(
            f"/set {one_line(name)[:40]} is unknown: " + (f"did you mean {near[0]}?" if near else f"the names are {', '.join(SETTABLE)}.")
        )
    return name


def shown(value: Any) -> str:
    """A value as /set takes it."""
    if isinstance(value, Mapping):
        return one_line(", ".join(f"{token}={bias:g}" for token, bias in value.items())) or "none"
    if isinstance(value, tuple | list):
        return ", ".join(repr(text) for text in value) or "none"
    return "none" if value is None else one_line(str(value))
