"""What can go wrong with sound and its files. One line: what, the value, the remedy. The engine turns these into its own errors."""


class AudioError(ValueError):
    """A codec, a layout, groups or a sound file that cannot be read, or that does not fit."""
