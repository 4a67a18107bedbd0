"""JUnit XML, which CI systems show as tests.

JUnit XML has no standard; this module follows the schemas in use (Jenkins', Maven Surefire's) where they
agree: a suite with its counts, and cases, each with at most one of ``failure``, ``error`` and ``skipped``. A
WARN counts as passed, with the reason in the case's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree

from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import sanitise

_OUTCOMES = {Status.FAIL: "failure", Status.ERROR: "error", Status.SKIP: "skipped", Status.WARN: "system-out"}


def document(
    cases: Sequence[ElementTree.Element],
    facts: Iterable[tuple[str, str]],
    where: Mapping[str, str],
    elapsed_s: float,
    simulated: str,
    untried: str = "",
) -> str:
    """A test suite, ending in a newline; ``simulated`` names a simulated profile, ``untried``
    says which GPUs this tool was never run on."""
    outcomes = Counter(outcome.tag for case in cases for outcome in case)
    counts = {
        "tests": str(len(cases)),
        "failures": str(outcomes["failure"]),
        "errors": str(outcomes["error"]),
        "skipped": str(outcomes["skipped"]),
        "time": f"{elapsed_s:.3f}",
    }
    name = sanitise(f"gpuipc-doctor, SIMULATED ({simulated})" if simulated else "gpuipc-doctor")
    suites = ElementTree.Element("testsuites", {"name": name, **counts})
    attributes = {"name": name, **counts, **{key: sanitise(text) for key, text in where.items()}}
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    properties = ElementTree.SubElement(suite, "properties")
    for fact, value in (*([("experimental", untried)] if untried else []), *facts):
        ElementTree.SubElement(properties, "property", {"name": sanitise(fact), "value": sanitise(value)})
    suite.extend(cases)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode") + "\n"


def case(
    kind: str, name: str, elapsed_s: float, status: Status | None, message: str, lines: Iterable[str] = ()
) -> ElementTree.Element:
    """A test case for a result with this status; a PASS has no child element."""
    attributes = {"classname": f"gpuipc-doctor.{kind}", "name": name, "time": f"{elapsed_s:.3f}"}
    made = ElementTree.Element("testcase", {key: sanitise(text) for key, text in attributes.items()})
    if status in _OUTCOMES:
        outcome = ElementTree.SubElement(made, _OUTCOMES[status])
        if status is not Status.WARN:
            outcome.set("message", sanitise(message))
        if status in (Status.FAIL, Status.ERROR):
            outcome.set("type", status.value)
        outcome.text = "\n".join(map(sanitise, lines)) or None
    return made
