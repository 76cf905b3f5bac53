"""Samples: to files, to the loudspeaker, and one segment after another."""
