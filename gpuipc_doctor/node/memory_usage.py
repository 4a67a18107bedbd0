"""A sample: used memory of each GPU, by process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Key = tuple[str, int]
"""(GPU's label, process id), with process id 0 for the whole GPU."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process and its bytes on a GPU; None if the driver does not report them."""

    pid: int
    name: str
    used: int | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU with its used and total bytes.

    ``label`` has the vendor tools' number (``nvidia:0``: `nvidia-smi`), which may differ from CUDA's or
    HIP's. ``used`` and ``total`` are None if the driver has no such figures of this GPU, ``processes`` if the
    driver does not report them. ``trouble`` says why nothing else is known. ``busy`` (percent) and ``watts``
    are None unless asked for and reported by the driver.
    """

    label: str
    pci: str
    name: str
    used: int | None = 0
    total: int | None = 0
    processes: tuple[ProcessUse, ...] | None = None
    trouble: str = ""
    busy: int | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """All GPUs at one time. The time is in seconds since the epoch."""

    at: float
    gpus: tuple[GpuUse, ...]

    def used(self) -> Iterator[tuple[Key, int]]:
        """Bytes by GPU and process."""
        for gpu in self.gpus:
            if gpu.trouble:
                continue
            if gpu.used is not None:
                yield (gpu.label, 0), gpu.used
            for process in gpu.processes or ():
                if process.used is not None:
                    yield (gpu.label, process.pid), process.used
