"""One vendor's driver API through its Python binding: each call armed, each failure raised.

``cuda-bindings`` and ``hip-python`` have the same structure: a function for each C function, returning
``(error, value…)``. Their differences are behind the abstract methods here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.api.gpu import HANDLE_BYTES, Arm
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Device, DriverFault, Fact, Json
from gpuipc_doctor.vendors import SupportedVendor
from gpuipc_doctor.worker.backends import hostmemory
from gpuipc_doctor.worker.backends.absence import Absence, Causes
from gpuipc_doctor.worker.backends.nvml import ProcessMemory

LAZY_ENABLE_PEER_ACCESS = 1
"""``CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`` and ``hipIpcMemLazyEnablePeerAccess``, required for opening."""


NO_RESULT = "success without a result (an empty handle or address)"
MISALIGNED = "success with a misaligned address"
UNKNOWN_CODE = "a code unknown to the binding"
HIDDEN_CODE = "an error whose code the binding hides"
NO_TEXT = "text that is not UTF-8"
"""Replaces the name of an error if a successful call returns invalid text."""

ALIGNED_BYTES = 256
"""Alignment of all allocated and opened memory (CUDA C++ Programming Guide, "Device Memory Accesses")."""

NON_BLOCKING = 1
"""``CU_STREAM_NON_BLOCKING`` and ``hipStreamNonBlocking``: the stream does not wait for the default
stream."""


class HandleType(IntEnum):
    """How memory may be exported: ``CU_MEM_HANDLE_TYPE_*`` and ``hipMemHandleType*``."""

    NONE = 0
    DESCRIPTOR = 1
    FABRIC = 8


class Driver(ABC):
    """A vendor's driver calls by operation; one object per process, used by one thread."""

    vendor: ClassVar[SupportedVendor]
    causes: ClassVar[Causes]
    calls: ClassVar[Mapping[str, str]]
    """Operation → name of the C function, which is also the name in the binding and in the journal."""
    names: ClassVar[Mapping[str, str]]
    """Structure, constant, type, or attribute of `gpu.Pool` → the vendor's name in the binding."""
    attribute: ClassVar[str]
    """The binding's name of a device attribute, with ``{}`` for the attribute."""
    unknown_attribute: ClassVar[str]
    """The driver's error for an attribute that it is too old to know."""
    not_ready: ClassVar[int] = 600
    """``CUDA_ERROR_NOT_READY`` and ``hipErrorNotReady``."""
    unexportable: ClassVar[Mapping[str, str]]
    """Kind of memory that IPC handles must refuse → attribute of devices with such memory."""
    contexts_own_memory: ClassVar[bool]
    """Whether destroying a context frees its memory and closes its mappings."""

    plain_memory_is_coherent: ClassVar[bool]
    """Whether kernels of several processes may use any device memory at the same time."""

    no_extra: ClassVar[object]
    """The last argument of a launch of a kernel: no further options."""

    pools_have_one_descriptor: ClassVar[bool]
    """Whether each export of a pool returns the same descriptor, which the driver never closes."""

    def __init__(self, arm: Arm, root: Path) -> None:
        """Load the binding and the driver library. Raises `BackendUnavailable` if either is missing."""
        self.arm = arm
        self._made: Counter[str] = Counter()
        self.absence = Absence(self.vendor, self.causes, root, arm)
        self.current: object = None
        """The context made current last, of any device; None if unknown."""
        try:
            self.api: Any = self._import_binding()
        except ImportError as error:
            raise self.absence.binding_missing(error) from error
        import ctypes

        try:
            with arm(f"dlopen {self.vendor.library}"):
                ctypes.CDLL(self.vendor.library)
        except OSError as error:
            raise self.absence.library_missing(error) from error

    @property
    def backend(self) -> str:
        return self.vendor.backend

    def call(self, operation: str, *arguments: Any) -> Any:
        """Make one driver call; returns None, one value, or a list of values.

        Raises `DriverError` if the call does not return success or a value is a NULL pointer, and
        `BackendUnavailable` if the library or the binding lacks the function.
        """
        name = self.calls[operation]
        self._made[name] = made = self._made[name] + 1
        try:
            function = self._function(name)
            with self.arm(name):
                error, *values = function(*arguments)
        except (AttributeError, RuntimeError) as missing:  # both bindings raise RuntimeError
            raise self.absence.entry_point_missing(name, missing) from missing
        except UnicodeDecodeError:
            raise DriverError(DriverFault(name, 0, NO_TEXT), made) from None
        except ValueError as unnamed:
            raise DriverError(_fault_in(unnamed, name), made) from None
        if error:
            raise DriverError(DriverFault(name, int(error), error.name), made)
        if any(value is None for value in values):  # hip-python: a NULL pointer
            raise DriverError(DriverFault(name, 0, NO_RESULT), made)
        return None if not values else values[0] if len(values) == 1 else values

    def numbers(self, operation: str, *arguments: Any) -> list[int]:
        """Make a call that returns addresses or sizes. Raises `DriverError` if the last value is 0."""
        values = self.call(operation, *arguments)
        numbers = [int(value) for value in (values if isinstance(values, list) else [values])]
        self.see_result(operation, numbers[-1])
        return numbers

    def see_result(self, operation: str, result: object) -> None:
        """Raise `DriverError` if ``result``, returned by a successful call, is 0 or missing."""
        if not result:
            name = self.calls[operation]
            raise DriverError(DriverFault(name, 0, NO_RESULT), self._made[name])

    def number(self, operation: str, *arguments: Any) -> int:
        """Make a call that returns one address or size. Raises `DriverError` if it is 0."""
        (number,) = self.numbers(operation, *arguments)
        return number

    def address(self, operation: str, *arguments: Any) -> int:
        """Make a call that returns the address of memory. Raises `DriverError` if it is 0 or misaligned.

        A copy to a misaligned address fails later or is slow, and would be blamed for it.
        """
        address = self.number(operation, *arguments)
        if address % ALIGNED_BYTES:
            name = self.calls[operation]
            raise DriverError(DriverFault(name, 0, MISALIGNED), self._made[name])
        return address

    def _function(self, name: str) -> Any:
        return getattr(self.api, name)

    # Differences between the bindings

    @abstractmethod
    def _import_binding(self) -> Any: ...

    def device_at(self, ordinal: int) -> Any:
        """The driver's own object of its device with this number, as all methods with a ``device`` take it: a
        GPU, or a part of one. CUDA's and HIP's is the number."""
        return ordinal

    @abstractmethod
    def address_of(self, struct: Any) -> int:
        """Address of the C struct in one of the binding's objects; valid while the object lives."""

    @abstractmethod
    def ordinal_of(self, address: int) -> int:
        """The ordinal of the device whose memory lies at this address, as the driver says."""

    @abstractmethod
    def create_context(self, device: Any) -> Any:
        """Create a context on the device ; the caller makes it current."""

    @abstractmethod
    def uuid(self, device: Any) -> str:
        """The device's uuid in the vendor's spelling; empty if it has none."""

    @abstractmethod
    def capabilities(self, device: Any) -> frozenset[str]: ...

    def kind(self, device: Any) -> str:
        """What a device is that lacks features of a whole GPU by design, and how that was recognised; empty
        for a whole GPU."""
        return ""

    @cached_property
    def is_in_gvisor(self) -> bool:
        """Whether the kernel is gVisor's, which states one version everywhere
        (google/gvisor, pkg/sentry/kernel/version)."""
        return "Sun Jan 10 15:06:54 PST 2016" in Tree(self.absence.root).line("/proc/version")

    @abstractmethod
    def ask_for_handles(self, request: Any, handle_type: HandleType) -> None:
        """Set the export type in ``request``, which describes memory to be created."""

    @abstractmethod
    def export_descriptor(self, operation: str, thing: Any) -> int:
        """A descriptor of physical memory (``vmm-export``), or of a pool (``pool-export``).

        Its number is never 0, since a worker's standard input is open.
        """

    def export_dmabuf(self, address: int, nbytes: int) -> int:
        """A descriptor of memory as a dma-buf. Raises `BackendUnavailable` if there is no such call."""
        raise BackendUnavailable(f"{self.vendor.platform} has no dma-bufs", "")

    @abstractmethod
    def import_descriptor(self, operation: str, descriptor: int) -> Any:
        """Import memory (``vmm-import``) or a pool (``pool-import``) by descriptor."""

    @abstractmethod
    def export_fabric(self, memory: Any) -> bytes:
        """The `HANDLE_BYTES` bytes of a fabric handle."""

    @abstractmethod
    def export_pointer(self, address: int) -> bytes:
        """The `HANDLE_BYTES` bytes by which another process finds this memory in the imported pool."""

    @abstractmethod
    def pool_attribute(self, pool: Any, name: str) -> int:
        """An attribute of a pool, by its name in ``names``."""

    @abstractmethod
    def set_pool_attribute(self, pool: Any, name: str, value: int) -> None: ...

    @abstractmethod
    def versions(self) -> list[Fact]: ...

    @abstractmethod
    def load_kernels(self, device: Any) -> Any:
        """Compile and load the kernels (`kernels`) in the current context, which is of this device.

        Raises `KernelsUnavailable` with the reason in the driver's words.
        """

    @abstractmethod
    def peer(self, device: Any, context: object) -> Any:
        """The argument of ``enable-peer``: the device, or its ``context``."""

    @abstractmethod
    def alloc_coherent(self, nbytes: int) -> int:
        """Address of device memory as for `Gpu.alloc_coherent`."""

    def copy_by_address(self) -> tuple[Any, ...]:
        """The argument of ``copy-by-address`` behind the size, if it has one."""
        return ()

    # Common parts

    def compare_gpus(self, devices: Sequence[Device]) -> dict[str, Json]:
        """Traits of these devices and ways between them; see `Worker.compare_gpus`."""
        return {}

    @cached_property
    def process_memory(self) -> ProcessMemory:
        """Device memory by process, read without a context."""
        return ProcessMemory()

    @property
    def generation(self) -> int:
        """The runtime's major version if the documented behaviour (`rules`) depends on the version, else
        0."""
        return 0

    def memory_info(self, device: Device) -> tuple[int, int]:
        """(free, total) bytes of the current context's device, all processes together."""
        free, total = self.numbers("mem-info")
        return free, total

    @property
    def open_flags(self) -> int:
        """The flags required for opening an IPC handle."""
        return LAZY_ENABLE_PEER_ACCESS

    def named(self, what: str) -> Any:
        """A structure, constant or type of the binding, by its key in ``names``."""
        return attrgetter(self.names[what])(self.api)

    def attribute_of(self, device: Any, name: str) -> int:
        """An attribute of a device; 0 if the driver is too old to know it."""
        attribute = attrgetter(self.attribute.format(name))(self.api)
        try:
            return int(self.call("device-attribute", attribute, device))
        except DriverError as error:
            if error.fault.name == self.unknown_attribute:
                return 0
            raise

    def claims_dmabuf(self, device: Any) -> bool | None:
        """Whether the driver states that the device's memory has dma-bufs; None if it does not know this
        attribute."""
        try:
            attribute = attrgetter(self.attribute.format(self.names["dma-buf"]))(self.api)
        except (KeyError, AttributeError):  # the vendor has none, or the binding is too old
            return None
        try:
            return bool(self.call("device-attribute", attribute, device))
        except DriverError as error:
            if error.fault.name == self.unknown_attribute:
                return None
            raise

    def unexportable_kinds(self, device: Any) -> tuple[str, ...]:
        return tuple(kind for kind, name in self.unexportable.items() if self.attribute_of(device, name))

    def handle_type(self, handle_type: HandleType) -> Any:
        """The handle type in the binding's form."""
        return self.named("handle-type")(int(handle_type))

    def create_pool(self, device: Any, handle_type: HandleType) -> Any:
        """Create a pool of stream-ordered memory on the device."""
        properties = self.named("pool-properties")()
        properties.allocType = self.named("pinned")
        properties.handleTypes = self.handle_type(handle_type)
        properties.location.type = self.named("on-device")
        properties.location.id = device
        return self.call("pool-create", properties)

    def vmm_request(self, device: Any, handle_type: HandleType) -> tuple[Any, Any]:
        """The properties of memory on this device, and the flag for querying the minimum granularity."""
        request = self.named("memory-properties")()
        request.type = self.named("pinned")
        self.ask_for_handles(request, handle_type)
        request.location.type = self.named("on-device")
        request.location.id = device
        return request, self.named("minimum")

    def access(self, device: Any) -> Any:
        """The argument for read and write access by this device; cuda-bindings takes a list."""
        access = self.named("access")()
        access.location.type = self.named("on-device")
        access.location.id = device
        access.flags = self.named("read-write")
        return access

    def import_fabric(self, handle: bytes) -> Any:
        return self.call("vmm-import", hostmemory.address_of(handle), self.handle_type(HandleType.FABRIC))

    def import_pointer(self, pool: Any, data: bytes) -> int:
        shared = self.named("pointer-data")()
        hostmemory.poke(self.address_of(shared), data)
        return self.number("pool-import-pointer", pool, shared)

    def has_native_atomics(self, device: Any, other: Any) -> bool:
        """Whether atomics of one device reach another device's memory."""
        return bool(self.call("peer-attribute", self.named("native-atomics"), device, other))

    def take_working_memory(self) -> None:  # noqa: B027  # most drivers take theirs with the context
        """Make the driver allocate its own memory on the current device, kept until this process exits."""

    def text(self, operation: str, device: Any) -> str:
        """Result of a call that fills a character buffer, such as the device's name."""
        data = bytes(self.call(operation, 256, device))  # cuda-bindings fill it with spaces first
        return data.partition(b"\0")[0].decode(errors="replace").strip()

    def handle_bytes(self, operation: str, handle: Any) -> bytes:
        """Bytes of the handle that ``operation`` made. Raises `DriverError` if they are all 0."""
        data = hostmemory.peek(self.address_of(handle), HANDLE_BYTES)
        self.see_result(operation, any(data))
        return data

    def export_handle(self, address: int) -> bytes:
        """An IPC handle: all that another process of this node needs to open the memory. If it names a
        descriptor of this process, its pid goes with it (`worker.descriptors.fetch`)."""
        return self.handle_bytes("ipc-get", self.call("ipc-get", address))

    def open_handle(self, handle: bytes) -> int:
        """The address of another process's memory, opened here; ``ipc-close`` closes it."""
        return self.address("ipc-open", self.handle_from(handle), self.open_flags)

    def handle_from(self, data: bytes, kind: str = "memory-handle") -> Any:
        """The binding's object of an IPC handle; ``kind``: its structure in ``names``."""
        if len(data) != HANDLE_BYTES:
            raise ValueError(f"an IPC handle has {HANDLE_BYTES} bytes, not {len(data)}")
        handle = self.named(kind)()
        hostmemory.poke(self.address_of(handle), data)
        return handle


def version_fact(name: str, number: int, text: str, source: str) -> Fact:
    """A version as a fact, whose value is None if the driver gave no positive number."""
    return Fact(name, text, source) if number > 0 else Fact(name, None, f"{source} returned {number}")


def _fault_in(error: ValueError, name: str) -> DriverFault:
    """The driver's error in a binding's for an unknown code, such as ``9999 is not a valid CUresult``.

    hip-python makes a result of another enumeration before it looks at the code, and if the call failed, from
    what is in its memory: then nobody sees the code.
    """
    said = re.match(r"(\d+) is not a valid (\w+)", str(error))
    if said is None:
        raise error
    is_code = said[2] in ("CUresult", "hipError_t", "ze_result_t")
    return DriverFault(name, int(said[1]), UNKNOWN_CODE) if is_code else DriverFault(name, 0, HIDDEN_CODE)
