"""Which vendors' Python bindings are installed: the simulator stands in for a driver, not for a binding."""

from __future__ import annotations

import importlib.util

BINDINGS = {"cuda": ("cuda", "cuda-bindings"), "hip": ("hip", "hip-python")}
"""For each backend the module that its workers import, and the package that holds it."""


def usable() -> tuple[str, ...]:
    """The backends that can be tested, on a real node or on a simulated one."""
    return tuple(backend for backend, (module, _) in BINDINGS.items() if importlib.util.find_spec(module))
