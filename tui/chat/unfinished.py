"""A reply that is still coming, split into what is settled and what is not: thinking, Markdown, and a code fence that has not closed.

Drawing an open fence as Markdown costs its whole length with every piece, so it waits here as plain text. Knows no widget.
"""

import re

_OPENING = re.compile(r"\s*(?:>\s*)*(`{3,}(?=[^`]*$)|~{3,})", re.MULTILINE)
_PERHAPS = re.compile(r"\s*(?:>\s*)*(`{1,2}|~{1,2}|`{3,}[^`]*|~{3,}.*)")  # an unfinished line that may open a fence
THINK, UNTHINK = "<think>", "</think>"


class UnfinishedReply:
    """Feed it pieces; read ``thinking``, ``settled`` and ``fence``. ``settled`` only grows, but where ``restarts`` went up it began anew.

    >>> flow = UnfinishedReply()
    >>> flow.feed("Look:\\n```py\\nx = 1\\n")
    >>> flow.settled, flow.fence
    ('Look:\\n', '```py\\nx = 1\\n')
    >>> flow.feed("```\\n")
    >>> flow.settled, flow.fence
    ('Look:\\n```py\\nx = 1\\n```\\n', '')
    """

    def __init__(self) -> None:
        self.source = ""
        self._thinking = ""
        self.thinks = False  # whether the thinking goes on
        self.restarts = 0
        self._settled: list[str] = []
        self._fence: list[str] = []
        self._mark = ""  # what closes the fence
        self._line = ""
        self._begun = False  # whether anything but blanks has come

    @property
    def thinking(self) -> str:
        """What was thought so far."""
        return self._thinking + (self._line if self.thinks else "")

    @property
    def answer(self) -> str:
        """What was said so far, without the thinking."""
        return (self.settled + self.fence).lstrip("\n")

    @property
    def settled(self) -> str:
        """What can be drawn as Markdown, the unfinished line with it."""
        return "".join(self._settled) + ("" if self._held() else self._line)

    @property
    def fence(self) -> str:
        """The open fence from its first line on; empty where none is open."""
        if self._mark:
            return "".join(self._fence) + self._line
        return self._line if not self.thinks and self._begun and _PERHAPS.fullmatch(self._line) else ""

    def feed(self, piece: str) -> None:
        self.source += piece
        *whole, last = (self._line + piece).split("\n")
        for line in whole:
            self._line = line + "\n"
            self._tags()
            self._take(self._line)
        self._line = last
        self._tags()

    def _held(self) -> bool:
        """Whether the unfinished line is not to be drawn yet."""
        if self.thinks or self._mark:
            return True
        if not self._begun and THINK.startswith(self._line.strip()):
            return True
        return _PERHAPS.fullmatch(self._line) is not None

    def _take(self, line: str) -> None:
        """A whole line."""
        if self.thinks:
            self._thinking += line
        elif self._mark:
            self._fence.append(line)
            if re.fullmatch(rf"\s*(?:>\s*)*{re.escape(self._mark[0])}{{{len(self._mark)},}}\s*", line):
                self._settled += self._fence
                self._fence, self._mark = [], ""
        elif opening := _OPENING.match(line):
            self._mark = opening[1]
            self._fence = [line]
        else:
            self._settled.append(line)

    def _tags(self) -> None:
        """Find the tags of thinking in the line at hand. Some templates open it in the prompt, so that only a last line of it is seen."""
        if self._mark:
            return
        if not self._begun and self._line.strip():
            if self._line.lstrip().startswith(THINK):
                self.thinks = True
                self._line = self._line.lstrip()[len(THINK) :]
            self._begun = self.thinks or not THINK.startswith(self._line.strip())
        if self.thinks and UNTHINK in self._line:
            before, _, self._line = self._line.partition(UNTHINK)
            self._thinking += before
            self.thinks = False
        elif not self._thinking and not self.thinks and self._line.endswith(UNTHINK + "\n"):
            self._thinking = "".join(self._settled) + self._line.removesuffix(UNTHINK + "\n")
            self._settled, self._line = [], ""
            self.restarts += 1
