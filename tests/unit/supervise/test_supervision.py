"""Every way in which a worker can end, the blame for it, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Node, Status
from gpuipc_doctor.probe_types import Ending, Launch, Probe, ProbeOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.stacks import process_list
from gpuipc_doctor.supervise import blame, evidence, keeper, tree
from gpuipc_doctor.supervise.assignment import RoleFiles, RoleResult, StartSignal
from gpuipc_doctor.supervise.fork_servers import ForkServers
from gpuipc_doctor.supervise.journal import Progress
from gpuipc_doctor.supervise.probe import Execution, Limits, first_wrong, likeliest_first
from gpuipc_doctor.supervise.rank import boot_id
from gpuipc_doctor.supervise.role import LaunchedProcess, RunningRole
from gpuipc_doctor.supervise.session import Session
from tests.waiting import LIMIT_S, LOAD_S, until

FILE = Path(__file__).parents[2] / "fixtures" / "misbehaving.py"
LIMITS = Limits(start_up_s=20.0, settle_s=1.0, grace_s=0.2, kill_s=3.0)


@pytest.fixture(scope="module")
def roles() -> ModuleType:
    return loader.module(FILE)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(Node(), LIMITS) as opened:
        yield opened
    assert [p for p in tree.descendants(os.getpid()) if "python" in p.name] == []


def run(
    session: Session, roles: ModuleType, *names: str, deadline_s: float = 1.5, limit_s: float = 60.0
) -> ProbeOutcome:
    probe = Probe("probe", {name: getattr(roles, name) for name in names}, deadline_s=deadline_s)
    return session.run("misbehaving", FILE, probe, until=time.monotonic() + limit_s)


def test_role_that_completes(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "completes")
    assert outcome.completed
    assert outcome.records == {"completes": {"answer": 42}}


def test_two_roles_communicate_and_nul_bytes_survive(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "say_hello", "answer_hello")
    assert outcome.completed
    assert all(record["heard"] for record in outcome.records.values())


def test_first_role_communicates_with_each_of_the_others(session: Session, roles: ModuleType) -> None:
    functions = {"asks": roles.asks_everybody} | dict.fromkeys(("one", "two", "three"), roles.answers_one)
    outcome = session.run("misbehaving", FILE, Probe("probe", functions), until=time.monotonic() + 60.0)
    assert outcome.records["asks"]["heard"] == [["one", 0], ["two", 1], ["three", 2]]


class Held:
    """A probe that waits for its start signal, in a thread."""

    def __init__(self, session: Session, roles: ModuleType, *names: str) -> None:
        probe = Probe("probe", {name: getattr(roles, name) for name in names}, deadline_s=0.5)
        limit, self.turn = time.monotonic() + LIMIT_S, StartSignal()
        self.ended = ThreadPoolExecutor(1).submit(
            session.run, "misbehaving", FILE, probe, until=limit, turn=self.turn
        )
        files = RoleFiles(session._directory / "001-misbehaving-node-probe", names[0])
        self._journal = Progress(files.journal)

    def wait(self) -> None:
        """Wait until its first role has waited for its start signal longer than an operation may take."""

        def has_waited() -> bool:
            self._journal.read()
            return self._journal.waiting and time.monotonic() > self._journal.last_at + 1.0

        until("the role waits", has_waited)


def test_roles_that_wait_for_the_start_signal_neither_hang_nor_begin(
    session: Session, roles: ModuleType
) -> None:
    held = Held(session, roles, "say_hello", "answer_hello")
    held.wait()
    assert not held.ended.done()
    held.turn.baselines = ()
    outcome = held.ended.result()
    assert outcome.completed
    assert all(record["heard"] for record in outcome.records.values())


def test_deadline_of_a_role_begins_with_the_start_signal(session: Session, roles: ModuleType) -> None:
    held = Held(session, roles, "hang_in_c")
    held.wait()
    held.turn.baselines = ()
    hung = held.ended.result().roles["hang_in_c"]
    assert (hung.ending, hung.operation) == (Ending.HUNG, "pause")


def test_probe_without_a_start_signal_is_ended(session: Session, roles: ModuleType) -> None:
    held = Held(session, roles, "say_hello", "answer_hello")
    held.wait()
    held.turn.given_up = True
    outcome = held.ended.result()
    assert outcome.stopped
    assert {role.ending for role in outcome.roles.values()} == {Ending.STOPPED}


@pytest.mark.parametrize("role", ["hang_in_c", "hang_holding_the_interpreter_lock", "hang_ignoring_term"])
def test_hang_is_blamed_on_the_armed_operation(session: Session, roles: ModuleType, role: str) -> None:
    outcome = run(session, roles, role)
    hung = outcome.roles[role]
    assert (outcome.blamed, hung.ending, hung.operation) == (role, Ending.HUNG, "pause")
    assert any(role in frame for frame in hung.python_stack), hung.python_stack
    assert "state S" in hung.kernel[0]
    assert blame.conclude(outcome).status is Status.FAIL


def test_hang_shows_its_native_stack(session: Session, roles: ModuleType) -> None:
    native = run(session, roles, "hang_in_c").roles["hang_in_c"].native_stack
    if not native:
        pytest.skip("no py-spy, gdb or eu-stack can look at a process here")
    assert any("pause" in frame for frame in native)


def test_hanging_debugger_costs_neither_the_verdict_nor_the_budget(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "TOOLS", [("sleep", lambda pid: ["60"], lambda text: [])] * 3)
    started = time.monotonic()
    outcome = run(session, roles, "hang_in_c", deadline_s=1.0, limit_s=6.0)
    assert time.monotonic() - started < 6.0 + LOAD_S
    assert outcome.roles["hang_in_c"].ending is Ending.HUNG
    assert not outcome.stopped


def test_waiting_for_a_processor_does_not_count_as_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = {7: 3.0}
    monkeypatch.setattr(tree, "timeslices_of", lambda pid: {pid: tree.Timeslices(wanted_s=waited[pid])})
    role = RunningRole(SimpleNamespace(pid=7), RoleFiles(tmp_path, "one"), Progress(tmp_path / "j"), 0.0)  # type: ignore[arg-type]
    role.progress.last_at = 100.0
    assert role.silent_for(120.0) == 0.0  # seen late: the supervisor had no processor either
    waited[7] = 5.0
    assert role.silent_for(123.0) == 1.0
    role.progress.last_at = 123.0
    assert role.silent_for(123.1) == 0.0
    assert role.silent_for(124.1) == 1.0


@pytest.mark.parametrize(
    ("had", "silent_s"),
    [
        (tree.Timeslices(ran_s=1.0, wanted_s=40.0, number=400), 2.0),
        (tree.Timeslices(ran_s=1.0, wanted_s=40.0, number=34_000), 42.0),
    ],
    ids=["starved", "polls-and-yields"],
)
def test_program_below_a_worker_is_starved_unless_it_yields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: tree.Timeslices, silent_s: float
) -> None:
    """fi_pingpong yields while it waits for a message that never comes."""
    monkeypatch.setattr(tree, "timeslices_of", {7: {}, 8: {8: had}}.__getitem__)
    monkeypatch.setattr(tree, "at_work", lambda pid: 8)
    role = RunningRole(SimpleNamespace(pid=7), RoleFiles(tmp_path, "one"), Progress(tmp_path / "j"), 0.0)  # type: ignore[arg-type]
    role.progress.last_at = 100.0
    role.silent_for(100.0)
    assert role.silent_for(142.0) == silent_s


THREADS = {7: tree.Timeslices(number=1), 8: tree.Timeslices(number=1)}


@pytest.mark.parametrize(
    ("looks", "starved_s"),
    [
        ([{8: tree.Timeslices(0.0, 2.0, 9)}], 2.0),  # it waits for a thread that has no processor
        ([{8: tree.Timeslices(2.0, 0.0, 9)}], 0.0),  # for a thread that runs
        ([{}], 0.0),  # for a thread that sleeps
        ([{7: tree.Timeslices(0.1, 2.0, 9)}, {8: tree.Timeslices(0.1, 2.0, 9)}], 4.0),  # one after the other
        ([{7: tree.Timeslices(0.1, 2.0, 9), 8: tree.Timeslices(0.1, 2.0, 9)}], 2.0),  # at the same time
        ([{9: tree.Timeslices(0.0, 2.0, 1)}], 2.0),  # for a thread that has not run yet
    ],
    ids=["starved", "runs", "sleeps", "in-turn", "together", "new"],
)
def test_call_is_starved_if_any_thread_it_may_wait_for_is(
    looks: list[dict[int, tree.Timeslices]], starved_s: float
) -> None:
    """hipStreamCreateWithFlags starts a thread and waits for it."""
    threads, seconds = dict(THREADS), 0.0
    starvation = tree.Starvation(dict(threads))
    for look in looks:
        threads |= look
        seconds = starvation.until(dict(threads))
    assert seconds == starved_s


def test_crash_is_blamed_for_an_error_that_it_may_have_caused(tmp_path: Path) -> None:
    """A crash is only known to lie between the last journal line and the observed end."""
    exporter = _crashed(tmp_path, "exporter", last_at=1.0, ended_at=3.0)
    importer = _failed(tmp_path, "importer", at=2.0, ended_at=2.5)
    assert first_wrong([importer, exporter]) is exporter
    exporter.progress.last_at = 2.1
    assert first_wrong([exporter, importer]) is importer


def test_rank_ended_by_its_library_is_ordered_by_its_observed_end(tmp_path: Path) -> None:
    """MPI libraries end a rank with an exit code when another rank is gone."""
    failed = _failed(tmp_path, "rank 0", at=2.0, ended_at=2.5)
    ended = _crashed(tmp_path, "rank 1", last_at=1.0, ended_at=3.0)
    ended.process = LaunchedProcess(None, ended.files)
    ended.process.returncode = 15
    assert first_wrong([ended, failed]) is failed
    ended.process.returncode = -signal.SIGSEGV
    assert first_wrong([ended, failed]) is ended


def test_clocks_of_two_nodes_are_not_compared(tmp_path: Path) -> None:
    here = _failed(tmp_path, "rank 0", at=2.0, ended_at=2.5)
    there = _failed(tmp_path, "rank 1", at=1.0, ended_at=3.0)
    there.process.is_elsewhere = True  # type: ignore[misc]
    assert first_wrong([there, here]) is here


def _failed(directory: Path, name: str, *, at: float, ended_at: float) -> RunningRole:
    process = SimpleNamespace(pid=7, is_elsewhere=False, returncode=1)
    role = RunningRole(process, RoleFiles(directory, name), Progress(directory / name), 0.0)  # type: ignore[arg-type]
    role.ending, role.ended_at = Ending.DRIVER_ERROR, ended_at
    role.result = RoleResult(Ending.DRIVER_ERROR, at=at)
    return role


def _crashed(directory: Path, name: str, *, last_at: float, ended_at: float) -> RunningRole:
    role = _failed(directory, name, at=0.0, ended_at=ended_at)
    role.ending, role.result, role.progress.last_at = Ending.CRASHED, None, last_at
    return role


def test_rank_is_not_hung_while_the_other_waits_for_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = {7: 0.0, 8: 0.0}
    monkeypatch.setattr(tree, "timeslices_of", lambda pid: {pid: tree.Timeslices(wanted_s=waited[pid])})
    probe = Probe("probe", {"rank 0": id, "rank 1": id}, deadline_s=2.0, launch=Launch(("mpiexec",)))
    execution = Execution(
        probe, tmp_path, tmp_path, node=Node(), marker="", limits=Limits(), servers=ForkServers(tmp_path, "")
    )
    for name, pid in (("rank 0", 7), ("rank 1", 8)):
        progress = Progress(tmp_path / name, started=True, operation="MPI_Recv", last_at=100.0)
        role = RunningRole(SimpleNamespace(pid=pid), RoleFiles(tmp_path, name), progress, 99.0)  # type: ignore[arg-type]
        role.silent_for(100.0)
        execution._roles[name] = role
    waited[8] = 1.5
    assert execution._overdue(103.0) is None
    overdue = execution._overdue(104.0)
    assert overdue
    assert overdue[1] is Ending.HUNG


def test_role_is_not_hung_while_a_message_between_others_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "timeslices_of", lambda pid: {})
    probe = Probe("probe", dict.fromkeys(("exporter", "importer", "spare"), id), deadline_s=2.0)
    execution = Execution(
        probe, tmp_path, tmp_path, node=Node(), marker="", limits=Limits(), servers=ForkServers(tmp_path, "")
    )
    for name, last_at in (("exporter", 109.0), ("importer", 109.0), ("spare", 100.0)):
        progress = Progress(tmp_path / name, started=True, waiting=True, last_at=last_at)
        role = RunningRole(SimpleNamespace(pid=7), RoleFiles(tmp_path, name), progress, 99.0)  # type: ignore[arg-type]
        execution._roles[name] = role
    assert execution._overdue(110.0) is None
    overdue = execution._overdue(112.1)
    assert overdue
    assert overdue[1] is Ending.HUNG


SEND_20, RECV_20 = {"MPI_Send": 20}, {"MPI_Recv": 20}


@pytest.mark.parametrize(
    ("first", "second", "suspects"),
    [
        (("MPI_Recv", RECV_20), ("MPI_Send", {**SEND_20, "cuMemcpyDtoH": 30}), {"rank 0", "rank 1"}),
        (("MPI_Recv", {**RECV_20, "cuMemcpyDtoH": 30}), ("MPI_Send", {"MPI_Send": 19}), {"rank 1"}),
        (("MPI_Barrier", {"MPI_Barrier": 3}), ("MPI_Send", {"MPI_Send": 2, "cuMemAlloc": 9}), {"rank 1"}),
        (("MPI_Recv", {"MPI_Recv": 5}), ("cuMemcpyHtoD", {"MPI_Send": 7, "cuMemcpyHtoD": 9}), {"rank 1"}),
        (("cuMemcpyHtoD", {"cuMemcpyHtoD": 50}), ("MPI_Recv", {"MPI_Recv": 1}), {"rank 0"}),
    ],
)
def test_blamed_rank_is_in_a_driver_call_or_has_made_fewest_mpi_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Any, second: Any, suspects: set[str]
) -> None:
    monkeypatch.setattr(tree, "timeslices_of", lambda pid: {})
    probe = Probe("probe", {"rank 0": id, "rank 1": id}, deadline_s=2.0, launch=Launch(("mpiexec",)))
    execution = Execution(
        probe, tmp_path, tmp_path, node=Node(), marker="", limits=Limits(), servers=ForkServers(tmp_path, "")
    )
    for name, pid, (operation, made) in (("rank 0", 7, first), ("rank 1", 8, second)):
        progress = Progress(tmp_path / name, started=True, operation=operation, occurrences=made)
        progress.last_at = 100.0 + pid
        files = RoleFiles(tmp_path, name)
        execution._roles[name] = RunningRole(SimpleNamespace(pid=pid), files, progress, 99.0)  # type: ignore[arg-type]
    assert execution._overdue(118.0) is None  # the first look
    overdue = execution._overdue(121.0)
    assert overdue
    assert {role.files.role for role in execution._suspects(overdue[0])} == suspects


def test_process_without_a_processor_is_seen_to_wait_unless_it_yields() -> None:
    """A rank that polls for a message that never comes may yield; its deadline must still end it."""
    spins, yields = (
        f"import os\nos.write(1, b'.')\nwhile True: {does}" for does in ("pass", "os.sched_yield()")
    )
    alone = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-I", "-S", "-c"]
    rivals = [
        subprocess.Popen([*alone, does], stdout=subprocess.PIPE) for does in (spins, spins, spins, yields)
    ]
    try:
        for rival in rivals:
            assert rival.stdout
            rival.stdout.read(1)

        def had(rival: subprocess.Popen[bytes]) -> tree.Timeslices:
            return tree.timeslices_of(rival.pid)[rival.pid]

        before = {rival: had(rival) for rival in rivals}

        def starved(rival: subprocess.Popen[bytes]) -> float:
            return tree.Starvation({rival.pid: before[rival]}).until(tree.timeslices_of(rival.pid))

        *spinning, yielding = rivals
        until("they want a processor", lambda: min(map(starved, spinning)) > 0.5)
        until("it had its turns", lambda: had(yielding).number > before[yielding].number + 20)
        assert had(yielding).wanted_s > before[yielding].wanted_s + 0.5
        assert starved(yielding) == 0.0
    finally:
        for rival in rivals:
            rival.kill()
            rival.communicate()
    assert tree.timeslices_of(rivals[0].pid) == {}


def test_orphans_are_adopted_only_during_a_session() -> None:
    def adopts() -> bool:
        ended = subprocess.run(["sh", "-c", "sleep 60 >&- 2>&- & echo $!"], capture_output=True, text=True)
        orphan = int(ended.stdout)
        adopted = orphan in {process.pid for process in tree.descendants(os.getpid())}
        os.kill(orphan, signal.SIGKILL)
        return adopted

    assert not adopts()
    with Session(Node(), LIMITS):
        assert adopts()
    assert not adopts()


def test_run_survives_the_loss_of_the_keeper(roles: ModuleType) -> None:
    with Session(Node(), LIMITS) as session:
        [keeper] = [p.pid for p in tree.descendants(os.getpid()) if p.name == process_list.KEEPER]
        os.kill(keeper, signal.SIGKILL)
        assert run(session, roles, "completes").completed


def test_hang_has_the_step_and_the_records(session: Session, roles: ModuleType) -> None:
    finding = blame.conclude(run(session, roles, "hang_in_c"))
    assert sentences.summary(finding) == "hang_in_c: pause #1 (wait for what never comes) hung (1.5 s)"
    assert sentences.evidence(finding) == ("before the failure (hang_in_c, control): was fine",)


def test_role_that_hangs_is_blamed_not_the_one_that_waits(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "wait_for_partner", "hang_in_c")
    assert outcome.blamed == "hang_in_c"
    assert outcome.roles["wait_for_partner"].ending is Ending.STOPPED


@pytest.mark.parametrize(
    ("role", "ending", "signal", "status"),
    [
        ("segfault", Ending.CRASHED, "SIGSEGV", Status.FAIL),
        ("segfault_unarmed", Ending.CRASHED, "SIGSEGV", Status.ERROR),
        ("call_and_abort_in_another_thread", Ending.CRASHED, "SIGABRT", Status.FAIL),
        ("abort_in_another_thread", Ending.CRASHED, "SIGABRT", Status.ERROR),  # nothing had been called
        ("abort_in_a_python_thread", Ending.CRASHED, "SIGABRT", Status.ERROR),
        ("abort", Ending.CRASHED, "SIGABRT", Status.FAIL),
        ("exit_in_c", Ending.CRASHED, "", Status.FAIL),
        ("raise_error", Ending.EXCEPTION, "", Status.ERROR),
        ("raise_error_at_once", Ending.EXCEPTION, "", Status.ERROR),
        ("hang_unarmed", Ending.HUNG, "SIGTERM", Status.ERROR),
        ("abort_at_exit", Ending.CRASHED, "SIGABRT", Status.FAIL),
        ("hang_at_exit", Ending.HUNG, "SIGTERM", Status.FAIL),
    ],
)
def test_endings(
    session: Session, roles: ModuleType, role: str, ending: Ending, signal: str, status: Status
) -> None:
    outcome = run(session, roles, role)
    assert outcome.blamed == role
    assert (outcome.roles[role].ending, outcome.roles[role].signal) == (ending, signal)
    assert blame.conclude(outcome).status is status


def test_crash_of_a_librarys_thread_names_the_last_call(session: Session, roles: ModuleType) -> None:
    finding = blame.conclude(run(session, roles, "call_and_abort_in_another_thread"))
    assert finding.key == "crashed-in-thread"
    assert sentences.summary(finding) == (
        "a library's thread ended the process by SIGABRT after call_and_abort_in_another_thread: getpid #1 "
        "had returned"
    )


MAIN = """Thread 0x00007fdb34f2e040 (most recent call first):
  File "fork_server.py", line 46 in main
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


