"""Networks of the drafters and codecs, and the weights that ship with the package. Knows nothing of the engine."""
