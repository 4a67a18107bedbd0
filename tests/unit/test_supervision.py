"""Every way in which a worker can end, the blame for it, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gpuipc_doctor import loader, verdict
from gpuipc_doctor.handover import Desk
from gpuipc_doctor.journal import Progress
from gpuipc_doctor.model import Ending, Node, Probe, ProbeOutcome, Status
from gpuipc_doctor.supervise import evidence, logs, tree
from gpuipc_doctor.supervise.execution import Limits
from gpuipc_doctor.supervise.role import RunningRole
from gpuipc_doctor.supervise.session import Session

FILE = Path(__file__).parent.parent / "fixtures" / "misbehaving.py"
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


def test_a_role_that_completes(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "completes")
    assert outcome.completed
    assert outcome.records == {"completes": {"answer": 42}}


def test_two_roles_talk_and_nul_bytes_survive(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "say_hello", "answer_hello")
    assert outcome.completed
    assert all(record["heard"] for record in outcome.records.values())


@pytest.mark.parametrize("role", ["hang_in_c", "hang_holding_the_interpreter_lock", "hang_ignoring_term"])
def test_a_hang_is_blamed_on_the_armed_operation(session: Session, roles: ModuleType, role: str) -> None:
    started = time.monotonic()
    outcome = run(session, roles, role)
    assert time.monotonic() - started < 15
    hung = outcome.roles[role]
    assert (outcome.blamed, hung.ending, hung.operation) == (role, Ending.HUNG, "pause")
    assert any(role in frame for frame in hung.python_stack), hung.python_stack
    assert "state S" in hung.kernel[0]
    assert verdict.conclude(outcome).status is Status.FAIL


def test_a_hang_shows_its_native_stack(session: Session, roles: ModuleType) -> None:
    native = run(session, roles, "hang_in_c").roles["hang_in_c"].native_stack
    if not native:
        pytest.skip("no py-spy, gdb or eu-stack can look at a process here")
    assert any("pause" in frame for frame in native)


def test_a_debugger_that_hangs_costs_neither_the_verdict_nor_the_budget(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "TOOLS", [("sleep", lambda pid: ["60"], lambda text: [])] * 3)
    started = time.monotonic()
    outcome = run(session, roles, "hang_in_c", deadline_s=1.0, limit_s=6.0)
    assert time.monotonic() - started < 6.0
    assert outcome.roles["hang_in_c"].ending is Ending.HUNG
    assert not outcome.stopped


def test_waiting_for_a_processor_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = {7: 3.0}
    monkeypatch.setattr(tree, "waited_for_cpu_s", lambda pid: waited[pid])
    role = RunningRole(SimpleNamespace(pid=7), Desk(tmp_path, "one"), Progress(tmp_path / "j"), 0.0)  # type: ignore[arg-type]
    role.progress.last_at = 100.0
    assert role.silent_for(100.5) == 0.5  # what it had waited before that line is not counted
    waited[7] = 5.0
    assert role.silent_for(103.0) == 1.0
    role.progress.last_at = 103.0
    assert role.silent_for(104.0) == 1.0


def test_a_process_without_a_processor_is_seen_to_wait() -> None:
    spin = "while True: pass"
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-I", "-S", "-c", spin]
    rivals = [subprocess.Popen(command) for _ in range(4)]
    try:
        until = time.monotonic() + 20.0
        while time.monotonic() < until and any(tree.waited_for_cpu_s(p.pid) < 0.2 for p in rivals):
            time.sleep(0.05)
        assert all(tree.waited_for_cpu_s(p.pid) >= 0.2 for p in rivals)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert tree.waited_for_cpu_s(rivals[0].pid) == 0.0


def test_orphans_are_this_process_s_only_during_a_session() -> None:
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


def test_the_loss_of_the_keeper_is_survived(roles: ModuleType) -> None:
    with Session(Node(), LIMITS) as session:
        before = [p.pid for p in tree.descendants(os.getpid())]
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert run(session, roles, "completes").completed


def test_a_hang_names_the_step_and_what_was_recorded(session: Session, roles: ModuleType) -> None:
    finding = verdict.conclude(run(session, roles, "hang_in_c"))
    assert finding.summary == "hang_in_c: pause #1 (wait for what never comes) hung (1.5 s)"
    assert finding.evidence == ("before that, hang_in_c: before: was fine",)


def test_the_one_who_hangs_is_blamed_not_the_one_who_waits(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "wait_for_partner", "hang_in_c")
    assert outcome.blamed == "hang_in_c"
    assert outcome.roles["wait_for_partner"].ending is Ending.STOPPED


@pytest.mark.parametrize(
    ("role", "ending", "signal", "status"),
    [
        ("segfault", Ending.CRASHED, "SIGSEGV", Status.FAIL),
        ("segfault_unarmed", Ending.CRASHED, "SIGSEGV", Status.ERROR),
        ("abort", Ending.CRASHED, "SIGABRT", Status.FAIL),
        ("exit_in_c", Ending.CRASHED, "", Status.FAIL),
        ("raise_error", Ending.EXCEPTION, "", Status.ERROR),
        ("raise_error_at_once", Ending.EXCEPTION, "", Status.ERROR),
        ("hang_unarmed", Ending.HUNG, "SIGTERM", Status.ERROR),
        ("hang_at_exit", Ending.HUNG, "SIGTERM", Status.FAIL),
    ],
)
def test_endings(
    session: Session, roles: ModuleType, role: str, ending: Ending, signal: str, status: Status
) -> None:
    outcome = run(session, roles, role)
    assert outcome.blamed == role
    assert (outcome.roles[role].ending, outcome.roles[role].signal) == (ending, signal)
    assert verdict.conclude(outcome).status is status


def test_a_crash_is_blamed_not_its_casualty(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "wait_for_partner", "segfault")
    assert outcome.blamed == "segfault"
    assert outcome.roles["wait_for_partner"].ending is Ending.PEER_LOST


def test_a_partner_that_just_ends_is_no_failure_of_the_node(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "wait_for_partner", "completes")
    assert outcome.blamed == "wait_for_partner"
    assert verdict.conclude(outcome).status is Status.ERROR


def test_two_roles_that_wait_for_each_other_are_an_error(session: Session, roles: ModuleType) -> None:
    probe = Probe("probe", {"a": roles.wait_for_partner, "b": roles.wait_for_partner}, deadline_s=1.0)
    outcome = session.run("misbehaving", FILE, probe, until=time.monotonic() + 30)
    assert verdict.conclude(outcome).status is Status.ERROR


def test_dying_as_planned_is_completing(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "die_as_planned")
    assert outcome.completed
    assert outcome.records["die_as_planned"] == {"reached": True}


def test_grandchildren_end_with_the_probe(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "leave_grandchildren")
    assert outcome.completed
    for pid in outcome.records["leave_grandchildren"]["pids"]:
        assert tree.processes().get(pid) is None or tree.processes()[pid].state == "Z"


def test_ten_megabytes_on_standard_error_do_no_harm(session: Session, roles: ModuleType) -> None:
    assert run(session, roles, "chatter").completed


def test_of_a_flood_on_standard_error_both_ends_are_kept(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(logs, "KEPT_BYTES", 1 << 16)
    monkeypatch.setattr(logs, "EVERY_S", 0.05)
    outcome = run(session, roles, "flood", deadline_s=20.0)
    assert outcome.completed
    assert outcome.records["flood"]["most"] < 32 << 20
    text = (Path(outcome.logs) / "flood.log").read_text()
    assert len(text) <= 1 << 20
    middle = "gpuipc-doctor: the middle of this log is left out"
    assert re.fullmatch(rf"first words\n(.*\n)+{middle}\n(.*\n)+last words\n", text)


def test_logs_that_cannot_be_looked_at_for_a_while_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(directory: Path, names: str) -> Iterator[Path]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "glob", stale)
    with logs.bounded(tmp_path):
        pass


def test_the_deadline_is_for_each_operation_not_for_the_probe(session: Session, roles: ModuleType) -> None:
    assert run(session, roles, "work_slowly", deadline_s=1.0).completed


def test_a_worker_that_does_not_start_is_an_error(
    session: Session, roles: ModuleType, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import os\nos._exit(3)\n")
    probe = Probe("probe", {"completes": roles.completes}, deadline_s=1.0)
    outcome = session.run("misbehaving", broken, probe, until=time.monotonic() + 30)
    assert outcome.roles["completes"].ending is Ending.NOT_STARTED
    assert verdict.conclude(outcome).status is Status.ERROR


def test_a_slow_start_is_not_a_hung_gpu(roles: ModuleType, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(30)\n")
    probe = Probe("probe", {"completes": roles.completes}, deadline_s=0.2)
    with Session(Node(), Limits(start_up_s=1.0)) as session:
        outcome = session.run("misbehaving", slow, probe, until=time.monotonic() + 30)
    assert outcome.roles["completes"].ending is Ending.NOT_STARTED
    assert verdict.conclude(outcome).status is Status.ERROR


def test_the_budget_ends_a_probe_as_a_skip(session: Session, roles: ModuleType) -> None:
    outcome = run(session, roles, "hang_in_c", deadline_s=30, limit_s=1.0)
    assert outcome.stopped == "budget"
    assert verdict.conclude(outcome).status is Status.SKIP


def test_a_call_that_stalls_when_the_budget_ends_is_told(session: Session, roles: ModuleType) -> None:
    finding = verdict.conclude(run(session, roles, "hang_in_c", deadline_s=30, limit_s=3.0))
    assert finding.status is Status.ERROR
    assert finding.summary.startswith("hang_in_c: pause #1 (wait for what never comes) had not returned")


@pytest.mark.parametrize(
    ("role", "signal_name"), [("killed_in_a_call", "SIGKILL"), ("told_to_end_in_a_call", "SIGTERM")]
)
def test_killed_from_outside_is_no_failure_of_the_node(
    session: Session, roles: ModuleType, role: str, signal_name: str
) -> None:
    outcome = run(session, roles, role)
    assert outcome.roles[role].signal == signal_name
    assert verdict.conclude(outcome).status is Status.ERROR


@pytest.mark.parametrize(("program", "stays"), [("while True: pass", False), ("time.sleep(600)", True)])
def test_waiting_for_a_processor_is_not_to_be_unkillable(
    monkeypatch: pytest.MonkeyPatch, program: str, stays: bool
) -> None:
    """With signals without effect, as for a process that is killed and has not had a processor since."""
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
        time.sleep(0.2)  # it is about to sleep, or to run for ever
        assert bool(tree.end(find, grace_s=0.0, limit_s=0.1)) is stays
        child.kill()


def test_stopping_the_session_ends_a_probe(session: Session, roles: ModuleType) -> None:
    threading.Timer(0.7, session.stop).start()
    outcome = run(session, roles, "hang_in_c", deadline_s=30)
    assert outcome.stopped == "interrupted"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left, as it must be
def test_what_cannot_be_killed_is_named(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a process in uninterruptible sleep: signals have no effect on it."""
    monkeypatch.setattr(tree, "signal_all", lambda targets, number: None)
    outcome = run(session, roles, "hang_in_c")
    monkeypatch.undo()
    assert outcome.roles["hang_in_c"].ending is Ending.UNKILLABLE
    finding = verdict.conclude(outcome)
    assert finding.status is Status.FAIL
    assert f"pid {outcome.roles['hang_in_c'].pid}" in finding.summary
    assert session.unkillable


