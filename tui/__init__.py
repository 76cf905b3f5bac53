"""The terminal chat. Knows only the public API of mlxspec."""
