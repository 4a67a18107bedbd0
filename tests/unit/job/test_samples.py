"""What a rank does, from recorded samples of arm64 and x86-64, with and without signed return addresses."""

from __future__ import annotations

import json

import pytest

from gpuipc_doctor.job.activity import activity
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.stacks.thread import Thread
from tests.arm64 import samples

RECORDINGS = json.loads(samples.RECORDINGS.read_text())

CALLS = {
    "recv": (Kind.RECEIVES, "MPI_Recv"),
    "mprobe": (Kind.RECEIVES, "MPI_Mprobe"),
    "waitall": (Kind.PROGRESSES, "MPI_Waitall"),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_rank_that_waits_in_mpi_is_seen_to(name: str) -> None:
    """In each sample alone and in all of them, of Open MPI, whose calls poll in libevent."""
    stacks = samples.stacks(RECORDINGS[name])
    assert len(stacks) == 3
    for some in (*([stack] for stack in stacks), stacks):
        thread = Thread(tid=7, name="app", state="R", busy=1.0, approximate=tuple(some))
        seen = activity([Process(pid=7, parent=1, uid=0, program="app", threads=(thread,))] * 2)
        assert (seen.kind, seen.operation) == CALLS[name.rpartition("-")[2]]
        assert "halo_exchange" in " ".join(seen.path)


def test_some_recordings_have_signed_return_addresses() -> None:
    """Those of Debian on a processor that signs; Open MPI's wheel does not sign, but the libc does."""
    signed = {
        name.rpartition("-")[0]
        for name, recording in RECORDINGS.items()
        if any(word >> 48 for sample in recording["samples"] for word in sample)
    }
    assert signed == {"arm64-pac", "arm64-wheel"}
