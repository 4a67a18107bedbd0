"""Test whether GPU inter-process memory works on this node, by using it."""

__version__ = "0.3.0"
