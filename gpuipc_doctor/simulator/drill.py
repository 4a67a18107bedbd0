"""Drills: run the real checks on simulated faults, and compare the findings with the expected ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor import surveys
from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.simulator import vocabulary
from gpuipc_doctor.simulator.profile import Expectation, Expected

_COMPLAINTS = {Status.WARN, Status.ERROR, Status.FAIL}

_SUBJECTS = ("node", "device", "pair", "group")
"""Kinds of a finding's subject, by number of devices."""


@dataclass(frozen=True, slots=True)
class Row:
    """A finding as a reader of the report sees it; ``text`` is its summary and evidence."""

    check: str
    probe: str
    status: Status
    text: str
    subject: str = "device"
    key: str = ""
    call: str = ""
    """The driver call in which the finding arose, if any."""

    def __str__(self) -> str:
        summary = self.text.partition("\n")[0]
        return f"{self.check} {self.status.value}: {summary}"


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Comparison with the expectation: caught, missed and unexpected findings."""

    caught: tuple[str, ...]
    missed: tuple[str, ...]
    invented: tuple[str, ...]
    let_off: tuple[str, ...] = ()
    """Unexpected findings that are accepted, because they follow from the fault."""
    given_up: tuple[str, ...] = ()
    """Checks that lack an expected finding because other checks hung first; each must be rerun alone."""

    @property
    def good(self) -> bool:
        return not (self.missed or self.invented or self.given_up)

    def with_rerun(self, alone: DrillResult) -> DrillResult:
        """The result combined with reruns of the checks in ``given_up``."""
        return DrillResult(
            (*self.caught, *alone.caught),
            (*self.missed, *alone.missed),
            (*self.invented, *alone.invented),
            (*self.let_off, *alone.let_off),
            alone.given_up,
        )


def of_the_profile(report: Report) -> Report:
    """The report, without the results that depend on the real MPI library, if one was used."""
    of_mpi = surveys.MPI_LIBRARY
    if {result.finding.status for result in report.results if result.check == of_mpi} <= {Status.SKIP}:
        return report
    of_what_is_real = {of_mpi, loader.VERSIONS}
    return replace(report, results=tuple(r for r in report.results if r.check not in of_what_is_real))


def rows(report: Report) -> list[Row]:
    """The findings of a report that a profile can state."""
    return [
        Row(
            result.check,
            result.probe,
            result.finding.status,
            "\n".join([sentences.summary(result.finding), *sentences.evidence(result.finding)]),
            _SUBJECTS[min(len(result.devices), len(_SUBJECTS) - 1)],
            result.finding.key,
            str(result.finding.values.get("call", "")),
        )
        for result in of_the_profile(report).results
    ]


def judge(expectation: Expectation, found: Sequence[Row], exit_code: int) -> DrillResult:
    """Compare a run's findings with the expected ones.

    An expected finding is caught if a row matches it. If the run skipped the check of an expected finding,
    because other checks had hung in a faulty call, that check counts as given up. Any other WARN, ERROR or
    FAIL is invented, unless it `follows` from a fault. A wrong exit code counts as missed, because it
    misleads scripts; 0 is right if each FAIL is expected at times only, and there is none.
    """
    blamed = {row.call for row in found if row.status is Status.FAIL} & expectation.faulted
    not_run = {row.check for row in found if row.key == "given-up" and row.call in blamed}
    caught, missed, given_up = list[str](), list[str](), dict[str, None]()
    for expected in expectation.findings:
        if any(_answers(row, expected) for row in found):
            caught.append(_in_words(expected))
        elif expected.check in not_run:
            given_up[expected.check] = None
        elif not expected.at_times:
            missed.append(_in_words(expected))
    fails = [expected for expected in expectation.findings if expected.status is Status.FAIL]
    is_lucky = bool(fails) and all(  # a run that missed every FAIL, as it may, is not said to have failed
        expected.at_times and not any(_answers(row, expected) for row in found) for expected in fails
    )
    if exit_code != expectation.exit_code and not (is_lucky and exit_code == Exit.OK):
        missed.append(f"exit {expectation.exit_code} (it was {exit_code})")
    return DrillResult(
        tuple(caught),
        tuple(missed),
        tuple(map(str, invented(expectation, found))),
        tuple(str(row) for row in found if follows(row, expectation)),
        tuple(given_up),
    )


def invented(expectation: Expectation, found: Iterable[Row]) -> Iterator[Row]:
    """The unexpected findings."""
    for row in found:
        if row.status not in _COMPLAINTS or follows(row, expectation):
            continue
        if not any(
            _answers(row, expected) or _answers_by_ucx(row, expected) for expected in expectation.findings
        ):
            yield row


def follows(row: Row, expectation: Expectation) -> bool:
    """Whether a check without an expectation fails in a call that the profile makes faulty.

    In a tour, a call may fail once because of what another visit of these processes did: a WARN.
    """
    if row.check in expectation.checks:
        return False
    if row.key == "failed-in-company":
        return any(call in row.text for call in expectation.faulted)
    return row.status is Status.FAIL and row.call in expectation.faulted


def callers(report: Report) -> Mapping[str, frozenset[str]]:
    """Call, as named in profiles → checks that made it in this run."""
    made: dict[str, set[str]] = {}
    for result in report.results:
        for calls in (calls for role in result.roles for calls in role.calls):
            made.setdefault(calls.operation, set()).add(result.check)
    return {
        call: frozenset().union(*(made.get(name, ()) for name in names.values()))
        for call, names in vocabulary.calls().items()
    }


def _answers(row: Row, expected: Expected) -> bool:
    return (
        row.check == expected.check
        and row.status is expected.status
        and expected.probe in ("", row.probe)
        and expected.subject in ("", row.subject)
        and expected.key in ("", row.key)
        and all(mention in row.text for mention in expected.mentions)
    )


def _answers_by_ucx(row: Row, expected: Expected) -> bool:
    """Whether UCX shows a fault that the profile expects of libfabric."""
    return (
        row.probe.startswith("UCX")
        and row.check == expected.check
        and row.status is expected.status
        and row.key == expected.key
    )


def _in_words(expected: Expected) -> str:
    mentions = " and ".join(map(repr, expected.mentions))
    return f"{expected}{f' mentioning {mentions}' if mentions else ''}"
