"""Faults that were thought of by dimension (`dimensions.yaml`), and faults that were drawn (`drawn.yaml`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuipc_doctor.model import Exit
from tests.e2e.conftest import Command, evidence

FIXTURES = Path(__file__).parents[1] / "fixtures"
FAULTS, DRAWN = (
    dict[str, Any](yaml.safe_load((FIXTURES / name).read_text()))
    for name in ("dimensions.yaml", "drawn.yaml")
)

FOUND = {name: stated for name, stated in DRAWN.items() if stated.get("found", True)}

EIGHT = {"devices": [{"backend": "cuda", "name": "NVIDIA H200", "memory": "139 GiB", "count": 8}]}

ONLY_SOAK = {"bits-flip-after-3-s": "idle for four seconds", "kernels-lost-beyond-256-mib": "260 MiB"}
"""Faults that need idle seconds or more memory, and what the evidence says of it."""

USUAL_OF_DRAWN = {"copy-from-device stream=default", "MPI_Alltoallv comm=self"}
"""Drawn faults that every run of the tests plays."""

USUAL = {"range-inside-wrong", "writes-from-pinned-lost", "kernels-in-16-mib-lost"}
"""Faults that every run of the tests plays."""


def found_in(doctor: Command, tmp_path: Path, name: str, *more: str) -> list[dict[str, Any]]:
    """The findings of the check that should find this fault, of the status that it should give."""
    stated = FAULTS[name]
    is_of_eight = stated["node"] == "healthy-eight"
    profile = {"description": name, "extends": stated["node"], "faults": stated["faults"]}
    if is_of_eight:
        profile |= {**EIGHT, "extends": "healthy-single"}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(profile))
    check = stated.get("check", "ipc-peer" if name.startswith("pair-") else "ipc-histories")
    simulate = ("--simulate", str(tmp_path / f"{name}.yaml"), "--backend", "cuda")
    done = doctor("check", check, *simulate, "--accept-harm", "--json", *more)
    assert done.returncode in (Exit.OK, Exit.FAIL), done.stderr
    findings = [result["finding"] for result in json.loads(done.stdout)["results"]]
    expected = stated.get("status", "FAIL")
    return [f for f in findings if f["status"] == expected and f["key"] == stated.get("key", f["key"])]


@pytest.mark.cuda
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.full)
        for name in FAULTS
        if name not in ONLY_SOAK
    ],
)
def test_fault_is_found(doctor: Command, tmp_path: Path, name: str) -> None:
    assert found_in(doctor, tmp_path, name)


@pytest.mark.cuda
@pytest.mark.full
@pytest.mark.parametrize("name", sorted(ONLY_SOAK))
def test_fault_is_found_in_soak(doctor: Command, tmp_path: Path, name: str) -> None:
    few = () if "check" in FAULTS[name] else ("--operations", "200", "--seed", "1")
    found, *_ = found_in(doctor, tmp_path, name, "--tier", "soak", *few)
    assert any(ONLY_SOAK[name] in line for line in evidence(found))


@pytest.mark.usefixtures("resting")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                getattr(pytest.mark, "mpi" if "mpi-faults" in stated else "cuda"),
                *([] if name in USUAL_OF_DRAWN else [pytest.mark.full]),
            ],
        )
        for name, stated in FOUND.items()
    ],
)
def test_drawn_fault_is_found(doctor: Command, tmp_path: Path, name: str) -> None:
    stated, node = FOUND[name], tmp_path / "node.yaml"
    kind = next(key for key in stated if key.endswith("faults"))
    healthy = "collectives-two" if kind == "collective-faults" else "healthy-single"
    node.write_text(yaml.safe_dump({"description": name, "extends": healthy, kind: stated[kind]}))
    mpi = str(Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere"), "mpich50/lib/libmpi.so.12"))
    library = ("--mpi-lib", mpi, "--no-workarounds") if kind == "mpi-faults" else ()
    chosen = ("--simulate", str(node), "--backend", "cuda", "--accept-harm", "--deadline", "8", "--json")
    done = doctor("check", stated["check"], *library, *chosen)
    assert done.returncode == Exit.FAIL, done.stdout
