"""The C interface of NCCL, which RCCL shares, by ctypes: each call armed, each failure raised.

Source of signatures and numbers: nccl.h of NCCL 2.28
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/ api.html); rccl.h has the same names. Only workers
load a library."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from functools import partial
from pathlib import Path

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.api.gpu import Arm, GpuStream, Memory
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.probe_types import Observed
from gpuipc_doctor.worker.backends.buffers import DriverBuffer
from gpuipc_doctor.worker.backends.device import DriverGpu

UNIQUE_ID_BYTES = 128

LOG_BYTES = 8 << 20
"""Maximum bytes read of the end of this process's log."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_BYTES),)


_KINDS = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8e4m3": 10,
}
"""``ncclDataType_t``."""

_REDUCTIONS = {"sum": 0, "maximum": 2, "average": 4}
"""``ncclRedOp_t``. The sum of doubled elements is made by `Communicator._reduction`."""

_SCALARS: dict[str, bytes] = {
    "float16": b"\0\x40",
    "bfloat16": b"\0\x40",
    "float32": b"\0\0\0\x40",
    "float64": b"\0\0\0\0\0\0\0\x40",
}
"""Type → the number two in it."""

_RESULTS = (
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
)

_COMM, _STREAM, _DATA = c_void_p, c_void_p, c_void_p

