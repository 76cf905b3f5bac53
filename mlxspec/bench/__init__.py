"""Measures: drafters against plain decoding and mlx-lm, rules of speech against each other."""