@pytest.mark.parametrize(
    ("dump", "is_a_librarys"),
    [
        (f"Fatal Python error: Segmentation fault\n\n{MAIN}", True),
        (f"Fatal Python error: Segmentation fault\n\nCurrent t{MAIN[1:]}", False),
        (f"Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n{MAIN}", True),
        # 3.14 adds the native stack of the thread that crashed
        (f"Fatal Python error: Aborted\n\n{MAIN}\nCurrent thread's C stack trace:\n  at /lib\n", True),
        (f"Timeout (0:00:09)!\n{MAIN}\nFatal Python error: Aborted\n\n{MAIN}", False),  # perhaps our timer
        (f"Timeout (0:00:09)!\n{MAIN}", False),
        (
            "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n",
            False,
        ),  # cut off
        ("", False),
    ],
)
def test_thread_that_crashed_is_a_librarys_if_python_does_not_know_it(
    tmp_path: Path, dump: str, is_a_librarys: bool
) -> None:
    file = tmp_path / "stack"
    file.write_text(dump)
    assert evidence.crashed_in_librarys_thread(file) is is_a_librarys


def test_worker_without_a_stack_file_did_not_crash_in_a_librarys_thread(tmp_path: Path) -> None:
    assert not evidence.crashed_in_librarys_thread(tmp_path / "stack")


