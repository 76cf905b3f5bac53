"""Codecs, what the ids of a speech model mean, and which of them sound alike."""
