"""What a rank is doing, concluded from its stacks, thread states and system call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import dropwhile, takewhile

from gpuipc_doctor.job import torch_calls
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.stacks.thread import UNREAD, Stack, Thread


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

_OF_MPI: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (("init", "session_init"), Kind.STARTS),
    (("finalize", "session_finalize"), Kind.ENDS),
    (("recv", "mrecv", "probe", "mprobe"), Kind.RECEIVES),
    (("send", "ssend", "bsend", "rsend", "buffer_detach"), Kind.SENDS),
    (("wait", "test", "iprobe", "improbe", "request_get_status", "win_", "parrived"), Kind.PROGRESSES),
    (
        (
            *("all", "bcast", "barrier", "gather", "scatter", "scan", "exscan", "reduce", "neighbor_"),
            *("comm_", "cart_", "graph_", "dist_graph_", "intercomm_", "file_"),
        ),
        Kind.COLLECTIVE,
    ),
)
"""Prefixes of MPI function names (lower case, without ``mpi_``) → what these functions wait for (MPI 5.0)."""

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
    r"|libamdhip|libhsa|libc\.|libc-|libpthread|ld-|linux-vdso|MPI\.)"
)
"""Pattern for frames in MPI, its transports, GPU drivers or system libraries."""

_SHARED = re.compile(r"\.so[\d.]*[)\]]$")
_OF_PROGRAM = re.compile(
    r"[(\[](\w*\.(cpython-[\w-]+|abi3)\.so|lib(python|(open)?blas|mkl|lapack|gomp|torch|c10)"
    r"|lib(cublas|cudnn|cufft|rocblas))"
)
"""Shared libraries in which a program computes, or that are part of it, such as Python's extensions."""
_DRIVER = re.compile(r"[(\[](libcuda\.so|libamdhip64\.so|libhsa-runtime64\.so)")
_DRIVER_WAITS = frozenset({"kfd_wait_on_events", "amdgpu_cs_wait_ioctl", "dma_fence_default_wait"})
"""Kernel functions in which a thread sleeps until the GPU has done its work, whatever the thread's stack
shows (Linux, drivers/gpu/drm/amd/amdkfd/kfd_events.c, drivers/gpu/drm/amd/amdgpu/amdgpu_cs.c,
drivers/dma-buf/dma-fence.c).
"""
_SYSTEM = re.compile(r"[(\[](libc\.|libc-|libpthread|linux-vdso|ld-)|\[vdso\]")
"""Pattern for the system libraries that a driver calls while it polls, to read the time or to yield."""

_DEVICE = re.compile(
    r"^(cu(da)?|hip)(Ctx|Device|Stream|Event)?(Synchronize|WaitEvent)(_v2|_ptsz|_spt)?$"
    r"|^(cu|cuda|hip)Mem(cpy|set)\w*$"
    r"|^(ncclCommFinalize|ncclCommDestroy)$"
    r"|^torch\.cuda\.synchronize$"
)
"""Functions that return only when the GPU has finished, according to the manuals of CUDA and HIP; PyTorch's
``torch.cuda``."""

NOISE_THREADS = re.compile(
    r"cuda|async|ucx|nvidia|hsa|rocm|openblas|jemalloc|pmix|hydra|libfabric|orte|gdrdrv|pt_(nccl|tcpstore)",
    re.I,
)
"""Names of threads that libraries start for themselves."""

MOST_PLACES = 3
MUCH_BYTES = 1 << 20
"""If a main thread reads and writes more bytes than this over all snapshots, it makes progress."""

MOST_THREADS = 3
"""Maximum number of threads named for a rank whose main thread waits for another thread."""

VFORK_WAITS = ("kernel_clone", "_do_fork", "wait_for_vfork_done")
"""Kernel functions in which the parent of a vfork() waits, in state D but killable (Linux, kernel/fork.c)."""

_FUSE_WAIT = "request_wait_answer"
"""Kernel function in which a thread waits for a FUSE server, in state S until a signal comes (Linux,
fs/fuse/dev.c).
"""

_KERNEL_WAITS = {
    _FUSE_WAIT: "a file system in user space (FUSE) does not answer",
    **dict.fromkeys(VFORK_WAITS, "waits for its child of vfork()"),
}

