"""dcgmi's documents of both formats, and programs in its place that fail, hang or print something else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.worker import dcgm

PERSISTENCE = "Persistence Mode: Persistence mode for GPU 0 is disabled."
ROWS = "Row Remap: GPU 0 had uncorrectable memory errors and row remapping is pending."


def of_4(*results: dict[str, Any], **more: Any) -> str:
    tests = [{"name": "software", "results": results, "test_summary": {"status": "Pass"}}]
    root = {"test_categories": [{"category": "Deployment", "tests": tests}], **more}
    return json.dumps({"DCGM Diagnostic": root, "metadata": {"version": "4.2.3"}})


def of_gpu(status: str, *warnings: tuple[str, int]) -> dict[str, Any]:
    told = [{"error_category": 8, "error_id": 29, "error_severity": s, "warning": w} for w, s in warnings]
    return {"entity_group": "GPU", "entity_id": 0, "status": status, **({"warnings": told} if told else {})}


def of_3(status: str, **more: Any) -> str:
    result = {"gpu_ids": "0,1", "status": status, **more}
    categories = [{"category": "Deployment", "tests": [{"name": "Denylist", "results": [result]}, None]}]
    return "WARNING: THIS SHOULD NOT HAPPEN\n" + json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.3.7"}}
    )


@pytest.mark.parametrize(
    ("text", "version", "tests"),
    [
        (of_4(of_gpu("Pass")), "4.2.3", [["software", "PASS", "0", [], False]]),
        (of_4(of_gpu("Fail", (PERSISTENCE, 5))), "4.2.3", [["software", "FAIL", "0", [PERSISTENCE], True]]),
        (
            of_4(of_gpu("Fail", (PERSISTENCE, 5), (ROWS, 6))),
            "4.2.3",
            [["software", "FAIL", "0", [PERSISTENCE, ROWS], False]],
        ),
        (of_3("PASS"), "3.3.7", [["Denylist", "PASS", "0,1", [], False]]),
        (of_3("Fail", warnings=[ROWS]), "3.3.7", [["Denylist", "FAIL", "0,1", [ROWS], False]]),
    ],
)
def test_document_of_each_version_is_read(text: str, version: str, tests: list[Any]) -> None:
    assert dcgm.read(text) == {"version": version, "error": "", "tests": tests}


def test_reason_why_nothing_was_tested_is_kept() -> None:
    assert (dcgm.read(of_4(runtime_error="Detected unsupported GPU")) or {})["error"] == (
        "Detected unsupported GPU"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "[]",
        "{" * 10_000,
        '{"DCGM Diagnostic": 3}',
        '{"DCGM Diagnostic": {"test_categories": 3}}',
        of_4({"status": 3}),
        of_4({}),
        "\x00\xff{]",
    ],
)
def test_garbage_is_no_document(text: str) -> None:
    assert dcgm.read(text) is None


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a shell script in place of dcgmi."""

    def waits(condition: Callable[[], bool], limit_s: float) -> bool:
        until = time.monotonic() + limit_s
        while not (holds := condition()) and time.monotonic() < until:
            time.sleep(0.01)
        return holds

    def in_place_of_dcgmi(script: str | None, limit_s: float = 60) -> dict[str, Any]:
        if script is not None:
            (tmp_path / "dcgmi").write_text(script)
            (tmp_path / "dcgmi").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return dcgm.run(waits, limit_s)

    return in_place_of_dcgmi


def test_level_1_is_asked_for_and_exit_code_and_document_are_kept(run: Run) -> None:
    told = run(f"""#!/bin/sh
test "$*" = "diag -r 1 -j" || exit 9
echo '{of_4(of_gpu("Pass"))}'
exit 226
""")
    assert (told["exit"], told["version"]) == (226, "4.2.3")


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("#!/bin/sh\necho no host engine >&2; exit 235\n", 235, "no host engine"),
        ("#!/bin/sh\nkill -9 $$\n", -9, ""),
        ("#!/absent\n", 127, "No such file or directory"),
    ],
)
def test_output_without_a_document_is_kept_with_the_exit_code(
    run: Run, script: str, code: int, said: str
) -> None:
    told = run(script)
    assert (told["exit"], told["said"]) == (code, said)


def test_hang_is_ended_with_what_it_started(run: Run, tmp_path: Path) -> None:
    told = run(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child; wait\n", limit_s=0.5)
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert told["exit"] is None
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_absent_dcgmi_is_said(run: Run) -> None:
    assert run(None) == {"program": ""}
