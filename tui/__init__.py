"""The terminal chat. Takes of mlxspec what loads no model (sessions, options, events) and the engine by a protocol of its own.

``chat`` is the chat without a screen: ``worker`` is the engine's thread and ``reports`` what comes out of it; ``conversation`` holds what was said
and its session; ``commands`` and ``actions`` are the slash commands. Two faces stand on it: ``app`` (Textual, with ``screens`` and ``widgets``) and
``plain`` (lines, for dumb terminals).

``app.run(talk, *, theme=None, keys={}) -> int`` runs the screen until the user leaves, and gives the exit code. ``talk`` is a Conversation whose
first model is to be loaded (its first ``feed`` begins with it); ``theme`` and ``keys`` are what config.for_screen says. The app sets ``talk.tell``,
``talk.redraw`` and ``talk.give_back``, calls ``talk.feed()`` some ten times a second, and gives what the user types to
``commands.run(text, Actions(talk, face))``, or to ``talk.send`` where that says False. It does not call ``talk.leave()``: who called ``run`` does.
"""
