"""A diagnosis on a terminal, and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from gpuipc_doctor.diagnose import diagnosis_content, exits
from gpuipc_doctor.diagnose.diagnosis import Diagnosis, LogRead, Recognised
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.occurrences import Occurrences, Place
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, Workaround
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.entry import Reference
from gpuipc_doctor.model import Exit, Fact
from gpuipc_doctor.present import terminal
from gpuipc_doctor.present.text import columns
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.versions import Range
from tests import golden, schemas

SCHEMA = schemas.beside(diagnosis_content, "diagnosis")

EDITION = "0123456789ab"

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
    monkeypatch.chdir(Path(__file__).parents[2] / "logs" / "faulty")
    return diagnose(names, Examination(ISSUES))


SEEDS = ("seed-000-gpudirect-oom.log", "seed-001-cxi-device-memory.log", "seed-002-ipc-reopen.log")


@pytest.mark.parametrize("width", [80, 120])
def test_page(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    page = diagnosis_content.screen(diagnosed(*SEEDS, monkeypatch=monkeypatch), width=width, exit_code=12)
    assert max(map(columns, page.splitlines())) <= width
    golden.check(f"diagnose/seeds-{width}.txt", page)


def test_page_of_unknown_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"2026-11-20T10:{n % 60:02}:00 nid{n:06} kernel: NVRM: Xid (PCI:0009:01:00): 31, pid={n}"
        for n in range(2000)
    ]
    kinds = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
    lines += [f"{kind} \x1b[31mFATAL\x1b[0m \x1b]0;evil\x07 error \u202e nearly" for kind in kinds]
    Path("job.out").write_text("\n".join(lines), encoding="utf-8")
    page = diagnosis_content.screen(diagnose(["job.out", "none"], Examination([])), width=80, exit_code=11)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert max(map(columns, page.splitlines())) <= 80
    golden.check("diagnose/unknown.txt", page)


TROUBLE = """\
step 1 loss 2.31
[rank2]: falling back to the host for buffers of 4096 bytes
ERR: transport 3 gave up
app: pool.cc:88: void release(): Assertion `refs == 0' failed.
#4  0x00007f31 in __assert_fail () from /lib64/libc.so.6
Leaked 3 handles at exit
pidfd_getfd: Operation not permitted
step 2 loss 2.30
ERR: transport 7 gave up
"""
RECOGNISED = """\
importer: cuIpcOpenMemHandle #2 returned CUDA_ERROR_INVALID_HANDLE (400)
exporter: cuIpcOpenMemHandle #2 returned CUDA_ERROR_INVALID_HANDLE (400)
"""
SCREENS = [
    ("trouble", TROUBLE, (), 10),
    ("healthy", "step 1 loss 2.31\nstep 2 loss 2.30\n", (), 0),
    ("contradicted", RECOGNISED, (Fact("nvidia-driver", "570.86.15", "inventory"),), 10),
    (
        "other-vendor",
        RECOGNISED,
        (Fact("amdgpu", "6.12.12", "inventory"), Fact("rocm", "6.4.0", "inventory")),
        10,
    ),
]
"""Name, log, facts of the node, and the exit code with ``--strict``."""


@pytest.mark.parametrize(("name", "log", "known", "code"), SCREENS, ids=[screen[0] for screen in SCREENS])
def test_screen_golden_files(
    name: str, log: str, known: tuple[Fact, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.out").write_text(log, encoding="utf-8")
    diagnosis = diagnose(["job.out"], Examination(ISSUES), known=known)
    strict = exits.code(diagnosis, strict=True)
    page = diagnosis_content.screen(diagnosis, width=80, exit_code=strict)
    golden.check(f"diagnose/{name}.txt", page)
    assert strict == code
    if any(issue_.relation is Relation.NEW for issue_ in diagnosis.recognised):
        assert "no other cause of the matched lines" not in page


def test_exit_code_gets_its_own_line_if_the_last_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = replace(diagnosed(*SEEDS, "none", monkeypatch=monkeypatch), interrupted=True)
    *_, last, code = diagnosis_content.screen(diagnosis, width=80, exit_code=12).splitlines()
    assert last == "2 known issues recognised · 1 hint · 1 log not read to the end · interrupted"
    assert code == "exit 12".rjust(80)


def test_only_words_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = diagnosed(*SEEDS, monkeypatch=monkeypatch)
    coloured = diagnosis_content.screen(diagnosis, width=80, color=True, exit_code=12)
    assert "\x1b[31;1mFOUND\x1b[0m  cxi-not-mapped" in coloured
    plain = coloured.replace("\x1b[31;1m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
    assert plain == diagnosis_content.screen(diagnosis, width=80, exit_code=12)


def test_document_matches_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schemas.check(diagnosis_content, "diagnosis")
    diagnosis = diagnosed(*SEEDS, "none", monkeypatch=monkeypatch)
    told = json.loads(diagnosis_content.dumps(diagnosis, exit_code=12, edition=EDITION))
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(told)] == []
    assert [(issue_["issue"], issue_["confidence"], issue_["relation"]) for issue_ in told["recognised"]] == [
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


def test_file_names_that_are_not_utf_8_do_not_break_the_document() -> None:
    diagnosis = Diagnosis((LogRead("job\udcff.out", 1, 2),), (), (), ())
    assert (
        json.loads(diagnosis_content.dumps(diagnosis, exit_code=0, edition=EDITION))["logs"][0]["name"]
        == "job?.out"
    )


@pytest.mark.parametrize(
    ("names", "strict", "interrupted", "expected"),
    [
        (SEEDS, False, False, Exit.FAIL),
        ((*SEEDS, "none"), False, True, Exit.FAIL),
        (("none",), False, False, Exit.ERROR),
        (("none", SEEDS[0]), True, False, Exit.ERROR),
        ((SEEDS[0],), False, False, Exit.OK),
        ((SEEDS[0],), True, False, Exit.WARN),
        ((SEEDS[0],), True, True, Exit.INTERRUPTED),
        (("/dev/null",), False, False, Exit.NOTHING),
        ((), False, False, Exit.NOTHING),
    ],
)
def test_exit_codes(
    names: tuple[str, ...],
    strict: bool,
    interrupted: bool,
    expected: Exit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diagnosis = diagnosed(*names, monkeypatch=monkeypatch)
    diagnosis = Diagnosis(diagnosis.logs, (), diagnosis.recognised, (), interrupted=interrupted)
    assert exits.code(diagnosis, strict=strict) == expected


def test_unknown_errors_fail_a_strict_run(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = diagnosed(SEEDS[1], monkeypatch=monkeypatch)
    nobody_knows = Diagnosis(diagnosis.logs, (), (), diagnosis.unknown)
    assert exits.code(nobody_knows, strict=True) == Exit.WARN
    assert exits.code(nobody_knows) == Exit.OK
    assert exits.code(Diagnosis(diagnosis.logs, (), (), ()), strict=True) == Exit.OK


def test_contradiction_replaces_the_confidence() -> None:
    place = Place("a.log", 1, "cxil_map() failed: -22", 0, 8, "", "")
    lines = Occurrences(1, False, place, place, (), ())
    fine = Recognised(
        ISSUES[1],
        Confidence.HIGH,
        Confidence.MEDIUM,
        Relation.NEW,
        "the driver is a good one",
        (),
        lines,
        (lines,),
    )
    page = terminal.screen([diagnosis_content.entry(fine)], width=100)
    assert "Why: the lines match, but the driver is a good one." in page
    assert "nothing else" not in page


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_page_and_ticket_have_the_content_of_the_screen(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = diagnosed(*SEEDS, monkeypatch=monkeypatch)
    make = {"markdown": diagnosis_content.ticket, "html": diagnosis_content.html}[form]
    text = make(diagnosis, exit_code=Exit.FAIL)
    golden.check(f"diagnose/seeds.{form}", text)
    for issue_ in diagnosis.recognised:
        assert text.count(issue_.issue.id) >= 3


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_lines_of_a_log_are_escaped(form: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("FATAL <script>alert(1)</script> | `x` [a](http://b) \x1b]0;title\a\n", encoding="utf-8")
    diagnosis = diagnose([str(log)], Examination(ISSUES))
    make = {"markdown": diagnosis_content.ticket, "html": diagnosis_content.html}[form]
    text = make(diagnosis, exit_code=Exit.OK)
    assert "<script>alert" not in text
    assert "FATAL" in text
    assert form == "html" or "\\[a\\]" in text
    assert "\x1b" not in text


def test_verbose_shows_every_kind_of_line(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    words = [f"{first}{second}" for first in "ghijklmnop" for second in "qrstuvwxyz"]
    log.write_text("".join(f"FATAL {word}\n" for word in words), encoding="utf-8")
    diagnosis = diagnose([str(log)], Examination(ISSUES))
    brief, full = (
        diagnosis_content.screen(diagnosis, width=80, exit_code=0, limits=limits)
        for limits in (diagnosis_content.BRIEF, diagnosis_content.VERBOSE)
    )
    assert "… and 90 more kinds with -v" in brief
    assert all(f"1 × FATAL {word}\n" in full for word in words)
