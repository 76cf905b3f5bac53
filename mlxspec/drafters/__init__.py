"""The drafters, one file each, and which of them fits a target and pays. Their protocol is ``mlxspec.core.drafter``."""
