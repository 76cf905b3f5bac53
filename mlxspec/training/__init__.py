"""Trains a drafter for a target, on text the target writes itself."""
