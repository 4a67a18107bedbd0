"""Recognised issues in log lines: multi-part signatures, versions, confidence; and unexplained errors."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.error_lines import MOST_GROUPS
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, Workaround
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.releases import released
from gpuipc_doctor.knownissues.scanner import MANY
from gpuipc_doctor.model import Fact
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.versions import Range


def issue(*signatures: Signature, id_: str = "one", affected: Iterable[Range] = ()) -> KnownIssue:
    return KnownIssue(
        id=id_,
        title="what it is",
        component="nccl",
        kind="error",
        status="open",
        symptom="how it shows",
        references=(),
        affected=tuple(affected),
        signatures=signatures,
        workarounds=(Workaround("update"),),
    )


def examine(logs: dict[str, str], *issues: KnownIssue, known: Iterable[Fact] = ()) -> Diagnosis:
    examination = Examination(issues)
    for name, text in logs.items():
        log = examination.log(name)
        for at in range(0, len(text), 1 << 16):
            log.feed(text[at : at + (1 << 16)].encode())
        log.flush()
    return examination.conclude((), tuple(known))


GONE = Signature(("the handle is gone",))


def test_lines_are_counted_and_located() -> None:
    text = "\n".join(
        ["start", *(f"srun: error: nid00{n}: task {n}: the handle is gone" for n in (3, 1, 2)), "end", ""]
    )
    (one,) = examine({"a.log": text, "b.log": "the handle is gone\n"}, issue(GONE)).recognised
    assert one.lines.count == 4
    assert (one.lines.first.where, one.lines.last.where) == ("a.log:2", "b.log:1")
    assert one.lines.hosts == ("nid001", "nid002", "nid003")
    assert one.lines.ranks == ("1", "2", "3")
    assert one.signatures == (one.lines,)


def test_all_parts_of_a_signature_must_be_in_one_log() -> None:
    both = issue(Signature(("handle", "context destroyed")))
    assert not examine({"a": "handle\n", "b": "context destroyed\n"}, both).recognised
    (one,) = examine({"a": "context destroyed\n" * 3 + "handle\n" * 5}, both).recognised
    assert one.lines.count == 4, "the part that says less is found once"


def test_frequent_part_is_paused_until_the_other_is_found() -> None:
    both = issue(Signature(("everywhere in this log", "then")))
    text = "everywhere in this log\n" * (MANY + 500)
    (one,) = examine({"a": text + "x\n" * 20_000 + "then\n" + "x\n" * 40_000 + text}, both).recognised
    assert one.lines.at_least
    assert one.lines.count >= 2 * MANY + 500, "after the other part it is counted again"
    (one,) = examine({"a": "everywhere in this log\n" * 500 + "then\n"}, both).recognised
    assert not one.lines.at_least
    assert one.lines.count == 501


BAD = Range("nccl", introduced="2.0", fixed="3.0")


@pytest.mark.parametrize(
    ("written", "version", "confidence", "relation"),
    [
        (Confidence.HIGH, "2.5", Confidence.HIGH, Relation.CONFIRMED),
        (Confidence.HIGH, "3.1", Confidence.LOW, Relation.NEW),
        (Confidence.HIGH, None, Confidence.MEDIUM, Relation.UNKNOWN),
        (Confidence.MEDIUM, "2.5", Confidence.HIGH, Relation.CONFIRMED),
        (Confidence.MEDIUM, "3.1", Confidence.LOW, Relation.NEW),
        (Confidence.LOW, "2.5", Confidence.MEDIUM, Relation.CONFIRMED),
        (Confidence.LOW, "3.1", Confidence.LOW, Relation.NEW),
        (Confidence.LOW, None, Confidence.LOW, Relation.UNKNOWN),
    ],
)
def test_version_changes_the_confidence(
    written: Confidence, version: str | None, confidence: Confidence, relation: Relation
) -> None:
    one = issue(Signature(GONE.match, confidence=written), affected=[BAD])
    banner = f"nid1:1:1 [0] NCCL INFO NCCL version {version}+cuda12.4\n" if version else ""
    (found,) = examine({"a": banner + "the handle is gone\n"}, one).recognised
    assert (found.confidence, found.relation) == (confidence, relation)


@pytest.mark.parametrize(
    ("component", "upgrade", "version", "offered"),
    [
        ("ucx", "1.12.1", "1.18.1", False),
        ("ucx", "1.12.1", "1.12.0", True),
        ("ucx", "1.12.1", None, True),
        ("ucx", "", "1.18.1", True),
        ("openmpi", "4.1.4", "5.0.6", False),
        ("cray-mpich", "8.1.30", "9.0.1", False),
    ],
)
def test_installed_update_is_not_recommended(
    component: str, upgrade: str, version: str | None, offered: bool
) -> None:
    known = [Fact(component, version, "inventory")] if version else []
    one = replace(issue(GONE), component=component, workarounds=(Workaround("use it", upgrade=upgrade),))
    (found,) = examine({"a": "the handle is gone"}, one, known=known).recognised
    assert bool(found.remedies) is offered


def test_facts_of_the_node_override_logs() -> None:
    text = "NCCL version 3.1+cuda12.4\nthe handle is gone\n"
    known = Fact("nccl", "2.5", "inventory")
    diagnosis = examine({"a": text}, issue(GONE, affected=[BAD]), known=[known])
    assert diagnosis.recognised[0].relation is Relation.CONFIRMED
    assert diagnosis.facts == (known,)


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("the handle is gone", Confidence.LOW),
        ("UCX  INFO  Version 1.15.0 (loaded)\nthe handle is gone", Confidence.HIGH),
        ("UCX  INFO  Version 1.17.0 (loaded)\nthe handle is gone", None),
    ],
)
def test_signature_may_require_a_version(text: str, confidence: Confidence | None) -> None:
    needy = Signature(GONE.match, needs=(Need("ucx", range=Range("ucx", introduced="0", fixed="1.16")),))
    diagnosis = examine({"a": text}, issue(needy))
    assert [issue_.confidence for issue_ in diagnosis.recognised] == [confidence] * (confidence is not None)
    assert len(diagnosis.found) == (confidence is Confidence.HIGH)


def test_affected_version_does_not_replace_a_required_one() -> None:
    needy = Signature(GONE.match, needs=(Need("ucx"),))
    (one,) = examine({"a": "NCCL version 2.5.1\nthe handle is gone"}, issue(needy, affected=[BAD])).recognised
    assert (one.confidence, one.relation) == (Confidence.LOW, Relation.CONFIRMED)
    assert one.reason.endswith("and this issue occurs only with ucx")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("export NCCL_P2P_DISABLE=1", "1"),
        ("NCCL_P2P_DISABLE=0 srun ./a.out", "0"),
        ("PE 0:   NCCL_P2P_DISABLE              = 1", "1"),
        ("n1:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.", "1"),
        ("with `NCCL_P2P_DISABLE=1` it works", None),
        ("MY_NCCL_P2P_DISABLE=1", None),
    ],
)
def test_variables_of_known_issues_are_read(text: str, told: str | None) -> None:
    needy = issue(Signature(GONE.match, needs=(Need("env:NCCL_P2P_DISABLE", matches="1"),)))
    assert [fact.value for fact in examine({"a": text}, needy).facts] == [told] * (told is not None)


def test_highest_confidence_comes_first() -> None:
    issues = [
        issue(Signature(GONE.match, confidence=confidence), id_=confidence.label) for confidence in Confidence
    ]
    diagnosis = examine({"a": "the handle is gone"}, *issues)
    assert [issue_.issue.id for issue_ in diagnosis.recognised] == ["high", "medium", "low"]
    assert [issue_.issue.id for issue_ in diagnosis.found] == ["high", "medium"]
    assert [issue_.issue.id for issue_ in diagnosis.hints] == ["low"]


def test_cause_comes_before_secondary_issue_and_that_before_hint() -> None:
    peer = Signature(("a peer has gone",), confidence=Confidence.MEDIUM)
    issues = [
        issue(Signature(("a warning",), confidence=Confidence.LOW), id_="hint"),
        replace(issue(peer, id_="peer"), kind="elsewhere", secondary=True),
        replace(issue(GONE, id_="cause"), kind="config"),
    ]
    diagnosis = examine({"a": "a warning\na peer has gone\nthe handle is gone\n"}, *issues)
    assert [issue_.issue.id for issue_ in diagnosis.recognised] == ["cause", "peer", "hint"]


def test_withdrawn_issues_are_not_searched() -> None:
    withdrawn = KnownIssue(
        "old", "t", "nccl", "error", "open", "s", (), signatures=(GONE,), withdrawn="it was none"
    )
    assert not examine({"a": "the handle is gone"}, withdrawn).recognised


def test_unsearchable_signature_is_reported_and_others_are_found() -> None:
    examination = Examination([issue(Signature((r"\d+|[a-z]*\d",)), GONE)])
    assert examination.skipped == [
        r"one: '\\d+|[a-z]*\\d' has no fixed text except digits, white space and 'a' to 'f'"
    ]
    log = examination.log("a")
    log.feed(b"the handle is gone\n")
    log.flush()
    assert examination.conclude(()).recognised


def test_unexplained_lines_are_grouped_by_importance() -> None:
    text = "".join(f"srun: error: nid{n:06}: task {n}: Terminated\n" for n in range(1000))
    text += "ERROR: the handle is gone\nsegmentation fault\nno error here\n"
    diagnosis = examine({"a": text}, issue(GONE))
    assert [(lines.count, lines.first.line) for lines in diagnosis.unknown] == [(1, 1002), (1000, 1)]
    assert len(diagnosis.unknown[1].hosts) == 1000


def test_line_of_an_incomplete_signature_is_not_explained() -> None:
    diagnosis = examine({"a": "ERROR: the handle is gone\n"}, issue(Signature((*GONE.match, "elsewhere"))))
    assert not diagnosis.recognised
    assert [lines.count for lines in diagnosis.unknown] == [1]


def test_number_of_distinct_kinds_is_limited() -> None:
    letters = "ghijklmnop"
    names = ["".join(letters[int(digit)] for digit in f"{n:04}") for n in range(MOST_GROUPS + 50)]
    diagnosis = examine({"a": "".join(f"{name} FATAL\n" for name in names)})
    assert len(diagnosis.unknown) == MOST_GROUPS
    assert 0 < diagnosis.unknown_beyond <= 50, "at least so many; the pattern rests"


def test_flood_of_one_pattern_hides_no_other() -> None:
    words = "".join(
        f"{'ghijklmnop'[n % 10] * 7}{'qrstuvwxyz'[n // 10 % 10] * (n // 100 + 1)} ERROR\n"
        for n in range(9000)
    )
    diagnosis = examine({"a": words + words + "free(): corrupted unsorted chunks\n" + words})
    assert diagnosis.unknown[0].first.text == "free(): corrupted unsorted chunks"
    assert len(diagnosis.unknown) == MOST_GROUPS + 1


def test_very_long_line_is_quoted_around_its_match() -> None:
    (one,) = examine({"a": "v" * 3000 + "the handle is gone" + "w" * 900}, issue(GONE)).recognised
    assert "the handle is gone" in one.lines.first.excerpt
    assert len(one.lines.first.excerpt) < 500


def test_line_of_another_program_does_not_count() -> None:
    ours = Signature(GONE.match, unless="^GTL")
    assert not examine({"a": "GTL DEBUG: the handle is gone\n"}, issue(ours)).recognised
    (one,) = examine({"a": "GTL DEBUG: the handle is gone\nthe handle is gone\n"}, issue(ours)).recognised
    assert (one.lines.count, one.lines.first.line) == (1, 2)


@pytest.mark.parametrize(
    ("there", "recognised"),
    [
        ([], True),
        (["nvidia-driver"], True),
        (["rocm"], False),
        (["rocm", "cuda-runtime"], True),  # both are installed: the vendor of the GPUs is unknown
    ],
)
def test_issue_of_the_other_vendor_is_not_recognised(there: list[str], recognised: bool) -> None:
    of_nvidia = replace(issue(GONE), component="cuda-driver")
    node = [Fact(name, "1.0", "inventory") for name in there]
    assert bool(examine({"a": "the handle is gone\n"}, of_nvidia, known=node).recognised) is recognised


@pytest.mark.parametrize(
    "line",
    [
        "n1:1:2 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "libfabric:22:1700000000::core:core:fi_getinfo_():1400<info> err: 5",
        "# Out of bounds values : 0 OK",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
        "Call ncclGetErrorString for the text; free() is not called",
        "0 errors, 0 failures, timeout=1800 s, status: 0",
        "Signal handlers are installed",
    ],
)
def test_harmless_line_is_not_shown_as_an_error(line: str) -> None:
    assert examine({"a": f"ready\n{line}\ndone\n"}).unknown == ()


@pytest.mark.parametrize(
    "line",
    [
        "========= Leaked 4096 bytes at 0x7f0a26800000",
        "ERR:  mh is not mapped yet",
        "UCX  WARN  cannot pin, falling back to a copy",
        "pidfd: Operation not permitted",
        "#2  __assert_fail_base () from libc.so.6",
        "PRTE has lost communication with a remote daemon.",
        "[E ProcessGroupNCCL.cpp:563] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        "[rank7]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        "[n1:2214] Signal: Aborted (6)",
        "./a.out: error while loading shared libraries: libucp.so.0: cannot open shared object file",
        "/src/host/init/init.cu:989: non-zero status: 7 nvshmem detect topo failed",
        "libfabric:22:1700000000::core:core:fi_getinfo_():1400<warn> err: 5",
        "free(): corrupted unsorted chunks",
        "malloc(): invalid size (unsorted)",
        "munmap_chunk(): invalid pointer",
        "corrupted size vs. prev_size",
        "*** stack smashing detected ***: terminated",
        "terminate called after throwing an instance of 'c10::Error'",
        "HW Exception by GPU node-2 (Agent handle: 0x1) reason :GPU Hang",
        "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 8",
        "Failed to modify QP to RTR: Connection timed out",
        "E0717 nixl_agent.cpp:359] createBackend: status NIXL_ERR_BACKEND",
        "CUDA kernel: an illegal memory access was encountered",
        "ValueError: world size must be at least 2",
    ],
)
def test_unknown_error_is_shown(line: str) -> None:
    (shown,) = examine({"a": f"ready\n{line}\ndone\n"}).unknown
    assert shown.first.text == line


STACK = Signature(match=(), stack=("cxip_cq_eq_progress", "PMPI_Recv"))


@pytest.mark.parametrize("block", [50, 1 << 18])
@pytest.mark.parametrize("again", [1, 3000])
def test_stack_is_recognised_by_its_functions_in_order(again: int, block: int) -> None:
    inner, outer = "#0  cxip_cq_eq_progress () at a.c:1\n", "#3  0x00007f12 in PMPI_Recv () from libmpi.so\n"
    for text, lines in ((inner + outer, 2 * again), (outer + inner.replace("#0", "#9"), 0)):
        examination = Examination([issue(STACK)])
        reading = examination.log("job.out")
        data = (text * again).encode()
        for at in range(0, len(data), block):
            reading.feed(data[at : at + block])
        reading.flush()
        recognised = examination.conclude([]).recognised
        assert sum(issue_.lines.count for issue_ in recognised) == lines


def test_function_names_in_a_debug_log_are_no_stack_and_searched_no_more() -> None:
    examination = Examination([issue(STACK)])
    reading = examination.log("job.out")
    for part in ("cxip_cq_eq_progress", "PMPI_Recv"):
        reading.feed(f"libfabric:1:1::cxi:cq:{part}():77<debug> event\n".encode() * 3000)
    reading.flush()
    assert examination.conclude([]).recognised == ()
    assert reading._scanner._memory._paused


OLD = Range("ucx", introduced="unknown", fixed="1.12.1")  # of March 2022


@pytest.mark.parametrize(
    ("stamp", "version", "confidence"),
    [
        ("2023-01-02T03:04:05Z ", "", Confidence.MEDIUM),
        ("2026-01-02T03:04:05Z ", "", Confidence.LOW),
        ("Sat Jan 03 01:02:03 2026 ", "", Confidence.LOW),
        ("", "", Confidence.MEDIUM),
        ("2026-01-02T03:04:05Z ", "1.11.0", Confidence.HIGH),
        ("2026-01-02T03:04:05Z ", "1.18.1", Confidence.LOW),
    ],
)
def test_date_and_version_of_a_log_count_against_long_fixed_issues(
    stamp: str, version: str, confidence: Confidence, tmp_path: Path
) -> None:
    known = KnownIssue(
        id="old", title="…", component="ucx", kind="error", status="fixed", symptom="…", references=(),
        affected=(OLD,), signatures=(Signature(("cuda_ipc broke",)),),
    )  # fmt: skip
    log = tmp_path / "job.out"
    log.write_text(f"{stamp}cuda_ipc broke\n", encoding="utf-8")
    facts = [Fact("ucx", version, "log")] if version else []
    (one,) = diagnose([str(log)], Examination([known]), known=facts).recognised
    assert one.confidence is confidence
    assert (
        "ucx 1.12.1, which fixes the issue, was released in 2022-03; the log is of 2026" in one.reason
    ) is ("2026" in stamp and not version)


def test_every_fix_with_a_public_tag_has_its_date() -> None:
    lacking = {
        (issue.component, range_.fixed)
        for issue in knownissues.load()
        for range_ in issue.affected
        if range_.fixed not in (None, "", "unknown")
        and range_.fixed not in released().get(issue.component, {range_.fixed})
    }
    assert lacking == {
        ("nccl", "2.29.7"),
        ("nccl", "2.30.6"),
        ("nccl", "2.31.2"),
        ("mpich", "5.0.2"),
    }  # newer than the copies that were read
