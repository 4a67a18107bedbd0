"""What one rank is doing, from its stacks, the state of its threads and the system call it is in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import dropwhile, takewhile

from gpuipc_doctor.job.document import Process, Stack, Thread


class Kind(Enum):
    """What a rank does. The value goes into documents."""

    RECEIVES = "waits for a message"
    SENDS = "waits for a receiver"
    PROGRESSES = "waits for requests"
    COLLECTIVE = "waits in a collective"
    STARTS = "waits in MPI_Init"
    ENDS = "waits in MPI_Finalize"
    DEVICE = "waits for the GPU"
    KERNEL = "is stuck in the kernel"
    STOPPED = "is stopped"
    ENDED = "has ended"
    COMPUTES = "computes outside MPI"
    SLEEPS = "sleeps outside MPI"
    MOVES = "moves on"
    UNKNOWN = "cannot be told"

    @property
    def is_in_mpi(self) -> bool:
        return self in _IN_MPI

    @property
    def is_outside(self) -> bool:
        return self in (Kind.COMPUTES, Kind.SLEEPS)


_IN_MPI = frozenset({Kind.RECEIVES, Kind.SENDS, Kind.PROGRESSES, Kind.COLLECTIVE, Kind.STARTS, Kind.ENDS})

_OF_MPI: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (("init", "session_init"), Kind.STARTS),
    (("finalize", "session_finalize"), Kind.ENDS),
    (("recv", "mrecv", "probe", "mprobe"), Kind.RECEIVES),
    (("send", "ssend", "bsend", "rsend", "buffer_detach"), Kind.SENDS),
    (("wait", "test", "iprobe", "improbe", "win_", "parrived"), Kind.PROGRESSES),
    (
        (
            *("all", "bcast", "barrier", "gather", "scatter", "scan", "exscan", "reduce", "neighbor_"),
            *("comm_", "cart_", "graph_", "dist_graph_", "intercomm_", "file_"),
        ),
        Kind.COLLECTIVE,
    ),
)
"""How the names of functions begin, in lower case and without the prefix, by what they wait for (MPI 5.0)."""

_MPI = re.compile(r"^P?MPI_(\w+?)(_c)?$|^p?mpi_(\w+?)_{1,2}(?:f08_)?$")
"""The C and the Fortran names; ``_c`` is the variant with large counts."""

_MPI4PY = re.compile(r"^__pyx_pw_6mpi4py_3MPI_\d+[A-Za-z]+_\d+([A-Za-z]\w*)$")

_MPI_LIBRARY = re.compile(r"libmpi[\w.+-]*\.so|libmpich\.so|libmpi_\w+\.so")

_LIBRARY = re.compile(
    r"[(\[](libmpi|libpmpi|lib(open-)?(pal|rte)|libpmix|libuc[pstm]|libfabric|libpsm|libibverbs|libcuda|libcudart"
    r"|libamdhip|libhsa|libc\.|libc-|libpthread|ld-|linux-vdso|MPI\.)"
)
"""Files between a program and the system call in which MPI or a GPU's driver waits."""

_DEVICE = re.compile(
    r"^(cu(da)?|hip)(Ctx|Device|Stream|Event)?(Synchronize|WaitEvent)(_v2|_ptsz|_spt)?$"
    r"|^(cu|cuda|hip)Mem(cpy|set)\w*$"
    r"|^(ncclCommFinalize|ncclCommDestroy)$"
    r"|^torch\.cuda\.synchronize$"
)
"""Calls of the drivers and runtimes that return when the GPU has done its work (CUDA driver and runtime API,
HIP runtime API: synchronisation behaviour; ``torch.cuda`` of PyTorch: devices, streams, events)."""

_NOISE_THREADS = re.compile(
    r"cuda|async|ucx|nvidia|hsa|rocm|openblas|jemalloc|pmix|hydra|libfabric|orte|gdrdrv", re.I
)
"""Threads that libraries start for themselves, by the names that they give them."""

_FUSE_WAIT = "request_wait_answer"
"""Where a thread waits for a FUSE server, in state S until a signal comes (Linux, fs/fuse/dev.c)."""

_INTERPRETER = re.compile(r"\((lib)?python[\w.]*\)$|^_?Py|^\[(lib)?python")


