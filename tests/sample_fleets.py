"""Node reports as fleets leave them, for the tests of what is made of them; and arbitrary ones."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.fleet.summary import Figure, Known, NodeReport, State, Told
from gpuipc_doctor.model import Relation, Status
from tests.sample_reports import gpus, healthy, seed_002

HEALTHY = summary.of(healthy(gpus(4)), "n0", 0)
BAD = summary.of(seed_002(), "n0", 12)


def named(report: NodeReport, node: str, **changes: object) -> NodeReport:
    return msgspec.structs.replace(report, node=node, **changes)


def a_fleet() -> list[NodeReport]:
    """Forty nodes: two bad, one of another driver, one slow, three silent."""
    latency = {"mpi-small-message: latency, 16 B": Figure(2.0, "µs", more_is_better=False)}
    reports = [named(HEALTHY, f"nid{n:04}", figures=latency) for n in range(35)]
    reports[7] = named(HEALTHY, "nid0007", facts={**HEALTHY.facts, "nvidia-driver": ("570.86.15",)})
    slow = {"mpi-small-message: latency, 16 B": Figure(9.5, "µs", more_is_better=False)}
    reports[9] = named(HEALTHY, "nid0009", figures=slow)
    reports += [named(BAD, f"nid{n:04}") for n in (35, 36)]
    silence = "ssh: connect to host nid0037 port 22: No route to host"
    reports += [summary.silent(f"nid{n:04}", State.UNREACHABLE, silence) for n in (37, 38)]
    reports += [summary.silent("nid0039", State.DEADLINE, "no answer within 600 s")]
    return reports


def upgraded() -> list[NodeReport]:
    """The same forty after an upgrade: most have a new driver, one bad node is mended, two have broken, one
    is lost, one has come back and one is new; messages take longer everywhere."""
    latency = {"mpi-small-message: latency, 16 B": Figure(2.9, "µs", more_is_better=False)}
    driver = {"nvidia-driver": ("590.10",)}
    after = {}
    for one in a_fleet():
        if one.state is State.REPORTED:
            facts = one.facts if one.node == "nid0011" else {**one.facts, **driver}
            after[one.node] = named(
                one, one.node, facts=facts, figures=latency, started="2026-11-21T08:00:00"
            )
        else:
            after[one.node] = one
    after["nid0035"] = named(after["nid0001"], "nid0035", facts={**BAD.facts, **driver}, figures={})
    for node in ("nid0003", "nid0004"):
        after[node] = named(after[node], node, checks={**BAD.checks}, findings=BAD.findings)
    after["nid0020"] = summary.silent("nid0020", State.DEADLINE, "no answer within 600 s")
    for node in ("nid0037", "nid0041"):
        after[node] = named(after["nid0001"], node)
    del after["nid0021"]
    return list(after.values())


_words = st.sampled_from(["", "a", "ipc-reopen", "<b>|", "\x1b[31m", "nid 1", "µs", "[1-"])
_statuses = st.sampled_from([status.value for status in Status])
_tolds = st.builds(
    Told,
    _words,
    _words,
    st.sampled_from(["SKIP", "WARN", "ERROR", "FAIL"]),
    st.tuples(_words),
    _words,
    _words,
    _words,
    st.lists(_words, max_size=2).map(tuple),
)
_known = st.builds(Known, _words, st.sampled_from(Relation), _words, _words, _words)
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
"""Arbitrary ones, of nodes n0 to n7."""
