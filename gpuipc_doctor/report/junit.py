"""The report as JUnit XML, which CI systems show as tests.

There is no standard; this keeps to what the schemas in use agree on (Jenkins' and Maven Surefire's): a suite
with its counts, a case for each probe, and in it at most one of ``failure``, ``error`` and ``skipped``.
A WARN has passed, and says so in the case's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from gpuipc_doctor.model import Finding, Report, Result, Status
from gpuipc_doctor.report import digest
from gpuipc_doctor.report.text import sanitise

_OUTCOMES = {Status.FAIL: "failure", Status.ERROR: "error", Status.SKIP: "skipped", Status.WARN: "system-out"}


def render(report: Report) -> str:
    """The document, ending in a newline."""
    cases = [_case(results) for results in _by_probe(report.results)]
    cases += [_not_reached(check) for check in digest.not_reached(report)]
    outcomes = Counter(outcome.tag for case in cases for outcome in case)
    counts = {
        "tests": str(len(cases)),
        "failures": str(outcomes["failure"]),
        "errors": str(outcomes["error"]),
        "skipped": str(outcomes["skipped"]),
        "time": f"{report.elapsed_s:.3f}",
    }
    name = f"gpuipc-doctor, SIMULATED ({report.simulated})" if report.simulated else "gpuipc-doctor"
    suites = ElementTree.Element("testsuites", {"name": sanitise(name), **counts})
    where = {"timestamp": sanitise(report.started), "hostname": sanitise(report.host)}
    suite = ElementTree.SubElement(suites, "testsuite", {"name": sanitise(name), **counts, **where})
    properties = ElementTree.SubElement(suite, "properties")
    for fact in report.inventory:
        if fact.value is not None:
            named = {"name": sanitise(fact.name), "value": sanitise(fact.value)}
            ElementTree.SubElement(properties, "property", named)
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
    named = {"classname": f"gpuipc-doctor.{first.check}", "name": " ".join(filter(None, words))}
    case = ElementTree.Element(
        "testcase", {key: sanitise(text) for key, text in named.items()} | {"time": f"{first.elapsed_s:.3f}"}
    )
    worst = digest.worst(results)
    if worst in _OUTCOMES:
        told = [result.finding for result in results if result.finding.status is worst]
        outcome = ElementTree.SubElement(case, _OUTCOMES[worst])
        if worst is not Status.WARN:
            outcome.set("message", sanitise(told[0].summary))
        if worst in (Status.FAIL, Status.ERROR):
            outcome.set("type", worst.value)
        outcome.text = "\n".join(line for finding in told for line in _lines(finding))
    return case


def _lines(finding: Finding) -> Iterable[str]:
    yield sanitise(f"{finding.status.value} {finding.summary}")
    yield from map(sanitise, finding.evidence)
    if finding.remedy:
        yield sanitise(f"Do: {finding.remedy}")


def _not_reached(check: str) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", {"classname": sanitise(f"gpuipc-doctor.{check}"), "name": "node", "time": "0.000"}
    )
    ElementTree.SubElement(case, "skipped", {"message": "the run ended before this check"})
    return case