@pytest.mark.parametrize(
    "role",
    [
        "fill_the_disk_in_a_call",
        "fill_the_disk_at_the_end",
        "close_files_in_a_call",
        "take_files_in_a_call",
    ],
)
def test_unwritable_records_are_neither_a_pass_nor_a_failure(
    session: Session, roles: ModuleType, role: str
) -> None:
    outcome = run(session, roles, role)
    assert outcome.roles[role].ending is Ending.UNRECORDED
    finding = blame.conclude(outcome)
    assert (finding.status, finding.key) == (Status.ERROR, "unrecorded")


def test_crash_is_blamed_not_the_role_that_it_broke(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "wait_for_partner", "segfault")
    assert outcome.blamed == "segfault"
    assert outcome.roles["wait_for_partner"].ending is Ending.PEER_LOST


def test_partner_that_exits_is_no_failure_of_the_node(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "wait_for_partner", "completes")
    assert outcome.blamed == "wait_for_partner"
    assert blame.conclude(outcome).status is Status.ERROR


def test_two_roles_that_wait_for_each_other_are_an_error(session: Session, roles: ModuleType) -> None:
    probe = Probe("probe", {"a": roles.wait_for_partner, "b": roles.wait_for_partner}, deadline_s=1.0)
    outcome = session.run("misbehaving", FILE, probe, until=time.monotonic() + 30)
    assert blame.conclude(outcome).status is Status.ERROR


