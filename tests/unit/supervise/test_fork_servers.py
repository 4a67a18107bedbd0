"""Forked workers behave like started ones, even if the fork server fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Json, Node
from gpuipc_doctor.probe_types import Ending, Probe, ProbeOutcome
from gpuipc_doctor.simulator.node import prepare
from gpuipc_doctor.stacks import process_list
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.fork_servers import ForkServer
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILE = FIXTURES / "misbehaving.py"
LIMITS = Limits(start_up_s=60.0, settle_s=1.0, grace_s=0.2, kill_s=3.0)
NODE = Node(env={"PYTHONPATH": str(FIXTURES / "imports"), "OF_THE_NODE": "yes"})


@pytest.fixture(scope="module")
def roles() -> ModuleType:
    return loader.module(FILE)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(NODE, LIMITS, keep_logs=tmp_path) as opened:
        yield opened
    assert [p for p in tree.descendants(os.getpid()) if "python" in p.name] == []


def run(session: Session, roles: ModuleType, *names: str, imports: tuple[str, ...] = ()) -> ProbeOutcome:
    probe = Probe("probe", {name: getattr(roles, name) for name in names}, deadline_s=60.0, imports=imports)
    return session.run("misbehaving", FILE, probe, until=time.monotonic() + 120)


def servers(session: Session) -> list[int]:
    everyone = tree.descendants(os.getpid())
    return [process.pid for process in everyone if tree.carries(process.pid, f"{session._id}/fork-server")]


def complaints(directory: Path) -> list[str]:
    lines = [line for log in directory.glob("fork-server*.log") for line in log.read_text().splitlines()]
    return [
        line
        for line in lines
        if line.startswith("gpuipc-doctor: workers start without a preloaded process: ")
    ]


@pytest.mark.parametrize("imports", [(), ("json",)], ids=["by the first", "by one forked from it"])
def test_forked_worker_is_like_a_started_one(
    roles: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: tuple[str, ...]
) -> None:
    def described(name: str) -> Json:
        logs = tmp_path / name
        logs.mkdir()
        with Session(NODE, LIMITS, keep_logs=logs) as session:
            outcome = run(session, roles, "describe_the_process", "wait_for_partner", imports=imports)
            assert outcome.completed
            assert complaints(logs) == []
            text = repr(outcome.records["describe_the_process"])
            return text.replace(session._id, "the run").replace(str(logs), "its logs")

    forked = described("forked")
    monkeypatch.setattr(ForkServer, "fork", lambda *_: None)
    assert forked == described("spawned")


def test_many_workers_have_one_stem(session: Session, roles: ModuleType) -> None:
    for _ in range(3):
        assert run(session, roles, "say_hello", "answer_hello").completed
    assert len(servers(session)) == 1
    assert run(session, roles, "completes", imports=("json",)).completed
    assert len(servers(session)) == 2


def test_worker_has_the_environment_of_its_node(session: Session, roles: ModuleType) -> None:
    assert run(session, roles, "say_hello", "describe_the_process").roles["say_hello"].pid
    session.node = Node(env={**NODE.env, "OF_THE_NODE": "no longer"})
    outcome = run(session, roles, "describe_the_process", "wait_for_partner")
    assert outcome.records["describe_the_process"]["to_c"]["OF_THE_NODE"] == "no longer"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("crashes_when_imported", "the preloaded process ended during its imports"),
        ("fails_when_imported", "import fails_when_imported: OSError: libwhatever.so.1: cannot open"),
        ("starts_a_thread", "the imports started threads: 1"),
        ("opens_a_device", "the imports opened /dev/zero"),
    ],
)
def test_no_worker_is_forked_from_an_unsuitable_stem(
    session: Session, roles: ModuleType, tmp_path: Path, module: str, reason: str
) -> None:
    assert run(session, roles, "say_hello", "answer_hello", imports=(module,)).completed
    (complaint,) = complaints(tmp_path)
    assert reason in complaint
    assert len(servers(session)) == 1  # the one with our own imports


def test_missing_module_does_not_prevent_forking(session: Session, roles: ModuleType, tmp_path: Path) -> None:
    assert run(session, roles, "completes", imports=("not_installed.at_all",)).completed
    assert complaints(tmp_path) == []
    assert len(servers(session)) == 2


def test_server_that_hangs_in_an_import_costs_only_its_time(roles: ModuleType, tmp_path: Path) -> None:
    with Session(NODE, Limits(start_up_s=3.0), keep_logs=tmp_path) as session:
        outcome = run(session, roles, "raise_error", imports=("hangs_when_imported",))
        assert outcome.roles["raise_error"].ending in (Ending.EXCEPTION, Ending.NOT_STARTED)
        assert complaints(tmp_path) == [
            "gpuipc-doctor: workers start without a preloaded process: "
            "the preloaded process did not finish its imports in time"
        ]
        assert len(servers(session)) == 1  # the fork server that it was forked from, which still works
        assert run(session, roles, "say_hello", "answer_hello").completed
        assert len(complaints(tmp_path)) == 1


def test_stopped_run_does_not_wait_for_a_stem(session: Session, roles: ModuleType) -> None:
    session.stop()
    outcome = run(session, roles, "completes", imports=("hangs_when_imported",))
    assert outcome.stopped == "interrupted"


@pytest.mark.full
def test_loss_of_a_stem_affects_no_worker(session: Session, roles: ModuleType, tmp_path: Path) -> None:
    waits = Probe("beside", {"waits": roles.wait_for_the_end}, deadline_s=60.0)
    with session.beside("misbehaving", FILE, waits):
        wait_until(lambda: (tmp_path / "001-misbehaving-node-beside/waits.journal").exists())
        (worker,) = [pid for pid in process_list.processes() if tree.carries(pid, f"{session._id}/1")]
        for server in servers(session):
            os.kill(server, signal.SIGKILL)
        assert run(session, roles, "completes").completed
        assert run(session, roles, "say_hello", "answer_hello").completed
        assert tree.carries(worker, f"{session._id}/1")
    assert complaints(tmp_path) == [
        "gpuipc-doctor: workers start without a preloaded process: "
        "the preloaded process was asked to fork a worker, but did not"
    ]


def test_server_that_does_not_answer_is_abandoned(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuipc_doctor.supervise.fork_servers.FORK_LIMIT_S", 0.5)
    assert run(session, roles, "completes").completed
    for server in servers(session):
        os.kill(server, signal.SIGSTOP)
    outcome = run(session, roles, "say_hello", "answer_hello")
    assert outcome.completed
    assert servers(session) == []


def test_threads_left_by_a_worker_stay_in_it(session: Session, roles: ModuleType) -> None:
    for _ in range(2):
        assert run(session, roles, "leave_a_thread").completed
    assert len(servers(session)) == 1


@pytest.mark.parametrize("module", ["json", "hangs_when_imported"])
def test_killed_supervisor_leaves_no_stem(tmp_path: Path, module: str) -> None:
    script = tmp_path / "supervise.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gpuipc_doctor.api import loader\n"
        "from gpuipc_doctor.model import Node\nfrom gpuipc_doctor.probe_types import Probe\n"
        "from gpuipc_doctor.supervise.probe import Limits\n"
        "from gpuipc_doctor.supervise.session import Session\n"
        "file, imports = Path(sys.argv[1]), tuple(sys.argv[2:])\n"
        "roles = {'hang_ignoring_term': loader.role(file, 'hang_ignoring_term')}\n"
        "with Session(Node(), Limits()) as session:\n"
        "    print(session._id, session._directory, flush=True)\n"
        "    probe = Probe('p', roles, deadline_s=60, imports=imports)\n"
        "    session.run('x', file, probe, until=time.monotonic() + 60)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, str(script), str(FILE), module],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **NODE.env},
    )
    assert supervisor.stdout is not None
    run_id, directory = supervisor.stdout.readline().split()

    def alive(*probes: str) -> list[int]:
        return [
            pid for pid in process_list.processes() if any(tree.carries(pid, f"{run_id}/{p}") for p in probes)
        ]

    wait_until(lambda: alive("1") if module == "json" else len(alive("fork-server")) == 2)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    supervisor.stdout.close()
    wait_until(lambda: not alive("1", "fork-server") and not Path(directory).exists())


@pytest.mark.parametrize(
    "backend", [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("hip", marks=pytest.mark.hip)]
)
def test_every_fork_can_initialise_its_driver(tmp_path: Path, backend: str) -> None:
    """Also checks the fork server's mappings: importing the bindings must not load a driver."""
    node, logs = tmp_path / "node", tmp_path / "logs"
    node.mkdir()
    logs.mkdir()
    roles = {"driver": surveys.initialise}
    params = {"backend": backend, "required": True}
    with Session(prepare("healthy-both", node), LIMITS, keep_logs=logs) as session:
        probe = Probe("", roles, params=params, deadline_s=30.0, imports=(backend,))
        for _ in range(3):
            outcome = session.run("driver-init", surveys.FILE, probe, until=time.monotonic() + 90)
            assert len(outcome.records["driver"]["devices"]) == 2
        assert len(servers(session)) == 2
        maps = "".join(Path(f"/proc/{server}/maps").read_text() for server in servers(session))
    assert complaints(logs) == []
    assert not [name for name in ("libcuda.so", "libamdhip64.so", "libnvidia-ml.so") if name in maps]


def wait_until(condition: object, limit_s: float = 30.0) -> None:
    assert callable(condition)
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
