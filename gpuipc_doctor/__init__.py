"""Find out, by doing it, whether GPU inter-process memory works on this node."""

__version__ = "0.2.0"