_INTERPRETER = re.compile(r"\((lib)?python[\w.]*\)$|^_?Py|^\[(lib)?python")


Call = tuple[Kind, str]
"""A waiting call: what it waits for, and its function."""

_POLLS = ("MPI_Test", "MPI_Iprobe", "MPI_Improbe", "MPI_Request_get_status", "MPI_Parrived")

_UNNAMED: Call = (Kind.PROGRESSES, "an MPI call")
"""Stands for the function in a stack that ends inside MPI without a function name, such as a truncated
stack."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank does. ``operation``: the MPI function, the driver call, or the program's own function."""

    kind: Kind
    operation: str = ""
    path: tuple[str, ...] = ()
    """The rank's stack, outermost frame first. Ranks are grouped by their stacks."""
    reason: str = ""
    """The evidence for the activity."""


def activity(snapshots: Sequence[Process]) -> Activity:
    """What a rank did during these snapshots, which are in order of time."""
    last = snapshots[-1]
    main = last.main
    if (main is None and "task" in last.refused) or (main and main.state == UNREAD):
        return Activity(Kind.UNKNOWN, reason="the states of the process's threads cannot be read")
    if main is None or main.state == "Z":
        return Activity(Kind.ENDED, reason="the process is a zombie")
    if main.state in "Tt":
        return Activity(Kind.STOPPED, path=_path(snapshots, main), reason=f"state {main.state}")
    stuck = _in_kernel(snapshots)
    if stuck and (why := _transfers(snapshots, stuck)):
        return Activity(Kind.MOVES, path=_path(snapshots, main), reason=why)
    if stuck:
        place = stuck.wchan or (stuck.kernel[0] if stuck.kernel else "the kernel")
        why = _KERNEL_WAITS.get(place, "state D")
        return Activity(Kind.KERNEL, place, _path(snapshots, stuck), f"{why} in every snapshot")
    if found := _of_torch(snapshots, main):
        return found
    for thread in _candidates(snapshots):
        calls = _calls(snapshots, thread.tid)
        if polls := _polls(calls):
            if thread.tid != last.pid:
                continue
            why = f"polls with {polls}, which returns at once"
            return Activity(Kind.LOOPS, polls, _path(snapshots, thread), why)
        if len(calls) > 1:
            return Activity(
                Kind.MOVES, path=_path(snapshots, thread), reason="the stack differs between samples"
            )
        for call in filter(None, calls):
            if thread.tid == last.pid and call[0].waits and (why := _moves(snapshots)):
                return Activity(Kind.MOVES, path=_path(snapshots, thread), reason=why)
            own = _own_first(snapshots, _stable_python(snapshots)) if call[0] is Kind.DEVICE else ""
            return Activity(call[0], own or call[1], _path(snapshots, thread), "native stacks")
    return _outside(snapshots, main)


def _of_torch(snapshots: Sequence[Process], main: Thread) -> Activity | None:
    """The activity of a rank that waits in one of PyTorch's collectives; None if it is in none.

    A rank that was seen both in and outside a collective, or in two, makes progress.
    """
    last = snapshots[-1]
    stacks = [snapshot.python for snapshot in snapshots if snapshot.python]
    calls = {torch_calls.operation(stack) for stack in stacks}
    path = _path(snapshots, main)
    if calls - {""} and (len(calls) > 1 or _moves(snapshots)):
        return Activity(
            Kind.MOVES, path=path, reason=_moves(snapshots) or "the stack differs between samples"
        )
    if operation := max(calls, default=""):
        return Activity(kind_of_torch(operation), operation, path, "Python frames")
    if not stacks and not last.has_gpu:
        return None
    samples = _stacks(snapshots, last.pid) or _approximate(snapshots, last.pid)
    waits = {torch_calls.native_operation(stack) for stack in samples}
    if samples and "" not in waits:
        if len({*stacks}) > 1:
            return Activity(Kind.MOVES, path=path, reason=_moves(snapshots))
        operation = min(waits)
        where = _own_first(snapshots, _stable_python(snapshots))
        return Activity(kind_of_torch(operation), where or operation, path, "native stacks")
    return None


def kind_of_torch(operation: str) -> Kind:
    """What one of PyTorch's operations waits for."""
    return next((kind for names, kind in _OF_TORCH if operation.startswith(names)), Kind.COLLECTIVE)


