"""A sample: used memory of each GPU, by process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuipc_doctor.api.slopes import Slope, slope

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

    ``label`` has the vendor tools' number (``cuda:0``: `nvidia-smi`), which may differ from CUDA's or
    HIP's. ``used`` and ``total`` are None if the driver has no such figures of this GPU, ``processes`` if the
    driver does not report them. ``trouble`` says why nothing else is known. ``busy`` (percent), ``watts``
    and ``limit`` (of power, in watts) are None unless asked for and reported by the driver.
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
    limit: float | None = None


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


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that NVML lists as holding memory of a GPU; empty texts and None are unknown.

    ``has_parent`` is False if init is its parent: it is a service, or its own parent has ended. ``managed``:
    most bytes of managed memory that it may have, which NVML does not count for it.
    """

    pid: int
    held: int | None
    name: str = ""
    is_alive: bool = True
    user: str = ""
    job: str = ""
    age_s: float | None = None
    has_parent: bool = True
    managed: int | None = None

    @property
    def about(self) -> Iterator[str]:
        """What is known of the process, in words."""
        if not self.is_alive:
            yield "it has ended"
            return
        yield f"of {self.user}" if self.user else "of a user that cannot be seen from here"
        if self.job:
            yield f"Slurm job {self.job}"
        if self.age_s is not None:
            yield f"{age(self.age_s)} old"
            yield "its parent is alive" if self.has_parent else "no parent is left but init"


def age(seconds: float) -> str:
    """A duration in its largest unit: ``3.2 h``."""
    units = (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    unit, length = next((each for each in units if seconds >= each[1]), units[-1])
    return f"{seconds / length:.1f} {unit}"


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process with device files of GPUs open, although it has memory on none."""

    process: Holder
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file in ``/dev/shm`` that no process has open; ``pid``: of its ended owner, if its name has one."""

    name: str
    held: int
    user: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """Who uses GPUs: the ``holders`` of memory, and others; and files that were left behind.

    ``hidden``: why there may be more processes, and fewer files.
    """

    holders: tuple[Holder, ...] = ()
    others: tuple[DeviceUser, ...] = ()
    left: tuple[LeftFile, ...] = ()
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """Free memory of a GPU. Of a GPU with too little for tests: its ``holders``, and the bytes that are
    ``nobodys``; ``hidden``: why there may be more holders, so that nothing follows from the latter."""

    pci: str
    total: int
    free: int
    nobodys: int = 0
    holders: tuple[Holder, ...] = ()
    hidden: str = ""


# -- growth ------------------------------------------------------------------------------------------------


WINDOW = 30
"""Number of samples for the slope. With fewer, growth cannot be distinguished from noise."""


class History:
    """The latest samples of all current GPUs and processes."""

    def __init__(self) -> None:
        self._series: dict[Key, deque[tuple[float, int]]] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample. Processes that it does not contain are forgotten."""
        self._series = {key: self._series.get(key, deque(maxlen=WINDOW)) for key, _ in sample.used()}
        for key, used in sample.used():
            self._series[key].append((sample.at, used))

    def growth(self, key: Key) -> float | None:
        """Bytes per minute by `slope`, which is robust against jumps; None while there are too few
        samples. The result is 0 if the slope's 95 % interval includes 0."""
        series = dict(self._series.get(key, ()))
        if len(series) < 4:
            return None
        found = per_minute(list(series.items()))
        return found.estimate if found.low > 0 or found.high < 0 else 0.0


def per_minute(samples: Sequence[tuple[float, int]]) -> Slope:
    """Change per minute of at least four samples: (seconds, value)."""
    return slope([at / 60 for at, _ in samples], [value for _, value in samples])
