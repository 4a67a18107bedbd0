"""Sample reports for tests, and generators of arbitrary reports for property tests."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gpuipc_doctor.api import Context
from gpuipc_doctor.model import (
    Device,
    DriverFault,
    Evidence,
    EvidenceKind,
    Fact,
    Finding,
    Measurement,
    Status,
    Subject,
    Tier,
)
from gpuipc_doctor.probe_types import Calls, Ending, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report_types import CheckInfo, Join, Line, Mark, Relation, Report, Result, Series
from gpuipc_doctor.supervise import blame

TITLES = {
    "known-versions": "Versions with known issues",
    "ipc-reopen": "IPC handle reopened after its context went",
    "ipc-handles": "IPC handles name the right memory",
    "ipc-release": "Memory comes back after IPC",
    "ipc-stale": "Stale IPC mappings and handles",
    "ipc-peer": "IPC between two GPUs",
}
PER_SUBJECT = ("ipc-reopen", "ipc-handles", "ipc-release", "ipc-stale")
VARIANTS = ("destroy-context", "primary-reset", "keep-context")


def _about(check: str) -> Subject | None:
    return None if check == "known-versions" else Subject.MEMORY


def gpus(count: int, backend: str = "cuda", name: str = "NVIDIA H200") -> tuple[Device, ...]:
    return tuple(
        Device(
            backend,
            index,
            f"GPU-{backend}-{index:04}",
            f"0000:{index + 1:02x}:00.0",
            name,
            141 << 30,
            frozenset({"legacy-ipc", "peer"}),
        )
        for index in range(count)
    )


H200_FACTS = (
    Fact("nvidia-driver", "580.159.04", "/proc/driver/nvidia/version"),
    Fact("nvidia-module", "open", "/proc/driver/nvidia/version"),
    Fact("gpu-model", "4 × NVIDIA H200", "/proc/driver/nvidia/gpus/*/information"),
    Fact("cuda-driver", "13.0", "cuDriverGetVersion"),
    Fact("kernel", "6.8.0-60-generic", "uname"),
    Fact("rocm", None, "/opt/rocm/.info/version"),
)


def healthy(devices: Sequence[Device], **changes: Any) -> Report:
    """Every check on every device and pair, all PASS."""
    context = Context(tuple(devices))
    results = [Result("known-versions", Finding.ok("not-known-bad", "no version with a known issue"))]
    for subject in context.subjects:
        labels = tuple(device.label for device in subject)
        for check in PER_SUBJECT:
            for probe in VARIANTS if check == "ipc-reopen" else ("",):
                results.append(Result(check, Finding.ok("right", "as it should be"), labels, probe, 0.4))
    for a, b in context.pairs:
        results.append(Result("ipc-peer", Finding.ok("right", "right data"), (a.label, b.label), "", 0.3))
    if not context.pairs:
        results.append(Result("ipc-peer", Finding.skip("one-gpu", "there is one GPU only; this needs two")))
    return report(devices, results, **changes)


def report(devices: Sequence[Device], results: Iterable[Result], **changes: Any) -> Report:
    given: dict[str, Any] = {
        "host": "nid006672",
        "started": "2026-11-20T11:02:33+01:00",
        "elapsed_s": 21.4,
        "tier": Tier.ACCEPTANCE,
        "tool_version": "0.1.0",
        "devices": tuple(devices),
        "inventory": H200_FACTS,
        "checks": tuple(CheckInfo(id_, title, Tier.ACCEPTANCE, _about(id_)) for id_, title in TITLES.items()),
        "results": tuple(results),
        "probes_run": 12,
        "known_issues": "0123456789ab",
    }
    return Report(**given | changes)


def replaced(base: Report, *news: Result, **changes: Any) -> Report:
    """``base`` with some results in place of those of the same check, subject and probe."""
    places = {(new.check, new.devices, new.probe) for new in news}
    kept = [r for r in base.results if (r.check, r.devices, r.probe) not in places]
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return Report(**fields | {"results": (*kept, *news)} | changes)


FAULT = DriverFault("cuIpcOpenMemHandle", 400, "CUDA_ERROR_INVALID_HANDLE")
REOPEN_ISSUE = Join(
    "nvidia-ipc-reopen",
    "cuIpcOpenMemHandle fails the second time once the importer's context was destroyed",
    Relation.CONFIRMED,
    "nvidia-driver 460.32.03 is within 455.32.00 to 460.32.03",
    "install driver 450.102.04 or one after 460.32.03, or keep the importer's context",
    ("ipc-reopen",),
    component="nvidia-driver",
)


def reopen_failure(subject: tuple[Device, ...], probe: str) -> Result:
    importer = RoleOutcome(
        "importer",
        Ending.DRIVER_ERROR,
        4712,
        "cuIpcOpenMemHandle",
        4,
        "open segment 1 again, its context re-created",
        fault=FAULT,
        exit_code=1,
        python_stack=("reopen (ipc_reopen.py:71)", "_call (running.py:51)", "run (running.py:40)"),
        elapsed_s=0.7,
    )
    exporter = RoleOutcome("exporter", Ending.STOPPED, 4711)
    return ended_badly("ipc-reopen", subject, probe, 0.9, (exporter, importer))


def ended_badly(
    check: str, subject: tuple[Device, ...], probe: str, elapsed_s: float, roles: tuple[RoleOutcome, ...]
) -> Result:
    """The engine's result for a probe whose last role is to blame."""
    by_name = {role.role: role for role in roles}
    outcome = ProbeOutcome(probe, subject, {}, by_name, roles[-1].role, elapsed_s, deadline_s=10.0)
    labels = tuple(device.label for device in subject)
    logs = "/".join(filter(None, ("/tmp/doctor", check, probe, "-".join(labels))))
    return Result(check, blame.conclude(outcome), labels, probe, elapsed_s, roles, logs)