def test_what_a_worker_started_and_cannot_be_killed_is_no_pass(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tree, "signal_all", lambda targets, number: None)
        outcome = run(session, roles, "leave_grandchildren")
    finding = verdict.conclude(outcome)
    assert outcome.roles["leave_grandchildren"].ending is Ending.UNKILLABLE
    assert finding.status is Status.FAIL
    for pid in outcome.records["leave_grandchildren"]["pids"]:
        assert f"pid {pid}" in finding.summary
        os.kill(pid, 9)


def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of the process that supervises: its workers, their children and its directories go."""
    import signal
    import subprocess

    script = tmp_path / "supervise.py"
    script.write_text(
        "import sys, tempfile, threading, time\n"
        "from pathlib import Path\n"
        "from gpuipc_doctor import loader\n"
        "from gpuipc_doctor.model import Node, Probe\n"
        "from gpuipc_doctor.supervise.execution import Limits\n"
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
        return [pid for pid in tree.processes() if tree.carries(pid, f"{run_id}/1")]

    wait_until(lambda: len(alive()) >= 4)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    supervisor.stdout.close()
    wait_until(lambda: not alive() and not Path(directory).exists())


def test_a_probe_beside_the_others_lives_until_the_block_is_left(session: Session, roles: ModuleType) -> None:
    def workers() -> set[int]:
        return {process.pid for process in tree.descendants(os.getpid()) if "python" in process.name}

    before = workers()
    with session.beside(
        "misbehaving", FILE, Probe("beside", {"waits": roles.wait_for_the_end}, deadline_s=60.0)
    ):
        wait_until(lambda: workers() - before)
        (beside,) = workers() - before
        assert run(session, roles, "completes").completed
        session.stop()
        assert run(session, roles, "hang_in_c").stopped == "interrupted"
        assert beside in workers()
    wait_until(lambda: beside not in workers())  # on a busy node a killed process takes its time


def wait_until(condition: object, limit_s: float = 15.0) -> None:
    assert callable(condition)
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
