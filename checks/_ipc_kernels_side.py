"""A side of `ipc-kernels`: a GPU, its kernels, and the memory that both sides use."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from gpuipc_doctor.api import Buffer, Gpu, GpuStream, Json, Memory, Worker
from gpuipc_doctor.api.gpu import Kernels, Linear
from gpuipc_doctor.api.offered_memory import BY_DESCRIPTOR, BY_HANDLE, BY_POINTER

NBYTES = 1 << 20
"""Bytes of the shared memory: `COUNT` elements of 4 bytes, and the `FLAGS`."""

COUNT = (1 << 17) + 3
"""Number of elements; no multiple of the threads of a kernel."""

LARGE_COUNT, SOAK_COUNT = (4 << 20) + 5, (65 << 20) + 5
"""Number of elements of large memory, which kernels of full blocks use in the default stream; the flags stay
in the first memory. In soak it is larger than 256 MiB, if the check may hold it."""

FLAGS = {"exporter": NBYTES - 256, "importer": NBYTES - 128}
"""Side that stores a flag → the flag's offset."""

ADDITIONS = 64
UNITS = {"exporter": 1, "importer": 1 << 16}
"""Number of times that each side adds, and the number that it adds: a wrong sum shows whose additions are
missing."""

COUNTER, HOT_ADDITIONS = NBYTES - 384, 20_000
"""Offset of a single element, and number of times that each side adds to it: a hot counter."""

LOADS = 1 << 18
"""Loads of a kernel that waits: at 0.3 to 3 µs each, 0.1 to 0.8 s."""

GRACE_S = 0.02
"""Seconds for which a waiting kernel may run on after the flag was stored."""

RESULT = 8
"""Offset of the result of a comparison in a side's memory for results; the result of a wait is at 0."""

RESULTS_NBYTES = RESULT + 24

MASK = 0xFFFFFFFF

PEER = "peer"

KINDS = {
    BY_HANDLE: "an IPC handle",
    BY_DESCRIPTOR: "a descriptor of VMM memory",
    BY_POINTER: "a pointer of a pool",
    PEER: "peer access within a process",
}
"""Kind of mapping → its name."""

ALONE = "wrong-alone"


@dataclass
class Found:
    """What a process found."""

    unavailable: str = ""
    """Why its kernels cannot run."""
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """(key of a finding, observation)."""
    alone: set[str] = field(default_factory=set)
    """The sides whose kernels were wrong in memory of their own process."""
    flags: list[int] = field(default_factory=lambda: [0, 0])
    """Number of flags seen by a kernel that was waiting, and by a later one."""

    @property
    def works(self) -> bool:
        return not (self.unavailable or self.wrong)

    def record(self) -> dict[str, Json]:
        return {**asdict(self), "alone": sorted(self.alone)}


