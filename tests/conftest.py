"""Hooks for all tests: missing requirements skip a test with the reason; in CI a skip fails."""

import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

settings.register_profile("moderate", max_examples=5, deadline=None)  # a busy machine may be slow
settings.register_profile("full", max_examples=200, deadline=None)
settings.load_profile("moderate")

pytest_plugins = ["pytester"]


def has_gpu() -> bool:
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/kfd"))


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is absent
        return False


def has_slurm() -> bool:
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin"  # directories of daemons
    programs = ("slurmctld", "slurmd", "srun", "munged")
    return os.geteuid() == 0 and all(shutil.which(program, path=path) for program in programs)


@cache
def has_namespace() -> bool:
    from tests.kfd import emulated

    try:
        return bool(emulated.namespace())
    except OSError:
        return False


AMDHIP = next(Path("/usr/lib").glob("*/libamdhip64.so.5"), None)
"""AMD's real runtime, as Debian packages it."""

ROOTS = Path(__file__).parents[1] / ".prefix"
"""Root file systems of Debian's releases, made by `make`."""


LOADER = next(
    (
        str(directory)
        for root in (ROOTS / "levelzero", Path("/"))
        for directory in root.glob("usr/lib/*-linux-gnu")
        if (directory / "libze_loader.so.1").exists()
    ),
    "",
)
"""Directory of Level Zero's loader: Debian's libze1, unpacked by `make test` or installed."""


def has_roots() -> bool:
    is_there = all((ROOTS / suite / ".ready").exists() for suite in ("bookworm", "trixie"))
    programs = all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("buildah", "logrotate", "rpm"))
    return os.geteuid() == 0 and is_there and programs


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "cuda": (lambda: has_module("cuda.bindings.driver"), "needs cuda-bindings"),
    "hip": (lambda: has_module("hip"), "needs hip-python"),
    "amdhip": (lambda: AMDHIP is not None, "needs Debian's libamdhip64-5"),
    "kfd": (has_namespace, "needs root, or user namespaces, for a mount namespace of its own"),
    "browser": (lambda: shutil.which("chromium") is not None, "needs Debian's chromium"),
    "ze": (lambda: bool(LOADER), "needs Level Zero's loader (Debian's libze1)"),
    "gpu": (has_gpu, "needs a real GPU"),
    "mpi": (lambda: "GPUIPC_TEST_MPI" in os.environ, "needs the MPI libraries that `make test` fetches"),
    "packages": (
        has_roots,
        "needs root, buildah, logrotate, rpm, and the root file systems that `make test` fetches",
    ),
    "slurm": (has_slurm, "needs Slurm's slurmctld, slurmd and srun, munge and root"),
}
"""For each marker, whether this machine has what it requires, and the reason of the skip if not."""


def pytest_configure() -> None:
    """Restore SIGINT and SIGHUP: a background shell or nohup makes this process's children ignore them."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


gc.disable()  # during collection: seven thousand tests are made, and none is garbage


def pytest_collection_finish() -> None:
    gc.freeze()  # nor later: each collection of the garbage of a test would look at them all
    gc.enable()


FULL_TURN = "GPUIPC_FULL_TURN"
"""Variable, such as ``3/7``: with ``-m ''``, run only the fourth seventh of the tests marked `full`."""


@pytest.hookimpl(tryfirst=True)  # before xdist adds the group to the name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked `full` that are not in turn.

    Tests that start MPI ranks or Slurm's daemons run in one worker per file: they start many processes.
    """
    if in_turn := os.environ.get(FULL_TURN):
        turn, _, turns = in_turn.partition("/")
        # Chosen by the test's name, so that a new test does not change the turn of the others.
        waiting = [
            item
            for item in items
            if item.get_closest_marker("full") and crc32(item.nodeid.encode()) % int(turns) != int(turn)
        ]
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if item not in set(waiting)]
    for item in items:
        many = item.get_closest_marker("mpi") or item.get_closest_marker("slurm")
        if many and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (is_there, reason) in NEEDS.items():
        if item.get_closest_marker(marker) and not is_there():
            pytest.skip(reason)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With ``GPUIPC_REQUIRE=all``, turn a skip into a failure that shows the skip's reason."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("GPUIPC_REQUIRE") == "all":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"GPUIPC_REQUIRE=all allows no skip, but: {reason}"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """The argument's name instead of a long text: a whole file or program is no readable test id."""
    return argname if isinstance(val, str | bytes) and len(val) > 60 else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not (item.get_closest_marker("gpu") or lacks_a_feature(item, report)):
        refuse_skip(report)
    return report


def lacks_a_feature(item: pytest.Item, report: pytest.TestReport) -> bool:
    """Whether a test was skipped because this release of AMD's runtime (or its simulation) is too old."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    is_of_a_release = item.get_closest_marker("kfd") is not None or parameters.get("runtime") is not None
    return is_of_a_release and not any(lacks in reason for _, lacks in NEEDS.values())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    refuse_skip(report)
    return report
