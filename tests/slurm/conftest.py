"""``slurm(nodes=2, gpus=4, Prolog=…)`` starts a real Slurm for one test; see `cluster.Cluster`."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import RESTING
from tests.slurm.cluster import Cluster, until

IN_EVERY_RUN = (
    "test_nodes_are_tested_by_one_job_and_one_step",
    "test_no_nodes_is_one_line",
    "test_slurms_reason_of_a_drained_node_is_reported",
    "test_tool_that_hangs_costs_only_its_own_answer",
    "test_node_that_dies_in_mid_step_costs_only_its_own_answer",
    "test_nodes_over_ssh",
    "test_late_rank_of_a_job_on_two_nodes_is_blamed",
    "test_messages_arrive_between_two_nodes",
    "test_killed_doctor_leaves_no_ranks",
    "test_page_leads_from_pip_install_to_a_drained_node",
    "test_job_runs_on_a_healthy_node_and_nothing_is_left",
    "test_faulty_node_is_drained_with_our_reason_and_the_job_runs_elsewhere",
    "test_hanging_driver_costs_no_more_than_the_budget",
)
"""The scenes of Slurm in every run: each command once, with a node that is healthy, faulty, hanging and dead.

The others, four of five, are marked `full`.
"""


@pytest.hookimpl(tryfirst=True)  # before those marked `full` are chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slurm") and getattr(item, "originalname", "") not in IN_EVERY_RUN:
            item.add_marker("full")


RESTING_APART = {name: value for name, value in RESTING.items() if name != "I_MPI_FABRICS"}
"""`RESTING`, for ranks on several nodes, which shared memory does not connect."""


@contextmanager
def clusters() -> Iterator[Callable[..., Cluster]]:
    """``cluster = slurm(nodes=2)``: its nodes are idle on return, and it is gone at the end.

    ``prepare`` is called with the cluster before Slurm is started.
    """
    with ExitStack() as stack:

        def start(*, prepare: Callable[[Cluster], None] = lambda _: None, **options: object) -> Cluster:
            # Not pytest's own directory: it is private to root, and its path is too long for a socket.
            directory = Path(tempfile.mkdtemp(prefix="gpuipc-slurm-"))
            stack.callback(shutil.rmtree, directory)
            cluster = Cluster(directory, **options)  # type: ignore[arg-type]
            stack.callback(lambda: print(cluster.logs()))  # noqa: T201 - pytest shows it if a test fails
            prepare(cluster)
            return stack.enter_context(cluster)

        yield start


@pytest.fixture
def slurm() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster for one test."""
    with clusters() as start:
        yield start


@pytest.fixture(scope="module")
def shared_slurm() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster for the tests of a module, which leave it idle: see `Cluster.rest`."""
    with clusters() as start:
        yield start


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks on several nodes of one machine leave the processor while they wait: see `RESTING`."""
    for name, value in RESTING_APART.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[list[str]]:
    """A real sshd on loopback; yields the options with which ssh reaches it under any host name."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("needs sshd (openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", tmp_path / name], check=True)
    port = random.randrange(20000, 32000)
    Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    lines = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": tmp_path / "host",
        "AuthorizedKeysFile": tmp_path / "authorized",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "AcceptEnv": "FLEET_NODE",
        "PidFile": tmp_path / "pid",
    }
    (tmp_path / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    daemon = subprocess.Popen([program, "-D", "-f", str(tmp_path / "sshd_config")])
    wrapper = tmp_path / "ssh"
    wrapper.write_text(
        f"#!/bin/sh\nfor word; do case $word in n[0-9]) FLEET_NODE=$word;; esac; done\n"
        f'export FLEET_NODE\nexec {shutil.which("ssh")} "$@"\n'
    )
    wrapper.chmod(0o755)
    options = ["-p", str(port), "-i", str(tmp_path / "user"), "-oStrictHostKeyChecking=no"]
    options += [
        "-oUserKnownHostsFile=/dev/null",
        "-oSendEnv=FLEET_NODE",
        "-oHostname=127.0.0.1",
        "-oLogLevel=ERROR",
    ]
    until("it listens", lambda: subprocess.run(["ssh", *options, "n1", "true"]).returncode == 0)
    yield options
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
