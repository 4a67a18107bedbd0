"""Evidence against a known issue (workarounds tried, controls that failed), and probes that harm a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues import KnownIssue, Workaround
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.signatures import Call, Confidence, Signature
from gpuipc_doctor.model import Device, Evidence, EvidenceKind, Fact, Finding, Trial
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report_types import Join, Relation, Result
from gpuipc_doctor.versions import Range

FACTS = (Fact("mpich", "4.2.0", "here"),)


def issue(detected_by: str = "mpi-stale-buffer") -> KnownIssue:
    return KnownIssue(
        "stale",
        "stale",
        "mpich",
        "corruption",
        "open",
        "stale data",
        (),
        affected=(Range("mpich", "4.0", fixed="4.3"),),
        detected_by=(detected_by,),
        workarounds=(Workaround("off", {"A": "1"}), Workaround("less", {"B": "1"})),
    )


def tried(env: dict[str, str], outcome: Trial) -> Evidence:
    return Evidence(EvidenceKind.TRIAL, "Tried {env:env}", {"env": env, "outcome": outcome.value})


def alike(env: dict[str, str]) -> Evidence:
    """Another probe of the check had the same finding with these settings."""
    return Evidence(EvidenceKind.CONTROL, "same finding with {env:env}", {"env": env, "failed": True})


def joined(*evidence: Evidence, known: KnownIssue | None = None, key: str = "stale") -> Join:
    result = Result("mpi-stale-buffer", Finding.fail(key, "stale bytes", *evidence))
    [join] = knownissues.join([known or issue()], FACTS, [result])
    return join


OTHER = {"C": "1"}


@pytest.mark.parametrize(
    ("evidence", "relation"),
    [
        ([], Relation.CONFIRMED),
        ([tried({"A": "1"}, Trial.HELPS)], Relation.CONFIRMED),
        ([tried({"A": "1"}, Trial.DOES_NOT_HELP)], Relation.LATENT),
        ([tried({"A": "1"}, Trial.DOES_NOT_HELP), tried({"B": "1"}, Trial.HELPS)], Relation.CONFIRMED),
        ([tried({"A": "1"}, Trial.NOT_TRIED)], Relation.CONFIRMED),
        ([tried({"A": "1"}, Trial.UNKNOWN)], Relation.CONFIRMED),
        ([tried(OTHER, Trial.DOES_NOT_HELP)], Relation.CONFIRMED),
        ([Evidence(EvidenceKind.CONTROL, "with IPC off", {"failed": True})], Relation.LATENT),
        ([Evidence(EvidenceKind.CONTROL, "with IPC off", {"failed": False})], Relation.CONFIRMED),
        ([alike({"A": "1", "C": "1"})], Relation.LATENT),
        ([alike({"C": "1"})], Relation.CONFIRMED),
        ([alike({"A": "1"}), tried({"A": "1"}, Trial.HELPS)], Relation.CONFIRMED),
    ],
)
def test_contradicting_evidence_does_not_confirm_an_issue(
    evidence: list[Evidence], relation: Relation
) -> None:
    assert joined(*evidence).relation is relation


def test_contradicting_evidence_is_reported() -> None:
    assert joined(tried({"A": "1"}, Trial.DOES_NOT_HELP)).reason.endswith("; but A=1 does not help")


@pytest.mark.parametrize(("backend", "shows"), [("cuda", True), ("hip", False)])
def test_finding_on_a_device_shows_no_issue_of_another_vendors_driver(backend: str, shows: bool) -> None:
    known = replace(
        issue(),
        affected=(),
        needs=(Need("cuda-driver"),),
        signatures=(Signature((), Confidence.MEDIUM, finding=("mpi-stale-buffer.stale",)),),
    )
    device = Device(backend, 0, "GPU", "uuid", "", 1 << 30)
    result = Result("mpi-stale-buffer", Finding.fail("stale", "stale bytes"), (device.label,))
    joins = knownissues.join([known], (*FACTS, Fact("cuda-driver", "13.0", "here")), [result], [device])
    assert any(join.checks for join in joins) == shows


@pytest.mark.parametrize(("driver", "expected"), [(None, False), ("6.14", True)])
def test_library_without_a_gpu_and_driver_of_its_vendor_makes_no_issue_expected(
    driver: str | None, expected: bool
) -> None:
    known = replace(issue(), needs=(Need("rocm"),))
    facts = (
        *FACTS,
        Fact("rocm", "7.2", "a wheel"),
        Fact("nvidia-driver", "580", "x"),
        Fact("amdgpu", driver, "x"),
    )
    device = Device("cuda", 0, "GPU", "uuid", "", 1 << 30)
    assert bool(knownissues.match_versions([known], facts, [device])) == expected


def test_issue_may_require_a_findings_key() -> None:
    known = issue("mpi-stale-buffer.stale")
    assert known.checks == ("mpi-stale-buffer",)
    assert joined(known=known).relation is Relation.CONFIRMED
    assert joined(known=known, key="guard").relation is Relation.LATENT


GROWTH = Signature((), Confidence.MEDIUM, finding=("mpi-cache-growth.grows", "mpi-cache-growth.keeps-many"))
GROWING = {"where": "on the sender's device"}
KEPT = Finding.warn("keeps-many", "about 16 freed buffers are kept {where}", **GROWING)
GROWS = Finding.fail("grows", "used memory {where} grows by 57 MiB each iteration", **GROWING)


def seen(*results: Result, signature: Signature = GROWTH) -> Join:
    known = replace(issue("mpi-cache-growth"), signatures=(signature,))
    [join] = knownissues.join([known], FACTS, results)
    return join


@pytest.mark.parametrize(
    ("finding", "signature", "relation"),
    [
        (KEPT, GROWTH, Relation.UNKNOWN),  # other faults grow, too
        (GROWS, GROWTH, Relation.UNKNOWN),
        (GROWS, replace(GROWTH, confidence=Confidence.HIGH), Relation.CONFIRMED),
        (replace(GROWS, evidence=(tried({"A": "1"}, Trial.HELPS),)), GROWTH, Relation.CONFIRMED),
        (replace(GROWS, evidence=(tried({"A": "1"}, Trial.UNKNOWN),)), GROWTH, Relation.UNKNOWN),
        (replace(GROWS, evidence=(tried({"A": "1"}, Trial.DOES_NOT_HELP),)), GROWTH, Relation.LATENT),
        (KEPT, Signature(("freed buffers are kept",), Confidence.MEDIUM), Relation.LATENT),
        (Finding.ok("levels-off", "16 freed buffers are kept on paper"), GROWTH, Relation.LATENT),
    ],
)
def test_warning_with_the_signature_shows_the_issue(
    finding: Finding, signature: Signature, relation: Relation
) -> None:
    assert seen(Result("mpi-cache-growth", finding), signature=signature).relation is relation


@pytest.mark.parametrize(
    ("evidence", "compared"),
    [((), "no text or call"), ((tried({"A": "1"}, Trial.HELPS),), "workaround helps")],
)
def test_growth_alone_says_what_was_compared(evidence: tuple[Evidence, ...], compared: str) -> None:
    assert compared in seen(Result("mpi-cache-growth", replace(GROWS, evidence=evidence))).reason


def test_warning_shows_no_issue_without_a_signature() -> None:
    [join] = knownissues.join([issue("mpi-cache-growth")], FACTS, [Result("mpi-cache-growth", KEPT)])
    assert join.relation is Relation.LATENT


@pytest.mark.parametrize(
    ("role", "call", "step", "signal", "returned", "shown"),
    [
        ("importer-1", "hipMemcpyDtoH", "round 16", "SIGSEGV", False, True),
        ("exporter", "hipMemcpyDtoH", "round 16", "SIGSEGV", False, False),
        ("importer-1", "hipMemcpyDtoH", "", "SIGSEGV", False, False),
        ("importer-1", "hipMemcpyDtoH", "round 16", "SIGABRT", False, False),
        ("importer-1", "hipFree", "round 16", "SIGSEGV", False, False),
        ("importer", "hipFree", "", "SIGABRT", True, False),
        ("importer", "hipMemFree", "", "SIGABRT", True, True),
    ],
)
def test_end_of_a_call_shows_the_issue_without_our_words(
    role: str, call: str, step: str, signal: str, returned: bool, shown: bool
) -> None:
    ended = RoleOutcome(role, Ending.CRASHED, operation=call, step=step, signal=signal, returned=returned)
    calls = (
        Call(name=r"hip(Memcpy|Ipc)\w*", ends="SIGSEGV", step=".+", role=r"importer\S*"),
        Call(name=r"hip(Memcpy|Mem|Ipc)\w+", ends="SIG(SEGV|ABRT)", returned=True),
    )
    signatures = tuple(Signature((), Confidence.MEDIUM, call=call) for call in calls)
    known = replace(issue("ipc-stale"), signatures=signatures)
    result = Result("ipc-stale", Finding.fail("died", "it died"), roles=(ended,))
    [join] = knownissues.join([known], FACTS, [result])
    assert (join.relation is Relation.CONFIRMED) is shown


NVIDIA = Device("cuda", 0, "GPU-0", "0000:01:00.0", "H200", 1)
AMD = Device("hip", 0, "GPU-1", "0000:02:00.0", "MI300A", 1)
LASTING, PASSING = "exports VMM memory", "kills an importer"


def harmed(rocm: str | None, *affected: Range, needs: tuple[Need, ...] = ()) -> set[tuple[str, str]]:
    """(step, device) of the skipped steps on a node with devices of both vendors."""
    component = "amdgpu" if needs else "rocm"
    known = KnownIssue(
        "bug", "bug", component, "probe-harms", "open", "bug", (), affected, needs, harms=(LASTING, PASSING)
    )
    facts = [Fact("rocm", rocm, "here"), Fact("amdgpu", "6.8.0", "here")]
    return {(harm.step, harm.device) for harm in knownissues.harms([known], facts, [NVIDIA, AMD])}


@pytest.mark.parametrize(
    ("rocm", "steps"),
    [("7.0.0", {LASTING, PASSING}), ("7.2.0", set()), (None, {LASTING}), ("unheard-of", {LASTING})],
)
def test_harmful_steps_are_skipped_and_lasting_harm_also_in_doubt(rocm: str | None, steps: set[str]) -> None:
    found = harmed(rocm, Range("rocm", "7.0", fixed="7.1"))
    assert found == {(step, "hip:0") for step in steps}


def test_other_conditions_decide_if_versions_are_unknown() -> None:
    unknown = Range("amdgpu", "unknown", fixed="unknown")
    of_7_1 = (Need("rocm", range=Range("rocm", "7.1", fixed="7.2")),)
    assert harmed("7.1.0", unknown, needs=of_7_1) == {(LASTING, "hip:0"), (PASSING, "hip:0")}
    assert harmed("7.2.0", unknown, needs=of_7_1) == set()
    assert harmed(None, unknown, needs=of_7_1) == {(LASTING, "hip:0")}


@pytest.mark.parametrize("last", ["receive-from-any-source", "irecv"])
def test_history_that_ends_otherwise_does_not_confirm(last: str) -> None:
    known = replace(issue("mpi-histories.hang"), history=("receive-from-any-source",))
    says = "{call} hung"
    hang = Finding.fail("hang", says, call="MPI_Wait", did=["allocate", "receive-from-any-source", last])
    joins = knownissues.join([known], FACTS, [Result("mpi-histories", hang)])
    relations = [join.relation for join in joins]
    assert (Relation.CONFIRMED in relations) is (last == "receive-from-any-source")


@pytest.mark.parametrize(
    ("modules", "expected"), [("cma ib rocm", True), ("cma cuda ib", False), (None, True)]
)
def test_issue_of_a_transport_needs_its_module_where_the_modules_are_known(
    modules: str | None, expected: bool
) -> None:
    (known,) = (one for one in knownissues.load() if one.id == "ucx-rocm-ipc-cache-growth")
    facts = (Fact("ucx", "1.18.1", "x"), Fact("rocm", "7.2", "x"), Fact("amdgpu", "6.14", "x"))
    facts += (Fact("env:UCX_ROCM_IPC_CACHE_IPC_HANDLES", None, "x"), Fact("ucx-modules", modules, "x"))
    device = Device("hip", 0, "GPU", "uuid", "", 1 << 30)
    (join,) = knownissues.match_versions([known], facts, [device]) or (None,)
    assert bool(join) == expected
    assert join is None or "no ucx-modules" not in join.reason


@pytest.mark.parametrize(("gpus", "expected"), [(1, False), (2, True)])
def test_issue_of_pairs_is_not_expected_of_one_gpu(gpus: int, expected: bool) -> None:
    (known,) = (one for one in knownissues.load() if one.id == "cuda-135-peer-access-iommu-acs")
    facts = (Fact("cuda-driver", "13.5", "x"), Fact("iommu", "translating", "x"))
    devices = [Device("cuda", number, "NVIDIA L40S", "uuid", "", 1 << 30) for number in range(gpus)]
    assert bool(knownissues.match_versions([known], facts, devices)) == expected