def _polls(calls: Iterable[Call | None]) -> str:
    """The call with which the program's own loop polls; empty if the thread was seen in a call that waits."""
    names = {call[1] for call in calls if call}
    return min(names) if names and all(map(is_poll, names)) else ""


def is_poll(operation: str) -> bool:
    """Whether a call returns at once, so that a waiting program calls it repeatedly."""
    return operation.startswith(_POLLS)


def _moves(snapshots: Sequence[Process]) -> str:
    """Evidence that a rank makes progress although every snapshot shows the same call; empty if none."""
    if len({snapshot.python for snapshot in snapshots if snapshot.python}) > 1:
        return "the Python frames differ between snapshots"
    if any(snapshot.places > 1 for snapshot in snapshots):
        return "the Python frames differ between readings"
    if len({snapshot.variables for snapshot in snapshots if snapshot.variables}) > 1:
        return "the variables of the Python frames differ between snapshots"
    if len({snapshot.callers for snapshot in snapshots if snapshot.callers}) > 1:
        return "the stack of MPI's caller differs between snapshots"
    return ""


def _candidates(snapshots: Sequence[Process]) -> list[Thread]:
    """The main thread, then the application's other threads, busiest first."""
    last = snapshots[-1]
    others = [
        thread for thread in last.threads if thread.tid != last.pid and not NOISE_THREADS.search(thread.name)
    ]
    others.sort(key=lambda thread: -thread.busy)
    return [thread for thread in (last.main, *others) if thread is not None]


def _of_thread(snapshots: Iterable[Process], tid: int) -> Iterator[Thread]:
    return (thread for snapshot in snapshots for thread in snapshot.threads if thread.tid == tid)


def _stacks(snapshots: Iterable[Process], tid: int) -> list[tuple[str, ...]]:
    return [stack for thread in _of_thread(snapshots, tid) for stack in thread.native]


def _approximate(snapshots: Iterable[Process], tid: int) -> list[Stack]:
    return [stack for thread in _of_thread(snapshots, tid) for stack in thread.approximate]


def _calls(snapshots: Iterable[Process], tid: int) -> set[Call | None]:
    """The waiting calls in which a thread was seen; None for a stack without a waiting call.

    An exact stack counts with its outermost call. Approximate stacks are used only if the thread has no exact
    ones, because they may have frames left over from earlier calls.
    """
    seen = [thread for snapshot in snapshots for thread in snapshot.threads if thread.tid == tid]
    exact = {_first_call(reversed(stack)) for thread in seen for stack in filter(_is_telling, thread.native)}
    rough = [stack for thread in seen for stack in filter(_is_telling, thread.approximate)]
    calls = exact or {_first_call(_of_libraries(stack)) for stack in rough}
    named = calls - {_UNNAMED}
    return named if any(call and call[0].waits_for_ranks for call in named) else calls


def is_outside(snapshots: Iterable[Process], tid: int) -> bool:
    """Whether a stack of this thread shows the program's own code, and no waiting call."""
    return None in _calls(snapshots, tid)


def is_seen(snapshots: Iterable[Process], tid: int) -> bool:
    """Whether a stack of this thread shows what the thread does."""
    return bool(_calls(snapshots, tid))


def _is_telling(stack: Stack) -> bool:
    """Whether the stack shows a waiting call or the program's own code; a truncated stack may show
    neither."""
    return _first_call(stack) is not None or any(not _is_of_library(frame) for frame in stack)


def _of_libraries(stack: Stack) -> Iterator[str]:
    """The innermost frames: those in shared libraries, up to the first one of the program."""
    return takewhile(_is_of_library, stack)


def _is_of_library(frame: str) -> bool:
    """Whether a frame may be below a call of MPI or of the GPU driver.

    That is any shared library but those in which a program computes: MPI libraries load what no list can
    have, such as libevent, libmlx5, libcxi and libxpmem.
    """
    if _LIBRARY.search(frame):
        return True
    return _SHARED.search(frame) is not None and not _OF_PROGRAM.search(frame)


