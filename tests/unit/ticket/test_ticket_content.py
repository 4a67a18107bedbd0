"""Tickets: each vendor's fields, their sources, and missing ones."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from gpuipc_doctor.cli.ticket import VENDORS
from gpuipc_doctor.inventory.names import NAMES
from gpuipc_doctor.job.document import Cause
from gpuipc_doctor.model import Finding, Result
from gpuipc_doctor.tables import table
from gpuipc_doctor.ticket import answers, templates, ticket_content
from gpuipc_doctor.ticket.subject import Subject
from tests import golden
from tests.sample_reports import gpus, healthy, replaced
from tests.unit.job.test_job_content import GROWS, ONE_LATE
from tests.unit.ticket.sample_subjects import NVIDIA, SUBJECTS, node, older, repeated


def ticket(vendor: str, subject: Subject) -> str:
    return ticket_content.ticket(templates.load()[vendor], subject)


def field(vendor: str, subject: Subject, label: str) -> ticket_content.Filled:
    return next(
        each for each in ticket_content.fill(templates.load()[vendor], subject) if each.label == label
    )


def missing(vendor: str, subject: Subject) -> list[str]:
    return [
        ask.what for each in ticket_content.fill(templates.load()[vendor], subject) for ask in each.missing
    ]


@pytest.mark.parametrize("name", SUBJECTS)
def test_ticket(name: str) -> None:
    golden.check(f"ticket/{name}.md", ticket(name.removesuffix("-job"), SUBJECTS[name]))


def test_every_vendor_of_the_command_has_a_template() -> None:
    assert sorted(VENDORS) == sorted(templates.load())


def test_templates_have_no_unused_key() -> None:
    def keys(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    for template in table(templates.SHIPPED):
        assert template.keys() <= keys(templates.Template)
        for field in template["fields"]:
            assert field.keys() <= keys(templates.Field)
            assert all(ask.keys() <= keys(templates.Ask) for ask in field["asks"])


@pytest.mark.parametrize("vendor", VENDORS)
def test_template_names_its_source_and_existing_facts(vendor: str) -> None:
    template = templates.load()[vendor]
    assert template.source.startswith("https://")
    for field in template.fields:
        for ask in field.asks:
            assert not ask.answer or ask.answer in answers.ANSWERS
            assert set(ask.facts) <= NAMES.keys()
            assert ask.answer or ask.facts or ask.file
            assert ask.optional or ask.command, f"{field.label}: nothing says how to get {ask.what}"


def test_every_answer_has_a_field() -> None:
    asked = {ask.answer for each in templates.load().values() for field in each.fields for ask in field.asks}
    assert answers.ANSWERS.keys() == asked - {""}


@pytest.mark.parametrize("vendor", VENDORS)
def test_facts_missing_on_an_empty_node_have_their_command(vendor: str) -> None:
    bare = Subject(replaced(healthy(()), inventory=(), devices=()))
    text = ticket(vendor, bare)
    asks = [ask for field in templates.load()[vendor].fields for ask in field.asks if not ask.optional]
    absent = missing(vendor, bare)
    assert {"what happened", "GPUs"} & {ask.what for ask in asks} <= set(absent)
    assert text.count("**Missing**") == len(absent)
    for ask in asks:
        assert ask.what not in absent or ask.command.replace("CHECK", "--all") in text


def test_nvidia_bug_report_is_missing_until_it_is_added() -> None:
    label = "nvidia-bug-report.log.gz"
    assert field("nvidia", replace(SUBJECTS["nvidia"], files=()), label).missing
    assert not field("nvidia", SUBJECTS["nvidia"], label).missing


@pytest.mark.parametrize(
    ("times", "bad_in", "word"),
    [(1, {1}, None), (3, {1, 2, 3}, "Always"), (3, {2}, "Once"), (4, {1, 2}, "Sometimes")],
)
def test_incidence_follows_repetitions(times: int, bad_in: set[int], word: str | None) -> None:
    found = field("nvidia", Subject(repeated(node(*NVIDIA), times, bad_in)), "Bug Incidence")
    if word is None:
        assert found.missing
    else:
        assert f"{word}: " in str(found.blocks)


@pytest.mark.parametrize(
    ("key", "impact"),
    [
        ("hung", "Application hang"),
        ("crashed", "Application crash"),
        ("wrong-data", "Data corruption"),
        ("grows", ""),
    ],
)
def test_impact_has_the_forms_wording(key: str, impact: str) -> None:
    bad = Result("ipc-peer", Finding.fail(key, "x"), ("cuda:0", "cuda:1"))
    found = field("nccl", Subject(node(*NVIDIA, bad=bad)), "How is this issue impacting you?")
    assert bool(found.missing) == (not impact)
    assert impact in str(found.blocks)


@pytest.mark.parametrize("cause", Cause)
def test_impact_of_a_job(cause: Cause) -> None:
    job = replace(ONE_LATE, verdict=replace(ONE_LATE.verdict, cause=cause))
    found = field("nccl", Subject(job), "How is this issue impacting you?")
    assert bool(found.missing) == (cause in (Cause.RUNS, Cause.UNKNOWN, Cause.GROWS))


def test_older_version_that_worked_comes_from_the_comparison() -> None:
    report = node(*NVIDIA)
    steps = "Steps to Reproduce the Issue"
    assert "an older NCCL that worked" in missing("nccl", Subject(report))
    worked = str(field("nccl", Subject(report, before=older(report)), steps).blocks)
    assert "mpi-small-message: PASS on 2026-10-01" in worked
    assert "nvidia-driver: 570.86.15, now 580.159.04" in worked


def test_earlier_report_that_also_failed_is_reported() -> None:
    report = node(*NVIDIA)
    found = field("nccl", Subject(report, before=report), "Steps to Reproduce the Issue")
    assert "mpi-small-message: FAIL on" in str(found.blocks)


def test_other_kernel_module_is_compared() -> None:
    closed = [replace(fact, value="proprietary") if fact.name == "nvidia-module" else fact for fact in NVIDIA]
    label = "Comparison with proprietary kernel module"
    subject = Subject(node(*NVIDIA), also=(node(*closed, host="n2"),))
    assert field("nvidia", Subject(node(*NVIDIA)), label).missing
    assert "open: FAIL" in str(field("nvidia", subject, label).blocks)
    assert "proprietary: FAIL" in str(field("nvidia", subject, label).blocks)


def test_hpe_needs_both_nodes() -> None:
    assert "a report of the other node" in missing("hpe", Subject(node(host="nid001001")))
    assert "a report of the other node" not in missing("hpe", SUBJECTS["hpe"])


def test_simulated_report_is_not_to_be_sent() -> None:
    simulated = Subject(replaced(healthy(gpus(1)), simulated="hang-ipc-open"))
    assert "SIMULATED (profile hang-ipc-open): no real GPU was tested. Do not send it." in ticket(
        "nvidia", simulated
    )


def test_growing_job_is_described() -> None:
    assert "growth of device memory, descriptors in rank 1" in ticket("mpich", Subject(GROWS))


def test_hostile_text_is_text() -> None:
    hostile = "\x1b[2J```\n# heading <script>"
    bad = Result("ipc-peer", Finding.fail("hung", "{x}", x=hostile), ("cuda:0", "cuda:1"))
    text = ticket("ucx", Subject(node(*NVIDIA, bad=bad, host=hostile)))
    assert "\x1b" not in text
    assert "\n# heading" not in text
