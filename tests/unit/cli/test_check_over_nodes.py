"""Tests of `check --all --nodes N`: the results of `fleet collectives` are added to the node's report."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click
import pytest

from gpuipc_doctor.cli import check, check_options
from gpuipc_doctor.files import python
from gpuipc_doctor.fleet import collective_report
from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report_types import Report


def of(name: str, *findings: Finding) -> Report:
    return collective_report.report([name], {}, findings, [], datetime.now().astimezone())


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `fleet collectives` prints; its arguments are then in ``arguments``."""
    program = (
        "import json, sys; from pathlib import Path; here = Path(sys.argv[1]);"
        "(here / 'arguments').write_text(json.dumps(sys.argv[2:]));"
        "print((here / 'printed').read_text()); sys.stderr.write('Error: as root, name a user'); sys.exit(2)"
    )
    monkeypatch.setattr(python, "module", lambda _: [sys.executable, "-c", program, str(tmp_path)])
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    return tmp_path


def test_results_over_the_first_nodes_are_added(fleet: Path) -> None:
    bad = Finding.fail("node-alone", "{node}: x", node="n2")
    over = replace(of("n[1-3]", bad), elapsed_s=30.0)
    (fleet / "printed").write_text(report_json.dumps(over))
    asked = check_options.parsed(["--all", "--nodes", "3", "--simulate", "x", "--budget", "100"])
    nodes = check._nodes_of_collectives(asked)
    found = check._with_collectives(of("n1"), nodes, asked)
    assert [result.finding for result in found.results] == [bad]
    assert [info.id for info in found.checks][-1] == "fleet-collectives"
    assert 30.0 <= found.elapsed_s < 40.0
    words = json.loads((fleet / "arguments").read_text())
    assert words[:2] == ["fleet", "collectives"]
    assert words[words.index("-w") + 1] == "n1,n2,n3"
    assert any(word.startswith("--budget=9") or word == "--budget=100.0" for word in words)
    assert words[words.index("--") + 1 :] == ["--backend", "auto", "--simulate", "x"]


def test_refusal_is_a_skip_with_its_reason(fleet: Path) -> None:
    (fleet / "printed").write_text("")
    asked = check_options.parsed(["--all", "--nodes", "2"])
    found = check._with_collectives(of("n1"), check._nodes_of_collectives(asked), asked)
    (result,) = found.results
    assert (result.finding.status, result.finding.values["why"]) == (Status.SKIP, "as root, name a user")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_check_alone_ends_the_collectives(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    (fleet / "printed").write_text(report_json.dumps(replace(of("n[1-2]"), interrupted=True)))
    program = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "def end(*_):\n    print(Path(sys.argv[1]).read_text()); sys.exit(130)\n"
        "signal.signal(signal.SIGINT, end); time.sleep(1)  # until the parent listens\n"
        f"os.kill(os.getppid(), {number.value}); time.sleep(20); sys.exit(11)"
    )
    printed = str(fleet / "printed")
    monkeypatch.setattr(python, "module", lambda _: [sys.executable, "-c", program, printed])
    asked = check_options.parsed(["--all", "--nodes", "2"])
    assert check._with_collectives(of("n1"), check._nodes_of_collectives(asked), asked).interrupted


def test_more_nodes_than_the_allocation_has_are_refused(fleet: Path) -> None:
    with pytest.raises(click.UsageError, match="--nodes 5: the allocation has 4 nodes; run salloc -N 5"):
        check._nodes_of_collectives(check_options.parsed(["--all", "--nodes", "5"]))


@pytest.mark.parametrize("words", [["--all"], ["ipc-fabric", "--nodes", "2"], ["--all", "--partner", "n2"]])
def test_other_checks_add_nothing(fleet: Path, words: list[str]) -> None:
    assert check._nodes_of_collectives(check_options.parsed(words)) == []
