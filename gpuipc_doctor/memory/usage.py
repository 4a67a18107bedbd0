"""What a sample says: how much memory of each GPU is in use, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Key = tuple[str, int]
"""What grows: a GPU's label and a process id, or 0 for the GPU as a whole."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process and its bytes on a GPU; None where the driver does not tell."""

    pid: int
    name: str
    used: int | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU and its bytes in use, by all and as a whole.

    ``label`` has the number that the vendor's tools give the GPU (``nvidia:0``: `nvidia-smi`), which need not
    be CUDA's or HIP's. ``processes`` is None where the driver does not tell. ``trouble`` says why nothing
    else is known.
    """

    label: str
    pci: str
    name: str
    used: int = 0
    total: int = 0
    processes: tuple[ProcessUse, ...] | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """All GPUs at one time, in seconds since the epoch."""

    at: float
    gpus: tuple[GpuUse, ...]

    def used(self) -> Iterator[tuple[Key, int]]:
        """All that is known of who uses how many bytes."""
        for gpu in self.gpus:
            if gpu.trouble:
                continue
            yield (gpu.label, 0), gpu.used
            for process in gpu.processes or ():
                if process.used is not None:
                    yield (gpu.label, process.pid), process.used
