"""What ranks wait for: kinds of activities, and the functions of MPI, PyTorch and GPU drivers that wait."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from gpuipc_doctor.stacks.thread import Stack


class Kind(Enum):
    """What a rank is doing. The value is written into documents."""

    RECEIVES = "waits for a message"
    SENDS = "waits for a receiver"
    PROGRESSES = "waits for requests"
    COLLECTIVE = "waits in a collective"
    STARTS = "waits in MPI_Init"
    ENDS = "waits in MPI_Finalize"
    JOINS = "waits for ranks to join"
    """PyTorch's init_process_group, its store, and NCCL's start."""
    DEVICE = "waits for the GPU"
    KERNEL = "is stuck in the kernel"
    STOPPED = "is stopped"
    ENDED = "has ended"
    COMPUTES = "computes outside MPI"
    SLEEPS = "sleeps outside MPI"
    LOOPS = "goes through functions outside MPI"
    COUNTS = "counts outside MPI"
    MOVES = "moves on"
    UNKNOWN = "cannot be told"

    @property
    def waits_for_ranks(self) -> bool:
        """Whether the rank waits for other ranks, in MPI or in a collective of PyTorch."""
        return self in _FOR_RANKS

    @property
    def waits(self) -> bool:
        """Whether the rank waits for other ranks or for its GPU, on which a collective may wait for them."""
        return self.waits_for_ranks or self is Kind.DEVICE

    @property
    def is_outside(self) -> bool:
        return self in (Kind.COMPUTES, Kind.SLEEPS, Kind.LOOPS, Kind.COUNTS)

    @property
    def may_advance(self) -> bool:
        """Whether the rank may be in a loop that will end, which the snapshots cannot show."""
        return self in (Kind.LOOPS, Kind.COUNTS)


_FOR_RANKS = frozenset(
    {Kind.RECEIVES, Kind.SENDS, Kind.PROGRESSES, Kind.COLLECTIVE, Kind.STARTS, Kind.ENDS, Kind.JOINS}
)


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank does. ``operation``: the MPI function, the driver call, or the program's own function."""

    kind: Kind
    operation: str = ""
    path: tuple[str, ...] = ()
    """The rank's stack, outermost frame first. Ranks are grouped by their stacks."""
    reason: str = ""
    """The evidence for the activity."""
    works: str = ""
    """Work that the rank does although it is in no wait, or what its connections carry; empty if neither."""


_OF_MPI: Mapping[str, Kind] = {
    name: kind
    for kind, names in (
        (Kind.STARTS, "init init_thread session_init"),
        (Kind.ENDS, "finalize session_finalize"),
        (Kind.RECEIVES, "recv mrecv probe mprobe"),
        (Kind.SENDS, "send ssend bsend rsend buffer_detach comm_detach_buffer session_detach_buffer"),
        (
            Kind.PROGRESSES,
            "sendrecv sendrecv_replace wait waitall waitany waitsome test testall testany "
            "testsome iprobe improbe parrived request_get_status request_get_status_all "
            "request_get_status_any win_fence win_start win_complete win_post win_wait "
            "win_test win_lock win_lock_all win_unlock win_unlock_all win_flush "
            "win_flush_all win_flush_local win_flush_local_all win_create "
            "win_create_dynamic win_allocate win_allocate_shared win_free",
        ),
        (
            Kind.COLLECTIVE,
            "barrier bcast gather gatherv scatter scatterv allgather allgatherv allreduce "
            "alltoall alltoallv alltoallw reduce reduce_scatter reduce_scatter_block scan "
            "exscan neighbor_allgather neighbor_allgatherv neighbor_alltoall "
            "neighbor_alltoallv neighbor_alltoallw comm_dup comm_dup_with_info comm_create "
            "comm_create_group comm_create_from_group comm_split comm_split_type comm_free "
            "comm_disconnect comm_accept comm_connect comm_join comm_spawn "
            "comm_spawn_multiple comm_agree intercomm_create intercomm_create_from_groups "
            "intercomm_merge cart_create cart_sub graph_create dist_graph_create "
            "dist_graph_create_adjacent file_open file_close file_preallocate file_set_size "
            "file_set_view file_set_atomicity file_sync file_seek_shared file_read_all "
            "file_read_at_all file_read_ordered file_write_all file_write_at_all "
            "file_write_ordered file_read_all_begin file_read_all_end "
            "file_read_at_all_begin file_read_at_all_end file_read_ordered_begin "
            "file_read_ordered_end file_write_all_begin file_write_all_end "
            "file_write_at_all_begin file_write_at_all_end file_write_ordered_begin "
            "file_write_ordered_end",
        ),
    )
    for name in names.split()
}
"""MPI function (lower case, without ``mpi_``) → what it waits for (MPI 5.0). The others return without
another rank: ``MPI_File_write_at`` is no collective."""

_OF_TORCH: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (
        ("init_", "new_", "split_", "rendezvous", "_create_c10d_store", "_store_", "the store", "ncclComm"),
        Kind.JOINS,
    ),
    (("recv", "irecv"), Kind.RECEIVES),
    (("send", "isend"), Kind.SENDS),
    (("batch_isend", "work.wait", "ncclGroupEnd"), Kind.PROGRESSES),
)
"""Prefixes of PyTorch's operations → what they wait for; all others are collectives (torch.distributed)."""

_MPI = re.compile(r"^P?MPI_(\w+?)(_c)?$|^p?mpi_(\w+?)_{1,2}(?:f08_)?$")
"""C and Fortran names of MPI functions; ``_c`` is the variant with large counts."""

_MPI4PY = re.compile(r"^__pyx_pw_6mpi4py_3MPI_\d+[A-Za-z]+_\d+([A-Za-z]\w*)$")

