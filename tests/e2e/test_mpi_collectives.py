"""mpi-collectives on real MPI libraries: passes on healthy nodes; names the call, rank and element of faults.

The profiles with such faults are in test_mpi_faults.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, evidence, prefix_and_variables

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]

LIBRARIES = {
    "mpich50": "lib/libmpi.so.12",
    "mpich43": "lib/libmpi.so.12",
    "openmpi": "lib/libmpi.so.40",
    "impi": "lib/libmpi.so.12",
}

SOAK = {
    "{call: MPI_Start, memory: device, from: 40, do: corrupt-last}": ("wrong-data", "start 40: "),
    "{call: MPI_Precv_init, memory: device, do: corrupt-last}": ("wrong-data", "MPI_Precv_init of 65536 B"),
    "{call: MPI_Sendrecv, memory: device, thread: true, do: hang}": ("hung", "in two threads"),
    "{call: MPI_Allreduce, memory: device, idle: 2000, do: corrupt-byte}": ("wrong-data", "after idling"),
}
"""Faults that only the soak tier meets → key of the finding, and its text."""


LESS_USUAL = {
    "{call: MPI_Win_attach, memory: device, do: abort}": "MPI_Win_attach #1",
    "{call: MPI_Allreduce, memory: device, max: 0 B, do: error}": "MPI_Allreduce of 0 B",
    "{call: MPI_Allreduce, elsewhere: true, do: corrupt-last}": "every second rank",
    "{call: MPI_Allreduce, memory: host, min: 64 B, do: corrupt-last}": "into host memory",
    "{call: MPI_Allreduce, rank: 1, in-place: true, do: corrupt-last}": "rank 1: MPI_Allreduce of ",
    "{call: MPI_Alltoallv, zero-count: true, do: corrupt-last}": "MPI_Alltoallv delivered wrong data",
    "{call: MPI_Accumulate, memory: device, do: not-atomic}": "MPI_Accumulate delivered wrong data",
    "{call: MPI_Win_create, memory: device, do: lose}": "MPI_Put delivered wrong data",
    "{call: MPI_Ireduce, memory: device, do: early}": "MPI_Ireduce delivered wrong data",
    "{call: MPI_Sendrecv, negative-bound: true, do: corrupt-first}": "of negative lower bound",
    "{call: MPI_Exscan, memory: device, min: 524296 B, do: corrupt-last}": "no result of less than 1048584 B",
    "{call: MPI_Scan, rank: 2, memory: device, do: corrupt-last}": "ranks with correct data: rank 0, rank 1",
    "{call: MPI_Get, memory: device, do: early}": "after MPI_Win_flush_local, ",
    "{call: MPI_Allreduce, memory: device, do: old-copy}": "other data in the same buffers",
}
"""Faults of calls and forms that applications use less, and what the finding names."""


IN_TABLE = (
    *("MPI_Bsend", "MPI_Ssend", "MPI_Issend", "MPI_Rsend", "MPI_Waitany", "MPI_Waitsome", "MPI_Testany"),
    *("MPI_Testsome", "MPI_Testall", "MPI_Mrecv", "MPI_Isendrecv", "MPI_Neighbor_allgather"),
    *("MPI_Neighbor_alltoall", "MPI_Neighbor_alltoallv", "MPI_Iscan", "MPI_Igather", "MPI_Iscatter"),
    *("MPI_Iallgatherv", "MPI_Igatherv", "MPI_Iscatterv", "MPI_Ialltoallv", "MPI_Ireduce_scatter"),
    *("MPI_Ireduce_scatter_block", "MPI_Allreduce_init", "MPI_Bcast_init"),
    *("MPI_Alltoall_init", "MPI_Rput", "MPI_Rget", "MPI_Raccumulate", "MPI_Rget_accumulate"),
)
"""Calls of the acceptance table that deliver data in the memory that they are given."""

IN_SOAK = (
    *("MPI_Imrecv", "MPI_Ibsend", "MPI_Irsend", "MPI_Ineighbor_allgather", "MPI_Ineighbor_alltoall"),
    *(
        "MPI_Ineighbor_alltoallv",
        "MPI_Iexscan",
        "MPI_Allgather_init",
        "MPI_Reduce_init",
        "MPI_Gather_init",
        "MPI_Scatter_init",
    ),
    *("MPI_Reduce_scatter_block_init", "MPI_Scan_init"),
)

FORMS = {
    "{call: MPI_Sendrecv, with: subarray, rank: 1, do: corrupt-first}": "MPI_Sendrecv of 4096 B, * subarray",
    "{call: MPI_Sendrecv, with: struct, rank: 1, do: corrupt-first}": "MPI_Sendrecv of 4096 B, * struct",
    "{call: MPI_Sendrecv, with: indexed, rank: 1, do: corrupt-first}": "MPI_Sendrecv * indexed type",
    "{call: MPI_Sendrecv, with: contiguous, rank: 1, do: corrupt-first}": "MPI_Sendrecv * resized type",
    "{call: MPI_Waitall, rank: 1, outstanding: 40, do: corrupt-last}": "MPI_Irecv of 40960 B, * 40 at once",
    "{call: MPI_Recv, rank: 1, memory: device, do: corrupt-last}": "MPI_Recv of 65544 B",
    "{call: MPI_Unpack, rank: 1, memory: device, do: corrupt-first}": "MPI_Pack of 4096 B",
}
"""Faults of forms of the table, all at once → a case that the finding names."""

MADE = {
    "MPI_Comm_dup": "in a duplicate",
    "MPI_Comm_split_type": "in a node's communicator",
    "MPI_Session_init": "in a session's communicator",
    "MPI_Intercomm_create": "between two groups",
    "MPI_Cart_create": "in a Cartesian ring",
    "MPI_Dist_graph_create_adjacent": "in a graph of neighbours",
    "MPI_Neighbor_alltoallw": "in a graph of neighbours",
    "MPI_Win_start": "with MPI_Win_start",
}
"""Calls that return an error, all at once → a case that needs each. What needs none of them is tried."""


@pytest.fixture
def found(doctor: Command, tmp_path: Path) -> Any:
    """``found(library, node, backend, ranks, sizes, …)``: status, key, and text of each finding."""

    def run(
        library: str, node: str, backend: str = "cuda", ranks: int = 2, sizes: str = "[1000]", *more: str
    ) -> list[tuple[str, str, str]]:
        config = tmp_path / "site.yaml"
        config.write_text(f"options:\n  mpi-collectives: {{ranks: {ranks}, sizes: {sizes}}}\n")
        prefix, variables = prefix_and_variables(library, backend)
        path = Path(os.environ["GPUIPC_TEST_MPI"], prefix, LIBRARIES[prefix])
        ended = doctor(
            *("check", "mpi-collectives", "--simulate", node, "--backend", backend, "--mpi-lib", str(path)),
            *("--config", str(config), "--no-workarounds", "--json", *more),
            env={**os.environ, **variables},
        )
        findings = [
            result["finding"]
            for result in json.loads(ended.stdout)["results"]
            if result["check"] == "mpi-collectives"
        ]
        return [(one["status"], one["key"], "\n".join([one["summary"], *evidence(one)])) for one in findings]

    return run


def node_with(tmp_path: Path, *faults: str) -> str:
    node = tmp_path / "node.yaml"
    lines = "".join(f"  - {fault}\n" for fault in faults)
    node.write_text(
        f"description: A node with a fault.\nextends: healthy-single\nmpi-faults:\n{lines}"
        "expect: {exit: 12, findings: []}\n"
    )
    return str(node)


def test_healthy_node_passes_with_the_number_of_calls(found: Any) -> None:
    ((status, _, text),) = found("mpich50", "healthy-single")
    assert status == "PASS", text
    assert "MPI_Compare_and_swap" in text


def test_wrong_last_element_is_named_and_other_calls_are_right(found: Any, tmp_path: Path) -> None:
    node = node_with(tmp_path, "{call: MPI_Alltoallv, rank: 1, memory: pool, do: corrupt-last}")
    ((status, key, text),) = found("mpich50", node)
    assert (status, key) == ("FAIL", "wrong-data")
    assert text.startswith("MPI_Alltoallv delivered wrong data: 1 of ")
    assert "all wrong results are of calls with memory of a pool" in text
    assert "ranks with correct data: rank 0" in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("library", "backend"),
    [
        ("mpich43", "cuda"),
        ("openmpi", "cuda"),
        ("mpich50", "hip"),
        ("impi", "hip"),  # with CUDA it has flaws of its own, see below
        ("mpich50-ucx", "cuda"),
        ("openmpi-ucx", "cuda"),
    ],
)
def test_every_size_passes_on_each_library(found: Any, library: str, backend: str) -> None:
    sizes = "[8, 1000, 4096, 65544, 1048584, 33554440]"
    ((status, _, text),) = found(library, "healthy-both", backend, 4, sizes)
    assert status == "PASS", text


@pytest.mark.full
def test_library_that_aborts_in_a_call_with_device_memory_fails(found: Any, tmp_path: Path) -> None:
    """What a preload that aborts in this call did: all MPI checks passed."""
    node = node_with(tmp_path, "{call: MPI_Allreduce, memory: device, do: abort}")
    (_, key, text), (_, rest, _) = found("mpich50", node)
    assert key in ("crashed", "exited")  # on a busy machine the rank that aborts may not be the first to end
    assert rest == "some-failed"
    assert ": MPI_Allreduce #1 " in text


@pytest.mark.full
@pytest.mark.parametrize("fault", LESS_USUAL)
def test_fault_of_a_less_usual_call_is_found(found: Any, tmp_path: Path, fault: str) -> None:
    results = found("mpich50", node_with(tmp_path, fault), "cuda", 3, "[8, 4096, 1048584]")
    assert any(status == "FAIL" and LESS_USUAL[fault] in text for status, _, text in results), results


def corrupted(calls: Sequence[str]) -> list[str]:
    return [f"{{call: {call}, memory: device, do: corrupt-last}}" for call in calls]


@pytest.mark.parametrize(
    "library", ["mpich50", *(pytest.param(name, marks=pytest.mark.full) for name in ("mpich43", "openmpi"))]
)
def test_wrong_data_of_each_call_of_the_table_is_named(found: Any, tmp_path: Path, library: str) -> None:
    ((_, key, text),) = found(library, node_with(tmp_path, *corrupted(IN_TABLE)), "cuda", 2, "[8]")
    assert key == "wrong-data"
    assert {*text.partition(" delivered ")[0].split(", ")} == {*IN_TABLE}


def test_wrong_data_of_each_form_of_the_table_is_named(found: Any, tmp_path: Path) -> None:
    ((_, key, text),) = found("mpich50", node_with(tmp_path, *FORMS), "cuda", 2, "[8]")
    assert key == "wrong-data"
    lines = [line.partition(": ")[2] for line in text.splitlines()]
    assert [case for case in FORMS.values() if not any(fnmatch(line, f"{case}*") for line in lines)] == []


@pytest.mark.full
@pytest.mark.parametrize("begin", ["", "MPI_Neighbor_"])  # the latter needs what makes a graph
def test_error_of_a_call_leaves_the_other_cases_tried(found: Any, tmp_path: Path, begin: str) -> None:
    calls = [call for call in MADE if call.startswith("MPI_Neighbor_") == bool(begin)]
    faults = [f"{{call: {call}, rank: 1, do: error}}" for call in calls]
    results = found("mpich50", node_with(tmp_path, *faults), "cuda", 3, "[8]")
    errors = [text for _, key, text in results if key == "returned-error"]
    for call in calls:
        assert [text for text in errors if f" {call} #" in text and MADE[call] in text], (call, errors)
    assert "MPI_Rget_accumulate" in results[-1][2]


@pytest.mark.full
def test_wrong_data_in_each_communicator_is_named(found: Any, tmp_path: Path) -> None:
    node = node_with(tmp_path, "{call: MPI_Allreduce, elsewhere: true, rank: 1, do: corrupt-last}")
    ((_, _, text),) = found("mpich50", node, "cuda", 4, "[8]")
    forms = [form for form in MADE.values() if form.startswith(("in a", "between"))]
    assert [form for form in forms if "graph" not in form and form not in text] == []


@pytest.mark.full
def test_large_tag_that_hangs_is_named(found: Any, tmp_path: Path) -> None:
    node = node_with(tmp_path, "{call: MPI_Irecv, with: large-tag, rank: 1, do: hang}")
    results = found("mpich50", node, "cuda", 2, "[8]", "--deadline", "4")
    assert any(key == "hung" and "the largest tags" in text for _, key, text in results), results


@pytest.mark.full
@pytest.mark.parametrize("library", ["mpich50", "openmpi"])
def test_wrong_data_of_each_call_of_the_soak_table_is_named(found: Any, tmp_path: Path, library: str) -> None:
    more = ("--tier", "soak", "--deadline", "30")
    results = found(library, node_with(tmp_path, *corrupted(IN_SOAK)), "cuda", 3, "[8]", *more)
    (text,) = [text for _, key, text in results if key == "wrong-data"]
    assert {*text.partition(" delivered ")[0].split(", ")} == {*IN_SOAK}


@pytest.mark.full
@pytest.mark.parametrize("fault", SOAK)
def test_fault_of_the_soak_tier_is_found(found: Any, tmp_path: Path, fault: str) -> None:
    key, says = SOAK[fault]
    more = ("--tier", "soak", "--deadline", "4")
    results = found("mpich50", node_with(tmp_path, fault), "cuda", 2, "[8]", *more)
    assert any(one[1] == key and says in one[2] for one in results), results
    assert not [
        one for one in found("mpich50", "healthy-single", "cuda", 2, "[8]", *more) if one[0] != "PASS"
    ]


@pytest.mark.full  # its own flaws: in the first it makes no driver call, in the second it copies one block
def test_intel_mpi_fails_in_two_calls_in_place_only_and_shares_no_pools(found: Any) -> None:
    results = found("impi", "healthy-single", "cuda", 4, "[1000, 65544]")
    failed = {key: text for status, key, text in results if status == "FAIL"}
    wrong = failed.pop("wrong-data")
    assert wrong.startswith("MPI_Alltoall, MPI_Reduce_scatter_block delivered wrong data: ")
    assert "all wrong results are of calls with in place" in wrong
    if failed:  # often it also copies from address 0x58000003, its handle of MPI_SUM: an error or an abort
        assert failed.pop("some-failed")
        (ended,) = failed.values()
        assert "(MPI_Alltoall of 65544 B, uint8, " in ended
    skipped = [text for status, key, text in results if (status, key) == ("SKIP", "unsupported")]
    assert skipped
    assert all("does not support memory of a pool" in text or "VMM" in text for text in skipped)
