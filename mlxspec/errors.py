"""What can go wrong, as six classes. Every message is one line: what, the value, the remedy."""


class MlxspecError(Exception):
    """Anything the user can be told about in one line. The command line exits with ``exit_code``."""

    exit_code = 1


class UsageError(MlxspecError):
    """An option, a prompt or a combination of them that makes no sense."""

    exit_code = 2


class ModelError(MlxspecError):
    """A model or its files: unknown, unreachable, damaged, or of a kind we do not read."""


class DrafterError(MlxspecError):
    """A drafter that does not fit the target, or that proposed something malformed."""


class RollbackError(MlxspecError):
    """A cache that cannot drop rejected rows. Raised instead of keeping them in silence."""


class AudioError(MlxspecError, ValueError):
    """A codec, a layout, groups or a sound file that cannot be read, or that does not fit."""