def test_dying_as_planned_is_completing(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "die_as_planned")
    assert outcome.completed
    assert outcome.records["die_as_planned"] == {"reached": True}


def test_grandchildren_end_with_the_probe(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "leave_grandchildren")
    assert outcome.completed
    for pid in outcome.records["leave_grandchildren"]["pids"]:
        assert process_list.processes().get(pid) is None or process_list.processes()[pid].state == "Z"


def test_ten_megabytes_on_standard_error_do_no_harm(session: Session, roles: ModuleType) -> None:
    assert run(session, roles, "chatter").completed


def test_start_and_end_of_a_flood_on_standard_error_are_kept(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MAX_LOG_BYTES", roles.MOST_BYTES)
    monkeypatch.setattr(evidence, "KEPT_LOG_BYTES", roles.KEPT_BYTES)
    monkeypatch.setattr(evidence, "_LOG_EVERY_S", 0.05)
    outcome = run(session, roles, "flood", deadline_s=LIMIT_S, limit_s=LIMIT_S)
    assert outcome.completed
    assert outcome.records["flood"] == {"shortened": True}
    text = (Path(outcome.logs) / "flood.log").read_text()
    assert len(text) <= roles.MOST_BYTES
    middle = "gpuipc-doctor: the middle of this log is left out"
    assert re.fullmatch(rf"first words\n(.*\n)+{middle}\n(.*\n)+last words\n", text)


def test_temporarily_unreadable_logs_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(directory: Path, names: str) -> Iterator[Path]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "glob", stale)
    with evidence.bounded_logs(tmp_path):
        pass


