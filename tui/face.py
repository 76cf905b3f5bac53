"""The screen as the face of the actions: where their words, questions and texts go. Knows the app."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxspec.tui.app import ChatApp


class ScreenFace:
    """See actions.Face."""

    dot = " · "

    def __init__(self, app: "ChatApp") -> None:
        self.app = app

    def say(self, text: str) -> None:
        """A line goes away by itself, several stay below the conversation."""
        if "\n" in text:
            self.app.live.note(text)
        else:
            self.app.toast(text)

    def pick(self, what: str) -> None:
        self.app.deeds.picking.pick(what)

    def compose(self, text: str) -> None:
        self.app.deeds.edit_message(self.app.talk.last_asked)

    def copy(self, text: str) -> str:
        return self.app.copy_text(text)

    def leave(self) -> None:
        self.app.action_leave()
