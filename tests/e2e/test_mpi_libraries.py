"""PyPI's real MPI libraries are identified correctly, and ranks start under each.

Each library is loaded in a separate process; run as a script, this file is that process.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

LIBRARIES = {
    "mpich43": ("lib/libmpi.so.12", "MPICH 4.3.2"),
    "mpich50": ("lib/libmpi.so.12", "MPICH 5.0.2"),
    "openmpi": ("lib/libmpi.so.40", "Open MPI 5.0.11"),
    "impi": ("lib/libmpi.so.12", "Intel MPI 2021.17"),
}

if __name__ != "__main__":
    from typing import Any

    import pytest

    from gpuipc_doctor.model import Node
    from gpuipc_doctor.node import mpi_transports
    from gpuipc_doctor.node.mpi_identity import identify
    from gpuipc_doctor.node.mpi_locate import find_launcher
    from gpuipc_doctor.simulator.node import prepare
    from tests.e2e.conftest import cuda_ucx, full

    pytestmark = pytest.mark.mpi

    every_library = pytest.mark.parametrize("name", LIBRARIES)

    def path_of(name: str) -> str:
        return str(Path(os.environ["GPUIPC_TEST_MPI"], name, LIBRARIES[name][0]))

    def survey(library: str, node: Node | None = None, **settings: str) -> dict[str, Any]:
        """The facts of a survey, alone or on a simulated node; a value in ``settings`` may extend a path."""
        environment = {**os.environ, **(node.env if node else {})}
        for variable, value in settings.items():
            before = environment.get(variable)
            environment[variable] = f"{before}:{value}" if before and variable == "LD_LIBRARY_PATH" else value
        ended = run(environment, "survey", library)
        assert ended.returncode == 0, ended.stderr
        seen: dict[str, Any] = json.loads(ended.stdout)
        return seen

    def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, __file__, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)

    @pytest.fixture
    def node(tmp_path: Path) -> Node:
        """A simulated node with NVIDIA GPUs and a driver library."""
        return prepare("healthy-cuda", tmp_path)

    @every_library
    def test_each_library_is_identified_and_alone_accepts_no_device_pointers(name: str) -> None:
        seen = survey(path_of(name))
        assert identify(seen["version_text"]).title == LIBRARIES[name][1]
        assert not mpi_transports.gpu_aware(seen, "cuda").able
        assert not mpi_transports.gpu_aware(seen, "hip").able

    @pytest.mark.parametrize(
        "name", ["impi", *(pytest.param(one, marks=pytest.mark.full) for one in LIBRARIES if one != "impi")]
    )
    def test_driver_alone_makes_no_library_gpu_aware(name: str, node: Node) -> None:
        aware = mpi_transports.gpu_aware(survey(path_of(name), node), "cuda")
        assert not aware.able
        if name == "impi":
            assert aware.why_not == "GPU support is disabled (I_MPI_OFFLOAD is not 1)"
        else:
            assert "has no CUDA transports" in aware.why_not

    def test_intel_mpi_with_gpu_support_on_accepts_device_pointers(node: Node) -> None:
        aware = mpi_transports.gpu_aware(survey(path_of("impi"), node, I_MPI_OFFLOAD="1"), "cuda")
        assert (aware.able, aware.via) == (True, "own")

    def test_intel_mpi_with_a_loader_of_level_zero_would_not_take_cuda(node: Node) -> None:
        auto = {"I_MPI_OFFLOAD_MODE": "auto", "I_MPI_OFFLOAD_LEVEL_ZERO_LIBRARY": "libm.so.6"}  # it loads
        aware = mpi_transports.gpu_aware(survey(path_of("impi"), node, I_MPI_OFFLOAD="1", **auto), "cuda")
        assert aware.why_not == "it chooses Level Zero, because libm.so.6 can be loaded"
        assert aware.remedy == "set I_MPI_OFFLOAD_MODE=cuda"

    NO_DRIVER = {"I_MPI_OFFLOAD_CUDA_LIBRARY": "/nowhere/libcuda.so.1", "I_MPI_OFFLOAD_MODE": "cuda"}

    def test_intel_mpi_without_a_driver_library_accepts_no_device_pointers() -> None:
        seen = survey(path_of("impi"), I_MPI_OFFLOAD="1", **NO_DRIVER)
        aware = mpi_transports.gpu_aware(seen, "cuda")
        assert aware.why_not.startswith("/nowhere/libcuda.so.1, which MPI_Init loads, cannot")

    @pytest.mark.parametrize(
        ("name", "settings", "remedy"),
        [
            ("mpich50", {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}, ""),
            ("mpich50", {"MPIR_CVAR_CH4_NETMOD": "ucx"}, "set MPIR_CVAR_NOLOCAL=1"),
            (
                "mpich50",
                {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"},
                "set MPIR_CVAR_CH4_NETMOD=ucx",
            ),
            ("mpich43", {"MPICH_NOLOCAL": "1"}, ""),
            ("openmpi", {"OMPI_MCA_pml": "ucx"}, ""),
            ("openmpi", {}, "set OMPI_MCA_pml=ucx"),
            ("openmpi", {"OMPI_MCA_pml": "ucx", "UCX_TLS": "^cuda"}, "add cuda_copy to UCX_TLS"),
        ],
    )
    def test_over_a_ucx_with_cuda_only_settings_are_missing(
        node: Node, name: str, settings: dict[str, str], remedy: str
    ) -> None:
        seen = survey(path_of(name), node, **cuda_ucx(), **settings)
        assert seen["ucx"]["version"] == "1.22.0"
        aware = mpi_transports.gpu_aware(seen, "cuda")
        assert (aware.able, aware.via, aware.remedy) == (not remedy, "ucx", remedy)

    def test_without_a_driver_that_ucx_has_no_cuda() -> None:
        seen = survey(path_of("openmpi"), OMPI_MCA_pml="ucx", **cuda_ucx())
        assert "has no CUDA transports" in mpi_transports.gpu_aware(seen, "cuda").why_not

    def test_library_of_mpi4py_is_surveyed_if_none_is_named() -> None:
        seen = survey("", MPI4PY_LIBMPI=path_of("openmpi"))
        assert Path(seen["library"]).samefile(path_of("openmpi"))

    @pytest.mark.parametrize(
        ("library", "reason"),
        [
            ("openmpi/lib/libmpi.so", "cannot load the MPI library: "),
            ("openmpi/lib/libopen-pal.so.80", "is not an MPI library: it has no MPI_Get_library_version"),
        ],
    )
    def test_other_library_is_reported_as_such(library: str, reason: str) -> None:
        ended = run(dict(os.environ), "survey", str(Path(os.environ["GPUIPC_TEST_MPI"], library)))
        assert ended.stdout.startswith("BackendUnavailable")
        assert reason in ended.stdout

    @pytest.mark.parametrize("name", ["mpich43", "mpich50", "impi"])
    def test_libraries_abort_if_queried_before_mpi_init(name: str) -> None:
        """These libraries abort if queried before MPI_Init, so the survey does not query them."""
        ended = run(dict(os.environ), "query", path_of(name))
        assert ended.returncode != 0
        assert "before initializing" in ended.stderr

    @pytest.mark.parametrize("name", ["impi", *map(full, sorted(LIBRARIES.keys() - {"impi"}))])
    def test_ranks_start_under_the_launcher_found(name: str) -> None:
        """Starts more ranks than this machine may have cores, as root or not."""
        seen = survey(path_of(name))
        found = find_launcher(identify(seen["version_text"]), seen["library"], "", os.environ)
        command = [part.format(ranks=4) for part in found.launch.command]
        ended = subprocess.run(
            [*command, sys.executable, __file__, "rank"],
            env={**os.environ, **found.launch.env},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert ended.returncode == 0, ended.stderr
        assert sorted(ended.stdout.split()) == ["0/4", "1/4", "2/4", "3/4"]


def main(what: str, library: str = "") -> None:
    if what == "survey":
        from gpuipc_doctor.api.driver_errors import BackendUnavailable
        from gpuipc_doctor.worker import mpi_survey as survey

        try:
            sys.stdout.write(json.dumps(survey.survey(library or None, lambda _: nullcontext())))
        except BackendUnavailable as error:
            sys.stdout.write(f"BackendUnavailable: {error.reason}")
    elif what == "query":
        ctypes.CDLL(library).MPIX_GPU_query_support(0, ctypes.byref(ctypes.c_int()))
    else:
        from mpi4py import MPI

        sys.stdout.write(f"{MPI.COMM_WORLD.rank}/{MPI.COMM_WORLD.size}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