def test_deadline_is_per_operation_not_per_probe(session: Session, roles: ModuleType) -> None:
    assert run(session, roles, "work_slowly", deadline_s=1.0).completed


def test_worker_that_does_not_start_is_an_error(session: Session, roles: ModuleType, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import os\nos._exit(3)\n")
    probe = Probe("probe", {"completes": roles.completes}, deadline_s=1.0)
    outcome = session.run("misbehaving", broken, probe, until=time.monotonic() + 30)
    assert outcome.roles["completes"].ending is Ending.NOT_STARTED
    assert blame.conclude(outcome).status is Status.ERROR


def test_slow_start_is_not_a_hung_gpu(roles: ModuleType, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(30)\n")
    probe = Probe("probe", {"completes": roles.completes}, deadline_s=0.2)
    with Session(Node(), Limits(start_up_s=1.0)) as session:
        outcome = session.run("misbehaving", slow, probe, until=time.monotonic() + 30)
    assert outcome.roles["completes"].ending is Ending.NOT_STARTED
    assert blame.conclude(outcome).status is Status.ERROR


def test_budget_ends_a_probe_as_a_skip(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "hang_in_c", deadline_s=30, limit_s=0.3)
    assert outcome.stopped == "budget"
    assert blame.conclude(outcome).status is Status.SKIP


def test_call_stalled_at_the_end_of_the_budget_is_reported(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuipc_doctor.supervise.probe.STALLED_S", 0.1)
    finding = blame.conclude(run(session, roles, "hang_in_c", deadline_s=30, limit_s=3.0))
    assert finding.status is Status.ERROR
    assert sentences.summary(finding).startswith(
        "hang_in_c: pause #1 (wait for what never comes) had not returned"
    )


@pytest.mark.parametrize(
    ("role", "signal_name"), [("killed_in_a_call", "SIGKILL"), ("told_to_end_in_a_call", "SIGTERM")]
)
def test_kill_from_outside_is_no_failure_of_the_node(
    session: Session, roles: ModuleType, role: str, signal_name: str
) -> None:
    outcome = run(session, roles, role)
    assert outcome.roles[role].signal == signal_name
    assert blame.conclude(outcome).status is Status.ERROR


@pytest.mark.parametrize(("program", "stays"), [("while True: pass", False), ("time.sleep(600)", True)])
def test_process_that_waits_for_a_processor_is_not_unkillable(
    monkeypatch: pytest.MonkeyPatch, program: str, stays: bool
) -> None:
    """Signals are disabled, like for a killed process that has not been scheduled since."""
    monkeypatch.setattr(tree, "signal_all", lambda targets, number: None)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import time; print(flush=True)\n{program}"],
        stdout=subprocess.PIPE,
    )

    def find() -> list[tree.Process]:
        return [process for process in tree.descendants(os.getpid()) if process.pid == child.pid]

    with child:
        assert child.stdout
        assert child.stdout.readline()
        stat = Path(f"/proc/{child.pid}/stat")
        until("it sleeps, or runs for ever", lambda: stat.read_text().split()[2] == ("S" if stays else "R"))
        assert bool(tree.end(find, grace_s=0.0, limit_s=0.1)) is stays
        child.kill()


def test_stopping_the_session_ends_a_probe(session: Session, roles: ModuleType) -> None:
    threading.Timer(0.7, session.stop).start()
    outcome = run(session, roles, "hang_in_c", deadline_s=30)
    assert outcome.stopped == "interrupted"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left
def test_unkillable_process_is_reported(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a process in uninterruptible sleep, on which signals have no effect."""
    monkeypatch.setattr(tree, "signal_all", lambda targets, number: None)
    outcome = run(session, roles, "hang_in_c")
    monkeypatch.undo()
    assert outcome.roles["hang_in_c"].ending is Ending.UNKILLABLE
    finding = blame.conclude(outcome)
    assert finding.status is Status.FAIL
    assert f"pid {outcome.roles['hang_in_c'].pid}" in sentences.summary(finding)
    assert session.unkillable


@pytest.mark.full
def test_unkillable_process_started_by_a_worker_is_no_pass(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tree, "signal_all", lambda targets, number: None)
        outcome = run(session, roles, "leave_grandchildren")
    finding = blame.conclude(outcome)
    assert outcome.roles["leave_grandchildren"].ending is Ending.UNKILLABLE
    assert finding.status is Status.FAIL
    for pid in outcome.records["leave_grandchildren"]["pids"]:
        assert f"pid {pid}" in sentences.summary(finding)
        os.kill(pid, 9)


def test_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """After SIGKILL of the supervisor, its workers, their children and its directories are removed."""
    import signal
    import subprocess

    script = tmp_path / "supervise.py"
    script.write_text(
        "import sys, tempfile, threading, time\n"
        "from pathlib import Path\n"
        "from gpuipc_doctor.api import loader\n"
        "from gpuipc_doctor.model import Node\nfrom gpuipc_doctor.probe_types import Probe\n"
        "from gpuipc_doctor.supervise.probe import Execution, Limits\n"
        "from gpuipc_doctor.supervise.session import Session\n"
        "file = Path(sys.argv[1])\n"
        "roles = {name: loader.role(file, name) for name in ('hang_ignoring_term', 'leave_grandchildren')}\n"
        "with Session(Node(), Limits()) as session:\n"
        "    print(session._id, session._directory, flush=True)\n"
        "    session.run('x', file, Probe('p', roles, deadline_s=60), until=time.monotonic() + 60)\n"
    )
    supervisor = subprocess.Popen([sys.executable, str(script), str(FILE)], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    run_id, directory = supervisor.stdout.readline().split()

    def alive() -> list[int]:
        return [pid for pid in process_list.processes() if tree.carries(pid, f"{run_id}/1")]

    wait_until(lambda: len(alive()) >= 4)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    supervisor.stdout.close()
    wait_until(lambda: not alive() and not Path(directory).exists())


def test_logs_are_kept_in_a_relative_directory(
    roles: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    with Session(Node(), LIMITS, keep_logs=Path("logs")) as session:
        assert run(session, roles, "say_hello", "answer_hello").completed
    assert list(tmp_path.glob("logs/001*/say_hello.journal"))


def test_background_probe_runs_until_the_block_ends(session: Session, roles: ModuleType) -> None:
    def beside() -> list[int]:
        return [pid for pid in process_list.processes() if tree.carries(pid, f"{session._id}/1")]

    with session.beside(
        "misbehaving", FILE, Probe("beside", {"waits": roles.wait_for_the_end}, deadline_s=60.0)
    ):
        wait_until(beside)
        before = beside()
        assert run(session, roles, "completes").completed
        session.stop()
        assert run(session, roles, "hang_in_c").stopped == "interrupted"
        assert beside() == before
    wait_until(lambda: not beside())  # on a busy node, a killed process takes a while to end


def wait_until(condition: object, limit_s: float = 15.0) -> None:
    assert callable(condition)
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_sleeping_rank_is_named_first_of_ranks_in_one_call() -> None:
    programs = ("while True: pass", "import signal; signal.pause()")
    ranks = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    spinning, sleeping = (SimpleNamespace(process=SimpleNamespace(pid=rank.pid)) for rank in ranks)
    try:
        until("one sleeps", lambda: likeliest_first([spinning, sleeping]) == [sleeping, spinning])
        assert likeliest_first([sleeping, spinning]) == [sleeping, spinning]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize(("how", "code"), [("exit(3)", 3), ("kill(getpid(), SIGKILL)", -signal.SIGKILL)])
def test_zombie_rank_has_ended(tmp_path: Path, how: str, code: int) -> None:
    program = f"from os import getpid, kill; from signal import SIGKILL; {how}"
    files = RoleFiles(tmp_path, "rank 0")
    with subprocess.Popen([sys.executable, "-c", program]) as zombie:
        files.pid.write_text(f"{zombie.pid} {boot_id()}")
        process = LaunchedProcess(None, files)
        until("it has ended", process.poll)
        assert process.returncode == code


def test_role_leaves_no_shared_memory(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "leave_shared_memory")
    assert outcome.completed
    assert not Path(outcome.records["leave_shared_memory"]["left"]).exists()


def test_files_of_cuda_go_with_their_worker_and_no_others(session: Session, roles: ModuleType) -> None:
    own, foreign = map(
        Path, run(session, roles, "die_with_files_of_cuda").records["die_with_files_of_cuda"]["left"]
    )
    try:
        assert not own.exists()
        assert foreign.exists()
    finally:
        foreign.unlink()


@pytest.mark.parametrize(
    "name",
    [f"mpich_shm_{uuid.uuid4()}", f"{1 << 23}:0:0", f"0x{uuid.uuid4().hex[:12]}"],
    ids=["mpich", "libfabric", "hip"],
)
def test_shared_memory_of_ranks_is_removed_after_a_kill_of_the_supervisor(name: str) -> None:
    command = [sys.executable, "-I", "-S", keeper.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.read(1)  # it is watching
        left = Path(keeper.SHARED_MEMORY) / name
        try:
            left.write_bytes(b"of a rank")
            process.stdin.write(b"no-such-run\0")
            process.stdin.close()  # without a message that the memory was removed
            process.wait()
            assert not left.exists()
        finally:
            left.unlink(missing_ok=True)


def run_together(session: Session, *functions: Any) -> ProbeOutcome:
    roles = {f"rank {number}": function for number, function in enumerate(functions)}
    probe = Probe("probe", roles, deadline_s=1.5, together=True)
    return session.run("misbehaving", FILE, probe, until=time.monotonic() + 60.0)


def test_rank_behind_in_collectives_is_blamed_alone(session: Session, roles: ModuleType) -> None:
    outcome = run_together(session, roles.waits_for_collective, roles.hangs_in_collective)
    assert outcome.suspects == ("rank 1",)
    assert outcome.roles["rank 1"].operation == "ncclAllReduce"


def test_ranks_in_the_same_collective_are_all_suspects(session: Session, roles: ModuleType) -> None:
    outcome = run_together(session, roles.hangs_in_collective, roles.hangs_in_collective)
    assert set(outcome.suspects) == {"rank 0", "rank 1"}
