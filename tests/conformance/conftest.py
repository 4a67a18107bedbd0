"""The node that the suite runs on, and the processes that a test starts there.

By default these are a simulated node of two GPUs and, for HIP, emulated nodes with each of AMD's own runtimes
that was chosen (`tests.kfd.emulated`). With ``GPUIPC_TEST_REAL=1`` it is this machine, and what is not
there skips.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from gpuipc_doctor.api.gpu import BackendUnavailable, DriverError
from gpuipc_doctor.backends import rules
from gpuipc_doctor.model import Node
from tests.conformance import departures
from tests.conformance.remote import Remote
from tests.kfd import emulated
from tests.kfd.emulated import EmulatedNode, Runtime

REAL = os.environ.get("GPUIPC_TEST_REAL") == "1"

Start = Callable[..., Remote]

MIB = 5120
"""Memory of each emulated GPU: the largest test allocates 3 GiB."""

SIMULATED_HIP = 6
"""Generation of the runtime that the profile healthy-hip has."""


@cache
def own_generation(backend: str) -> int:
    """Generation of the driver that tests without an emulated node run on; 0 if it reports none.

    A real HIP runtime is asked in a process of its own.
    """
    if backend == "cuda" or not REAL:
        return SIMULATED_HIP if backend == "hip" else 0
    remote = Remote(backend)
    try:
        return int(remote.driver.generation)
    except (BackendUnavailable, DriverError):  # without a backend, every test of it is skipped
        return 0
    finally:
        remote.exit()


def grounds(backend: str) -> Iterator[tuple[Runtime | None, int, str, tuple[pytest.MarkDecorator, ...]]]:
    """Where a test of a backend runs: an emulated node's runtime or None, its generation, a name, marks."""
    yield None, own_generation(backend), backend, (getattr(pytest.mark, backend),)
    for runtime in emulated.chosen_runtimes() if backend == "hip" and not REAL else []:
        marks = (pytest.mark.hip, pytest.mark.kfd, pytest.mark.xdist_group(f"kfd-{runtime.name}"))
        yield runtime, runtime.generation, f"hip-on-{runtime.name}", marks


def on_backends(*names: str) -> pytest.MarkDecorator:
    """Run a test on each of these backends, where its binding is installed, and on each of HIP's runtimes."""
    parameters = [
        pytest.param(name, runtime, id=ground, marks=marks)
        for name in names
        for runtime, _, ground, marks in grounds(name)
    ]
    return pytest.mark.parametrize(("backend", "runtime"), parameters)


def on_simulated(*names: str) -> pytest.MarkDecorator:
    """Run a test on each of these backends, on simulated nodes only."""
    return pytest.mark.parametrize(
        "backend", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in names]
    )


def on_documented(*cases: str, values: frozenset[str] = rules.VALUES) -> pytest.MarkDecorator:
    """Run a test wherever the answer to a case is documented; the answer is its ``documented``.

    With several cases, ``case`` names the one that runs: those whose answer is one of ``values``.
    """
    parameters = [
        pytest.param(
            backend, runtime, *((case,) if cases[1:] else ()), rule.value, id=f"{ground}-{name}", marks=marks
        )
        for case in cases
        for backend in ("cuda", "hip")
        for runtime, generation, ground, marks in grounds(backend)
        if (rule := rules.rule(backend, case, generation)).value in values
        for name in [f"{case}-{rule.value}" if cases[1:] else rule.value]
    ]
    names = ("backend", "runtime", *(("case",) if cases[1:] else ()), "documented")
    return pytest.mark.parametrize(names, parameters)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect of each of AMD's releases what `departures.SEEN` says; a test that passes there is a failure."""
    for item in items:
        runtime = getattr(item, "callspec", None) and item.callspec.params.get("runtime")
        if not isinstance(runtime, Runtime):  # other tests of the session have a parameter of this name, too
            continue
        if why := departures.SEEN.get((f"hip-{runtime.generation}", item.originalname)):
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))


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


@pytest.fixture(scope="session")
def emulated_nodes() -> Iterator[Callable[[Runtime], EmulatedNode]]:
    """The emulated node of a runtime, one for all tests of the session."""
    nodes: dict[Runtime, EmulatedNode] = {}
    with ExitStack() as stack:

        def node_of(runtime: Runtime) -> EmulatedNode:
            if runtime not in nodes:
                nodes[runtime] = stack.enter_context(emulated.node(runtime, mib=MIB))
            return nodes[runtime]

        yield node_of


@pytest.fixture
def runtime() -> Runtime | None:
    """AMD's runtime over the emulated kernel driver, or None; parametrized by `on_backends`."""
    return None


@pytest.fixture
def node(
    backend: str, runtime: Runtime | None, emulated_nodes: Callable[[Runtime], EmulatedNode]
) -> Iterator[Node]:
    if REAL or runtime:
        yield Node(env=emulated_nodes(runtime).env) if runtime else Node()
        return
    with simulated_node(f"healthy-{backend}") as simulated:
        yield simulated


@pytest.fixture
def start(
    backend: str, node: Node, runtime: Runtime | None, emulated_nodes: Callable[[Runtime], EmulatedNode]
) -> Iterator[Start]:
    """Starts processes on the node: ``start(ordinal=1, env={…}, prefix=[…])``."""
    remotes: list[Remote] = []
    enter = emulated_nodes(runtime).enter if runtime else ()

    def start_one(
        ordinal: int = 0, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> Remote:
        remote = Remote(
            backend,
            ordinal=ordinal,
            root=node.root,
            env={**node.env, **(env or {})},
            prefix=prefix,
            enter=enter,
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
