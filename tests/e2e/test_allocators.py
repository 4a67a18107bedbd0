"""The allocator checks on array libraries without a GPU (tests/fixtures/arrays): healthy, and with faults."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, evidence, full

ARRAYS = Path(__file__).parents[1] / "fixtures" / "arrays"
CLAIMED = "/opt/arrays"
"""The path of the libraries on the simulated node; it does not exist, and Python searches on."""

CHECKS = ("allocator-growth", "allocator-ipc", "allocator-pressure", "allocator-stream-reuse")
CUPY, TORCH = ("MemoryPool", "MemoryAsyncPool"), ("PyTorch",)
ALL = (*CUPY, *TORCH)

CUPY_ALONE, TORCH_ALONE = "cupy_double-1.0", "torch-1.0"
"""The libraries on the node, for tests with the same result for both."""

pytestmark = pytest.mark.cuda

Results = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def check(doctor: Command, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    """``check("allocator-ipc", fault="leaks")`` → its results, on a node with one GPU and both libraries."""
    file = tmp_path_factory.mktemp("node") / "arrays.yaml"

    def run(
        *checks: str,
        fault: str = "",
        driver_faults: Sequence[Mapping[str, str]] = (),
        claims: Sequence[str] = (CUPY_ALONE, TORCH_ALONE),
        path: Path = ARRAYS,
        **environment: str,
    ) -> Results:
        files = {f"{CLAIMED}/{name}.dist-info/METADATA": "" for name in claims}
        device = {"backend": "cuda", "name": "NVIDIA H200", "memory": "139 GiB"}
        node = {
            "description": "A node with array libraries.",
            "extends": "healthy-cuda",
            "devices": [device],
            "files": files,
            "faults": list(driver_faults),
        }
        file.write_text(json.dumps(node))
        env = {
            **os.environ,
            "PYTHONPATH": f"{CLAIMED}:{path}",
            "ARRAYS_FAULT": fault,
            **environment,
        }
        ended: subprocess.CompletedProcess[str] = doctor(
            "check", *checks, "--simulate", str(file), "--backend", "cuda", "--json", env=env
        )
        assert ended.stdout, ended.stderr
        return [result for result in json.loads(ended.stdout)["results"] if result["check"] != "driver-init"]

    return run


def told(results: Results) -> dict[str, str]:
    """Probe → status, summary and evidence."""
    return {
        result["probe"]: " | ".join(
            [result["finding"]["status"], result["finding"]["summary"], *evidence(result["finding"])]
        )
        for result in results
    }


@pytest.fixture(scope="module")
def healthy(check: Callable[..., Results]) -> Results:
    return check(*CHECKS)


@pytest.mark.xdist_group("allocators")
def test_healthy_allocators_pass(healthy: Results) -> None:
    results = healthy
    found = {(result["check"], result["probe"]): result["finding"]["status"] for result in results}
    expected = {(id_, name) for id_ in CHECKS for name in ALL}
    assert found == dict.fromkeys(expected | {("allocator-ipc", "PyTorch expandable")}, "PASS"), results
    process = {(one["check"], one["probe"]): one["roles"][0]["pid"] for one in results}
    for checks, libraries in (
        (("allocator-growth", "allocator-pressure"), (CUPY, TORCH)),
        (("allocator-ipc",), (CUPY, TORCH, ("PyTorch expandable",))),
        (("allocator-stream-reuse",), (CUPY, TORCH)),
    ):
        of_library = [{process[id_, name] for id_ in checks for name in names} for names in libraries]
        assert list(map(len, of_library)) == [1] * len(libraries), "one process for each library"
        assert len(set[int]().union(*of_library)) == len(libraries)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (
            "event wait left out",
            [("stream-reuse", ALL, "with event wait, 4 of 4 copies of 65536 B are wrong")],
        ),
        full(
            "record_stream left out, one pool for all streams",
            [
                ("stream-reuse", TORCH, "with record_stream, 4 of 4 copies of 65536 B are wrong"),
                ("stream-reuse", ALL, "with pool per stream, 4 of 4 copies of 65536 B"),
            ],
        ),
        (
            "never trims",
            [
                ("growth", ALL, "although every block was freed"),
                (
                    "pressure",
                    (*TORCH, "MemoryPool"),
                    "out of memory although most of the memory was only cached",
                ),
            ],
        ),
        full("leaks", [("growth", ALL, "used memory grows by"), ("pressure", ALL, "not released after")]),
        full("leaves descriptors open", [("growth", ALL, "program: open descriptors grow by")]),
        full("hands out twice", [("pressure", ALL, "blocks lost their data")]),
    ],
)
def test_fault_of_the_allocator_is_found(
    check: Callable[..., Results], fault: str, found: Sequence[tuple[str, Sequence[str], str]]
) -> None:
    results = check(*dict.fromkeys(f"allocator-{kind}" for kind, _, _ in found), fault=fault)
    for kind, libraries, says in found:
        failed = [
            result
            for result in results
            if (result["check"], result["finding"]["status"]) == (f"allocator-{kind}", "FAIL")
        ]
        assert {result["probe"] for result in failed} >= set(libraries), told(results)
        for name in libraries:
            assert any(says in told([result])[name] for result in failed if result["probe"] == name), told(
                results
            )
    for guard in ("event wait", "record_stream", "pool per stream"):
        if not any(guard in says for _, _, says in found):
            assert not any(f"{guard}, 4 of 4 copies" in text for text in told(results).values())


@pytest.mark.full
def test_loss_in_one_of_two_runs_is_an_error(check: Callable[..., Results], tmp_path: Path) -> None:
    """Memory of another process would look the same. A loss in both runs is a FAIL, as tested above."""
    results = check("allocator-growth", claims=(TORCH_ALONE,), ARRAYS_FIRST_LEAKS=str(tmp_path / "first"))
    found = told(results)["PyTorch"]
    assert found.startswith("ERROR | device memory was missing after only one of two runs"), found
    assert "used memory grows by" in found


@pytest.mark.full
def test_pool_that_never_trims_stays_within_the_memory_limit(
    check: Callable[..., Results],
) -> None:
    share = 2 << 30
    checks = ("allocator-pressure", "allocator-growth")
    for result in check(*checks, fault="never trims, leaks", claims=(TORCH_ALONE,)):
        for series in result["series"]:
            used, *_ = series["lines"]
            assert share / 4 < max(used["values"]) < 1.1 * share, result["probe"]


@pytest.mark.parametrize(
    ("fault", "claims", "names", "says"),
    [
        (
            {"call": "copy-from-device", "do": "corrupt-byte"},
            (CUPY_ALONE, TORCH_ALONE),
            ("MemoryPool", "PyTorch"),
            "a block's IPC handle and offset opened the wrong memory",
        ),
        full(
            {"call": "ipc-close", "do": "keep"},
            (CUPY_ALONE,),
            ("MemoryPool",),
            "was not released after the importer had closed everything",
        ),
    ],
    ids=["wrong data", "kept"],
)
def test_fault_of_the_driver_in_sharing_is_found(
    check: Callable[..., Results],
    fault: Mapping[str, str],
    claims: Sequence[str],
    names: Sequence[str],
    says: str,
) -> None:
    found = told(check("allocator-ipc", driver_faults=[fault], claims=claims))
    for name in names:
        assert found[name].startswith("FAIL"), found
        assert says in found[name]


@pytest.mark.full
def test_refused_sharing_is_reported_with_the_setting_and_the_error(
    check: Callable[..., Results],
) -> None:
    found = told(check("allocator-ipc", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
    assert found["PyTorch"].startswith("WARN")
    for name, setting in {
        "PyTorch": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "PyTorch expandable": "PYTORCH_ALLOC_CONF=expandable_segments:True",
        "MemoryAsyncPool": "cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)",
    }.items():
        assert setting in found[name]
        assert "cuIpcGetMemHandle returned CUDA_ERROR_INVALID_VALUE (1)" in found[name]


def test_missing_array_library_is_a_skip_with_the_package(
    check: Callable[..., Results],
) -> None:
    results = check(*CHECKS, claims=())
    assert {result["check"] for result in results} == set(CHECKS)
    for result in results:
        assert result["finding"]["status"] == "SKIP"
        assert "no CuPy or PyTorch" in result["finding"]["summary"]
        assert "they need a real GPU" in result["finding"]["summary"]


@pytest.mark.full
def test_library_that_does_not_import_is_a_one_line_error(
    check: Callable[..., Results], tmp_path: Path
) -> None:
    (one,) = check("allocator-growth", claims=(TORCH_ALONE,), path=tmp_path)
    assert one["finding"]["status"] == "ERROR"
    assert "PyTorch is installed but cannot be used: ModuleNotFoundError" in one["finding"]["summary"]


@pytest.mark.xdist_group("allocators")
def test_series_is_in_the_report(healthy: Results) -> None:
    one = next(
        result for result in healthy if (result["check"], result["probe"]) == ("allocator-growth", "PyTorch")
    )
    (series,) = one["series"]
    assert series["axis"] == "seconds"
    assert [line["name"] for line in series["lines"]] == [
        "used on the device",
        "reserved by the allocator",
        "allocated",
    ]
    assert {len(line["values"]) for line in series["lines"]} == {len(series["at"])}
    used, reserved, allocated = (line["values"] for line in series["lines"])
    assert max(used) >= max(reserved) >= max(allocated) > 0 == reserved[-1]
