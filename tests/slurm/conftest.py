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
