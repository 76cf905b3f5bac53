"""Brings the state of the conversation to the screen, a few times a second: what is new is drawn, what stands is left alone. Decides nothing."""

from dataclasses import dataclass

from mlxspec.core.events import Text
from mlxspec.tui.chat import captions
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.message import ChatMessage
from mlxspec.tui.chat.tally import Tally
from mlxspec.tui.screens.chat import ChatScreen
from mlxspec.tui.widgets.origin_view import by_origin, tree_of
from mlxspec.tui.widgets.transcript import Shown
from mlxspec.tui.widgets.turns import NoteTurn, ReplyTurn

SLOWER = 3  # the panel is drawn in every third round of drawing


@dataclass(slots=True)
class Counted:
    """The numbers of one reply, as far as its pieces were counted."""

    pieces: list[Text]
    tally: Tally
    upto: int = 0

    def catch_up(self) -> bool:
        """Count what is new; whether anything was."""
        fresh = self.pieces[self.upto :]
        self.upto += len(fresh)
        for piece in fresh:
            if piece.step is not None:
                self.tally.add(piece.step)
        return bool(fresh)


class Refresh:
    """Knows the talk and the screen, and what of the one was drawn on the other."""

    def __init__(self, talk: Conversation, screen: ChatScreen) -> None:
        self.talk = talk
        self.screen = screen
        self.stale = True  # the messages changed other than by growing
        self.whole = False  # draw all of a long conversation
        self.editing: int | None = None
        self.stopping = False
        self._looked_at: ChatMessage | None = None  # a reply that the panel shows in place of the last one
        self._counted: Counted | None = None
        self._times = 0
        self._notes: list[str] = []
        self.refused = False  # the last note is why a message could not be sent
        self._refusal: NoteTurn | None = None

    def note(self, text: str) -> None:
        """A line that is no message, below what was said so far."""
        self._notes.append(text)

    @property
    def tally(self) -> Tally:
        """The numbers of the reply that the panel shows."""
        said = self.looked_at
        pieces = said.pieces if said is not None else []
        if self._counted is None or self._counted.pieces is not pieces:
            self._counted = Counted(pieces, Tally())
            self._counted.catch_up()
        return self._counted.tally

    @property
    def looked_at(self) -> ChatMessage | None:
        """The reply that the panel shows."""
        return self._looked_at or self.talk.last_reply

    def look_at(self, number: int | None) -> None:
        """Show the numbers of message ``number`` in the panel; None: of the last reply."""
        said = self.talk.said[number] if number is not None and number < len(self.talk.said) else None
        said = said if said is not None and said.role == "assistant" else None
        if said is not self._looked_at:
            self._looked_at = said
            self.screen.panel.strip.selected = None
            self.draw_panel()

    async def draw(self) -> None:
        """One round of drawing."""
        if self.stale or self._moved():
            self.stale = False
            await self._match()
        if not self.talk.stoppable:
            self.stopping = False
        await self._grow()
        notes, self._notes = self._notes, []
        for note in notes:
            await self.screen.conversation.note(note)
        if self.refused:
            self.refused = False
            await self._refuse()
        tally = self.tally
        fresh = self._counted.catch_up() if self._counted is not None else False
        self.screen.say_top(captions.top(self.talk, self.screen.size.width - 2))
        self.screen.say_status(captions.status(self.talk, tally, self.screen.conversation.behind, self.editing, self.stopping))
        self.screen.show_speech(self.talk.aloud.hearing)
        self._times += 1
        if not self.talk.answering or (fresh and self._times % SLOWER == 0):
            self.draw_panel()

    async def _refuse(self) -> None:
        """The last note says why a message could not be sent, and takes the place of the one that said so before it."""
        last = self.screen.conversation.last_note
        if last is None:
            return
        if self._refusal is not None and self._refusal is not last and self._refusal.is_attached:
            await self._refusal.remove()
        self._refusal = last

    def draw_panel(self) -> None:
        """The panel, from the reply it shows."""
        talk, panel, said, tally = self.talk, self.screen.panel, self.looked_at, self.tally
        stats = said.about.get("stats") if said is not None and said.finish is not None else None
        state, reason = "off", "the model is loading" if talk.loading is not None else "no model is loaded"
        if talk.ready is not None:
            now = talk.speculation
            state, reason = (now.state, now.reason or "") if now is not None else (talk.ready.speculation, talk.ready.reason or "")
        if not talk.speculating:
            state, reason = "off", "turned off here: /spec on"
        panel.say_state(state, reason, talk.ready.drafter if talk.ready is not None else "")
        panel.say_numbers(tally, talk.baseline, (stats or {}).get("tokens_per_second") or None)

    def _moved(self) -> bool:
        """Whether the last turn stands for another message than the last one."""
        turns, said = self.screen.conversation.turns, self.talk.said
        return (turns[-1].key if turns else None) is not (said[-1] if said else None)

    async def _match(self) -> None:
        said = self.talk.said
        await self.screen.conversation.match([self._shown(one) for one in said], self.whole)
        if self._looked_at is not None and not any(one is self._looked_at for one in said):
            self._looked_at = None

    def _shown(self, said: ChatMessage) -> Shown:
        loaded = self.talk.ready.model if self.talk.ready is not None else "model"
        below = captions.about(said) if said.finish or said.about else ""
        return Shown(said, said.role, said.text, said.about.get("model") or loaded, below, self.talk.answering and said is self.talk.said[-1])

    async def _grow(self) -> None:
        """Draw what the model said since the last time; the end of a reply is never left out."""
        turn = self.screen.conversation.last_reply
        if turn is None or not isinstance(turn.key, ChatMessage):
            return
        said: ChatMessage = turn.key
        if fresh := said.text[len(turn.source) :]:
            turn.feed(fresh)
        awaited = self.talk.answering and said is self.talk.last_reply
        if turn.view == "origin" and (fresh or turn.origin is None):
            turn.origin = by_origin(said)
        if awaited:
            if fresh:
                await turn.draw()
        elif turn.streaming or fresh or turn.below != captions.about(said):
            await turn.finish(captions.about(said))

    def show_round(self, place: int | None) -> None:
        """Show the tree of a round of the reply that the panel shows; what the model thought of it comes when it has been asked."""
        tally, said = self.tally, self.looked_at
        if place is None or said is None or place >= len(tally.steps):
            self.screen.panel.say_detail(None)
        else:
            number, step = tally.dropped + place, tally.steps[place]
            if step.proposal and number not in said.chances and said.runs:
                self.talk.look(said, number)
            self.screen.panel.say_detail(tree_of(step, said, number))

    async def show_view(self, wanted: str) -> str:
        """Turn a view on or off; the view that holds now."""
        for turn in self.screen.conversation.turns:
            if isinstance(turn, ReplyTurn) and isinstance(turn.key, ChatMessage):
                turn.origin = by_origin(turn.key) if wanted == "origin" else None
        return self.screen.conversation.next_view(wanted)