Call = tuple[Kind, str]
"""A call that waits: for what, and the function."""

_POLLS = ("MPI_Test", "MPI_Iprobe", "MPI_Improbe", "MPI_Request_get_status")

_UNNAMED: Call = (Kind.PROGRESSES, "an MPI call")
"""In a stack that ends inside MPI, as one that is cut off does: any of MPI's functions."""


@dataclass(frozen=True, slots=True)
class Activity:
    """``operation``: the MPI function, the driver's call, or the program's own function."""

    kind: Kind
    operation: str = ""
    path: tuple[str, ...] = ()
    """Where it is, outermost first: what ranks are folded by."""
    reason: str = ""
    """What this was concluded from."""


def activity(looks: Sequence[Process]) -> Activity:
    """What a rank did in all of these looks, the latest last."""
    last = looks[-1]
    main = last.main
    if main is None or main.state == "Z":
        return Activity(Kind.ENDED, reason="the process is a zombie")
    if main.state in "Tt":
        return Activity(Kind.STOPPED, path=_path(looks, main), reason=f"state {main.state}")
    if stuck := _in_kernel(looks):
        place = stuck.wchan or (stuck.kernel[0] if stuck.kernel else "the kernel")
        why = "a file system in user space (FUSE) does not answer" if place == _FUSE_WAIT else "state D"
        return Activity(Kind.KERNEL, place, _path(looks, stuck), f"{why} at every look")
    for thread in _candidates(looks):
        calls = _calls(looks, thread.tid)
        if len(calls) > 1:
            return Activity(Kind.MOVES, path=_path(looks, thread), reason="its calls differ between samples")
        for call in filter(None, calls):
            if thread.tid == last.pid and call[0].is_in_mpi and (why := _moves(looks, call)):
                return Activity(Kind.MOVES, path=_path(looks, thread), reason=why)
            return Activity(call[0], call[1], _path(looks, thread), "native stacks")
    return _outside(looks, main)


def _moves(looks: Sequence[Process], call: Call) -> str:
    """Why a rank that is in the same call at every look moves on; empty if it does not.

    A program that polls (MPI_Test, MPI_Iprobe) waits in a loop of its own, which moves all the time.
    """
    if call[1].startswith(_POLLS):
        return ""
    if len({look.python for look in looks if look.python}) > 1:
        return "its Python frames differ between looks"
    if len({look.callers for look in looks if look.callers}) > 1:
        return "the stack of MPI's caller differs between looks"
    return ""


def _candidates(looks: Sequence[Process]) -> list[Thread]:
    """The main thread, then the application's others, the busiest first."""
    last = looks[-1]
    others = [one for one in last.threads if one.tid != last.pid and not _NOISE_THREADS.search(one.name)]
    others.sort(key=lambda thread: -thread.busy)
    return [thread for thread in (last.main, *others) if thread is not None]


def _stacks(looks: Iterable[Process], tid: int) -> list[tuple[str, ...]]:
    return [
        stack for look in looks for thread in look.threads if thread.tid == tid for stack in thread.native
    ]


def _approximate(looks: Iterable[Process], tid: int) -> list[Stack]:
    return [
        stack
        for look in looks
        for thread in look.threads
        if thread.tid == tid
        for stack in thread.approximate
    ]


def _calls(looks: Iterable[Process], tid: int) -> set[Call | None]:
    """The waiting calls in which a thread was seen; None stands for a stack without one.

    Of an exact stack it is the outermost call. Of an approximate one, only the frames before those of another
    library are looked at: further out, frames of earlier calls may be left over. Some are nearer (Open MPI's
    MPI_Comm_dup in MPI_Allreduce), so approximate stacks count only without exact ones.
    """
    seen = [thread for look in looks for thread in look.threads if thread.tid == tid]
    exact = {_first_call(reversed(stack)) for thread in seen for stack in filter(_is_telling, thread.native)}
    rough = [stack for thread in seen for stack in filter(_is_telling, thread.approximate)]
    calls = exact or {_first_call(_of_libraries(stack)) for stack in rough}
    named = calls - {_UNNAMED}
    return named if any(call and call[0].is_in_mpi for call in named) else calls


