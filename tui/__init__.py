"""The terminal chat. Knows the public API of mlxspec, and of its inside only what loads no model (sessions, options, events, terminal …).

From below: ``worker`` is the engine's thread and ``reports`` what comes out of it; ``talk`` is the conversation with its session; ``commands`` and
``actions`` are the slash commands. Above stand two faces: ``app`` (Textual) and ``plain`` (lines, for dumb terminals). Only ``app`` and its widgets
import Textual.

``app.run(talk, *, theme=None, keys={}) -> int`` runs the screen until the user leaves, and gives the exit code. ``talk`` is a Talk whose first model
is to be loaded (its first ``feed`` begins with it); ``theme`` and ``keys`` are what config.for_screen says. The app sets ``talk.tell``,
``talk.redraw`` and ``talk.give_back``, calls ``talk.feed()`` some ten times a second, and gives what the user types to
``commands.run(text, Actions(talk, face))``, or to ``talk.send`` where that says False. It does not call ``talk.leave()``: who called ``run`` does.
"""
