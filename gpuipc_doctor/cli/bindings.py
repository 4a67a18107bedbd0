"""Installed Python bindings by vendor; the simulator replaces drivers but not bindings."""

from __future__ import annotations

import importlib.util

BINDINGS = {"cuda": ("cuda", "cuda-bindings"), "hip": ("hip", "hip-python")}
"""Backend → (module that its workers import, package that contains it)."""


def usable() -> tuple[str, ...]:
    """Backends that can be tested on a real or simulated node."""
    return tuple(backend for backend, (module, _) in BINDINGS.items() if importlib.util.find_spec(module))