def is_seen(looks: Iterable[Process], tid: int) -> bool:
    """Whether a stack of this thread tells what it does."""
    return bool(_calls(looks, tid))


def _is_telling(stack: Stack) -> bool:
    """Whether it holds a waiting call or reaches the program: else it was cut off below the caller."""
    return _first_call(stack) is not None or any(not _LIBRARY.search(frame) for frame in stack)


def _of_libraries(stack: Stack) -> Iterator[str]:
    """The inner frames that belong to the C library, MPI, its transports and the GPU's driver."""
    return takewhile(lambda frame: _LIBRARY.search(frame), stack)


def _first_call(stack: Iterable[str]) -> Call | None:
    """The first waiting call among these frames; "an MPI call" if MPI's library is there without a name."""
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
    """``Recv`` of ``MPI_Recv``, ``PMPI_Recv_c`` and ``mpi_recv_``; empty for any other function."""
    found = _MPI.match(symbol)
    if not found:
        return ""
    return found[1] or found[3].capitalize()


def _kind_of_mpi(function: str) -> Kind:
    name = function.lower()
    if name.startswith("sendrecv"):
        return Kind.PROGRESSES
    return next((kind for names, kind in _OF_MPI if name.startswith(names)), Kind.UNKNOWN)


def _in_kernel(looks: Sequence[Process]) -> Thread | None:
    """A thread that was in state D, or waited for a file system, at every look."""
    stuck = set.intersection(*({one.tid for one in look.threads if _is_blocked(one)} for look in looks))
    return next((one for one in looks[-1].threads if one.tid in stuck), None)


def _is_blocked(thread: Thread) -> bool:
    return thread.state == "D" or (thread.state == "S" and thread.wchan == _FUSE_WAIT)


def _outside(looks: Sequence[Process], main: Thread) -> Activity:
    busy = sum(look.main.busy for look in looks if look.main) / len(looks)
    python, path = _stable_python(looks), _path(looks, main)
    where = python[0] if python else next(iter(path[-1:]), "")
    function = where.partition(" (")[0]
    if python and _DEVICE.match(function):
        return Activity(Kind.DEVICE, function, path, "Python frames")
    if None not in _calls(looks, main.tid):
        return Activity(Kind.UNKNOWN, "", path, "no native stack of its main thread reaches the program")
    if main.state == "R" or busy > 0.5:
        return Activity(Kind.COMPUTES, where, path, "it runs, and is in no call of MPI or of the driver")
    return Activity(Kind.SLEEPS, where or main.wchan, path, f"it sleeps in {main.wchan or 'a system call'}")


def _stable_python(looks: Sequence[Process]) -> tuple[str, ...]:
    """The Python frames in which it was at every look, innermost first."""
    return _common([look.python for look in looks if look.python])


def _common(stacks: Sequence[Stack]) -> tuple[str, ...]:
    """The outer frames that all of these stacks share, innermost first."""
    if not stacks:
        return ()
    outward = zip(*(reversed(stack) for stack in stacks), strict=False)
    shared = [frames[0] for frames in takewhile(lambda frames: len({*frames}) == 1, outward)]
    return tuple(reversed(shared))


def _path(looks: Sequence[Process], thread: Thread) -> tuple[str, ...]:
    """Where a thread is at every look, outermost first; of the interpreter's frames, the program's own."""
    python = _stable_python(looks) if thread.tid == looks[-1].pid else ()
    stacks = _stacks(looks, thread.tid) or _approximate(looks, thread.tid)
    native = [frame for frame in _common(stacks) if not _is_wrapper(frame)]
    shown = takewhile(lambda frame: not _INTERPRETER.search(frame), native) if python else native
    named = dropwhile(lambda frame: frame.startswith("["), shown)
    kernel = thread.kernel[:1] if thread.state != "R" else ()
    return (*reversed(python), *reversed(list(named)), *kernel)


def program_frames(path: Stack) -> Stack:
    """Frames of a path down to the first of a library: further in, samples of one wait differ."""
    return tuple(takewhile(lambda frame: not _LIBRARY.search(frame), path))


def _is_wrapper(frame: str) -> bool:
    """Whether it is a frame of mpi4py between the program and MPI."""
    return _MPI4PY.match(frame.partition(" (")[0]) is not None
