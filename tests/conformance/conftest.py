"""The node that the suite runs on, and the processes that a test starts there.

Without further ado that is a simulated node of two GPUs. With ``GPUIPC_TEST_REAL=1`` it is this machine,
and what is not there skips.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.api.gpu import BackendUnavailable
from gpuipc_doctor.backends.rules import CASES, UNSPECIFIED
from gpuipc_doctor.model import Node
from tests.conformance.remote import Remote

REAL = os.environ.get("GPUIPC_TEST_REAL") == "1"

Start = Callable[..., Remote]


def on_backends(*names: str) -> pytest.MarkDecorator:
    """Run a test on each of these backends, where its binding is installed."""
    return pytest.mark.parametrize(
        "backend", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in names]
    )


def on_documented(case: str) -> pytest.MarkDecorator:
    """Run a test on each backend whose answer to ``case`` is documented; that is its ``documented``."""
    rules = {name: rule.value for name, rule in CASES[case].items() if rule.value != UNSPECIFIED}
    return pytest.mark.parametrize(
        ("backend", "documented"),
        [pytest.param(name, value, marks=getattr(pytest.mark, name)) for name, value in rules.items()],
    )


@contextmanager
def simulated_node(profile: str) -> Iterator[Node]:
    """A simulated node; its state is in memory where there is room for it, and removed in the end."""
    from gpuipc_doctor.simulator.node import prepare

    shared = Path("/dev/shm")
    state = Path(tempfile.mkdtemp(prefix="conformance-", dir=shared if shared.is_dir() else None))
    try:
        yield prepare(profile, state)
    finally:
        shutil.rmtree(state)


@pytest.fixture
def node(backend: str) -> Iterator[Node]:
    if REAL:
        yield Node()
        return
    with simulated_node(f"healthy-{backend}") as simulated:
        yield simulated


@pytest.fixture
def start(backend: str, node: Node) -> Iterator[Start]:
    """Starts processes on the node: ``start(ordinal=1, env={…}, prefix=[…])``."""
    remotes: list[Remote] = []

    def start_one(
        ordinal: int = 0, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> Remote:
        remote = Remote(
            backend, ordinal=ordinal, root=node.root, env={**node.env, **(env or {})}, prefix=prefix
        )
        remotes.append(remote)
        return remote

    try:
        if REAL:
            try:
                _ = start_one().devices
            except BackendUnavailable as absent:
                pytest.skip(absent.reason)
        yield start_one
    finally:
        for remote in remotes:
            remote.exit()


@pytest.fixture
def exporter(start: Start) -> Remote:
    return start()


@pytest.fixture
def importer(start: Start) -> Remote:
    return start()


@pytest.fixture
def two_devices(exporter: Remote) -> None:
    if len(exporter.devices) < 2:
        pytest.skip("needs two devices")
