"""Sample running threads with the system call ``perf_event_open``, for nodes without perf(1).

The kernel copies the instruction pointer, the stack pointer and part of the stack; nothing stops. Layouts are
from include/uapi/linux/perf_event.h, permissions from perf_event_open(2). Frames are found by the methods of
`code`, so stacks are approximate.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from gpuipc_doctor.stacks import arm64
from gpuipc_doctor.stacks.code import Code
from gpuipc_doctor.stacks.sampling import FREQUENCY_HZ, MOST_S, only_user_space, wait_for_use
from gpuipc_doctor.stacks.thread import Stack

STACK_BYTES = 16 << 10
BATCH = 2
"""Threads sampled at a time. Each needs a buffer, and a user may lock 516 KiB for buffers
(``kernel.perf_event_mlock_kb``)."""

_PAGES = 64
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_REGISTERS = {"x86_64": (7,), "aarch64": (arm64.LINK_REGISTER, 31)}
"""Registers copied with each sample: the stack pointer, and before it the link register, if there is one."""
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_SAMPLE = 1 << 0 | 1 << 1 | 1 << 12 | 1 << 13
"""Sample fields: IP, thread, user registers, user stack."""
_EXCLUDE_KERNEL, _FREQUENCY = 1 << 5, 1 << 10
"""Flags of the event: exclude the kernel; the sampling period is given as a frequency."""
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
_HEADER, _RECORD_SAMPLE = struct.Struct("<IHH"), 9
_HEAD_AT = 1024
"""Offset of ``data_head`` and ``data_tail`` in the first page of the ring buffer."""


def sample(threads: Sequence[tuple[int, int]], most_s: float = MOST_S) -> Iterator[tuple[int, Stack]]:
    """Sample these (pid, tid) threads, `BATCH` at a time; yields (thread, stack) for each sample.

    Raises `OSError` if the kernel does not allow it.
    """
    for first in range(0, len(threads), BATCH):
        batch = threads[first : first + BATCH]
        with ExitStack() as stack:
            opened = [(pid, stack.enter_context(_Event(tid))) for pid, tid in batch]
            wait_for_use(batch, most_s=most_s)
            for pid, event in opened:
                code = Code(pid)
                for tid, counter, words, link in event.samples():
                    yield tid, code.frames(counter, words, link)


class _Event:
    """A perf event: the clock of one thread, with a ring buffer for its samples."""

    def __init__(self, tid: int) -> None:
        machine = platform.machine()
        if machine not in _SYSCALL:
            raise OSError(f"sampling is not implemented for {machine}")
        flags = _FREQUENCY | (_EXCLUDE_KERNEL if only_user_space() else 0)
        attributes = _ATTRIBUTES.pack(
            *(_TYPE_SOFTWARE, _ATTRIBUTES.size, _CPU_CLOCK, FREQUENCY_HZ, _SAMPLE, 0, flags, 0, 0, 0, 0, 0),
            *(sum(1 << register for register in _REGISTERS[machine]), STACK_BYTES, 0, 0, 0, 0, 0),
        )
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._file = libc.syscall(_SYSCALL[machine], attributes, tid, -1, -1, 8)  # PERF_FLAG_FD_CLOEXEC
        if self._file < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"perf_event_open: {os.strerror(code)}")

    def __enter__(self) -> _Event:
        self._ring = mmap.mmap(self._file, (1 + _PAGES) * mmap.PAGESIZE)
        return self

    def __exit__(self, *_: object) -> None:
        self._ring.close()
        os.close(self._file)

    def samples(self) -> Iterator[tuple[int, int, bytes, int]]:
        """(thread, instruction pointer, copied stack, link register or 0) of each sample taken so far; a full
        ring keeps its old samples."""
        registers = len(_REGISTERS[platform.machine()])
        (head,) = struct.unpack_from("<Q", self._ring, _HEAD_AT)
        data, at = memoryview(self._ring)[mmap.PAGESIZE :], 0
        try:
            while at + _HEADER.size <= head:
                kind, _, size = _HEADER.unpack_from(data, at)
                if kind == _RECORD_SAMPLE:
                    counter, _, tid, abi = struct.unpack_from("<QIIQ", data, at + _HEADER.size)
                    begin = at + _HEADER.size + 24 + (8 * registers if abi else 0)
                    (link,) = struct.unpack_from("<Q", data, begin - 16) if abi and registers > 1 else (0,)
                    (copied,) = struct.unpack_from("<Q", data, begin)
                    if copied:
                        (valid,) = struct.unpack_from("<Q", data, begin + 8 + copied)
                        yield tid, counter, bytes(data[begin + 8 : begin + 8 + min(valid, copied)]), link
                at += size
        finally:
            data.release()
