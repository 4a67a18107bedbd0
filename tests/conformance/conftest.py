"""The node that the suite runs on, and the processes that a test starts there.

By default a simulated node of two GPUs and, for HIP, emulated nodes with each chosen AMD runtime
(`tests.kfd.emulated`). With ``GPUIPC_TEST_REAL=1``, this machine; tests of missing drivers or devices are
then skipped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.model import Node
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker.backends import rules
from tests.conformance import departures
from tests.conformance.remote import Remote
from tests.conftest import LOADER
from tests.kfd import emulated
from tests.kfd.emulated import EmulatedNode, Runtime

REAL = os.environ.get("GPUIPC_TEST_REAL") == "1"

Start = Callable[..., Remote]

MIB = 5120
"""Memory in MiB of each emulated GPU: the largest test allocates 3 GiB."""

SIMULATED_HIP = 6
"""Generation of the runtime in profile healthy-hip."""


@dataclass(frozen=True, slots=True)
class SimulatedRuntime:
    """The simulated ``libamdhip64``, answering like another generation."""

    rocm: str
    hip: str

    @property
    def generation(self) -> int:
        return int(self.rocm.partition(".")[0])

    @property
    def name(self) -> str:
        """The same name as AMD's own runtime of this release."""
        return f"rocm-{self.rocm.rpartition('.')[0]}"

    def profile(self, directory: Path) -> str:
        file = directory / "profile.yaml"
        file.write_text(
            f"description: Two GPUs under ROCm {self.rocm}.\n"
            "extends: healthy-hip\n"
            f"versions: {{rocm: {self.rocm}, hip-runtime: {self.hip}}}\n"
            "expect: {exit: 0}\n"
        )
        return str(file)


OTHER_GENERATIONS = (SimulatedRuntime("5.7.1", "5.7.31921"), SimulatedRuntime("7.2.4", "7.2.53211"))


@cache
def own_generation(backend: str) -> int:
    """Generation of the driver that tests without an emulated node run on; 0 if it reports none.

    A real HIP runtime is queried in a separate process.
    """
    if backend == "cuda" or not REAL:
        return SIMULATED_HIP if backend == "hip" else 0
    remote = Remote(backend)
    try:
        return int(remote.driver.generation)
    except (BackendUnavailable, DriverError):  # without a backend, all its tests are skipped
        return 0
    finally:
        remote.exit()


Ground = Runtime | SimulatedRuntime | None
"""AMD's own runtime on an emulated node, or a generation of the simulated one; None: the default node."""


def grounds(backend: str) -> Iterator[tuple[Ground, int, str, tuple[pytest.MarkDecorator, ...]]]:
    """(place to run, generation of its runtime, name, marks) for each run of a test of this backend."""
    yield None, own_generation(backend), backend, (getattr(pytest.mark, backend),)
    if backend != "hip" or REAL:
        return
    for simulated in OTHER_GENERATIONS:
        marks = (pytest.mark.hip, pytest.mark.full)
        yield simulated, simulated.generation, f"hip-as-{simulated.generation}", marks
    for runtime in emulated.chosen_runtimes():
        marks = (pytest.mark.hip, pytest.mark.kfd, pytest.mark.xdist_group(f"kfd-{runtime.name}"))
        yield runtime, runtime.generation, f"hip-on-{runtime.name}", marks


def on_backends(*names: str) -> pytest.MarkDecorator:
    """Run a test on each of these backends whose binding is installed, and on each HIP runtime."""
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
    """Run a test on each backend whose answer to a case is documented, with the answer as ``documented``.

    With several cases, ``case`` names the current one; only cases with one of these ``values`` run.
    """
    parameters = [
        pytest.param(
            backend, runtime, *((case,) if cases[1:] else ()), rule.value, id=f"{ground}-{name}", marks=marks
        )
        for case in cases
        for backend in SUPPORTED
        for runtime, generation, ground, marks in grounds(backend)
        if (rule := rules.rule(backend, case, generation)).value in values
        for name in [f"{case}-{rule.value}" if cases[1:] else rule.value]
    ]
    names = ("backend", "runtime", *(("case",) if cases[1:] else ()), "documented")
    return pytest.mark.parametrize(names, parameters)


ON_AMDS_IN_EVERY_RUN = ("test_ipc", "test_kernels")
"""Modules whose tests run on AMD's own runtime in every run; the others' are `full` there."""


@pytest.hookimpl(tryfirst=True)  # before the tests marked `full` are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as strict xfail the tests in `departures.SEEN`: if one passes on that release, it fails."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        runtime, test = parameters.get("runtime"), getattr(item, "originalname", "")
        if isinstance(runtime, Runtime) and item.path.stem not in ON_AMDS_IN_EVERY_RUN:
            item.add_marker(pytest.mark.full)
        releases = [runtime.name] if isinstance(runtime, Runtime | SimulatedRuntime) else []
        if isinstance(runtime, Runtime):  # departures of a generation also apply to its simulated library
            releases.append(f"hip-{runtime.generation}")
        tests = (test, f"{test}[{parameters.get('case')}]")
        for why in filter(None, (departures.SEEN.get((on, name)) for on in releases for name in tests)):
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))


@contextmanager
def simulated_node(profile: str) -> Iterator[Node]:
    """A simulated node; its state is in memory if there is room, and removed at the end."""
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
def runtime() -> Ground:
    """Overridden by `on_backends` through parametrization."""
    return None


@pytest.fixture
def node(
    backend: str,
    runtime: Ground,
    emulated_nodes: Callable[[Runtime], EmulatedNode],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Node]:
    if isinstance(runtime, Runtime):
        yield Node(env=emulated_nodes(runtime).env)
        return
    if REAL:
        yield Node()
        return
    profile = runtime.profile(tmp_path_factory.mktemp("profile")) if runtime else f"healthy-{backend}"
    if backend == "ze":
        monkeypatch.setenv("LD_LIBRARY_PATH", LOADER)
    with simulated_node(profile) as simulated:
        yield simulated


@pytest.fixture
def start(
    backend: str, node: Node, runtime: Ground, emulated_nodes: Callable[[Runtime], EmulatedNode]
) -> Iterator[Start]:
    """Starts processes on the node: ``start(ordinal=1, env={…}, prefix=[…])``."""
    remotes: list[Remote] = []
    enter = emulated_nodes(runtime).enter if isinstance(runtime, Runtime) else ()

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
