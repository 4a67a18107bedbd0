"""Bug reports: their sections, where they go, and what is missing."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from gpuipc_doctor.cli.report import COMPONENTS
from gpuipc_doctor.files.tables import table
from gpuipc_doctor.job.document import Cause
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding
from gpuipc_doctor.node.fact_names import NAMES
from gpuipc_doctor.probe_types import Ending
from gpuipc_doctor.report_types import Join, Relation, Result
from gpuipc_doctor.ticket import answers, components, ticket_content
from gpuipc_doctor.ticket.subject import Subject
from tests import golden
from tests.sample_reports import gpus, healthy, replaced
from tests.unit.job.test_job_content import GROWS, ONE_LATE, STUCK
from tests.unit.ticket.sample_subjects import (
    AMD,
    HPE,
    NVIDIA,
    OPEN_MPI,
    SUBJECTS,
    WRONG,
    node,
    rank,
    repeated,
    with_versions,
)


def ticket(subject: Subject) -> str:
    return ticket_content.ticket(subject, components.concerned(subject))


def section(subject: Subject, heading: str) -> str:
    return ticket(subject).partition(f"## {heading}\n")[2].partition("\n## ")[0]


def missing(subject: Subject, component: str = "") -> set[str]:
    """The first words of what is missing."""
    asks = ticket_content.missing(subject, components.load().get(component))
    return {ask.what.partition(":")[0] for ask in asks}


def failing(
    finding: Finding, *roles: object, check: str = "ipc-peer", joins: tuple[Join, ...] = ()
) -> Subject:
    result = Result(check, finding, ("cuda:0",), roles=roles)  # type: ignore[arg-type]
    report = node(*NVIDIA, *OPEN_MPI, bad=result)
    shown = tuple(replace(join, findings=(result.ref,)) for join in joins)
    return Subject(replace(report, joins=shown))


@pytest.mark.parametrize("name", SUBJECTS)
def test_bug_report(name: str) -> None:
    subject = SUBJECTS[name]
    component = components.load().get(name) or components.concerned(subject)
    golden.check(f"ticket/{name}.md", ticket_content.ticket(subject, component))


def test_components_are_those_of_the_command() -> None:
    assert sorted(COMPONENTS) == sorted(components.load())


def test_catalogue_has_no_unused_key() -> None:
    def keys(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    written = table(components.SHIPPED)
    for component in written["components"]:
        assert component.keys() <= keys(components.Component)
    for ask in (*written["everyone"], *(ask for each in written["components"] for ask in each["asks"])):
        assert ask.keys() <= keys(components.Ask)


def test_catalogue_names_sources_answers_and_existing_facts() -> None:
    asks = [*components.catalogue().everyone]
    for component in components.load().values():
        assert component.source.startswith("https://")
        assert set(component.owns) <= NAMES.keys()
        asks += component.asks
    for ask in asks:
        assert set(ask.facts) <= NAMES.keys()
        assert ask.answer or ask.facts or ask.file
        assert ask.about in ("", "report", "job")
    assert {ask.answer for ask in asks} - {""} == answers.ANSWERS.keys()


def test_no_fact_belongs_to_two_components() -> None:
    owned = [fact for each in components.load().values() for fact in each.owns]
    assert len(owned) == len(set(owned))


@pytest.mark.parametrize("component", COMPONENTS)
def test_facts_missing_on_an_empty_node_have_their_command(component: str) -> None:
    bare = Subject(replaced(healthy(()), inventory=(), devices=()))
    text = ticket_content.ticket(bare, components.load()[component])
    absent = ticket_content.missing(bare, components.load()[component])
    asks = (*components.catalogue().everyone, *components.load()[component].asks)
    assert absent == tuple(ask for ask in asks if ask.about != "job")
    assert text.count("**Missing**") == len(absent)
    assert all(ask.command.replace("CHECK", "--all") in text for ask in absent)


# -- whose it is --------------------------------------------------------------------------------------------


CALL = Finding.fail("returned-error", "{call} returned 400", call="cuIpcOpenMemHandle #4")
HUNG = Finding.fail("hung", "{role} hung", role="rank 1")
MINE = Join("x", "x", Relation.CONFIRMED, "", checks=("mpi-stale-buffer",), component="libfabric")
LATENT = replace(MINE, relation=Relation.LATENT)


def hung(*stack: str) -> Subject:
    return failing(HUNG, rank(1, Ending.HUNG, *stack), check="mpi-start")


@pytest.mark.parametrize(
    ("subject", "component"),
    [
        (failing(CALL), "nvidia"),
        (failing(CALL, check="allocator-ipc"), "nvidia"),
        (failing(Finding.fail("wrong-data", "x"), check="allocator-ipc"), None),
        (Subject(node(*AMD, backend="hip", bad=WRONG)), "amd"),
        (failing(Finding.fail("wrong-data", "x"), check="ipc-peer"), "nvidia"),
        (failing(Finding.fail("links-down", "x"), check="gpu-health"), "hardware"),
        (failing(Finding.fail("lost-links", "x"), check="driver-init"), "hardware"),
        (failing(Finding.fail("fabric-stuck", "x"), check="gpu-health"), "nvidia"),
        (hung("poll (libc.so.6)", "PMPI_Recv (libmpi.so.40)"), "openmpi"),
        (hung("uct_x (libuct.so.0)", "PMPI_Recv (libmpi.so.40)"), "ucx"),
        (hung("ofi_x (libfabric.so.1)", "uct_x (libuct.so.0)"), "libfabric"),
        (hung("cxip_cq_progress (libfabric.so.1)"), "libfabric"),
        (hung("x (libcxi.so.1)"), "hpe"),
        (hung("ncclKernel (librccl.so.1)"), "amd"),
        (hung("current_item (solver)"), "openmpi"),
        (failing(HUNG, check="mpi-stale-buffer", joins=(MINE,)), "libfabric"),
        (failing(HUNG, check="mpi-stale-buffer", joins=(LATENT,)), "openmpi"),
        (failing(CALL, check="mpi-stale-buffer", joins=(replace(MINE, component="pytorch"),)), None),
        (Subject(node(*NVIDIA, *HPE)), "ucx"),
        (Subject(healthy(gpus(2))), None),
        (Subject(with_versions(STUCK, **{"cray-mpich": "8.1.30", "libfabric": "1.15"})), "hpe"),
        (Subject(with_versions(ONE_LATE, openmpi="5.0.7")), None),
        (Subject(GROWS), None),
    ],
)  # fmt: skip
def test_component_follows_from_the_documents(subject: Subject, component: str | None) -> None:
    found = components.concerned(subject)
    assert (found.id if found else None) == component


def test_confirmed_issue_of_another_component_is_named() -> None:
    subject = failing(CALL, check="mpi-stale-buffer", joins=(replace(MINE, component="pytorch"),))
    assert "The confirmed known issue is of pytorch" in section(subject, "Where such reports go")


# -- what is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "bad_in", "word"),
    [(1, {1}, None), (3, {1, 2, 3}, "Always"), (3, {2}, "Once"), (4, {1, 2}, "Sometimes")],
)
def test_incidence_follows_repetitions(times: int, bad_in: set[int], word: str | None) -> None:
    subject = Subject(repeated(node(*NVIDIA), times, bad_in))
    assert ("whether it happens once, sometimes or always" in missing(subject)) == (word is None)
    if word:
        assert f"{word}: " in section(subject, "What fails")


def test_trials_and_controls_are_what_was_tried_and_not_evidence() -> None:
    items = (
        Evidence(EvidenceKind.TRIAL, "Tried {env}: helps", {"env": "A=1"}),
        Evidence(EvidenceKind.CONTROL, "control: no growth without messages", {}),
        Evidence.seen("growth by {n} B", n=4096),
    )
    subject = failing(replace(Finding.fail("grows", "used memory grows"), evidence=items))
    tried, seen = section(subject, "What was tried"), section(subject, "Evidence")
    assert "- Tried A=1: helps" in tried
    assert "- control: no growth" in tried
    assert "4096" not in tried
    assert "- growth by 4096 B" in seen
    assert "Tried" not in seen


def test_call_of_a_hung_rank_is_named() -> None:
    subject = failing(HUNG, rank(1, Ending.HUNG), check="mpi-start")
    assert "rank 1 was in MPI\\_Recv" in section(subject, "What fails")


def test_earlier_report_that_also_failed_is_reported() -> None:
    report = node(*NVIDIA)
    assert "mpi-small-message: FAIL on" in section(Subject(report, before=report), "What was tried")


def test_other_kernel_module_and_other_node_are_answered_by_their_reports_only() -> None:
    closed = [replace(fact, value="proprietary") if fact.name == "nvidia-module" else fact for fact in NVIDIA]
    one, same, other = node(*NVIDIA), node(*NVIDIA, host="n2"), node(*closed)
    module = "whether it happens with the other kernel module, open or proprietary, of the same version"
    assert module in missing(Subject(one, also=(same,)), "nvidia")
    assert module not in missing(Subject(one, also=(other,)), "nvidia")
    assert "a report of the other node, by --also" in missing(Subject(one, also=(other,)), "hpe")
    assert "a report of the other node, by --also" not in missing(Subject(one, also=(same,)), "hpe")
    assert "- n1 (proprietary kernel module): FAIL" in section(Subject(one, also=(other,)), "What was tried")


def test_simulated_report_is_not_to_be_sent() -> None:
    simulated = Subject(replaced(healthy(gpus(1)), simulated="hang-ipc-open"))
    says = "SIMULATED (profile hang-ipc-open): no real GPU was tested. Do not send it."
    assert says in section(simulated, "Bug report")


@pytest.mark.parametrize("cause", Cause)
def test_job_is_asked_for_its_command_and_not_for_repetitions(cause: Cause) -> None:
    job = Subject(replace(ONE_LATE, verdict=replace(ONE_LATE.verdict, cause=cause)))
    assert "the command that started the job" in missing(job)
    assert not {"whether it happens once, sometimes or always", "an older version that worked"} & missing(job)


def test_growing_job_is_described() -> None:
    assert "growth of device memory, descriptors in rank 1" in section(Subject(GROWS), "What fails")


def test_hostile_text_is_text() -> None:
    hostile = "\x1b[2J```\n# heading <script>"
    bad = Result("ipc-peer", Finding.fail("hung", "{x}", x=hostile), ("cuda:0", "cuda:1"))
    text = ticket(Subject(node(*NVIDIA, bad=bad, host=hostile), files=(hostile,)))
    assert "\x1b" not in text
    assert "\n# heading" not in text
