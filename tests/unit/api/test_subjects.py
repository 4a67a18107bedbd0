"""What the verdict on a node is about: the subject of each built-in check."""

from __future__ import annotations

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Subject


def test_only_checks_that_move_data_between_processes_have_a_subject() -> None:
    """That MPI starts, or refuses device pointers, tests nothing that jobs share."""
    subjects = {
        item.check.id: item.check.subject for item in loader.load() if isinstance(item, loader.LoadedCheck)
    }
    assert {check for check, subject in subjects.items() if subject is None} == {
        "allocator-growth",
        "allocator-pressure",
        "allocator-stream-reuse",
        "driver-init",
        "driver-pool-release",
        "driver-pool-reuse",
        "environment",
        "fabric-info",
        "known-versions",
        "mpi-gpu-aware",
        "mpi-start",
    }
    named = {Subject.MPI: "mpi-", Subject.COLLECTIVES: "collective-", Subject.FABRIC: "fabric-"}
    for check, subject in subjects.items():
        if subject is not None:
            assert check.startswith(named.get(subject, ("ipc-", "allocator-ipc")))
