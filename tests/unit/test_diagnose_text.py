"""How a diagnosis reads on a terminal, and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from gpuipc_doctor.diagnose import document, exits, text
from gpuipc_doctor.diagnose.diagnosis import Diagnosis, LogRead
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.reading import diagnose
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, Workaround
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.entry import Reference
from gpuipc_doctor.knownissues.versions import Range
from gpuipc_doctor.report.text import columns
from tests import golden

SCHEMA = json.loads(Path(document.__file__).with_name("diagnosis.schema.json").read_text(encoding="utf-8"))

ISSUES = (
    KnownIssue(
        id="cxi-not-mapped",
        title="the network adapter cannot map device memory; small messages hang, larger ones abort",
        component="cxi-driver",
        kind="hang",
        status="open",
        symptom="…",
        references=(Reference("report", "https://example.org/1"),),
        signatures=(
            Signature((r"cxil_map\(\) failed: -22",)),
            Signature((r"RXC \(.*\) PtlTE \d+: Failed to map recv buffer: -?\d+",)),
            Signature(("cxip_recv_req_alloc", "cxip_recv_common", "cxip_trecv"), Confidence.MEDIUM),
        ),
        detected_by=("mpi-small-message",),
        workarounds=(
            Workaround("look in the kernel's log for “GPU symbols” of cxi_core; load the cxi driver anew"),
            Workaround("set FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD=0", {"FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD": "0"}),
        ),
    ),
    KnownIssue(
        id="ipc-reopen",
        title="an IPC handle cannot be opened again in a new context",
        component="nvidia-driver",
        kind="error",
        status="closed-unclear",
        symptom="…",
        references=(Reference("report", "https://example.org/2"),),
        affected=(Range("nvidia-driver", introduced="455.32.00", last_affected="460.32.03"),),
        signatures=(Signature((r"cuIpcOpenMemHandle\b.*\bCUDA_ERROR_INVALID_HANDLE",), Confidence.MEDIUM),),
        detected_by=("ipc-reopen",),
        workarounds=(Workaround("keep the importer's context"),),
    ),
    KnownIssue(
        id="cache-leak",
        title="the sender's device memory falls with each buffer",
        component="cray-mpich",
        kind="leak",
        status="fixed",
        symptom="…",
        references=(),
        signatures=(Signature(("CUDA error: 2",), needs=(Need("cray-mpich"),)),),
    ),
)


def diagnosed(*names: str, monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    monkeypatch.chdir(Path(__file__).parents[1] / "logs" / "faulty")
    return diagnose(names, Examination(ISSUES))


SEEDS = ("seed-000-gpudirect-oom.log", "seed-001-cxi-device-memory.log", "seed-002-ipc-reopen.log")


@pytest.mark.parametrize("width", [80, 120])
def test_the_page(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    page = text.render(diagnosed(*SEEDS, monkeypatch=monkeypatch), width=width, exit_code=12)
    assert max(map(columns, page.splitlines())) <= width
    golden.check(f"diagnose/seeds-{width}.txt", page)


def test_the_page_of_lines_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"2026-11-20T10:{n % 60:02}:00 nid{n:06} kernel: NVRM: Xid (PCI:0009:01:00): 31, pid={n}"
        for n in range(2000)
    ]
    kinds = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
    lines += [f"{kind} \x1b[31mFATAL\x1b[0m \x1b]0;evil\x07 error \u202e nearly" for kind in kinds]
    Path("job.out").write_text("\n".join(lines), encoding="utf-8")
    page = text.render(diagnose(["job.out", "none"], Examination([])), width=80, exit_code=11)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert max(map(columns, page.splitlines())) <= 80
    golden.check("diagnose/unknown.txt", page)


def test_the_exit_code_gets_a_line_where_the_last_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = replace(diagnosed(*SEEDS, "none", monkeypatch=monkeypatch), interrupted=True)
    *_, last, code = text.render(diagnosis, width=80, exit_code=12).splitlines()
    assert last == "2 known issues recognised · 1 hint · 1 log not read to the end · interrupted"
    assert code == "exit 12".rjust(80)


def test_colours_are_for_the_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = diagnosed(*SEEDS, monkeypatch=monkeypatch)
    coloured = text.render(diagnosis, width=80, color=True, exit_code=12)
    assert "\x1b[31;1mFOUND\x1b[0m  cxi-not-mapped" in coloured
    plain = coloured.replace("\x1b[31;1m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
    assert plain == text.render(diagnosis, width=80, exit_code=12)


def test_the_document_is_as_its_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    diagnosis = diagnosed(*SEEDS, "none", monkeypatch=monkeypatch)
    told = json.loads(document.dumps(diagnosis, exit_code=12))
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(told)] == []
    assert [(one["issue"], one["confidence"], one["relation"]) for one in told["recognised"]] == [
        ("cxi-not-mapped", "high", "cannot tell"),
        ("ipc-reopen", "high", "confirmed"),
        ("cache-leak", "low", "cannot tell"),
    ]
    assert told["recognised"][1]["lines"]["first"] == {
        "log": "seed-002-ipc-reopen.log",
        "line": 34,
        "time": "",
        "host": "",
        "rank": "",
        "text": "child_main:107: failed on cuIpcOpenMemHandle: CUDA_ERROR_INVALID_HANDLE",
    }
    assert told["logs"][3]["trouble"] == "cannot be opened: No such file or directory"


def test_names_that_are_no_text_do_not_break_the_document() -> None:
    diagnosis = Diagnosis((LogRead("job\udcff.out", 1, 2),), (), (), ())
    assert json.loads(document.dumps(diagnosis, exit_code=0))["logs"][0]["name"] == "job?.out"


@pytest.mark.parametrize(
    ("names", "strict", "interrupted", "expected"),
    [
        (SEEDS, False, False, exits.Exit.FOUND),
        ((*SEEDS, "none"), False, True, exits.Exit.FOUND),
        (("none",), False, False, exits.Exit.UNREADABLE),
        (("none", SEEDS[0]), True, False, exits.Exit.UNREADABLE),
        ((SEEDS[0],), False, False, exits.Exit.OK),
        ((SEEDS[0],), True, False, exits.Exit.HINTS),
        ((SEEDS[0],), True, True, exits.Exit.INTERRUPTED),
        (("/dev/null",), False, False, exits.Exit.NOTHING_READ),
        ((), False, False, exits.Exit.NOTHING_READ),
    ],
)
def test_exit_codes(
    names: tuple[str, ...],
    strict: bool,
    interrupted: bool,
    expected: exits.Exit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diagnosis = diagnosed(*names, monkeypatch=monkeypatch)
    diagnosis = Diagnosis(diagnosis.logs, (), diagnosis.recognised, (), interrupted=interrupted)
    assert exits.code(diagnosis, strict=strict) == expected