def hung(check: str, operation: str, device: Device, after_s: float = 10.0) -> Result:
    importer = RoleOutcome(
        "importer",
        Ending.HUNG,
        4713,
        operation,
        1,
        python_stack=(
            "call (driver.py:64)",
            "open_ipc (device.py:62)",
            "open_shared (ipc_release.py:195)",
            "run_role (worker.py:164)",
            "<module> (worker.py:192)",
        ),
        native_stack=(
            "ioctl (libc.so.6)",
            "?? (libcuda.so.535.104.05)",
            "cuIpcOpenMemHandle_v2 (libcuda.so.535.104.05)",
            "0x7f47f83e843f (bindings/cydriver.cpython-311-x86_64-linux-gnu.so)",
            "_PyEval_EvalFrameDefault (python3.11)",
            "Py_RunMain (python3.11)",
            "__libc_start_main (libc.so.6)",
        ),
        log_tail=("NVRM: Xid (PCI:0000:01:00): 31, Ch 00000008, intr 10000000",),
        elapsed_s=after_s,
    )
    return ended_badly(check, (device,), "", after_s, (importer,))


def seed_002() -> Report:
    """Four GPUs with driver 460.32.03: the second open fails, the controls pass."""
    devices = gpus(4, name="GH200 120GB")
    base = healthy(
        devices,
        inventory=(
            Fact("nvidia-driver", "460.32.03", "/proc/driver/nvidia/version"),
            Fact("cuda-driver", "11.2", "cuDriverGetVersion"),
            Fact("kernel", "5.14.21-150400.24.46-default", "uname"),
        ),
    )
    known = Finding.warn(
        "known-bad",
        "{issue}: {reason}",
        Evidence(EvidenceKind.ISSUE, REOPEN_ISSUE.title, {"issue": REOPEN_ISSUE.issue}),
        remedy=REOPEN_ISSUE.remedy,
        issue=REOPEN_ISSUE.issue,
        reason=REOPEN_ISSUE.reason,
    )
    budget = Finding.skip("budget", "budget", remedy="run it alone: gpuipc-doctor check ipc-stale")
    failures = [
        reopen_failure(subject, probe)
        for probe in ("destroy-context", "primary-reset")
        for subject in Context(devices).subjects
    ]
    without_stale = replaced(base, Result("known-versions", known), *failures)
    kept = tuple(r for r in without_stale.results if r.check != "ipc-stale")
    confirmed = replace(REOPEN_ISSUE, findings=tuple(failure.ref for failure in failures))
    return replaced(without_stale, results=(*kept, Result("ipc-stale", budget)), joins=(confirmed,))


