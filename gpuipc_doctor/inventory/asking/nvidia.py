"""NVIDIA's GPUs, as the kernel driver lists them and as NVML, the management library, knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuipc_doctor.api import Worker
from gpuipc_doctor.inventory.asking.recording import Told, load, record
from gpuipc_doctor.inventory.files import models
from gpuipc_doctor.inventory.tree import Tree


def nvidia(w: Worker) -> None:
    """The GPUs' models from ``/proc``, whose driver may be stuck; then their modes from NVML."""
    tree = Tree(Path(w.params["root"]))
    where = "/proc/driver/nvidia/gpus/*/information"
    found = []
    for file in tree.glob(where):
        with w.armed(f"read {file}"):
            try:
                model = re.search(r"^Model:(.*)", tree.text(file), re.MULTILINE)
            except OSError:  # the GPU went away since it was listed
                continue
        found.append(model[1] if model else "unknown model")
    fact = models("gpu-model", found, where)
    record(w, (fact.name, fact.value, fact.source))
    for told in _modes(w):
        record(w, told)


_MODES: Mapping[str, tuple[str, int, Mapping[int, str]]] = {
    "mig": ("nvmlDeviceGetMigMode", 2, {0: "off", 1: "on"}),
    "compute-mode": (
        "nvmlDeviceGetComputeMode",
        1,
        {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"},
    ),
    "persistence": ("nvmlDeviceGetPersistenceMode", 1, {0: "off", 1: "on"}),
}
"""Fact → NVML's call, how many numbers it gives (the first is that of now), what it means (nvml.h)."""


def _modes(w: Worker) -> Iterator[Told]:
    import ctypes

    name = "libnvidia-ml.so.1"
    nvml = load(w, name, _MODES)
    if nvml is None:
        return

    def call(function: str, *arguments: Any) -> str:
        """What went wrong, or nothing."""
        try:
            entry = getattr(nvml, function)
        except AttributeError:
            return f"{name} has no {function}"
        with w.armed(function):
            code = entry(*arguments)
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        return f"{function}: {nvml.nvmlErrorString(code).decode(errors='replace')}" if code else ""

    count = ctypes.c_uint()
    if wrong := call("nvmlInit_v2") or call("nvmlDeviceGetCount_v2", ctypes.byref(count)):
        yield from ((fact, None, wrong) for fact in _MODES)
        return
    for fact, (function, numbers, words) in _MODES.items():
        modes: dict[str, list[str]] = {}
        wrong = ""
        for index in range(count.value):
            device = ctypes.c_void_p()
            given = [ctypes.c_uint() for _ in range(numbers)]
            wrong = call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            wrong = wrong or call(function, device, *map(ctypes.byref, given))
            if not wrong:
                modes.setdefault(words.get(given[0].value, str(given[0].value)), []).append(str(index))
        if len(modes) == 1:
            yield fact, next(iter(modes)), function
        elif modes:
            parts = (f"{mode} on {', '.join(indices)}" for mode, indices in modes.items())
            yield fact, "; ".join(parts), function
        else:
            yield fact, None, wrong or f"{function}: no GPU"
