"""The outcome of a pair of nodes, from the report of the node that ran the check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.fleet import pairs_content
from gpuipc_doctor.fleet.crossings import Outcome
from gpuipc_doctor.fleet.pairs import Rounds, outcome_of
from gpuipc_doctor.fleet.partners import Blame
from gpuipc_doctor.fleet.switches import Cut
from gpuipc_doctor.model import Finding, Status, Tier
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report_types import Report, Result

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
def test_only_messages_between_the_two_nodes_count(told: dict[str, Status], outcome: Outcome) -> None:
    assert outcome_of(report(**told)) is outcome


@pytest.mark.parametrize("shown", [pairs_content.as_text, pairs_content.as_json])
def test_pairs_of_neighbours_report_untested_links_between_switches(
    shown: Callable[[list[str], Blame, Rounds, str], str],
) -> None:
    open_links = "most links between switches"
    assert open_links in shown(["n1", "n2"], Blame(), Rounds(), pairs_content.UNTRIED)
    assert open_links not in shown(["n1", "n2"], Blame(), Rounds(), "")


def test_switches_that_no_message_left_are_listed() -> None:
    """A cut-off leaf passes without --across; with it, silent nodes may leave a leaf untested."""
    found = Blame(uncrossed=("leaf1", "leaf2"))
    assert (
        pairs_content.untried(found, across=False)
        == f"{pairs_content.UNTRIED}; no link out of leaf[1-2] was tested"
    )
    assert pairs_content.untried(found, across=True) == "no link out of leaf[1-2] was tested"
    assert pairs_content.untried(Blame(), across=True) == ""


def test_switch_below_which_nothing_passes_is_not_called_bad() -> None:
    nodes = [f"n{number}" for number in range(8)]
    cut = Cut("leaf1", tuple(nodes[4:]), is_certain=False)
    lines = pairs_content.as_text(nodes, Blame(cut=(cut,), suspected=("leaf0",)), Rounds(), "").splitlines()
    assert lines[1:] == ["switches cut off, or with only bad nodes: leaf1 (n[4-7])", "perhaps cut off: leaf0"]


def test_switch_and_split_are_one_line_each() -> None:
    nodes = [f"n{number}" for number in range(8)]
    links = tuple((f"leaf{leaf}", f"leaf{other}") for leaf in (1, 2) for other in (3, 4))
    blamed = Blame(cut=(Cut("leaf0", tuple(nodes[:4])),), links=links, unstable=("n7",))
    lines = pairs_content.as_text(nodes, blamed, Rounds(), "").splitlines()
    assert lines[1:] == [
        "bad switches: leaf0",
        "nodes behind bad switches: n[0-3]",
        "bad links between switches: leaf[1-2] - leaf[3-4]",
        "unstable nodes: n7",
    ]


def test_switch_of_the_site_config_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve nodes below three switches; messages across leaf1 fail. The `ssh` here answers for check."""
    for name, status in (("pass", Status.PASS), ("fail", Status.FAIL)):
        (tmp_path / name).write_text(report_json.dumps(report(mpi=status)))
    script = """#!/bin/sh
while [ "$1" != -- ]; do node=$1; shift; done
partner=$(echo "$*" | sed 's/.*--partner //; s/ .*//')
leaf() { echo $(( ${1#n} / 4 )); }
if [ $(leaf $node) != $(leaf $partner) ] && { [ $(leaf $node) = 1 ] || [ $(leaf $partner) = 1 ]; }
then exec cat DIR/fail; fi
exec cat DIR/pass
"""
    (tmp_path / "ssh").write_text(script.replace("DIR", str(tmp_path)))
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "site.yaml").write_text("topology: {leaf0: 'n[0-3]', leaf1: 'n[4-7]', leaf2: 'n[8-11]'}\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = ["fleet", "pairs", "--across", "--via", "ssh", "-w", "n[0-11]", "--json"]
    ended = CliRunner().invoke(cli, [*command, "--", "--config", str(tmp_path / "site.yaml")])
    assert ended.exit_code == 12, ended.output
    said = json.loads(ended.stdout)
    assert (said["bad switches"], said["nodes behind bad switches"]) == ("leaf1", "n[4-7]")
    assert (said["bad nodes"], said["bad pairs"], said["cannot tell"]) == ("", "", "")