LABELS = [f"{backend}:{index}" for backend in ("cuda", "hip") for index in (0, 1, 2, 3, 5, 10)]
WORDS = st.text(max_size=60) | st.lists(
    st.sampled_from(["/usr", "/lib64", "/x86_64-linux-gnu"]), max_size=9
).map("".join)
NASTY = st.sampled_from(
    [
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "a\rb\tc\n\x00",
        "\u202ertl",
        "字幕",
        "e\u0301",
        "\x9b2J",
        "\udc9b",
    ]
)
TEXT = st.lists(WORDS | NASTY, max_size=3).map(" ".join)
LINES = st.lists(TEXT, max_size=5).map(tuple)
IDS = st.sampled_from(["a", "ipc-reopen", "ipc-peer", "known-versions", "mpi-small-message-" * 5 + "rate"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
SECONDS = st.floats(0, 1e6)

devices_st = st.lists(st.sampled_from(LABELS), max_size=5, unique=True).flatmap(
    lambda labels: st.tuples(
        *(
            st.builds(
                Device,
                backend=st.just(label.split(":")[0]),
                index=st.just(int(label.split(":")[1])),
                uuid=st.text(max_size=9),
                pci=st.text(max_size=9),
                name=TEXT,
                total_bytes=st.integers(0, 1 << 40),
                capabilities=st.frozensets(IDS, max_size=3),
            )
            for label in labels
        )
    )
)
faults = st.builds(DriverFault, call=TEXT, code=st.integers(-999, 999), name=TEXT)
measurements = st.builds(Measurement, TEXT, SECONDS, TEXT, st.booleans())
measured = st.lists(measurements, max_size=2).map(tuple)
KEYS = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)?", fullmatch=True)
NAMES = st.sampled_from(["n", "missing", "call", "device"])
SAYS = TEXT | st.builds("{} {{{}:{}}}".format, TEXT, NAMES, st.sampled_from(["mib", "s", "aside"]))
values = st.dictionaries(NAMES, TEXT | st.integers(-(2**60), 2**60) | st.lists(TEXT, max_size=2), max_size=2)
evidence_items = st.builds(Evidence, st.sampled_from(EvidenceKind), SAYS, values)
findings = st.builds(
    Finding,
    st.sampled_from(Status),
    KEYS,
    SAYS,
    values,
    st.lists(evidence_items, max_size=2).map(tuple),
    TEXT,
    measured,
)
roles = st.builds(
    RoleOutcome,
    role=IDS,
    ending=st.sampled_from(Ending),
    pid=st.integers(0, 1 << 22),
    operation=TEXT,
    occurrence=st.integers(0, 99),
    step=TEXT,
    signal=st.sampled_from(["", "SIGSEGV"]),
    exit_code=st.none() | st.integers(-64, 255),
    fault=st.none() | faults,
    exception=TEXT,
    records=st.dictionaries(st.text(), JSON, max_size=2),
    python_stack=LINES,
    native_stack=LINES,
    kernel=LINES,
    log_tail=LINES,
    elapsed_s=SECONDS,
    start_up_s=SECONDS,
    calls=st.lists(st.builds(Calls, TEXT, st.integers(1, 999), SECONDS), max_size=2).map(tuple),
)
subjects = st.lists(st.sampled_from(LABELS), max_size=2, unique=True).map(tuple)


BYTES = st.lists(st.floats(-(2**50), 2**50), max_size=3).map(tuple)
series_st = st.builds(
    Series,
    TEXT,
    st.sampled_from(["seconds", "iteration"]),
    BYTES,
    st.lists(st.builds(Line, TEXT, BYTES), max_size=2).map(tuple),
    st.lists(st.builds(Mark, SECONDS, TEXT), max_size=2).map(tuple),
)


def results_st(ids: Sequence[str]) -> st.SearchStrategy[tuple[Result, ...]]:
    ended = st.lists(roles, max_size=2).map(tuple)
    times = st.integers(1, 3)
    one = st.builds(
        Result,
        st.sampled_from(ids),
        findings,
        subjects,
        IDS,
        SECONDS,
        ended,
        TEXT,
        times,
        series=st.lists(series_st, max_size=1).map(tuple),
    )
    return st.lists(one, max_size=4).map(tuple)


def joins_st(ids: Sequence[str]) -> st.SearchStrategy[tuple[Join, ...]]:
    checks = st.lists(st.sampled_from(ids), max_size=2).map(tuple)
    where = st.lists(st.sampled_from(["node", "cuda:0", "cuda:0 > cuda:1"]), max_size=2).map(tuple)
    one = st.builds(Join, IDS, TEXT, st.sampled_from(Relation), TEXT, TEXT, checks, where)
    return st.lists(one, max_size=3, unique_by=lambda join: join.issue).map(tuple)


def joined(report_: Report) -> Report:
    """Each known issue shown by some of the results, and some by none."""
    refs = [result.ref for result in report_.results]
    joins = (replace(join, findings=tuple(refs[number::4])) for number, join in enumerate(report_.joins))
    return replace(report_, joins=tuple(joins))


def reports_of(ids: list[str]) -> st.SearchStrategy[Report]:
    return st.builds(
        Report,
        host=TEXT,
        started=st.datetimes().map(lambda moment: moment.isoformat()),
        elapsed_s=SECONDS,
        tier=st.sampled_from(Tier),
        tool_version=TEXT,
        devices=devices_st,
        inventory=st.lists(st.builds(Fact, IDS, st.none() | TEXT, TEXT), max_size=5).map(tuple),
        checks=st.just(tuple(CheckInfo(id_, id_, Tier.PROLOG) for id_ in ids)),
        results=results_st(ids),
        joins=joins_st(ids),
        simulated=st.just("") | IDS,
        interrupted=st.booleans(),
        probes_run=st.integers(0, 99),
        needs_gpu=st.booleans(),
        stack=st.lists(st.builds(Fact, st.sampled_from(["mpich", "other"]), TEXT, TEXT), max_size=2).map(
            tuple
        ),
    ).map(joined)


reports = st.lists(IDS, min_size=1, max_size=6, unique=True).flatmap(reports_of)
"""Arbitrary reports, with texts that contain control sequences."""

PROPERTY = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""Settings for properties of these large reports: the time for one mostly shows the machine."""