@dataclass
class Side:
    """A GPU and its kernels, at work in the memory that both sides use."""

    w: Worker
    gpu: Gpu
    name: str
    """``exporter`` or ``importer``."""
    found: Found
    kernels: Kernels
    own_stream: GpuStream
    default_stream: GpuStream
    results: Buffer
    """Memory of this side alone."""
    memory: Memory
    data: Memory
    count: int = COUNT
    through: str = ""
    at_once: bool = True
    """Whether kernels of both sides may use the memory at the same time."""
    atomics: bool = True
    """Whether both sides can add."""

    @property
    def stream(self) -> GpuStream:
        return self.own_stream if self.data is self.memory else self.default_stream

    def move_to(self, memory: Memory, kind: str, *, atomics: bool = True) -> Side:
        """Work in this memory from now on; returns this side."""
        self.memory, self.data, self.count, self.atomics = memory, memory, COUNT, atomics
        self.through = KINDS[kind] if kind else "memory of its own"
        self.at_once = self.gpu.plain_memory_is_coherent or kind in (BY_HANDLE, PEER)
        return self

    def move_data_to(self, memory: Memory) -> Side:
        """Work on the elements of this large memory, until the next move."""
        self.data, self.count = memory, self.w.params["large"]
        self.through = f"{self.through}, {self.count >> 18} MiB"
        return self

    def fill_large(self, memory: Memory) -> None:
        self.move_data_to(memory).fill(LARGE_DATA)
        self.finish()

    def fill(self, data: Linear) -> None:
        self.kernels.fill(self.stream, self.data.address, self.count, data)

    def add(self) -> None:
        unit = UNITS[self.name]
        self.kernels.add(self.stream, self.memory.address, COUNT, unit, ADDITIONS)
        self.kernels.add(self.stream, self.memory.address + COUNTER, 1, unit, HOT_ADDITIONS)

    def clear(self) -> None:
        """Queue kernels that set the flags and the counter to zero."""
        for offset in (*FLAGS.values(), COUNTER):
            self.kernels.store(self.stream, self.memory.address + offset, 0)

    def store(self, setter: str, number: int) -> None:
        self.kernels.store(self.stream, self.memory.address + FLAGS[setter], number)

    def compare(self, data: Linear, before: Linear) -> None:
        """Queue a comparison, for `report`."""
        result = self.results.address + RESULT
        self.kernels.compare(self.stream, self.data.address, self.count, result, data, before)

    def wait(self, setter: str, number: int, data: Linear, before: Linear) -> None:
        """Queue a kernel that waits for the flag, and behind it a comparison."""
        self.clear_results()
        flag = self.memory.address + FLAGS[setter]
        self.kernels.wait(self.stream, flag, number, LOADS, self.results.address)
        self.compare(data, before)

    def finish(self) -> None:
        self.stream.synchronize()

    def runs_on(self) -> bool:
        """Whether queued kernels are still busy after `GRACE_S`."""
        end = self.w.clock() + GRACE_S
        while self.stream.is_busy():
            if self.w.clock() > end:
                return True
        return False

    def has_seen(self, *, was_waiting: bool) -> bool:
        """Whether the kernel that waited saw the flag."""
        self.finish()
        seen = self.read_results()[0] == 1
        self.found.flags[0 if was_waiting else 1] += seen
        return seen

    def clear_results(self) -> None:
        self.results.write(bytes(RESULT + 8) + b"\xff" * 8 + bytes(8))

    def read_results(self) -> list[int]:
        """The results: of a wait, and three of a comparison."""
        data = self.results.read(RESULTS_NBYTES)
        return [int.from_bytes(data[place : place + 8], "little") for place in range(0, len(data), 8)]

    def check(self, key: str, data: Linear, before: Linear) -> None:
        """Compare the memory with ``data``; a difference is a fault with this ``key``."""
        self.clear_results()
        self.compare(data, before)
        self.finish()
        self.report(key, data)

    def report(self, key: str, data: Linear) -> None:
        """Report the differences that the latest comparison found."""
        _, number, least, earlier = self.read_results()
        if not number:
            return
        place, value = least >> 32, least & MASK
        right = (data[0] * place + data[1]) & MASK
        says = f"{number} of {self.count} elements wrong, first element {place}: "
        says += f"{value:#010x} instead of {right:#010x}"
        if earlier:
            says += f"; {'all' if earlier == number else earlier} of them hold earlier data"
        if key == "adds-lost":
            says += attribute_additions((right - value) & MASK)
        copied = int.from_bytes(self.data.read(4, 4 * place), "little")
        self.fault(key, f"{says}; a copy shows {copied:#010x} there")

    def check_counter(self, key: str, *names: str) -> None:
        """Compare the counter with the additions of these sides."""
        value, right = self.read_copy(COUNTER), HOT_ADDITIONS * sum(UNITS[name] for name in names) & MASK
        if value != right:
            says = f"a counter to which each side added {HOT_ADDITIONS} times is {value:#010x}, "
            says += f"not {right:#010x}"
            self.fault(key, says + attribute_additions((right - value) & MASK, HOT_ADDITIONS))

    def read_copy(self, offset: int) -> int:
        """A flag or the counter as a copy to the host shows it."""
        return int.from_bytes(self.memory.read(4, offset), "little")

    def fault(self, key: str, says: str) -> None:
        if key == ALONE:
            self.found.alone.add(self.name)
        self.found.wrong.append((key, f"{self.through}, the {self.name}'s kernel: {says}"))

    def end(self) -> None:
        self.kernels.unload()
        self.results.free()


def attribute_additions(missing: int, times: int = ADDITIONS) -> str:
    """Whose additions are missing from a sum, in words; empty if additions do not explain the difference."""
    lost = {name: missing // unit % UNITS["importer"] for name, unit in UNITS.items()}
    if max(lost.values()) > times:
        return ""
    numbers = (f"{number} of the {name}'s {times} additions" for name, number in lost.items())
    return f"; lost: {', '.join(numbers)}"


def make_data(turn: int) -> Linear:
    """Data that differs by element and by turn."""
    return 2 * turn + 1, 0x01000193 * turn & MASK


LARGE_DATA = make_data(5)
"""What the exporter writes to large memory before it is shared."""


def add_units(data: Linear, *units: int) -> Linear:
    """The data after `ADDITIONS` of each unit."""
    return data[0], data[1] + ADDITIONS * sum(units) & MASK
