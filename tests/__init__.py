"""Mirrors the package. Downloads nothing, except what is marked real."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
