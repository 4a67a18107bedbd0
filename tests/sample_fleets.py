"""Sample node reports for tests, and generators of arbitrary reports."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.fleet.summary import Figure, FindingSummary, MatchedIssue, NodeReport, State
from gpuipc_doctor.model import Status
from gpuipc_doctor.report_types import Relation
from tests import golden

CHECKS = ("known-versions", "ipc-reopen")
SOUND, FAULTY = "nvidia-450.102.04", "nvidia-460.32.03"
"""The simulated nodes of the samples, and their checks: `tests/e2e/test_sample_fleets.py` compares the
samples with the tool's current output."""


def kept(report: NodeReport) -> str:
    """A node's report as sample text, with fixed values for whatever changes between runs."""
    facts = {name: found for name, found in report.facts.items() if not name.startswith("env:")}
    started = "2026-11-20T11:02:33+01:00"
    same = {"host": "", "started": started, "elapsed_s": 21.4, "tool": "0.1.0", "simulated": ""}
    encoded = msgspec.json.encode(named(report, "n0", facts=facts, **same))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def named(report: NodeReport, node: str, **changes: object) -> NodeReport:
    return msgspec.structs.replace(report, node=node, **changes)


def _sample(profile: str) -> NodeReport:
    return summary.loads((golden.DIRECTORY / f"fleet/{profile}.json").read_bytes())


HEALTHY, BAD = _sample(SOUND), _sample(FAULTY)
OTHER_DRIVER = {**HEALTHY.facts, "nvidia-driver": ("450.119.03",)}
NEW_DRIVER = {**HEALTHY.facts, "nvidia-driver": ("470.57.02",), "cuda-driver": ("11.4",)}


def a_fleet() -> list[NodeReport]:
    """Forty nodes: two bad, one with another driver, three without a report."""
    reports = [named(HEALTHY, f"nid{n:04}") for n in range(35)]
    reports[7] = named(HEALTHY, "nid0007", facts=OTHER_DRIVER)
    reports += [named(BAD, f"nid{n:04}") for n in (35, 36)]
    silence = "ssh: connect to host {} port 22: No route to host"
    silent = ("nid0037", "nid0038")
    reports += [summary.silent(node, State.UNREACHABLE, silence.format(node)) for node in silent]
    reports += [summary.silent("nid0039", State.DEADLINE, "no answer within 600 s")]
    return reports


def timed(reports: list[NodeReport], usual: float = 2.0, **slow: float) -> list[NodeReport]:
    """The reports with a latency of ``usual``, or of ``slow[node]``."""
    return [
        named(
            report,
            report.node,
            figures={"x: latency": Figure(slow.get(report.node, usual), "µs", more_is_better=False)},
        )
        if report.state is State.REPORTED
        else report
        for report in reports
    ]


SKIPPED = (
    FindingSummary("mpi-start", "no-mpi", "SKIP", ("SKIP", "no-mpi"), says="no MPI to test"),
    FindingSummary("ipc-peer", "no-pair", "SKIP", ("SKIP", "no-pair"), says="no two devices to pair"),
)

CAUSES = (
    (State.UNREACHABLE, "ssh: connect to host {} port 22: No route to host"),
    (State.UNREACHABLE, "ssh: connect to host {} port 22: Connection refused"),
    (State.UNREACHABLE, "{}: Permission denied (publickey)"),
    (State.DEADLINE, "no answer within 600 s"),
    (State.NOT_LAUNCHED, "Slurm: it is drained: fan 3 is dead"),
)


def ten_thousand(*, failing: int = 0, silent: int = 0, differing: bool = False) -> list[NodeReport]:
    """10,000 nodes, most of them healthy; ``differing``: each silent node has another reason."""
    skips = {skipped.check: skipped.status for skipped in SKIPPED}
    healthy = named(HEALTHY, "", checks={**HEALTHY.checks, **skips}, findings=SKIPPED)
    reports = []
    for number in range(10_000):
        node, words = f"nid{number:06}", f" at 0x{number * 4096:x}"
        if number < failing:
            findings = tuple(
                msgspec.structs.replace(finding, says=finding.says + words) for finding in BAD.findings
            )
            reports.append(named(BAD, node, findings=findings))
        elif number < failing + silent:
            state, reason = CAUSES[number % len(CAUSES)]
            reports.append(summary.silent(node, state, reason.format(node) + 20 * words * differing))
        else:
            facts = OTHER_DRIVER if failing and number % 1000 == 999 else healthy.facts
            reports.append(named(healthy, node, facts=facts))
    return timed(reports, **({"nid009777": 9.5} if failing else {}))


def upgraded() -> list[NodeReport]:
    """The same forty nodes one day later: most have a new driver, one bad node is repaired, two now have the
    bad driver, one node is lost, one is back and one is new."""
    after = {}
    for report in a_fleet():
        if report.state is State.REPORTED and report.node not in ("nid0011", "nid0036"):
            after[report.node] = named(HEALTHY, report.node, facts=NEW_DRIVER)
        else:
            after[report.node] = report
    for node in ("nid0003", "nid0004"):
        after[node] = named(BAD, node)
    after["nid0020"] = summary.silent("nid0020", State.DEADLINE, "no answer within 600 s")
    for node in ("nid0037", "nid0041"):
        after[node] = named(HEALTHY, node, facts=NEW_DRIVER)
    del after["nid0021"]
    return [
        named(report, report.node, started="2026-11-21T08:00:00") if report.started else report
        for report in after.values()
    ]


_words = st.sampled_from(["", "a", "ipc-reopen", "<b>|", "\x1b[31m", "nid 1", "µs", "[1-"])
_statuses = st.sampled_from([status.value for status in Status])
_tolds = st.builds(
    FindingSummary,
    _words,
    _words,
    st.sampled_from(["SKIP", "WARN", "ERROR", "FAIL"]),
    st.tuples(_words),
    _words,
    _words,
    _words,
    st.lists(_words, max_size=2).map(tuple),
)
_known = st.builds(MatchedIssue, _words, st.sampled_from(Relation), _words, _words, _words)
_figures = st.builds(Figure, st.floats(-1e300, 1e300), _words, st.booleans())
_reported = st.builds(
    NodeReport,
    node=st.just(""),
    state=st.just(State.REPORTED),
    started=_words,
    elapsed_s=st.floats(0, 1e6),
    tool=_words,
    simulated=_words,
    devices=st.dictionaries(_words, st.integers(0, 8), max_size=2),
    facts=st.dictionaries(_words, st.lists(_words, max_size=2).map(tuple), max_size=3),
    checks=st.dictionaries(_words, _statuses, max_size=3),
    findings=st.lists(_tolds, max_size=3).map(tuple),
    figures=st.dictionaries(_words, _figures, max_size=2),
    known=st.lists(_known, max_size=3).map(tuple),
)
_silent = st.builds(summary.silent, st.just(""), st.sampled_from(list(State)[1:]), _words)
fleets = st.lists(st.one_of(_reported, _silent), min_size=1, max_size=8).map(
    lambda reports: [named(one, f"n{number}") for number, one in enumerate(reports)]
)
"""Arbitrary reports of nodes n0 to n7."""