_CALLS: dict[str, tuple[type, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(_UniqueId),),
    "ncclCommInitRank": (POINTER(_COMM), c_int, _UniqueId, c_int),
    "ncclCommSplit": (_COMM, c_int, c_int, POINTER(_COMM), c_void_p),
    "ncclCommDestroy": (_COMM,),
    "ncclCommAbort": (_COMM,),
    "ncclCommGetAsyncError": (_COMM, POINTER(c_int)),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclRedOpCreatePreMulSum": (POINTER(c_int), c_void_p, c_int, c_int, _COMM),
    "ncclRedOpDestroy": (c_int, _COMM),
    "ncclAllReduce": (_DATA, _DATA, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclReduce": (_DATA, _DATA, c_size_t, c_int, c_int, c_int, _COMM, _STREAM),
    "ncclBroadcast": (_DATA, _DATA, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclAllGather": (_DATA, _DATA, c_size_t, c_int, _COMM, _STREAM),
    "ncclReduceScatter": (_DATA, _DATA, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclSend": (_DATA, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclRecv": (_DATA, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclMemAlloc": (POINTER(c_void_p), c_size_t),
    "ncclMemFree": (c_void_p,),
    "ncclCommRegister": (_COMM, c_void_p, c_size_t, POINTER(c_void_p)),
    "ncclCommDeregister": (_COMM, c_void_p),
}
"""Function → types of its arguments. Each returns an ``ncclResult_t``."""

_NEWER_CUDA = "CUDA driver version is insufficient"
"""In NCCL's log if the library was built for a newer CUDA than the driver supports."""


class Library:
    """NCCL or RCCL, loaded in this process (`gpuipc_doctor.api.Collectives`)."""

    def __init__(self, file: str, gpu: DriverGpu, arm: Arm, observe: Callable[[Observed, str], None]) -> None:
        """Load the library; its log goes to this process's own. Raises `BackendUnavailable`."""
        self._file, self._gpu, self._arm, self._observe = file, gpu, arm, observe
        self._made: Counter[str] = Counter()
        os.environ["NCCL_DEBUG"] = "INFO"
        for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
            os.environ.pop(name, None)
        _buffer_lines()
        try:
            with arm(f"dlopen {Path(file).name}"):
                self._library = ctypes.CDLL(file)
        except OSError as error:
            raise BackendUnavailable(
                f"cannot load {file}: {error}", "name a library of this node with --nccl-lib", broken=True
            ) from None

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises `DriverError` if it does not succeed, `BackendUnavailable` if it is
        missing."""
        self._made[name] += 1
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise BackendUnavailable(
                f"{self._file} has no {name}", "name a newer library with --nccl-lib", broken=True
            ) from None
        function.argtypes = _CALLS[name]
        with self._arm(name):
            code = function(*arguments)
        self.see_result(name, code)

    def see_result(self, name: str, code: int) -> None:
        """Raise `DriverError` if the code is an error, with the library's own words as evidence."""
        if code == 0:
            return
        if _NEWER_CUDA in (log := self.log()):
            raise BackendUnavailable(
                f"{name} of {self._file}: the library was built for a newer CUDA than the driver supports",
                "update the driver, or name a library for an older CUDA with --nccl-lib",
                broken=True,
            )
        if warnings := [line for line in log.splitlines() if " NCCL WARN " in line]:
            self._observe(Observed.WARNED, warnings[-1].partition(" NCCL WARN ")[2])
        error = _RESULTS[code] if 0 < code < len(_RESULTS) else "an unknown result"
        raise DriverError(DriverFault(name, code, error), self._made[name])

    def enter(self) -> None:
        """Make the role's device current, which is how the library learns it."""
        self._gpu.contexts.enter()

    def lacks(self, *calls: str) -> list[str]:
        return [name for name in calls if not hasattr(self._library, name)]

    @property
    def version(self) -> str:
        number = c_int()
        self.call("ncclGetVersion", byref(number))
        digits = number.value
        if digits < 10000:  # before 2.9
            return f"{digits // 1000}.{digits // 100 % 10}.{digits % 100}"
        return f"{digits // 10000}.{digits // 100 % 100}.{digits % 100}"

    def unique_id(self) -> bytes:
        made = _UniqueId()
        self.call("ncclGetUniqueId", byref(made))
        return bytes(made.internal)

    def init(self, size: int, unique_id: bytes, rank: int) -> Communicator:
        self.enter()
        made = c_void_p()
        self.call("ncclCommInitRank", byref(made), size, _UniqueId.from_buffer_copy(unique_id), rank)
        return Communicator(self, made, size, rank)

    @contextmanager
    def group(self) -> Iterator[None]:
        self.call("ncclGroupStart")
        yield
        self.call("ncclGroupEnd")

    def alloc(self, nbytes: int) -> DriverBuffer:
        self.enter()
        made = c_void_p()
        self.call("ncclMemAlloc", byref(made), nbytes)
        address = made.value or 0
        return DriverBuffer(
            self._gpu.contexts, address, nbytes, partial(self.call, "ncclMemFree", c_void_p(address))
        )

    def log(self) -> str:
        with open("/proc/self/fd/1", "rb") as log:  # noqa: PTH123 - a descriptor, not a path
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_BYTES))
            return log.read().decode(errors="replace")


class Communicator:
    """A communicator (`gpuipc_doctor.api.Communicator`)."""

    def __init__(self, library: Library, handle: c_void_p, size: int, rank: int) -> None:
        self._library, self._handle = library, handle
        self.size, self.rank = size, rank

    def _queue(self, name: str, *arguments: object, stream: GpuStream) -> None:
        self._library.enter()
        self._library.call(name, *arguments, self._handle, stream.number)

    @contextmanager
    def _reduction(self, name: str, kind: str) -> Iterator[int]:
        """The number of a reduction, which may be one of this communicator's own."""
        if name in _REDUCTIONS:
            yield _REDUCTIONS[name]
            return
        made, host = c_int(), 1  # ncclScalarHostImmediate: the scalar is read during the call
        two = ctypes.create_string_buffer(_SCALARS[kind])
        self._library.call(
            "ncclRedOpCreatePreMulSum", byref(made), ctypes.addressof(two), _KINDS[kind], host, self._handle
        )
        yield made.value
        self._library.call("ncclRedOpDestroy", made, self._handle)

    def all_reduce(
        self, source: int, target: int, count: int, kind: str, stream: GpuStream, reduction: str = "sum"
    ) -> None:
        with self._reduction(reduction, kind) as number:
            self._queue("ncclAllReduce", source, target, count, _KINDS[kind], number, stream=stream)

    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        kind: str,
        root: int,
        stream: GpuStream,
        reduction: str = "sum",
    ) -> None:
        with self._reduction(reduction, kind) as number:
            self._queue("ncclReduce", source, target, count, _KINDS[kind], number, root, stream=stream)

    def broadcast(
        self, source: int, target: int, count: int, kind: str, root: int, stream: GpuStream
    ) -> None:
        self._queue("ncclBroadcast", source, target, count, _KINDS[kind], root, stream=stream)

    def all_gather(self, source: int, target: int, count: int, kind: str, stream: GpuStream) -> None:
        self._queue("ncclAllGather", source, target, count, _KINDS[kind], stream=stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, kind: str, stream: GpuStream, reduction: str = "sum"
    ) -> None:
        with self._reduction(reduction, kind) as number:
            self._queue("ncclReduceScatter", source, target, count, _KINDS[kind], number, stream=stream)

    def send(self, source: int, count: int, kind: str, to: int, stream: GpuStream) -> None:
        self._queue("ncclSend", source, count, _KINDS[kind], to, stream=stream)

    def recv(self, target: int, count: int, kind: str, source: int, stream: GpuStream) -> None:
        self._queue("ncclRecv", target, count, _KINDS[kind], source, stream=stream)

    def check(self) -> None:
        code = c_int()
        self._library.call("ncclCommGetAsyncError", self._handle, byref(code))
        self._library.see_result("ncclCommGetAsyncError", code.value)

    def split(self, color: int, key: int, size: int, rank: int) -> Communicator:
        self._library.enter()
        made = c_void_p()
        self._library.call("ncclCommSplit", self._handle, color, key, byref(made), None)
        return Communicator(self._library, made, size, rank)

    def register(self, buffer: Memory) -> Callable[[], None]:
        made = c_void_p()
        self._library.call("ncclCommRegister", self._handle, buffer.address, buffer.nbytes, byref(made))
        return partial(self._library.call, "ncclCommDeregister", self._handle, made)

    def destroy(self) -> None:
        self._library.enter()
        self._library.call("ncclCommDestroy", self._handle)

    def abort(self) -> None:
        self._library.enter()
        self._library.call("ncclCommAbort", self._handle)


def _buffer_lines() -> None:
    """Make the C library write each line of stdout at once: a hanging or killed process flushes nothing."""
    by_line = 1  # _IOLBF
    libc = ctypes.CDLL(None)
    libc.setvbuf(c_void_p.in_dll(libc, "stdout"), None, by_line, c_size_t(0))