def _first_call(stack: Iterable[str]) -> Call | None:
    """The first waiting call among these frames; "an MPI call" if a frame of MPI's library has no name."""
    inside = None
    for frame in stack:
        function, _, file = frame.partition(" (")
        mpi4py = _MPI4PY.match(function)
        name = mpi4py[1] if mpi4py else mpi_function(function)
        if name and (kind := _kind_of_mpi(name)) is not Kind.UNKNOWN:
            return kind, f"MPI_{name[0].upper()}{name[1:]}"
        if _DEVICE.match(function):
            return Kind.DEVICE, function
        if _MPI_LIBRARY.search(file or frame):
            inside = _UNNAMED
    return inside


def mpi_function(symbol: str) -> str:
    """An MPI function's name without its prefix: ``Recv`` for ``MPI_Recv``, ``PMPI_Recv_c`` and
    ``mpi_recv_``. Empty for all other functions."""
    found = _MPI.match(symbol)
    if not found:
        return ""
    return found[1] or found[3].capitalize()


_DO_NOT_WAIT = re.compile(
    r"(initialized|finalized|comm_(rank|size|group|compare|get_|set_|test_inter|remote_))"
)


def _kind_of_mpi(function: str) -> Kind:
    name = function.lower()
    if _DO_NOT_WAIT.match(name):
        return Kind.UNKNOWN
    if name.startswith("sendrecv"):
        return Kind.PROGRESSES
    return next((kind for names, kind in _OF_MPI if name.startswith(names)), Kind.UNKNOWN)


def _in_kernel(snapshots: Sequence[Process]) -> Thread | None:
    """A thread that every snapshot shows in state D or waiting for a file system."""
    stuck = set.intersection(
        *({thread.tid for thread in snapshot.threads if _is_blocked(thread)} for snapshot in snapshots)
    )
    return next((thread for thread in snapshots[-1].threads if thread.tid in stuck), None)


def _is_blocked(thread: Thread) -> bool:
    return thread.state == "D" or (thread.state == "S" and thread.wchan == _FUSE_WAIT)


def _outside(snapshots: Sequence[Process], main: Thread) -> Activity:
    busy = sum(snapshot.main.busy for snapshot in snapshots if snapshot.main) / len(snapshots)
    python, path = _stable_python(snapshots), _path(snapshots, main)
    where = _own_first(snapshots, python) or " > ".join(path[-2:] if main.state != "R" else path[-1:])
    function = python[0].partition(" (")[0] if python else ""
    if python and _DEVICE.match(function):
        if why := _moves(snapshots):
            return Activity(Kind.MOVES, function, path, why)
        return Activity(Kind.DEVICE, function, path, "Python frames")
    if why := _runs_beside_a_busy_gpu(snapshots, main):
        return Activity(Kind.DEVICE, where, path, why)
    if all(snapshot.main and snapshot.main.wchan in _DRIVER_WAITS for snapshot in snapshots):
        return Activity(Kind.DEVICE, where or main.wchan, path, f"sleeps in {main.wchan} in every snapshot")
    if why := _sleeps_beside_a_busy_gpu(snapshots, main):
        return Activity(Kind.DEVICE, where, path, why)
    if python and _sleeps_in_python(snapshots, main):
        if why := _transfers(snapshots, main):
            return Activity(Kind.MOVES, where, path, why)
        return Activity(Kind.SLEEPS, where, path, _sleeps(snapshots, main))
    if None not in _calls(snapshots, main.tid):
        return Activity(Kind.UNKNOWN, "", path, "native stacks lack the program's own functions")
    if why := _transfers(snapshots, main):
        return Activity(Kind.MOVES, where, path, why)
    if len(through := _functions(snapshots, main)) > 1:
        return Activity(Kind.LOOPS, where, path, f"goes through {', '.join(through[:MOST_PLACES])}")
    if driver := _driver_that_waits(snapshots, main):
        how = "polls" if busy > 0.5 else "sleeps"
        return Activity(Kind.DEVICE, where or driver, path, f"{how} in {driver} in every sample")
    if main.state == "R" or busy > 0.5:
        if any(snapshot.counts for snapshot in snapshots):
            why = "a number in the process's registers, stack or variables keeps rising or falling"
            return Activity(Kind.COUNTS, where, path, why)
        return Activity(Kind.COMPUTES, where, path, "runs outside MPI and the driver")
    return Activity(Kind.SLEEPS, where or main.wchan, path, _sleeps(snapshots, main))


