"""Real MPI libraries under the supervisor: ranks that talk, hang, crash; and that none survives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpuipc_doctor import loader, verdict
from gpuipc_doctor.model import Ending, Launch, Node, Probe, ProbeOutcome, Status
from gpuipc_doctor.supervise import leftovers, tree
from gpuipc_doctor.supervise.execution import Limits
from gpuipc_doctor.supervise.session import Session

FILE = Path(__file__).parent.parent / "fixtures" / "ranks.py"
PREFIXES = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere"))

pytestmark = pytest.mark.mpi


def launch(name: str, mpiexec_of: str = "") -> Launch:
    prefix = PREFIXES / name
    is_openmpi = name == "openmpi"
    environment = {
        "MPI4PY_LIBMPI": str(next((prefix / "lib").glob("libmpi.so.[0-9]*"))),
        "OPAL_PREFIX" if is_openmpi else "I_MPI_ROOT": str(prefix),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "FI_PROVIDER_PATH": str(prefix / "lib"),
        "I_MPI_FABRICS": "shm",
    }
    mpiexec = PREFIXES / (mpiexec_of or name) / "bin" / "mpiexec"
    return Launch((str(mpiexec), "-n", "{ranks}"), environment)


@pytest.fixture(params=["impi", "mpich43", "mpich50", "openmpi"])
def mpi(request: pytest.FixtureRequest) -> Launch:
    return launch(request.param)


@pytest.fixture(scope="module")
def roles() -> ModuleType:
    return loader.module(FILE)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(Node(), Limits()) as opened:
        yield opened
    assert [p for p in tree.descendants(os.getpid()) if "python" in p.name] == []


def run(
    session: Session, mpi: Launch, roles: ModuleType, *names: str, deadline_s: float = 10
) -> ProbeOutcome:
    functions = {f"rank {number}": getattr(roles, name) for number, name in enumerate(names)}
    probe = Probe("ranks", functions, deadline_s=deadline_s, launch=mpi)
    return session.run("ranks", FILE, probe, until=time.monotonic() + 60)


def test_ranks_talk(session: Session, mpi: Launch, roles: ModuleType) -> None:
    outcome = run(session, mpi, roles, "send", "receive")
    assert outcome.completed, outcome
    assert [record["right"] for record in outcome.records.values()] == [True, True]


def test_a_rank_that_hangs_is_blamed_and_both_show_their_stacks(
    session: Session, mpi: Launch, roles: ModuleType
) -> None:
    outcome = run(session, mpi, roles, "never_send", "wait_for_it", deadline_s=3)
    assert {role.ending for role in outcome.roles.values()} <= {Ending.HUNG, Ending.STOPPED}
    assert [role.operation for role in outcome.roles.values()] == ["pause", "MPI_Recv"]
    assert all(role.python_stack for role in outcome.roles.values())
    assert verdict.conclude(outcome).status is Status.FAIL


def test_a_rank_that_crashes_is_blamed_and_leaves_nothing(
    session: Session, mpi: Launch, roles: ModuleType
) -> None:
    started = time.time()
    outcome = run(session, mpi, roles, "crash", "wait_for_it")
    until = time.monotonic() + 10  # other tests' ranks crash at the same time
    while leftovers.abandoned(started) and time.monotonic() < until:
        time.sleep(0.1)
    assert not leftovers.abandoned(started)
    assert outcome.blamed == "rank 0"
    assert outcome.roles["rank 0"].signal == "SIGSEGV"


def test_an_error_of_mpi_is_named(session: Session, mpi: Launch, roles: ModuleType) -> None:
    outcome = run(session, mpi, roles, "send", "truncate")
    assert outcome.blamed == "rank 1"
    assert "MPI_Recv #1 returned" in verdict.conclude(outcome).summary


@pytest.mark.parametrize(("library", "launcher"), [("mpich50", "openmpi"), ("openmpi", "mpich50")])
def test_a_launcher_of_another_mpi_is_explained(
    session: Session, roles: ModuleType, library: str, launcher: str
) -> None:
    outcome = run(session, launch(library, launcher), roles, "send", "receive")
    finding = verdict.conclude(outcome)
    assert finding.status is Status.ERROR
    assert "belongs to another MPI" in finding.summary


def test_a_launcher_that_is_not_there_is_an_error(session: Session, roles: ModuleType) -> None:
    finding = verdict.conclude(
        run(session, Launch(("/nowhere/mpiexec", "-n", "{ranks}")), roles, "send", "receive")
    )
    assert finding.status is Status.ERROR
    assert "/nowhere/mpiexec" in finding.summary


def test_a_launcher_that_hangs_is_an_error_that_names_it(roles: ModuleType) -> None:
    with Session(Node(), Limits(start_up_s=1.0)) as session:
        outcome = run(session, Launch(("/bin/sh", "-c", "sleep 100")), roles, "send", "receive")
    finding = verdict.conclude(outcome)
    assert finding.status is Status.ERROR
    assert "the launcher, /bin/sh, started no rank in time" in finding.summary
