"""What to do about a failure that nothing explains: the addressee, and commands that can be pasted."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Json
from gpuipc_doctor.model import Fact, Finding
from gpuipc_doctor.report import node_content
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.ticket import components
from gpuipc_doctor.ticket.subject import Subject
from tests.sample_reports import gpus, report

OPEN_MPI = (Fact("openmpi", "5.0.6", "library"),)


def failed(check: str, *labels: str, **values: Json) -> Report:
    remedy = "repeat: rerun with --output r.json, then x r.json" if values else ""
    found = Finding.fail("wrong-data", "wrong data", remedy=remedy, **values)
    devices = (*gpus(2), *gpus(1, "hip", "MI300A"))
    return report(devices, [Result(check, found, labels)], stack=OPEN_MPI)


@pytest.mark.parametrize(
    ("check", "labels", "whom", "component"),
    [
        ("ipc-reopen", ["cuda:0"], "NVIDIA", "NVIDIA's driver"),
        ("ipc-reopen", ["hip:0"], "AMD", "AMD's ROCm"),
        ("ipc-peer", ["cuda:0", "cuda:1"], "NVIDIA", "NVIDIA's driver"),
        ("mpi-stale-buffer", ["cuda:0"], "Open MPI's project", "Open MPI"),
        ("fabric-small-message", [], "libfabric's project", "libfabric"),
    ],
)
def test_addressee_is_the_one_of_the_ticket(check: str, labels: list[str], whom: str, component: str) -> None:
    of = failed(check, *labels)
    assert f"Do: send a bug report to {whom}: rerun" in " ".join(node_content.screen(of).split())
    goes_to = components.concerned(Subject(of))
    assert goes_to is not None
    assert goes_to.name == component


def test_command_stands_alone_on_its_line_with_the_path_of_the_report() -> None:
    of = failed("ipc-reopen", "cuda:0")
    assert "\n          gpuipc-doctor report --format ticket r.json\n" in node_content.screen(of)
    shown = node_content.screen(of, file="/var/log/my report.json")
    assert "\n          gpuipc-doctor report --format ticket '/var/log/my report.json'\n" in shown
    assert "rerun with" not in shown


def test_history_is_reported_and_replayed() -> None:
    shown = node_content.screen(failed("ipc-histories", "cuda:0", history={"operations": []}))
    assert shown.index("send a bug report to NVIDIA") < shown.index("- repeat: rerun with --output r.json")
