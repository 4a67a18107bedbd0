"""The report as JUnit XML, which CI systems show as tests.

There is no standard; this keeps to what the schemas in use agree on (Jenkins' and Maven Surefire's): a suite
with its counts, a case for each probe, and in it at most one of ``failure``, ``error`` and ``skipped``.
A WARN has passed, and says so in the case's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree

from gpuipc_doctor.model import Finding, Report, Result, Status
from gpuipc_doctor.report import digest, sentences
from gpuipc_doctor.report.text import sanitise

_OUTCOMES = {Status.FAIL: "failure", Status.ERROR: "error", Status.SKIP: "skipped", Status.WARN: "system-out"}


def render(report: Report) -> str:
    """The document of a node, ending in a newline."""
    cases = [_case(results) for results in _by_probe(report.results)]
    cases += [_not_reached(check) for check in digest.not_reached(report)]
    facts = {fact.name: fact.value for fact in report.inventory if fact.value is not None}
    where = {"timestamp": report.started, "hostname": report.host}
    return document(cases, facts.items(), where, report.elapsed_s, report.simulated)


def document(
    cases: Sequence[ElementTree.Element],
    facts: Iterable[tuple[str, str]],
    where: Mapping[str, str],
    elapsed_s: float,
    simulated: str,
) -> str:
    """One suite; ``simulated`` says what of it is no real node's."""
    outcomes = Counter(outcome.tag for case in cases for outcome in case)
    counts = {
        "tests": str(len(cases)),
        "failures": str(outcomes["failure"]),
        "errors": str(outcomes["error"]),
        "skipped": str(outcomes["skipped"]),
        "time": f"{elapsed_s:.3f}",
    }
    name = f"gpuipc-doctor, SIMULATED ({simulated})" if simulated else "gpuipc-doctor"
    suites = ElementTree.Element("testsuites", {"name": sanitise(name), **counts})
    attributes = {"name": sanitise(name), **counts, **{key: sanitise(text) for key, text in where.items()}}
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    properties = ElementTree.SubElement(suite, "properties")
    for fact, value in facts:
        ElementTree.SubElement(properties, "property", {"name": sanitise(fact), "value": sanitise(value)})
    suite.extend(cases)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode") + "\n"


def _by_probe(results: Iterable[Result]) -> Iterable[Sequence[Result]]:
    """The findings of each run of a probe."""
    probes: dict[object, list[Result]] = {}
    for result in results:
        probe = (result.check, result.devices, result.probe, result.repetition)
        probes.setdefault(probe, []).append(result)
    return probes.values()


def _case(results: Sequence[Result]) -> ElementTree.Element:
    first = results[0]
    words = [first.subject, first.probe, f"#{first.repetition}" if first.repetition > 1 else ""]
    worst = digest.worst(results)
    told = [result.finding for result in results if result.finding.status is worst]
    return case(
        first.check,
        " ".join(filter(None, words)),
        first.elapsed_s,
        worst,
        sentences.summary(told[0]),
        [line for finding in told for line in _lines(finding)],
    )


def case(
    kind: str, name: str, elapsed_s: float, status: Status | None, message: str, lines: Iterable[str]
) -> ElementTree.Element:
    """A case with the outcome that belongs to a status; of a PASS nothing is told."""
    made = ElementTree.Element(
        "testcase",
        {
            "classname": sanitise(f"gpuipc-doctor.{kind}"),
            "name": sanitise(name),
            "time": f"{elapsed_s:.3f}",
        },
    )
    if status in _OUTCOMES:
        outcome = ElementTree.SubElement(made, _OUTCOMES[status])
        if status is not Status.WARN:
            outcome.set("message", sanitise(message))
        if status in (Status.FAIL, Status.ERROR):
            outcome.set("type", status.value)
        outcome.text = "\n".join(map(sanitise, lines))
    return made


def _lines(finding: Finding) -> Iterable[str]:
    yield f"{finding.status.value} {sentences.summary(finding)}"
    yield from sentences.evidence(finding)
    if finding.remedy:
        yield f"Do: {finding.remedy}"


def _not_reached(check: str) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", {"classname": sanitise(f"gpuipc-doctor.{check}"), "name": "node", "time": "0.000"}
    )
    ElementTree.SubElement(case, "skipped", {"message": "the run ended before this check"})
    return case
