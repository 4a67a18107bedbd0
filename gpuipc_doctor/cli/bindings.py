"""Installed Python bindings by vendor; the simulator replaces drivers but not bindings."""

from __future__ import annotations

from importlib.util import find_spec

from gpuipc_doctor.vendors import SUPPORTED


def usable() -> tuple[str, ...]:
    """Backends that can be tested on a real or simulated node."""
    return tuple(backend for backend, vendor in SUPPORTED.items() if find_spec(vendor.binding.top))
