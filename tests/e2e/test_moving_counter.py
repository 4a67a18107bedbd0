"""A counter of used memory that moves by itself: no driver is blamed for it, and no leak overlooked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuipc_doctor.simulator import profile
from tests.e2e.conftest import Command

MOVEMENTS = ("counter-drifts", "counter-drifts-fast", "counter-saws", "counter-jumps", "counter-wanders")

LEAKS_AT = {
    "ipc-release": "ipc-close",
    "driver-pool-release": "pool-trim",
    "ipc-vmm-release": "vmm-import",
    "ipc-pool": "pool-import",
}
"""Check → the call that its loops repeat."""

MPI = "mpi-cache-growth"

OTHERS = ("ipc-vmm", "ipc-histories")
"""Checks that count in another way; what their loops repeat is tested above."""

IN_EACH_RUN = {("counter-drifts", "ipc-pool"), ("counter-drifts-fast", "ipc-pool", "2 MiB")}


def case(movement: str, check: str, *size: str) -> Any:
    marks = [pytest.mark.mpi if check == MPI else pytest.mark.cuda]
    if (movement, check, *size) not in IN_EACH_RUN:
        marks.append(pytest.mark.full)
    return pytest.param(movement, check, *size, id="-".join((movement, check, *size)), marks=marks)


def with_leaks() -> list[Any]:
    """Each movement, each size and each check once: all judge with the same meter."""
    checks = (MPI, "ipc-pool", "driver-pool-release", "ipc-vmm-release", "ipc-release")
    sizes = ("2 MiB", "2 MiB", "64 KiB", "64 MiB", "2 MiB")
    return [case(*each) for each in zip(MOVEMENTS, checks, sizes, strict=True)]


def healthy() -> list[Any]:
    """Each movement, and each check on two of them."""
    checks = (*LEAKS_AT, *OTHERS)
    return [
        *(
            case(MOVEMENTS[(place + more) % len(MOVEMENTS)], check)
            for place, check in enumerate(checks)
            for more in (0, 2)
        ),
        case("counter-wanders", MPI),
    ]


def found(doctor: Command, check: str, node: str) -> set[tuple[str, str]]:
    """(status, key) of the check's findings."""
    library = ()
    if check == MPI:
        library = ("--mpi-lib", f"{os.environ['GPUIPC_TEST_MPI']}/mpich43/lib/libmpi.so.12")
    ended = doctor(
        "check", check, "--json", "--simulate", node, "--backend", "cuda", "--budget", "600", *library
    )
    findings = [
        result["finding"] for result in json.loads(ended.stdout)["results"] if result["check"] == check
    ]
    assert findings
    return {(finding["status"], finding["key"]) for finding in findings}


def judged(told: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {each for each in told if each[0] != "PASS"}


@pytest.mark.parametrize(("movement", "check"), healthy())
def test_healthy_node_never_fails_because_its_counter_moves(
    doctor: Command, movement: str, check: str
) -> None:
    told = found(doctor, check, movement)
    assert judged(told) <= {("ERROR", "counter-moves")}


@pytest.mark.cuda
@pytest.mark.parametrize("leaks", [False, True])
def test_checks_beside_each_other_tell_by_process_although_the_counter_moves(
    doctor: Command, leaks: bool, tmp_path: Path
) -> None:
    moves = yaml.safe_load(profile.file_of("counter-drifts").read_text())["faults"]
    leak = [{"call": "ipc-close", "do": "leak", "bytes": "2 MiB"}] if leaks else []
    node = tmp_path / "node.yaml"
    node.write_text(json.dumps({"description": ".", "extends": "counter-drifts", "faults": moves + leak}))
    command = ("check", "ipc-release", "driver-pool-release", "--json", "--simulate", str(node))
    ended = doctor(*command, "--backend", "cuda", "--budget", "600")
    results = [result["finding"] for result in json.loads(ended.stdout)["results"]]
    told = judged({(finding["status"], finding["key"]) for finding in results})
    if leaks:
        assert ("FAIL", "grows") in told
    else:
        # A run so short that the counter moved by less than 6 MiB in it has compared.
        assert told <= {("SKIP", "not-compared")}


@pytest.mark.full
@pytest.mark.parametrize(("movement", "check", "size"), with_leaks())
def test_leak_is_found_or_said_to_be_hidden(
    doctor: Command, movement: str, check: str, size: str, tmp_path: Path
) -> None:
    moves = yaml.safe_load(profile.file_of(movement).read_text())["faults"]
    leak = {"call": LEAKS_AT.get(check, "MPI_Send"), "do": "leak", "bytes": size}
    faults: dict[str, Any] = {"faults": [*moves, leak]}
    if check == MPI:
        faults = {"mpi-faults": [{**leak, "memory": "device", "min": "1 MiB"}]}
    node = tmp_path / "node.yaml"
    node.write_text(json.dumps({"description": ".", "extends": movement, **faults}))
    told = found(doctor, check, str(node))
    assert {key for _, key in told} & {"counter-moves", "grows", "not-returned", "grows-a-little"}
