"""What a pair of nodes is said to have come to, by the report of the one that tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuipc_doctor.cli import fleet_pairs
from gpuipc_doctor.fleet.pairs import Rounds, outcome_of
from gpuipc_doctor.fleet.partners import Blame, Outcome
from gpuipc_doctor.model import Finding, Report, Result, Status, Tier

ACROSS = {
    "mpi": ("mpi-small-message", "between nodes"),
    "fabric": ("fabric-small-message", "libfabric, between nodes"),
}
ACROSS["ucx"] = ("fabric-small-message", "UCX, between nodes, the rest")
HERE = {"here": ("fabric-small-message", "libfabric"), "no-mpi": ("mpi-small-message", "")}


def report(**told: Status) -> Report:
    results = [
        Result(check, Finding(status, "x", "x"), (), probe)
        for name, status in told.items()
        for check, probe in [{**ACROSS, **HERE}[name.replace("_", "-")]]
    ]
    return Report(
        "n1", "2026-11-20T12:00:00+00:00", 1.0, Tier.ACCEPTANCE, "0", (), (), (), tuple(results), ()
    )


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ({}, Outcome.SILENT),
        ({"mpi": Status.PASS}, Outcome.PASS),
        ({"mpi": Status.FAIL}, Outcome.FAIL),
        ({"mpi": Status.SKIP}, Outcome.SILENT),
        ({"no_mpi": Status.SKIP}, Outcome.SILENT),
        ({"no_mpi": Status.SKIP, "here": Status.FAIL}, Outcome.SILENT),
        ({"no_mpi": Status.SKIP, "fabric": Status.PASS}, Outcome.PASS),
        ({"no_mpi": Status.SKIP, "fabric": Status.PASS, "ucx": Status.SKIP}, Outcome.PASS),
        ({"no_mpi": Status.SKIP, "fabric": Status.FAIL, "ucx": Status.PASS}, Outcome.FAIL),
        ({"no_mpi": Status.SKIP, "fabric": Status.PASS, "ucx": Status.ERROR}, Outcome.SILENT),
        ({"no_mpi": Status.SKIP, "ucx": Status.SKIP}, Outcome.SILENT),
        ({"mpi": Status.PASS, "fabric": Status.FAIL}, Outcome.FAIL),
        ({"mpi": Status.SKIP, "fabric": Status.PASS}, Outcome.SILENT),
    ],
)
def test_what_counts_is_what_went_between_the_two_nodes(told: dict[str, Status], outcome: Outcome) -> None:
    assert outcome_of(report(**told)) is outcome


@pytest.mark.parametrize("shown", [fleet_pairs._pairs_as_text, fleet_pairs._pairs_as_json])
def test_pairs_of_neighbours_say_that_links_between_switches_were_not_tried(
    shown: Callable[[list[str], Blame, Rounds, str], str],
) -> None:
    open_links = "links between switches"
    assert open_links in shown(["n1", "n2"], Blame(), Rounds(), fleet_pairs.UNTRIED)
    assert open_links not in shown(["n1", "n2"], Blame(), Rounds(), "")