_MPI_LIBRARY = re.compile(r"libmpi[\w.+-]*\.so|libmpich\.so|libmpi_\w+\.so")

_LIBRARY = re.compile(
    r"[(\[](libmpi|libpmpi|lib(open-)?(pal|rte)|libpmix|libuc[pstm]|libfabric|libpsm|libibverbs|libcuda|libcudart"
    r"|libamdhip|libhsa|libze_|libccl\.|libc\.|libc-|libpthread|ld-|linux-vdso|MPI\.)"
)
"""Pattern for frames in MPI, its transports, GPU drivers or system libraries."""

_SHARED = re.compile(r"\.so[\d.]*[)\]]$")
_OF_PROGRAM = re.compile(
    r"[(\[](\w*\.(cpython-[\w-]+|abi3)\.so|lib(python|(open)?blas|mkl|lapack|gomp|torch|c10)"
    r"|lib(cublas|cudnn|cufft|rocblas))"
)
"""Shared libraries in which a program computes, or that are part of it, such as Python's extensions."""
_DEVICE = re.compile(
    r"^(cu(da)?|hip)(Ctx|Device|Stream|Event)?(Synchronize|WaitEvent)(_v2|_ptsz|_spt)?$"
    r"|^(cu|cuda|hip)Mem(cpy|set)\w*$"
    r"|^ze(CommandQueue|Device|(CommandList|Event|Fence)Host)Synchronize$"
    r"|^(ncclCommFinalize|ncclCommDestroy)$"
    r"|^torch\.(cuda|xpu)\.synchronize$"
)
"""Functions that return only when the GPU has finished, according to the manuals of CUDA, HIP and Level Zero;
PyTorch's ``torch.cuda`` and ``torch.xpu``."""

_ONECCL = re.compile(
    r"^(?:_ZN3ccl(?:2v1)?\d+|ccl::(?:v1::)?)"
    r"(allgatherv?|allreduce|alltoallv?|barrier|broadcast|reduce_scatter|reduce|recv|send|event(?=4wait|::wait))"
)
"""Functions of oneCCL, also as the linker names them, that wait for other ranks (oneCCL specification)."""
_OF_ONECCL = {"recv": Kind.RECEIVES, "send": Kind.SENDS, "event": Kind.PROGRESSES}

_INTERPRETER = re.compile(r"\((lib)?python[\w.]*\)$|^_?Py|^\[(lib)?python")


Call = tuple[Kind, str]
"""A waiting call: what it waits for, and its function."""

_POLLS = ("MPI_Test", "MPI_Iprobe", "MPI_Improbe", "MPI_Request_get_status", "MPI_Parrived")

UNNAMED: Call = (Kind.PROGRESSES, "an MPI call")
"""Stands for the function in a stack that ends inside MPI without a function name, such as a truncated
stack."""


def first_call(stack: Iterable[str]) -> Call | None:
    """The first waiting call among these frames; "an MPI call" if a frame of MPI's library has no name."""
    inside, is_local = None, False
    for frame in stack:
        function, _, file = frame.partition(" (")
        mpi4py = _MPI4PY.match(function)
        name = mpi4py[1] if mpi4py else mpi_function(function)
        if name and (kind := _OF_MPI.get(name.lower())):
            return kind, f"MPI_{name[0].upper()}{name[1:]}"
        if _DEVICE.match(function):
            return Kind.DEVICE, function
        if oneccl := _ONECCL.match(function):
            wait = "::wait" if oneccl[1] == "event" else ""
            return _OF_ONECCL.get(oneccl[1], Kind.COLLECTIVE), f"ccl::{oneccl[1]}{wait}"
        if _MPI_LIBRARY.search(file or frame):
            inside = UNNAMED
            is_local |= name.startswith("File_")
    return None if is_local else inside


def mpi_function(symbol: str) -> str:
    """An MPI function's name without its prefix: ``Recv`` for ``MPI_Recv``, ``PMPI_Recv_c`` and
    ``mpi_recv_``. Empty for all other functions."""
    found = _MPI.match(symbol)
    if not found:
        return ""
    return found[1] or found[3].capitalize()


def waits_for_gpu(function: str) -> bool:
    """Whether a function returns only when the GPU has finished."""
    return _DEVICE.match(function) is not None


def kind_of_torch(operation: str) -> Kind:
    """What one of PyTorch's operations waits for."""
    return next((kind for names, kind in _OF_TORCH if operation.startswith(names)), Kind.COLLECTIVE)


def is_poll(operation: str) -> bool:
    """Whether a call returns at once, so that a waiting program calls it repeatedly."""
    return operation.startswith(_POLLS)


def may_be_below_call(frame: str) -> bool:
    """Whether a frame may be below a call of MPI or of the GPU driver.

    That is any shared library but those in which a program computes: MPI libraries load what no list can
    have, such as libevent, libmlx5, libcxi and libxpmem.
    """
    if is_of_library(frame):
        return True
    return is_shared(frame) and not _OF_PROGRAM.search(frame)


def is_of_library(frame: str) -> bool:
    """Whether a frame is in MPI, its transports, a GPU driver or a system library."""
    return _LIBRARY.search(frame) is not None


def is_shared(frame: str) -> bool:
    """Whether a frame is in a shared library."""
    return _SHARED.search(frame) is not None


def is_of_interpreter(frame: str) -> bool:
    return _INTERPRETER.search(frame) is not None


def is_wrapper(frame: str) -> bool:
    """Whether this is a frame of mpi4py, between the program and MPI."""
    return _MPI4PY.match(frame.partition(" (")[0]) is not None


def program_frames(path: Stack) -> Stack:
    """A stack's outer frames, up to the first library. They are equal in all samples of one wait."""
    return tuple(takewhile(lambda frame: not is_of_library(frame), path))
