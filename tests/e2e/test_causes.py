"""Causes on real MPI libraries and simulated drivers: what is merely set is not named, what is tried is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import evidence, full
from tests.e2e.test_mpi_checks import LIBRARIES
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("resting")

HOOK = "void abort(void); int cuIpcOpenMemHandle_v2(void *p) { abort(); }"
"""A library that ends a process which opens an IPC handle."""

SEGV = ("ipc-reopen", "--simulate", "segv-ipc-open", "--backend", "cuda")
OPEN = ("ipc-reopen", "--simulate", "healthy-single", "--backend", "cuda")
OOM = ("ipc-reopen", "--simulate", "out-of-memory-falsely", "--backend", "cuda")
REDUCE = ("collective-data", "--simulate", "collectives-crash")
GATHER = ("collective-data", "--simulate", "collectives-error")
ISEND = ("mpi-small-message", "--simulate", "mpi-segv", "--backend", "cuda")
START = ("mpi-start", "--simulate", "healthy-cuda")


def limit(*ulimit: str) -> tuple[str, ...]:
    return "sh", "-c", f'ulimit {shlex.join(ulimit)} && exec "$@"', "sh"


def shm(options: str) -> tuple[str, ...]:
    mount = f'mount -t tmpfs -o {options} none /dev/shm && exec "$@"'
    return "unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"


NEEDS_NAMESPACES = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs root and namespaces (unshare)",
)


def mounted(*row: object, rare: bool = True) -> object:
    return pytest.param(*row, marks=[NEEDS_NAMESPACES, *[pytest.mark.full] * rare])


def finding(
    tmp_path: Path, library: str, args: tuple[str, ...], environ: dict[str, str], prefix: tuple[str, ...]
) -> dict[str, Any]:
    """The first FAIL or ERROR. ``{mpi}`` in a variable stands for the library's directory, ``{tmp}`` for a
    test's own."""
    mpi = Path(os.environ.get("GPUIPC_TEST_MPI", ""), library)
    named = ["--mpi-lib", str(mpi / LIBRARIES[library])] if library else []
    given = {name: value.format(mpi=mpi, tmp=tmp_path) for name, value in environ.items()}
    ended = subprocess.run(
        [*prefix, sys.executable, "-m", "gpuipc_doctor", "check", *args, *named, "--json"],
        env={**os.environ, "I_MPI_OFFLOAD": "1", **given}, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    results = [result["finding"] for result in json.loads(ended.stdout)["results"]]
    return next(each for each in results if each["status"] in ("FAIL", "ERROR"))


@pytest.mark.parametrize(
    ("library", "args", "environ", "prefix"),
    [
        ("", SEGV, {"LD_PRELOAD": "libm.so.6"}, limit("-v", "60000000000")),
        full("", SEGV, {"CUDA_LAUNCH_BLOCKING": "1"}, limit("-d", "200000000")),
        ("", OOM, {}, limit("-v", "60000000000")),
        full("", OOM, {}, limit("-d", "200000000")),
        full("", ("ipc-handles", "--simulate", "ignores-sigterm", "--deadline", "5", "--backend", "cuda"), {},
             limit("-t", "100000")),
        ("", REDUCE, {"NCCL_SOCKET_IFNAME": "eth7", "UCX_NET_DEVICES": "mlx5_9:1", "NCCL_CHECKS_DISABLE": "1",
                      "LD_PRELOAD": "libm.so.6", "FI_PROVIDER": "tcp"}, limit("-v", "60000000000")),
        full("", GATHER, {"NCCL_SOCKET_IFNAME": "eth7"}, ()),
        mounted("", REDUCE, {}, shm("size=40m")),
        full("mpich50", ISEND, {"NCCL_SOCKET_IFNAME": "eth7"}, ()),
        mounted("mpich50", ISEND, {"FI_PROVIDER": "tcp"}, shm("size=40m")),
        full("impi", ISEND, {"FI_PROVIDER_PATH": "{mpi}/lib", "I_MPI_FABRICS": "shm"}, ()),
        full("openmpi", ISEND, {"UCX_TLS": "self,sm,tcp,cuda_copy,cuda_ipc", "UCX_LOG_LEVEL": "info"}, ()),
        full("openmpi", ISEND, {"OMPI_MCA_btl": "self,sm,tcp"}, ()),
    ],
)  # fmt: skip
@pytest.mark.mpi
def test_what_is_merely_set_is_not_named(
    library: str, args: tuple[str, ...], environ: dict[str, str], prefix: tuple[str, ...], tmp_path: Path
) -> None:
    found = finding(tmp_path, library, args, environ, prefix)
    assert found["status"] == "FAIL"
    assert found["summary"].startswith(("rank ", "importer: ")), found["summary"]
    assert not [item for item in found["evidence"] if item["kind"] == "cause"]
    assert not [name for name in environ if name in found["remedy"]]


@pytest.mark.parametrize(
    ("library", "environ", "prefix", "cause", "how"),
    [
        ("impi", {"I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER": "psm2"}, (), "FI_PROVIDER=psm2", "tried"),
        full("impi", {"I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER_PATH": "/nowhere"}, (), "FI_PROVIDER_PATH=",
             "tried"),
        full("mpich50", {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "none"}, (), "FI_PROVIDER=", "tried"),
        full("mpich50", {"MPIR_CVAR_CH4_NETMOD": "nosuch"}, (), "MPIR_CVAR_CH4_NETMOD=nosuch", "tried"),
        full("mpich50", {"MPIR_CVAR_CH4_NETMOD": "ucx", "UCX_TLS": "rc_x"}, (), "UCX_TLS=rc_x", "tried"),
        full("mpich50", {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth7",
                         "MPIR_CVAR_NOLOCAL": "1"}, (), "FI_TCP_IFACE=eth7 names no interface", "tried"),
        full("openmpi", {"OMPI_MCA_pml": "ucxx"}, (), "OMPI_MCA_pml=ucxx", "tried"),
        full("openmpi", {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}, (), "OMPI_MCA_btl=self", "tried"),
        full("openmpi", {"HOME": "{tmp}"}, (), "OMPI_MCA_pml=ucxx ({tmp}/.openmpi/mca-params", "tried"),
        full("", {"LD_PRELOAD": "{tmp}/libhook.so"}, (), "{tmp}/libhook.so is preloaded", "tried"),
        full("", {}, limit("-v", "2000000"), "address space limited to 1953 MiB", "stated"),
        mounted("mpich50", {}, shm("size=64k"), "/dev/shm has 0.1 MiB free", "measured"),
        mounted("impi", {"I_MPI_FABRICS": "shm"}, shm("size=64k"), "/dev/shm has 0.1 MiB free", "measured"),
        mounted("mpich50", {}, shm("ro"), "/dev/shm is mounted read-only", "measured"),
        mounted("openmpi", {}, ("unshare", "--net"), "the loopback interface is down", "measured"),
        mounted("mpich43", {"MPIR_CVAR_CH4_NETMOD": "ofi"}, ("unshare", "--net"), "the loopback interface is",
                "measured"),
        full("openmpi", {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp",
                         "OMPI_MCA_btl_tcp_if_include": "eth7"}, (), "OMPI_MCA_btl_tcp_if_include=", "tried"),
    ],
)  # fmt: skip
@pytest.mark.mpi
def test_true_cause_is_found(
    library: str, environ: dict[str, str], prefix: tuple[str, ...], cause: str, how: str, tmp_path: Path
) -> None:
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text("pml = ucxx\n")
    build = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libhook.so"), "-x", "c", "-"]
    subprocess.run(build, input=HOOK, text=True, check=True)
    found = finding(tmp_path, library, START if library else OPEN, environ, prefix)
    assert found["summary"].startswith(cause.format(tmp=tmp_path)), found["summary"]
    (item,) = [item for item in found["evidence"] if item["kind"] == "cause"]
    assert item["values"]["shown"] == how
    assert any(line.startswith("passes without ") for line in evidence(found)) is (how == "tried")