STILL = (", without waking up", "; whether it woke up cannot be read")
"""Ends of the evidence on a thread that is not known to have moved from the first snapshot to the last."""


def _sleeps(snapshots: Sequence[Process], main: Thread) -> str:
    switches = {snapshot.switches for snapshot in snapshots}
    still = ""
    if len(snapshots) > 1:
        still = STILL[1] if None in switches else STILL[0] if len(switches) == 1 else ""
    return f"sleeps in {main.wchan or 'a system call'}{_other_threads(snapshots, main)}{still}"


BUSY_PERCENT = 90
"""Utilisation from which a GPU counts as busy."""


def _runs_beside_a_busy_gpu(snapshots: Sequence[Process], main: Thread) -> str:
    """Why a running thread of which there is no native stack waits for its GPU; empty if that is unlikely.

    A program that waits in ``.item()`` or cudaStreamSynchronize polls.
    """
    if _stacks(snapshots, main.tid) or _approximate(snapshots, main.tid):
        return ""
    lines = {snapshot.python for snapshot in snapshots}
    runs = all(snapshot.main and snapshot.main.state == "R" for snapshot in snapshots)
    busy = snapshots[-1].gpu_busy
    if runs and len(lines) == 1 and not _moves(snapshots) and busy is not None and busy >= BUSY_PERCENT:
        return f"runs in one place with its GPU at {busy} %"
    return ""


def _sleeps_beside_a_busy_gpu(snapshots: Sequence[Process], main: Thread) -> str:
    """Why a thread that sleeps in PyTorch's libraries waits for its GPU; empty if it does not.

    ``backward()`` sleeps until autograd's thread has the gradients, which may need a collective.
    """
    busy = snapshots[-1].gpu_busy
    stacks = _stacks(snapshots, main.tid) or _approximate(snapshots, main.tid)
    sleeps = all(snapshot.main and snapshot.main.wchan.startswith("futex") for snapshot in snapshots)
    if not sleeps or _moves(snapshots) or busy is None or busy < BUSY_PERCENT or not stacks:
        return ""
    if all(map(torch_calls.waits_natively, stacks)):
        return f"sleeps in PyTorch with its GPU at {busy} %"
    return ""


def _sleeps_in_python(snapshots: Sequence[Process], main: Thread) -> bool:
    """Whether a rank without MPI sleeps where its Python frames are, in one system call.

    A futex may be that of a collective's result, for which PyTorch waits without a Python frame of its own.
    """
    last = snapshots[-1]
    waits = {snapshot.main.wchan for snapshot in snapshots if snapshot.main and snapshot.main.state == "S"}
    alike = waits == {main.wchan} and len({snapshot.python for snapshot in snapshots}) == 1
    return (
        alike
        and not last.has_mpi
        and main.wchan != ""
        and not (main.wchan.startswith("futex") and not last.own)
    )


def _functions(snapshots: Sequence[Process], main: Thread) -> list[str]:
    """The functions in which the thread was seen, then a note if it was seen at several depths of recursion.
    They are Python functions if the Python stack changes. Otherwise they are the innermost functions of the
    program, or of the extensions that Python calls."""
    python = [tuple(map(_without_line, snapshot.python)) for snapshot in snapshots if snapshot.python]
    if len({*python}) > 1:
        return [*dict.fromkeys(stack[0].partition(" (")[0] for stack in python)]
    stacks = _stacks(snapshots, main.tid)
    if python:
        called = ([*takewhile(_is_outside_interpreter, stack)] for stack in stacks)
        inner = (stack[-1] for stack in called if stack and not _LIBRARY.search(stack[-1]))
    else:
        inner = (next((frame for frame in stack if not _SHARED.search(frame)), "[") for stack in stacks)
    names = [*dict.fromkeys(frame.partition(" (")[0] for frame in inner if frame[0] != "[")]
    depths = {sum(frame.startswith(f"{name} (") for frame in stack) for stack in stacks for name in names[:1]}
    return [*names, f"recursion at {len(depths)} depths"] if len(depths) > 1 < max(depths) else names


def _is_outside_interpreter(frame: str) -> bool:
    return not _INTERPRETER.search(frame)


