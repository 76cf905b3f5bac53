"""How the shipped voice was made: a corpus, a codec, a speech model, one command each. Everything trains with MLX, goes on where it was broken off,
and uses both cores. Not needed to speak."""
