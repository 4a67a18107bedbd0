"""The database on logs: the seed logs show their issues, healthy logs nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import diagnose_speed
from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues.literals import bare
from gpuipc_doctor.knownissues.signatures import Confidence
from gpuipc_doctor.model import Fact
from gpuipc_doctor.report_types import Relation

LOGS = Path(__file__).parents[2] / "logs"
ISSUES = [*knownissues.load(), *knownissues.load_messages()]


def diagnosed(*paths: Path, known: Sequence[Fact] = ()) -> Diagnosis:
    return diagnose(map(str, paths), Examination(ISSUES), known=known)


def test_all_signatures_are_searchable() -> None:
    assert Examination(ISSUES).skipped == []


def test_debug_log_has_no_candidates_once_seen() -> None:
    """Otherwise a signature's fixed text is too common, and logs are read at a third of the speed."""
    log = b"".join(diagnose_speed.quiet_lines(10_000))
    reading = Examination(ISSUES).log("debug.log")
    for _ in range(2):
        reading.feed(log)
    assert not any(reading._scanner._memory._form_of.values())


def test_short_fixed_texts_are_rare_in_a_debug_log() -> None:
    """New lines are searched for all texts: bare, ``ucc_`` is ``u_``, which is in half of such lines."""
    log = bare(b"".join(diagnose_speed.quiet_lines(2_000)))
    texts = Examination(ISSUES).index.patterns.candidates
    frequent = {text for text in texts if len(text) < 4 and log.count(text) > 20}
    assert frequent == {b"xi"}  # its patterns pause soon


@pytest.mark.parametrize(
    ("log", "found", "hints"),
    [
        ("seed-000-gpudirect-oom.log", [], ["cray-mpich-ipc-cache-leak"]),
        ("seed-001-cxi-device-memory.log", ["cxi-device-memory-not-mapped"], []),
        ("seed-002-ipc-reopen.log", ["nvidia-ipc-reopen"], []),
    ],
)
def test_seeds_are_recognised(log: str, found: list[str], hints: list[str]) -> None:
    diagnosis = diagnosed(LOGS / "faulty" / log)
    assert [issue_.issue.id for issue_ in diagnosis.found] == found
    assert [issue_.issue.id for issue_ in diagnosis.hints] == hints


def test_inventory_turns_a_hint_into_a_finding() -> None:
    known = [
        Fact("cray-mpich", "8.1.30", "MPI_Get_library_version"),
        Fact("env:MPICH_GPU_IPC_ENABLED", None, "environment"),
    ]
    diagnosis = diagnosed(LOGS / "faulty" / "seed-000-gpudirect-oom.log", known=known)
    (one,) = diagnosis.found
    assert (one.issue.id, one.relation) == ("cray-mpich-ipc-cache-leak", Relation.CONFIRMED)
    assert "MPICH_GPU_IPC_ENABLED=0" in " ".join(one.remedies)


@pytest.mark.parametrize("log", sorted((LOGS / "healthy").iterdir()), ids=lambda path: path.name)
def test_nothing_is_diagnosed_in_healthy_logs(log: Path) -> None:
    diagnosis = diagnosed(log)
    assert diagnosis.recognised == ()
    assert diagnosis.unknown == ()


def test_versions_are_read_from_healthy_logs() -> None:
    diagnosis = diagnosed(*sorted((LOGS / "healthy").iterdir()))
    assert {fact.name: fact.value for fact in diagnosis.facts if not fact.name.startswith("env:")} == {
        "intel-mpi": "2021.18",
        "cray-mpich": "8.1.32.110",
        "kernel": "5.14.21-150500.55.65-default",
        "nvidia-driver": "550.54.15",
        "slurm": "24.05.4",
        "nccl": "2.21.5",
        "libfabric": "1.22",
        "mpich": "5.0.2",
        "ucx": "1.20.1",
    }


def test_warning_on_fork_in_a_run_that_passes_is_only_a_hint(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("A process has executed an operation involving a call to the\nall 12 tests passed\n")
    [seen] = diagnosed(log).recognised
    assert (seen.issue.id, seen.confidence) == ("ompi-forks-with-registered-memory", Confidence.LOW)
