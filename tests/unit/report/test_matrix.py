"""The screen: golden files for its appearance, and properties of any screen."""

import re
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.api.equal_gpus import picture
from gpuipc_doctor.model import Fact, Finding
from gpuipc_doctor.present.text import columns, sanitise
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import merged_results, node_content, node_exports
from gpuipc_doctor.report_types import Join, Relation, Report, Result
from tests import golden
from tests.sample_reports import (
    PER_SUBJECT,
    PROPERTY,
    TITLES,
    gpus,
    healthy,
    hung,
    replaced,
    report,
    reports,
    seed_002,
)

STALE = Finding.fail("stale", "stale bytes in round {rounds}", rounds=[3])
NO_GPU = Finding.skip("no-gpu", "no GPU was found")


def one_device_hangs(count: int) -> Report:
    devices = gpus(count)
    return replaced(healthy(devices), hung("ipc-release", "cuIpcOpenMemHandle", devices[count // 2]))


def every_device_differs() -> Report:
    """The worst case for the width: neighbours always differ."""
    bad = [
        Result(
            "ipc-stale", Finding.fail("stale", "stale bytes in round {rounds}", rounds=[3]), (f"cuda:{i}",)
        )
        for i in range(0, 16, 2)
    ]
    return replaced(healthy(gpus(16)), *bad)


def context_creation_hangs() -> Report:
    """The same fault under every check on every device, each with its own time."""
    devices = gpus(4)
    return report(
        devices,
        [
            hung(check, "cuCtxCreate", device, after_s=10 + number / 10)
            for number, (check, device) in enumerate((c, d) for c in PER_SUBJECT for d in devices)
        ],
    )


def mixed() -> Report:
    """Two vendors; one APU cannot exchange data with the others."""
    apus = gpus(4, "hip", "AMD Instinct MI300A")
    bad = Finding.fail(
        "wrong-data",
        "importer read other bytes than the exporter wrote: 4096 of 4096 differ, the first at offset 0",
        "expected 3f 81 0c 55, read 00 00 00 00",
        remedy="see whether an IOMMU or ACS stands between these GPUs",
    )
    odd = [pair for i in range(3) for pair in (("hip:3", f"hip:{i}"), (f"hip:{i}", "hip:3"))]
    return replaced(healthy(gpus(2) + apus), *(Result("ipc-peer", bad, pair) for pair in odd))


def init_hung() -> Report:
    """The driver hangs at its first call, in a process that cannot be killed."""
    role = RoleOutcome(
        "driver",
        Ending.UNKILLABLE,
        4711,
        "cuInit",
        1,
        kernel=("pid 4711 python3: state D, wchan nvidia_unlocked_ioctl, syscall 16",),
        log_tail=("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x55:2477)",),
    )
    finding = Finding.fail(
        "hung", "driver: cuInit #1 hung", remedy="look for Xid lines in dmesg, then reboot the node"
    )
    unaware = Result("known-versions", Finding.ok("not-known-bad", "no known issue has these versions"))
    return report((), [Result("driver-init", finding, probe="cuda", roles=(role,)), unaware], probes_run=0)


def comes_and_goes() -> Report:
    """Three repetitions; one GPU of two shows stale data in the first and the last."""
    base = healthy(gpus(2))
    thrice = [replace(r, repetition=n) for r in base.results for n in ((1, 2, 3) if r.devices else (1,))]
    bad = {("ipc-stale", ("cuda:1",), n) for n in (1, 3)}
    return replaced(
        base,
        results=tuple(
            replace(r, finding=STALE) if (r.check, r.devices, r.repetition) in bad else r for r in thrice
        ),
    )


def latent() -> Report:
    join = Join(
        "nvidia-ipc-overlap",
        "a stale mapping keeps a new handle from being opened",
        Relation.LATENT,
        "nvidia-driver 580.159.04 is in the range, but ipc-stale passed",
        "set MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE=disabled",
        ("ipc-stale",),
    )
    return replaced(healthy(gpus(2)), joins=(join,))


def interrupted() -> Report:
    base = healthy(gpus(2))
    reached = tuple(r for r in base.results if r.check in ("known-versions", "ipc-reopen"))
    return replaced(base, results=reached, interrupted=True)


def ranks_in_one_call() -> Report:
    """Both ranks hang in the same call; the third role was only stopped."""
    stacks = (("pause (libc.so.6)", "MPI_Recv (libmpi.so.12)"), ("MPIDI_progress (libmpi.so.12)",))
    hung = [
        RoleOutcome(f"rank {number}", Ending.HUNG, 4711, "MPI_Recv", 3, native_stack=stack)
        for number, stack in zip((1, 0), stacks, strict=True)
    ]
    finding = Finding.fail("hung", "{role}: MPI_Recv #3 hung (10 s)", role="rank 1 or rank 0")
    stopped = RoleOutcome("rank 2", Ending.STOPPED, 4711, native_stack=("not shown",))
    result = Result("mpi-small-message", finding, ("cuda:0",), roles=(*hung, stopped))
    return replaced(healthy(gpus(1)), result)


def test_rank_that_a_finding_blames_is_shown_in_place_of_the_one_that_was_overdue() -> None:
    """In a history the rank that lost its message need not be the one that hung first."""
    roles = [RoleOutcome("rank 2", Ending.HUNG), RoleOutcome("rank 0", Ending.STOPPED)]
    finding = Finding.fail("hang", "{call} hung", call="MPI_Wait", role="rank 0")
    result = Result("mpi-histories", finding, ("cuda:0",), roles=tuple(roles))
    assert [role.role for role in merged_results.culprits(result)] == ["rank 0"]


def nasty() -> Report:
    """The output of a crashed worker tries to clear the screen, set the title and hide text."""
    role = RoleOutcome(
        "importer",
        Ending.CRASHED,
        1,
        "cuIpcOpenMemHandle",
        1,
        signal="SIGSEGV",
        native_stack=("evil\x1b[2J (/tmp/\u202elib.so)",),
        log_tail=(
            "\x1b]0;owned\x07\x1b[31;1mFAIL\x1b[0m\r\x1b[2Kall is well",
            "x" * 10_000,
            "\udcff\x00\x9b1m",
        ),
    )
    finding = Finding.fail(
        "crashed", "importer: cuIpcOpenMemHandle #1 ended in SIGSEGV", "\x1b[8mhidden\x1b[0m words"
    )
    return replaced(healthy(gpus(1)), Result("ipc-stale", finding, ("cuda:0",), roles=(role,)))


def no_peer_access(one: str, other: str) -> Finding:
    says = "no peer access between {from_device} and {to_device}"
    return Finding.skip("no-peer-access", says, from_device=one, to_device=other)


def troubled() -> Report:
    """A report with each kind of bad finding."""
    other = Finding.error(
        "held-by-others",
        "another process holds the memory: 140.6 of 141.0 GiB are in use",
        remedy="run again on an idle node",
    )
    leaks = [
        Finding.fail("leaks", "every open and close leaks {each} B of device memory", each=each)
        for each in (65536, 65540, 65524)
    ]
    base = seed_002()
    return replaced(
        base,
        Result("ipc-handles", other, ("cuda:1",)),
        *(Result("ipc-release", leak, (f"cuda:{i}",)) for i, leak in zip((0, 2, 3), leaks, strict=True)),
        *(
            Result("ipc-peer", no_peer_access(a, b), (a, b))
            for a, b in permutations(("cuda:0", "cuda:2", "cuda:3"), 2)
        ),
    )


SCREENS = {
    "healthy-1": healthy(gpus(1)),
    "healthy-2": healthy(gpus(2)),
    "healthy-8": healthy(gpus(8)),
    "healthy-16": healthy(gpus(16)),
    "seed-002": seed_002(),
    "troubled": troubled(),
    "one-of-8-hangs": one_device_hangs(8),
    "one-of-16-hangs": one_device_hangs(16),
    "every-device-differs": every_device_differs(),
    "context-creation-hangs": context_creation_hangs(),
    "cuda-and-hip": mixed(),
    "init-hung": init_hung(),
    "nothing-tested": report((), [Result(check, NO_GPU) for check in TITLES], probes_run=0),
    "comes-and-goes": comes_and_goes(),
    "latent": latent(),
    "interrupted": interrupted(),
    "simulated": replaced(seed_002(), simulated="nvidia-460.32.03"),
    "nasty": nasty(),
    "ranks-in-one-call": ranks_in_one_call(),
}


WIDE = ["troubled", "one-of-16-hangs", "every-device-differs"]


@pytest.mark.parametrize(
    ("name", "width"), [*((name, 80) for name in SCREENS), *((name, 120) for name in WIDE)]
)
def test_screen(name: str, width: int) -> None:
    golden.check(f"matrix/{name}-{width}.txt", node_content.screen(SCREENS[name], width=width))


def test_colour_changes_nothing_else() -> None:
    plain, coloured = (node_content.screen(troubled(), color=color) for color in (False, True))
    assert "\x1b[31;1mFAIL\x1b[0m" in coloured
    assert "\x1b[32mPASS\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b" not in plain


def test_checks_without_gpus_do_not_count_as_nothing_tested() -> None:
    told = Result("known-versions", Finding.ok("not-known-bad", "no known issue has these versions"))
    assert "NOTHING WAS TESTED" in node_content.screen(report((), [told], probes_run=0))
    assert "NOTHING WAS TESTED" not in node_content.screen(report((), [told], probes_run=0, needs_gpu=False))


@pytest.mark.parametrize(
    ("devices", "amdgpu", "is_shown"),
    [((), None, True), (("cuda",), None, False), (("cuda",), "loaded", True), (("cuda", "hip"), None, True)],
)
def test_header_names_rocm_unless_the_node_has_only_other_gpus(
    devices: tuple[str, ...], amdgpu: str | None, is_shown: bool
) -> None:
    facts = (Fact("rocm", "6.4.3", "/opt/rocm/.info/version"), Fact("amdgpu", amdgpu, ""))
    found = tuple(replace(gpus(1)[0], backend=backend) for backend in devices)
    text = node_content.screen(replace(mixed(), inventory=facts, devices=found, results=()))
    assert ("ROCm 6.4.3" in text) is is_shown


@pytest.mark.parametrize(("bad", "titles"), [(1, ["cuda:0 > cuda:1"]), (3, [])])
def test_a_few_bad_pairs_have_columns_of_their_own(bad: int, titles: list[str]) -> None:
    pairs = list(permutations(gpus(8), 2))
    failed = [STALE] * bad + [Finding.ok("right", "read")] * (len(pairs) - bad)
    results = tuple(
        Result("ipc-peer", finding, tuple(device.label for device in pair))
        for pair, finding in zip(pairs, failed, strict=True)
    )
    head, row = (
        next(line for line in text if line.startswith(start))
        for text in [node_content.screen(report(gpus(8), results)).splitlines()]
        for start in ("check ", "ipc-peer ")
    )
    assert head.split() == ["check", "cuda:0-7", *" ".join(titles).split(), "pairs"]
    assert row.split() == ["ipc-peer", "-", *["FAIL"] * len(titles), "FAIL", f"{bad}/56"]


def test_control_that_passed_on_some_devices_only_is_no_control() -> None:
    base = seed_002()
    spoilt = replaced(base, Result("ipc-reopen", Finding.warn("slow", "slow"), ("cuda:2",), "keep-context"))
    assert "Passed on this node: keep-context." in node_content.screen(base)
    assert "Passed here" not in node_content.screen(spoilt)


def test_known_issue_is_shown_only_where_it_was_seen() -> None:
    report_ = seed_002()
    [shown] = report_.joins
    elsewhere = tuple(replace(ref, subject="cuda:9") for ref in shown.findings)
    report_ = replaced(report_, joins=(replace(shown, findings=elsewhere),))
    first = merged_results.paragraphs(report_)[0]
    assert first.checks == ("ipc-reopen",)
    assert first.joins == ()


@PROPERTY
@given(reports, st.sampled_from([60, 80, 120]), st.booleans())
def test_any_report_fits_the_width_and_moves_no_cursor(any_report: Report, width: int, color: bool) -> None:
    screen = node_content.screen(any_report, width=width, color=color)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen) if color else screen
    for line in plain.removesuffix("\n").split("\n"):
        assert columns(line) <= width
        assert line == line.rstrip()
        assert sanitise(line).split() == line.split()


@PROPERTY
@given(reports)
def test_totals_add_up(any_report: Report) -> None:
    last = node_content.screen(any_report).splitlines()
    counts = re.findall(r"(\d+) (?:PASS|SKIP|WARN|ERROR|FAIL|not run)(?: ·|\s)", "\n".join(last[-3:]))
    assert sum(map(int, counts)) == len(any_report.checks)


@PROPERTY
@given(reports)
def test_every_finding_except_pass_has_a_paragraph(any_report: Report) -> None:
    shown = merged_results.paragraphs(any_report)
    told = [id(result) for paragraph in shown for result in paragraph.results]
    not_passed = [id(r) for r in any_report.results if r.finding.status.value != "PASS"]
    assert sorted(told) == sorted(not_passed)
    issues = {join.issue for p in shown for join in p.joins}
    issues |= {join.issue for join in merged_results.loose_joins(any_report, shown)}
    wanted = {join.issue for join in any_report.joins if join.relation is not Relation.LATENT}
    assert wanted <= issues <= {join.issue for join in any_report.joins}


def test_ways_between_gpus_are_shown_on_request_and_on_the_page() -> None:
    devices = gpus(4)
    ways = [replace(device, peers=frozenset({"cuda:0", "cuda:1", "cuda:2"})) for device in devices]
    found = Finding.ok("initialised", "4 GPUs", *picture(ways, {"cuda:0": {"cuda:1": "NV18"}}))
    told = replaced(healthy(devices), Result("driver-init", found, probe="cuda"))
    shown = node_content.screen(told, verbose=True).splitlines()
    start = next(number for number, line in enumerate(shown) if line.split() == ["0", "1", "2", "3"])
    assert [line.split() for line in shown[start + 1 : start + 3]] == [
        ["cuda:0", "X", "NV18", "P2P", "-"],
        ["cuda:1", "P2P", "X", "P2P", "-"],
    ]
    assert "NV18" not in node_content.screen(told)
    assert "<td>NV18</td>" in node_exports.html(told)


def test_version_beyond_the_data_is_a_line_above_the_totals() -> None:
    newer = Finding.ok("newer-than-data", "{versions}", versions="nccl 2.99 is newer than our data")
    page = node_content.screen(report((), [Result("known-versions", newer)]))
    assert "\nnccl 2.99 is newer than our data\n1 PASS" in page
