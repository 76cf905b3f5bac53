"""Codecs, token layouts, acoustic groups and playback. Knows nothing of the engine."""
