"""Blocks, with stand-ins for Slurm's and Flux's programs that run a step's tasks locally.

Flux itself was not tested: its stand-in accepts the documented options.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from gpuipc_doctor.fleet import node_blocks, summary
from gpuipc_doctor.fleet.ask import LaunchOptions, Shipped, Via
from gpuipc_doctor.fleet.summary import NodeReport, State
from tests.sample_fleets import HEALTHY, named

STEP = """#!/bin/sh
# Runs the command on each node of $nodes, all at once.
exec 3<&0
for node in $(echo "$nodes" | tr , ' '); do
    echo "$program $node $#" >> {place}/log
    [ ! -e {place}/dead-$node ] || {{ echo "$program: error: $node is dead" >&2; exit 1; }}
done
for node in $(echo "$nodes" | tr , ' '); do
    SLURMD_NODENAME=$node "$@" <&3 3<&- &
done
wait
"""
SRUN = """#!/bin/sh
while :; do
    case $1 in
        -w) nodes=$2; shift ;;
        -*) ;;
        *) break ;;
    esac
    shift
done
program=srun nodes=$nodes exec sh {place}/step "$@"
"""
SALLOC = """#!/bin/sh
echo "salloc $*" >> {place}/log
while :; do
    case $1 in -N*) size=${{1#-N}} ;; -w) nodes=$2; shift ;; -*) ;; *) break ;; esac
    shift
done
[ "$size" -le {most} ] || {{ echo "salloc: error: Job violates accounting/QOS policy" >&2; exit 1; }}
export SLURM_JOB_ID=7
"$@"
"""
FLUX = """#!/usr/bin/env python3
import argparse, os, sys
parser = argparse.ArgumentParser(prog="flux-run", allow_abbrev=False)
for option in ("-N", "-n", "--requires", "--time-limit"):
    parser.add_argument(option, required=True)
parser.add_argument("-o", action="append")
parser.add_argument("command", nargs=argparse.REMAINDER)
assert sys.argv[1] == "run"
asked = parser.parse_args(sys.argv[2:])
assert set(asked.o) == {{"exit-timeout=none", "gpu-affinity=off", "pmi=off", "output.limit=1G"}}, asked.o
nodes = asked.requires.removeprefix("host:")
assert int(asked.N) == int(asked.n) == len(nodes.split(","))
environment = {{**os.environ, "program": "flux", "nodes": nodes}}
os.execvpe("sh", ["sh", "{place}/step", *asked.command], environment)
"""


class Recorder:
    """Records the reports of the nodes."""

    def __init__(self) -> None:
        self.reports: dict[str, NodeReport] = {}

    def started(self, name: str) -> None: ...

    def finished(self, report: NodeReport, full: bytes) -> None:
        assert report.node not in self.reports
        self.reports[report.node] = report


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of the stand-ins; `log` records their arguments."""
    bodies = {"step": STEP, "srun": SRUN, "salloc": SALLOC, "flux": FLUX}
    for name, body in bodies.items():
        (tmp_path / name).write_text(body.format(place=tmp_path, most=2))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sbcast").write_text(f'#!/bin/sh\necho "sbcast $1" >> {tmp_path}/log\ncp "$2" "$3"\n')
    (tmp_path / "sbcast").chmod(0o755)
    (tmp_path / "answer").write_bytes(summary.dumps(named(HEALTHY, "")))
    (tmp_path / "log").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def lines(place: Path, program: str) -> list[str]:
    return [line for line in (place / "log").read_text().splitlines() if line.startswith(program)]


def test_flux_runs_one_job_for_a_block(place: Path) -> None:
    recorder = Recorder()
    way = LaunchOptions(Via.FLUX, ("cat", f"{place}/answer"), block=3)
    node_blocks.ask(nodes(5), way, recorder)
    assert {report.state for report in recorder.reports.values()} == {State.REPORTED}
    assert len(recorder.reports) == 5
    assert sorted(line.split()[1] for line in lines(place, "flux")) == nodes(5)


def test_under_flux_the_rest_of_a_block_runs_node_by_node(place: Path) -> None:
    (place / "dead-n2").touch()
    recorder = Recorder()
    node_blocks.ask(nodes(3), LaunchOptions(Via.FLUX, ("cat", f"{place}/answer"), block=3), recorder)
    states = {node: report.state for node, report in recorder.reports.items()}
    assert states == {"n1": State.REPORTED, "n2": State.NO_ANSWER, "n3": State.REPORTED}
    assert recorder.reports["n2"].reason == "flux: error: n2 is dead"


def test_block_that_slurm_refuses_is_halved(place: Path) -> None:
    recorder = Recorder()
    way = LaunchOptions(Via.SLURM, ("cat", f"{place}/answer"), block=8, options=("--gres=gpu:4",))
    node_blocks.ask(nodes(8), way, recorder)
    assert len(recorder.reports) == 8
    sizes = Counter(line.split("-N")[1].split()[0] for line in lines(place, "salloc"))
    # A block that is refused while a job of two nodes runs is retried when that job has ended.
    assert sizes.pop("4") >= 2
    assert sizes == {"8": 1, "2": 4}
    assert all("--gres=gpu:4" in line for line in lines(place, "salloc"))


def test_block_whose_refusal_slurm_tells_late_is_halved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy controller has not examined a job when it is asked first; the block waited out its patience."""
    monkeypatch.setattr(node_blocks, "PENDING_S", 0.05)
    says = "echo 'salloc: Pending job allocation 7' >&2; exec sleep 4711"
    refuses = 'echo "salloc: error: Job violates accounting/QOS policy" >&2; exit 1;'
    script = (place / "salloc").read_text()
    assert refuses in script
    (place / "salloc").write_text(script.replace(refuses, f"{says};"))
    asks = f"echo squeue >> {place}/log; [ $(grep -c squeue {place}/log) -gt 2 ] || {{ echo None; exit; }}"
    (place / "squeue").write_text(f"#!/bin/sh\n{asks}\necho QOSMaxNodePerJobLimit\n")
    (place / "squeue").chmod(0o755)
    recorder = Recorder()
    way = LaunchOptions(Via.SLURM, ("cat", f"{place}/answer"), block=4)
    node_blocks.ask(nodes(4), way, recorder)
    assert len(recorder.reports) == 4
    assert Counter(line.split("-N")[1].split()[0] for line in lines(place, "salloc")) == {"4": 1, "2": 2}


def test_each_node_runs_alone_if_salloc_is_missing(place: Path) -> None:
    (place / "salloc").unlink()
    recorder = Recorder()
    node_blocks.ask(nodes(2), LaunchOptions(Via.SLURM, ("cat", f"{place}/answer"), block=8), recorder)
    assert {report.state for report in recorder.reports.values()} == {State.REPORTED}


def test_file_is_sent_once_to_a_block(place: Path) -> None:
    shipped = place / "tool.pyz"
    shipped.write_text(f'[ "$1$2" = --oncecheck ] || exit 9\nexec cat {place}/answer\n')
    recorder = Recorder()
    way = LaunchOptions(Via.SLURM, ("check",), block=2, shipped=Shipped(shipped, str(place)))
    node_blocks.ask(nodes(2), way, recorder)
    assert {report.state for report in recorder.reports.values()} == {State.REPORTED}
    assert lines(place, "sbcast") == ["sbcast --jobid=7"]
    assert (place / "gpuipc-doctor.7").read_text() == shipped.read_text()


def test_file_is_sent_to_each_node_if_the_block_fails(place: Path) -> None:
    (place / "sbcast").write_text("#!/bin/sh\nexit 17\n")
    shipped = place / "tool.pyz"
    shipped.write_text(f"#!/bin/sh\nexec cat {place}/answer\n")
    shipped.chmod(0o755)
    recorder = Recorder()
    way = LaunchOptions(Via.SLURM, ("check",), block=2, shipped=Shipped(shipped, str(place)))
    node_blocks.ask(nodes(2), way, recorder)
    assert {report.state for report in recorder.reports.values()} == {State.REPORTED}
    assert len(list(place.glob("gpuipc-doctor.??????"))) == 2  # which this tool leaves


def test_jobs_and_steps_start_at_the_requested_rate(place: Path) -> None:
    recorder = Recorder()
    way = LaunchOptions(Via.SLURM, ("cat", f"{place}/answer"), block=2, rate=5)
    began = time.monotonic()
    node_blocks.ask(nodes(4), way, recorder)
    assert len(recorder.reports) == 4
    assert time.monotonic() - began >= 3 / 5  # two jobs and two steps


@pytest.mark.parametrize("label", ["", "3: "])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_answer_is_assembled_from_any_pieces(label: str, size: int) -> None:
    """The output of two nodes is mixed, with other lines, such as a Prolog's, between."""
    import base64

    recorder = Recorder()
    answers = node_blocks._Answers(["n1", "n2.site"], recorder, 60)
    encoded = base64.b64encode(summary.dumps(named(HEALTHY, "")) + b"\0banner\n0").decode()
    sent = "welcome\n"
    for node in ("n1", "n2"):
        sent += f"{label}@gpuipc-doctor {node} begins\n"
    for start in range(0, len(encoded), 400):
        for node in ("n1", "n2"):
            sent += f"{label}@gpuipc-doctor {node} {encoded[start : start + 400]}\n"
    sent += f"{label}@gpuipc-doctor n2 ends\n{label}@gpuipc-doctor n3 ends\n{label}@gpuipc-doctor n1 ends\n"
    data = sent.encode()
    for start in range(0, len(data), size):
        answers.pipe_data_received(1, data[start : start + size])
    assert {node: report.state for node, report in recorder.reports.items()} == {
        "n1": State.REPORTED,
        "n2.site": State.REPORTED,
    }


def test_answer_without_a_line_is_missing() -> None:
    recorder = Recorder()
    answers = node_blocks._Answers(["n1"], recorder, 60)
    answers.pipe_data_received(
        1, b"@gpuipc-doctor n1 begins\n@gpuipc-doctor n1 abc\n@gpuipc-doctor n1 ends\n"
    )
    assert (recorder.reports, answers.ended, set(answers.begun)) == ({}, set(), {"n1"})
