"""The terminal chat. Knows the public API of mlxspec, and of its inside only what loads no model (sessions, options, events, terminal …).

From below: ``worker`` is the engine's thread, ``reports`` what comes out of it, ``talk`` the conversation with its settings, its session and every
command as a method, and above it stand two faces: ``app`` (Textual) and ``plain`` (lines, for dumb terminals). Only ``app`` and its widgets
import Textual.

``app.run(talk, *, theme=None, keys={}) -> int`` runs the screen until the user leaves and gives the exit code. ``talk`` is a Talk whose worker has
been started and whose first model is loading; ``theme`` and ``keys`` are what config.for_screen says. The app sets ``talk.face`` to itself (the
Face protocol in talk.py), calls ``talk.feed()`` some ten times a second, and hands what the user types to ``commands.run(text, talk)``.
"""
