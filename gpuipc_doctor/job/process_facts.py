"""What several snapshots show of one process: the facts by which `activity` decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, takewhile

from gpuipc_doctor.job import torch_calls
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.waits import (
    UNNAMED,
    Call,
    first_call,
    is_of_interpreter,
    is_of_library,
    is_poll,
    is_shared,
    is_wrapper,
    may_be_below_call,
)
from gpuipc_doctor.stacks.thread import UNREAD, Stack, Thread

_DRIVER = re.compile(r"[(\[](libcuda\.so|libamdhip64\.so|libhsa-runtime64\.so|libze_intel_gpu\.so)")
_DRIVER_WAITS = frozenset({"kfd_wait_on_events", "amdgpu_cs_wait_ioctl", "dma_fence_default_wait"}) | {
    "xe_wait_user_fence_ioctl",
    "i915_gem_wait_ioctl",
}
"""Kernel functions in which a thread sleeps until the GPU has done its work, whatever the thread's stack
shows (Linux, drivers/gpu/drm/amd/amdkfd/kfd_events.c, drivers/gpu/drm/amd/amdgpu/amdgpu_cs.c,
drivers/dma-buf/dma-fence.c, drivers/gpu/drm/xe/xe_wait_user_fence.c,
drivers/gpu/drm/i915/gem/i915_gem_wait.c).
"""
_SYSTEM = re.compile(r"[(\[](libc\.|libc-|libpthread|linux-vdso|ld-)|\[vdso\]")
"""Pattern for the system libraries that a driver calls while it polls, to read the time or to yield."""

_NOISE_THREADS = re.compile(
    r"cuda|async|ucx|nvidia|hsa|rocm|openblas|jemalloc|pmix|hydra|libfabric|orte|gdrdrv|pt_(nccl|tcpstore)",
    re.I,
)
"""Names of threads that libraries start for themselves."""

MOST_PLACES, HALF = 3, 0.5
MUCH_BYTES = 1 << 20
"""If a main thread reads and writes more bytes than this over all snapshots, it makes progress."""

MOST_THREADS = 3
"""Maximum number of threads named for a rank whose main thread waits for another thread."""

VFORK_WAITS = ("kernel_clone", "_do_fork", "wait_for_vfork_done")
"""Kernel functions in which the parent of a vfork() waits, in state D but killable (Linux, kernel/fork.c)."""

SOCKET_READS = (
    "wait_woken",
    "sk_wait_data",
    "tcp_recvmsg_locked",
    "unix_stream_data_wait",
    "unix_stream_read_generic",
    "__skb_wait_for_more_packets",
)
"""Kernel functions in which a read from a network socket sleeps (Linux, net/core/sock.c,
net/unix/af_unix.c)."""

_FUSE_WAIT = "request_wait_answer"
"""Kernel function in which a thread waits for a FUSE server, in state S until a signal comes (Linux,
fs/fuse/dev.c).
"""

KERNEL_WAITS = {
    _FUSE_WAIT: "a file system in user space (FUSE) does not answer",
    **dict.fromkeys(VFORK_WAITS, "waits for its child of vfork()"),
}

BUSY_PERCENT = 90
"""Utilisation from which a GPU counts as busy."""


STILL = (", without waking up", "; whether it woke up cannot be read")
"""Ends of the evidence on a thread that is not known to have moved from the first snapshot to the last."""


@dataclass(frozen=True)
class ProcessFacts:
    """A process in snapshots that are in order of time."""

    snapshots: Sequence[Process]

    @property
    def last(self) -> Process:
        return self.snapshots[-1]

    @cached_property
    def main(self) -> Thread | None:
        return self.last.main

    # -- the main thread's state --------------------------------------------------------------------------

    @property
    def is_unread(self) -> bool:
        if self.main is None:
            return "task" in self.last.refused
        return self.main.state == UNREAD

    @property
    def is_zombie(self) -> bool:
        return self.main is None or self.main.state == "Z"

    @property
    def is_running(self) -> bool:
        return self.main is not None and (self.main.state == "R" or self.busy > HALF)

    @cached_property
    def busy(self) -> float:
        """Mean processor share of the main thread."""
        return sum(each.main.busy for each in self.snapshots if each.main) / len(self.snapshots)

    @cached_property
    def wchan(self) -> str:
        """Kernel function in which the main thread sleeps."""
        return self.main.wchan if self.main else ""

    @cached_property
    def stuck(self) -> Thread | None:
        """A thread that every snapshot shows in state D or waiting for a file system."""
        blocked = ({each.tid for each in seen.threads if _is_blocked(each)} for seen in self.snapshots)
        stuck = set.intersection(*blocked)
        return next((thread for thread in self.last.threads if thread.tid in stuck), None)

    def transfers(self, thread: Thread | None) -> str:
        """Why a thread that reads or writes counts as making progress; empty if no bytes move."""
        if thread is None:
            return ""
        is_main = thread.tid == self.last.pid
        read = [each.transferred if is_main else each.io for each in self.snapshots]
        counts = [count for count in read if count is not None]
        moved = counts[-1] - counts[0] if counts else 0
        if moved >= MUCH_BYTES:
            return f"reads and writes: {moved / 2**20:.1f} MiB between first and last snapshot"
        waits_for_data = thread.state == "D" or thread.wchan.endswith(("pipe_read", "pipe_write"))
        says = f"reads and writes {moved} bytes between first and last snapshot"
        return says if moved and waits_for_data else ""

    @cached_property
    def moves(self) -> str:
        """Evidence that a rank makes progress although every snapshot shows the same call; empty if none."""
        if len(self.pythons) > 1:
            return "the Python frames differ between snapshots"
        if any(each.places > 1 for each in self.snapshots):
            return "the Python frames differ between readings"
        if len({each.variables for each in self.snapshots if each.variables}) > 1:
            return "the variables of the Python frames differ between snapshots"
        if len({each.callers for each in self.snapshots if each.callers}) > 1:
            return "the stack of MPI's caller differs between snapshots"
        return ""

    @property
    def sleeps(self) -> str:
        """Where the main thread and the threads for which it may wait sleep."""
        switches = {each.switches for each in self.snapshots}
        still = ""
        if len(self.snapshots) > 1:
            still = STILL[1] if None in switches else STILL[0] if len(switches) == 1 else ""
        holds = f"{self.last.waits_for}; " if self.last.waits_for else ""
        return f"{holds}sleeps in {self.wchan or 'a system call'}{self._other_threads}{still}"

    @property
    def _other_threads(self) -> str:
        """Where a program's other threads are while its main thread waits for one of them."""
        if not self.wchan.startswith("futex"):
            return ""
        places = dict.fromkeys(
            " < ".join([*takewhile(is_of_library, inward), *dropwhile(is_of_library, inward)][:3])
            for thread in self.candidates[1:]
            if (inward := tuple(reversed(self.path(thread))))
        )
        return f"; other threads: {'; '.join([*places][:MOST_THREADS])}" if places else ""

    # -- native stacks ------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> list[Thread]:
        """The main thread, then the application's other threads, busiest first."""
        others = [each for each in self.last.threads if each.tid != self.last.pid and not is_noise(each)]
        others.sort(key=lambda thread: -thread.busy)
        return [thread for thread in (self.main, *others) if thread is not None]

    def _of_thread(self, tid: int) -> Iterator[Thread]:
        return (each for seen in self.snapshots for each in seen.threads if each.tid == tid)

    def native(self, tid: int) -> list[Stack]:
        return [stack for thread in self._of_thread(tid) for stack in thread.native]

    def samples(self, tid: int) -> list[Stack]:
        """Native stacks, or approximate ones if there are none."""
        return self.native(tid) or [stack for each in self._of_thread(tid) for stack in each.approximate]

    def calls(self, tid: int) -> set[Call | None]:
        """The waiting calls in which a thread was seen; None for a stack without a waiting call.

        An exact stack counts with its outermost call. Approximate stacks are used only if the thread has no
        exact ones, because they may have frames left over from earlier calls.
        """
        seen = list(self._of_thread(tid))
        exact = {first_call(reversed(stack)) for each in seen for stack in filter(_is_telling, each.native)}
        rough = [stack for each in seen for stack in filter(_is_telling, each.approximate)]
        calls = exact or {first_call(takewhile(may_be_below_call, stack)) for stack in rough}
        named = calls - {UNNAMED}
        return named if any(call and call[0].waits_for_ranks for call in named) else calls

    @cached_property
    def call(self) -> tuple[Thread, set[Call]] | None:
        """The first thread that waits in a call, and its calls; None if no thread does.

        Of other threads than the main one, polls do not count.
        """
        for thread in self.candidates:
            found = {call for call in self.calls(thread.tid) if call}
            if found and (thread.tid == self.last.pid or not self._only_polls(found)):
                return thread, found
        return None

    @property
    def calling(self) -> Thread | None:
        return self.call[0] if self.call else None

    @property
    def polls(self) -> str:
        """The call with which the program's own loop polls; empty if the thread was seen in a call that
        waits."""
        return min(name for _, name in self.call[1]) if self.call and self._only_polls(self.call[1]) else ""

    @staticmethod
    def _only_polls(calls: set[Call]) -> bool:
        return all(is_poll(name) for _, name in calls)

    @property
    def waits_and_moves(self) -> str:
        """Evidence that the main thread moves on between waits of the same name."""
        waits = (
            self.call and self.call[0].tid == self.last.pid and any(kind.waits for kind, _ in self.call[1])
        )
        return self.moves if waits else ""

    @property
    def has_own_code(self) -> bool:
        """Whether a stack of the main thread shows the program's own code, and no waiting call."""
        return None in self.calls(self.last.pid)

    @cached_property
    def functions(self) -> list[str]:
        """The functions in which the main thread was seen, then a note if it was seen at several depths of
        recursion.

        They are Python functions if the Python stack changes. Otherwise they are the innermost functions of
        the program, or of the extensions that Python calls.
        """
        python = [tuple(map(without_line, each.python)) for each in self.snapshots if each.python]
        if len({*python}) > 1:
            return [*dict.fromkeys(stack[0].partition(" (")[0] for stack in python)]
        stacks = self.native(self.last.pid)
        if python:
            called = (self.called(stack) for stack in stacks)
            inner = (stack[-1] for stack in called if stack and not is_of_library(stack[-1]))
        else:
            inner = (next((frame for frame in stack if not is_shared(frame)), "[") for stack in stacks)
        names = [*dict.fromkeys(frame.partition(" (")[0] for frame in inner if frame[0] != "[")]
        depths = {
            sum(frame.startswith(f"{name} (") for frame in stack) for stack in stacks for name in names[:1]
        }
        return [*names, f"recursion at {len(depths)} depths"] if len(depths) > 1 < max(depths) else names

    @staticmethod
    def called(stack: Stack) -> list[str]:
        """The frames below Python's interpreter."""
        return [*takewhile(lambda frame: not is_of_interpreter(frame), stack)]

    # -- Python's stack, and the operation of PyTorch in it -----------------------------------------------

    @cached_property
    def pythons(self) -> set[Stack]:
        return {each.python for each in self.snapshots if each.python}

    @cached_property
    def python(self) -> Stack:
        """The Python frames common to all snapshots, innermost first; line numbers that change are
        omitted."""
        stacks = [each.python for each in self.snapshots if each.python]
        same = _common(stacks)
        inner = {without_line(stack[-1 - len(same)]) if len(stack) > len(same) else "" for stack in stacks}
        loop = inner.pop() if len(inner) == 1 else ""
        return (loop, *same) if loop else same

    @property
    def function(self) -> str:
        """The innermost Python function."""
        return self.python[0].partition(" (")[0] if self.python else ""

    @property
    def own(self) -> str:
        """The program's own innermost frame, and the library's frame that it called."""
        python = self.python
        if not python:
            return ""
        outward = len(self.last.python) - self.last.own
        own = python[-outward] if 0 < outward <= len(python) else python[0]
        return own if own == python[0] else f"{own} > {python[0]}"

    @property
    def where(self) -> str:
        """The place of a program that is in no waiting call."""
        path = self.path(self.main)
        is_asleep = self.main is not None and self.main.state != "R"
        return self.own or " > ".join(path[-2:] if is_asleep else path[-1:])

    @cached_property
    def torch_operations(self) -> set[str]:
        """PyTorch's operations in the Python stacks; empty for a stack outside."""
        return {torch_calls.operation(each.python) for each in self.snapshots if each.python}

    @property
    def torch_moves(self) -> str:
        """Evidence that a rank goes from one of PyTorch's operations to another, or out of it."""
        if not self.torch_operations - {""}:
            return ""
        return self.moves or ("the stack differs between samples" if len(self.torch_operations) > 1 else "")

    @cached_property
    def native_torch(self) -> str:
        """The operation of PyTorch in which all native stacks are; empty if in none."""
        if not self.pythons and not self.last.has_gpu:
            return ""
        samples = self.samples(self.last.pid)
        waits = {torch_calls.native_operation(stack) for stack in samples}
        return min(waits) if samples and "" not in waits else ""

    @property
    def lacks_python(self) -> bool:
        """Whether the rank's Python frames, which alone show PyTorch's collectives, could not be read."""
        return self.last.has_torch and not self.last.has_mpi and not self.pythons

    def sleeps_in_python(self) -> bool:
        """Whether a rank without MPI sleeps where its Python frames are, in one system call.

        A futex may be that of a collective's result, for which PyTorch waits without a Python frame of its
        own.
        """
        waits = {each.main.wchan for each in self.snapshots if each.main and each.main.state == "S"}
        alike = waits == {self.wchan} and len({each.python for each in self.snapshots}) == 1
        is_hidden = self.wchan.startswith("futex") and not self.last.own
        return bool(self.python) and alike and not self.last.has_mpi and self.wchan != "" and not is_hidden

    def path(self, thread: Thread | None) -> Stack:
        """A thread's frames common to all snapshots, outermost first, with Python's frames in place of the
        interpreter's."""
        if thread is None:
            return ()
        python = self.python if thread.tid == self.last.pid else ()
        native = [frame for frame in _common(self.samples(thread.tid)) if not is_wrapper(frame)]
        shown = self.called(tuple(native)) if python else native
        named = dropwhile(lambda frame: frame.startswith("["), shown)
        kernel = thread.kernel[:1] if thread.state != "R" else ()
        return (*reversed(python), *reversed(list(named)), *kernel)

    # -- the GPU --------------------------------------------------------------------------------------------

    @property
    def is_gpu_busy(self) -> bool:
        return self.last.gpu_busy is not None and self.last.gpu_busy >= BUSY_PERCENT

    @property
    def runs_beside_busy_gpu(self) -> bool:
        """Whether a running thread of which there is no native stack waits for its GPU.

        A program that waits in ``.item()`` or cudaStreamSynchronize polls.
        """
        runs = all(each.main and each.main.state == "R" for each in self.snapshots)
        lines = {each.python for each in self.snapshots}
        is_one_place = len(lines) == 1 and not self.moves
        return self.is_gpu_busy and runs and is_one_place and not self.samples(self.last.pid)

    @property
    def sleeps_beside_busy_gpu(self) -> bool:
        """Whether a thread that sleeps in PyTorch's libraries waits for its GPU.

        ``backward()`` sleeps until autograd's thread has the gradients, which may need a collective.
        """
        stacks = self.samples(self.last.pid)
        sleeps = all(each.main and each.main.wchan.startswith("futex") for each in self.snapshots)
        return (
            self.is_gpu_busy
            and sleeps
            and not self.moves
            and bool(stacks)
            and all(map(torch_calls.waits_natively, stacks))
        )

    @property
    def sleeps_in_driver(self) -> bool:
        return all(each.main and each.main.wchan in _DRIVER_WAITS for each in self.snapshots)

    @property
    def driver(self) -> str:
        """The driver library that all samples of a thread are in; empty if any sample is elsewhere, because
        then the thread is queueing work and not waiting."""
        stacks = self.samples(self.last.pid)
        inmost = [next(dropwhile(_SYSTEM.search, stack), "") for stack in stacks]
        files = {found[1] for frame in inmost if (found := _DRIVER.search(frame))}
        lines = {each.python[:1] for each in self.snapshots}
        is_there = len(stacks) >= len(self.snapshots) and all(_DRIVER.search(frame) for frame in inmost)
        return min(files) if is_there and len(lines) == 1 else ""


def is_noise(thread: Thread) -> bool:
    """Whether a thread is one that libraries start for themselves."""
    return _NOISE_THREADS.search(thread.name) is not None


def _is_blocked(thread: Thread) -> bool:
    return thread.state == "D" or (thread.state == "S" and thread.wchan == _FUSE_WAIT)


def _is_telling(stack: Stack) -> bool:
    """Whether the stack shows a waiting call or the program's own code; a truncated stack may show
    neither."""
    return first_call(stack) is not None or any(not may_be_below_call(frame) for frame in stack)


def without_line(frame: str) -> str:
    return re.sub(r":\d+\)$", ")", frame)


def _common(stacks: Sequence[Stack]) -> tuple[str, ...]:
    """The outer frames shared by all stacks, innermost first."""
    if not stacks:
        return ()
    outward = zip(*(reversed(stack) for stack in stacks), strict=False)
    shared = [frames[0] for frames in takewhile(lambda frames: len({*frames}) == 1, outward)]
    return tuple(reversed(shared))
