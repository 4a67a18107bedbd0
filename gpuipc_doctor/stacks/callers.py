"""Whether the program makes progress between two calls of MPI that look alike.

A rank that is stuck in a call changes the stack only below that call: its callers' frames stay the same, byte
for byte. A loop that repeats the call changes a counter or a saved register in the callers' frames. In the
call's own frame only the saved registers are compared, because MPICH polls in the frame of MPI_Mprobe.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from gpuipc_doctor.stacks import arm64
from gpuipc_doctor.stacks.code import Code

MOST_BYTES = 1 << 20
"""Maximum bytes read of the main thread's stack, from its outermost frames."""


def fingerprint(pid: int) -> str:
    """A digest of the main thread's stack outside the current MPI call; empty if the thread is in no MPI
    call.

    Raises `OSError` if the memory cannot be read.
    """
    code = Code(pid)
    if code.stack is None:
        return ""
    begin, end = code.stack
    begin = max(begin, end - MOST_BYTES)
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        raw = os.pread(memory.fileno(), end - begin, begin)
    words = struct.unpack(f"<{len(raw) // 8}Q", raw[: len(raw) & ~7])
    if code.is_arm64:
        words = tuple(map(arm64.address, words))  # return addresses may be signed
    place = next((n for n in range(len(words) - 1, -1, -1) if code.returns_to_mpi(words[n])), None)
    if place is None:
        return ""
    outward = range(place + 1, len(words))
    calls = (n for n in outward if code.called(words[n]).lower().startswith(("mpi_", "pmpi_")))
    caller = next(calls, next((n for n in outward if code.is_return(words[n])), None))
    if caller is None:
        return ""
    if code.is_arm64:
        return _from_frame(words[caller - 1] - begin, raw)
    saved = min(code.saved_registers(words[place]), caller - place - 1)
    return hashlib.blake2b(raw[8 * (caller - saved) :], digest_size=8).hexdigest()


def _from_frame(offset: int, raw: bytes) -> str:
    """A digest of the stack from the caller's frame record on; empty if there is none.

    arm64 saves a frame's registers at its lowest address, below the variables of the called function: the
    saved frame pointer says where the caller's frame begins (Procedure Call Standard for AArch64).
    """
    if not 0 < offset < len(raw):
        return ""
    return hashlib.blake2b(raw[offset:], digest_size=8).hexdigest()
