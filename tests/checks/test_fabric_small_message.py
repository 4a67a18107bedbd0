"""What the check fabric-small-message plans, and concludes from what its roles recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuipc_doctor.api import Context, Probe, ProbeOutcome
from gpuipc_doctor.model import (
    Ending,
    FabricStack,
    Finding,
    Json,
    Launch,
    Program,
    RoleOutcome,
    StatedFabric,
    Status,
)
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, TWO, check, conclude, statuses

PROGRAMS = {name: Program(f"/usr/bin/{name}", "PATH") for name in ("fi_info", "fi_pingpong", "ucx_perftest")}
SIZES = [1, 16, 256, 65536]
ROLES = ("server", "client")


def one(size: int, ended: str = "right", said: str = "", route: str = "tcp") -> Json:
    return {
        "route": route,
        "size": size,
        "ended": ended,
        "said": said,
        "us": 4.0 if ended == "right" else None,
    }


def told(
    *tries: Json,
    program: str = "fi_pingpong",
    failed: Sequence[Json] = (),
    stated: tuple[str, str] | None = None,
    nodes: tuple[str, str] = ("n1", "n1"),
    across: bool = False,
) -> list[Finding]:
    params: dict[str, Any] = {
        "program": f"/usr/bin/{program}",
        "sizes": SIZES,
        "failed": list(failed),
        "missing": [],
        "stated": list(stated) if stated else None,
        "across": across,
    }
    roles = {role: {"tries": tries, "node": node} for role, node in zip(ROLES, nodes, strict=True)}
    return conclude("fabric-small-message", roles, (), "libfabric", **params)


def test_all_right() -> None:
    [finding] = told(*(one(size, route=route) for route in ("tcp", "shm") for size in SIZES))
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "4 sizes right over tcp, shm"
    assert sentences.evidence(finding) == tuple(
        f"{route}, {size} B: 4.0 µs" for route in ("tcp", "shm") for size in (1, 65536)
    )
    first, *_ = finding.measured
    assert (first.name, first.value, first.unit) == ("fi_pingpong over tcp, latency, 1 B", 4.0, "µs")
    assert len(finding.measured) == 4


def test_a_program_that_tells_no_time_is_believed_all_the_same() -> None:
    [finding] = told(one(1) | {"us": None}, one(65536) | {"us": None})
    assert finding.status is Status.PASS
    assert sentences.evidence(finding) == ()


def test_what_ucx_does_not_compare_is_not_called_right() -> None:
    [finding] = told(*(one(size, route="host") for size in SIZES), program="ucx_perftest")
    assert "delivered" in sentences.summary(finding)


@pytest.mark.parametrize(
    ("ended", "key"), [("wrong", "wrong-data"), ("crashed", "crashed"), ("failed", "failed")]
)
def test_what_went_wrong_is_named_by_size(ended: str, key: str) -> None:
    [finding] = told(one(1), one(16, ended, "so"), one(256), one(65536))
    assert (finding.status, finding.key) == (Status.FAIL, key)
    assert sentences.evidence(finding) == ("tcp: 16 B: so",)


def test_what_was_given_up_is_said() -> None:
    [finding] = told(*(one(size, "crashed", "SIGSEGV") for size in SIZES[:3]))
    assert sentences.evidence(finding) == ("tcp: 1 B, 16 B, 256 B, and no more sizes tried: SIGSEGV",)


def test_what_hung_before_is_in_the_map() -> None:
    [finding] = told(one(1), failed=[one(16, "hung", "client")])
    assert (finding.status, finding.key) == (Status.FAIL, "map")


def test_a_build_without_that_memory_is_no_failure() -> None:
    [finding] = told(one(1, "unable", "no rocm"), program="ucx_perftest")
    assert (finding.status, finding.key) == (Status.SKIP, "cannot-send")


def test_no_provider_that_mpi_would_use_is_said() -> None:
    [finding] = told()
    assert (finding.status, finding.key) == (Status.SKIP, "cannot-send")


def test_a_stated_fabric_that_is_not_offered_is_named_with_the_line_that_states_it() -> None:
    [finding] = told(stated=("cxi", "x.yaml:3"))
    assert (finding.status, finding.key) == (Status.SKIP, "cannot-send")
    assert "no provider of cxi, which x.yaml:3 says this node has" in sentences.summary(finding)


def test_what_told_ucx_the_stated_fabric_is_evidence() -> None:
    sent = one(16, route="host") | {"chosen": {"UCX_TLS": "tcp,sm,self"}}
    [finding] = told(sent, sent, program="ucx_perftest", stated=("tcp", "x.yaml:3"))
    assert sentences.evidence(finding) == ("UCX_TLS=tcp,sm,self, for x.yaml:3 says tcp",)


def test_the_roles_are_told_which_fabric_the_site_states() -> None:
    stack = FabricStack(PROGRAMS, stated=StatedFabric("tcp", "x.yaml:3"))
    probes = [probe for probe in planned(stack) if isinstance(probe, Probe)]
    assert {tuple(probe.params["stated"]) for probe in probes} == {("tcp", "x.yaml:3")}


def planned(fabric: FabricStack, **context: Any) -> list[Probe | Finding]:
    return list(check("fabric-small-message").probes(Context(TWO, fabric=fabric, **context)))


def test_host_memory_by_both_and_device_memory_by_ucx() -> None:
    probes = [probe for probe in planned(FabricStack(PROGRAMS)) if isinstance(probe, Probe)]
    assert [(probe.name, probe.subject) for probe in probes] == [
        ("libfabric", "node"),
        ("UCX", "node"),
        ("UCX", "cuda:0"),
        ("UCX", "cuda:1"),
        ("UCX", "cuda:0 > cuda:1"),
    ]


def test_between_nodes_too_where_that_is_asked_for() -> None:
    across = Launch(("srun", "-n{ranks}"), nodes=2)
    probes = [probe for probe in planned(FabricStack(PROGRAMS), across=across) if isinstance(probe, Probe)]
    assert [probe.subject for probe in probes if probe.launch == across] == ["node", "node", "cuda:0"]
    assert all(probe.params["across"] == (probe.launch == across) for probe in probes)


@pytest.mark.parametrize("tries", [[one(16)], [one(16, "wrong")], []])
def test_where_a_launcher_put_both_on_one_node_nothing_was_sent_between_nodes(tries: list[Json]) -> None:
    [finding] = told(*tries, across=True)
    assert (finding.status, finding.key) == (Status.ERROR, "misplaced")
    assert told(one(16), nodes=("n1", "n2"), across=True)[0].status is Status.PASS


def test_without_programs_it_says_what_brings_them() -> None:
    [skip] = planned(FabricStack(why_not="a simulated node has none"))
    assert isinstance(skip, Finding)
    assert (skip.status, skip.key) == (Status.SKIP, "no-program")
    assert "libfabric-bin" in skip.remedy
    assert "a simulated node has none" in sentences.summary(skip)


def test_what_is_not_tried_for_want_of_a_program_is_said() -> None:
    programs = {"fi_pingpong": PROGRAMS["fi_pingpong"]}
    [probe] = planned(FabricStack(programs))
    assert isinstance(probe, Probe)
    roles = {role: {"tries": [one(16)], "node": "n1"} for role in ROLES}
    [finding] = conclude("fabric-small-message", roles, (), "libfabric", **probe.params)
    assert any("without ucx_perftest" in line for line in sentences.evidence(finding))


def test_a_site_may_choose_the_sizes() -> None:
    [probe, *_] = [
        finding
        for finding in planned(FabricStack(PROGRAMS), options={"sizes": [16]})
        if isinstance(finding, Probe)
    ]
    assert probe.params["sizes"] == [16]


def test_what_hung_is_left_out_of_the_rest() -> None:
    role = RoleOutcome("client", Ending.HUNG, records={"message": ["tcp", 16]})
    params = {"program": "/usr/bin/fi_pingpong", "sizes": SIZES, "failed": [], "env": {}}
    outcome = ProbeOutcome("libfabric", (), params, {"client": role}, "client", 1.0)
    [probe] = check("fabric-small-message").again(outcome)
    assert probe.name == "libfabric, the rest"
    assert probe.params["failed"] == [{"route": "tcp", "size": 16, "ended": "hung", "said": "client"}]


def test_what_ended_otherwise_is_not_repeated() -> None:
    role = RoleOutcome("client", Ending.EXCEPTION)
    outcome = ProbeOutcome("libfabric", (), {"failed": []}, {"client": role}, "client", 1.0)
    assert not list(check("fabric-small-message").again(outcome))
    assert statuses(told(*map(one, SIZES))) == GOOD
