"""The version, where every room can read it: the package itself names the API, which stands above them."""

__version__ = "0.1.0"