def _transfers(snapshots: Sequence[Process], main: Thread) -> str:
    """Why a thread that reads or writes counts as making progress; empty if no bytes move."""
    counts = [snapshot.transferred for snapshot in snapshots if snapshot.transferred is not None]
    moved = counts[-1] - counts[0] if counts else 0
    if moved >= MUCH_BYTES:
        return f"reads and writes: {moved / 2**20:.1f} MiB between first and last snapshot"
    waits_for_data = main.state == "D" or main.wchan.endswith(("pipe_read", "pipe_write"))
    return (
        f"reads and writes {moved} bytes between first and last snapshot" if moved and waits_for_data else ""
    )


def _own_first(snapshots: Sequence[Process], python: Stack) -> str:
    """The program's own innermost frame, and the library's frame that it called."""
    if not python:
        return ""
    outward = len(snapshots[-1].python) - snapshots[-1].own
    own = python[-outward] if 0 < outward <= len(python) else python[0]
    return own if own == python[0] else f"{own} > {python[0]}"


def _other_threads(snapshots: Sequence[Process], main: Thread) -> str:
    """Where a program's other threads are while its main thread waits for one of them."""
    if not main.wchan.startswith("futex"):
        return ""
    places = dict.fromkeys(
        " < ".join([*takewhile(_LIBRARY.search, inward), *dropwhile(_LIBRARY.search, inward)][:3])
        for thread in _candidates(snapshots)[1:]
        if (inward := tuple(reversed(_path(snapshots, thread))))
    )
    return f"; other threads: {'; '.join([*places][:MOST_THREADS])}" if places else ""


def _driver_that_waits(snapshots: Sequence[Process], main: Thread) -> str:
    """The driver library that all samples of a thread are in; empty if any sample is elsewhere, because then
    the thread is queueing work and not waiting."""
    stacks = _stacks(snapshots, main.tid) or _approximate(snapshots, main.tid)
    inmost = [next(dropwhile(_SYSTEM.search, stack), "") for stack in stacks]
    files = {found[1] for frame in inmost if (found := _DRIVER.search(frame))}
    lines = {snapshot.python[:1] for snapshot in snapshots}
    is_there = len(stacks) >= len(snapshots) and all(_DRIVER.search(frame) for frame in inmost)
    return min(files) if is_there and len(lines) == 1 else ""


def _stable_python(snapshots: Sequence[Process]) -> tuple[str, ...]:
    """The Python frames common to all snapshots, innermost first; line numbers that change are omitted."""
    stacks = [snapshot.python for snapshot in snapshots if snapshot.python]
    same = _common(stacks)
    inner = {_without_line(stack[-1 - len(same)]) if len(stack) > len(same) else "" for stack in stacks}
    loop = inner.pop() if len(inner) == 1 else ""
    return (loop, *same) if loop else same


def _without_line(frame: str) -> str:
    return re.sub(r":\d+\)$", ")", frame)


def _common(stacks: Sequence[Stack]) -> tuple[str, ...]:
    """The outer frames shared by all stacks, innermost first."""
    if not stacks:
        return ()
    outward = zip(*(reversed(stack) for stack in stacks), strict=False)
    shared = [frames[0] for frames in takewhile(lambda frames: len({*frames}) == 1, outward)]
    return tuple(reversed(shared))


def _path(snapshots: Sequence[Process], thread: Thread) -> tuple[str, ...]:
    """A thread's frames common to all snapshots, outermost first, with Python's frames in place of the
    interpreter's."""
    python = _stable_python(snapshots) if thread.tid == snapshots[-1].pid else ()
    stacks = _stacks(snapshots, thread.tid) or _approximate(snapshots, thread.tid)
    native = [frame for frame in _common(stacks) if not _is_wrapper(frame)]
    shown = takewhile(lambda frame: not _INTERPRETER.search(frame), native) if python else native
    named = dropwhile(lambda frame: frame.startswith("["), shown)
    kernel = thread.kernel[:1] if thread.state != "R" else ()
    return (*reversed(python), *reversed(list(named)), *kernel)


def program_frames(path: Stack) -> Stack:
    """A stack's outer frames, up to the first library. They are equal in all samples of one wait."""
    return tuple(takewhile(lambda frame: not _LIBRARY.search(frame), path))


def _is_wrapper(frame: str) -> bool:
    """Whether this is a frame of mpi4py, between the program and MPI."""
    return _MPI4PY.match(frame.partition(" (")[0]) is not None
