"""Mirrors the package. Downloads nothing, except what is marked real."""
