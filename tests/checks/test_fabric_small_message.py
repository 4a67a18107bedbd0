"""Tests of check fabric-small-message: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor.api import Context, Device, Probe, ProbeOutcome
from gpuipc_doctor.model import Finding, Json, Status, Tier
from gpuipc_doctor.probe_types import Ending, FabricStack, Launch, Program, RoleOutcome
from gpuipc_doctor.report import sentences
from tests.checks.judging import TWO, check, conclude

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


def test_correct_messages_pass_with_their_times() -> None:
    [finding] = told(*(one(size, route=route) for route in ("tcp", "shm") for size in SIZES))
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "messages of 4 sizes arrived correct over tcp, shm"
    assert sentences.evidence(finding) == tuple(
        f"{route}, {size} B: 4.0 µs" for route in ("tcp", "shm") for size in (1, 65536)
    )
    first, *_ = finding.measured
    assert (first.name, first.value, first.unit) == ("fi_pingpong over tcp, latency, 1 B", 4.0, "µs")
    assert len(finding.measured) == 4


@pytest.mark.parametrize(
    ("ended", "key"), [("wrong", "wrong-data"), ("crashed", "crashed"), ("failed", "failed")]
)
def test_failed_sizes_are_evidence(ended: str, key: str) -> None:
    [finding] = told(one(1), one(16, ended, "so"), one(256), one(65536))
    assert (finding.status, finding.key) == (Status.FAIL, key)
    assert sentences.evidence(finding) == ("tcp: 16 B: so",)


def test_skipped_sizes_are_reported() -> None:
    [finding] = told(*(one(size, "crashed", "SIGSEGV") for size in SIZES[:3]))
    assert sentences.evidence(finding) == ("tcp: 1 B, 16 B, 256 B: SIGSEGV; further sizes were not tried",)


def test_earlier_hangs_are_in_the_map() -> None:
    [finding] = told(one(1), failed=[one(16, "hung", "client")])
    assert (finding.status, finding.key) == (Status.FAIL, "map")


def test_build_without_this_memory_is_a_skip() -> None:
    [finding] = told(one(1, "unable", "no rocm"), program="ucx_perftest")
    assert (finding.status, finding.key) == (Status.SKIP, "cannot-send")


def test_missing_provider_that_mpi_would_use_is_reported() -> None:
    [finding] = told()
    assert (finding.status, finding.key) == (Status.SKIP, "cannot-send")


def test_stated_fabric_that_is_not_offered_is_reported_with_its_line() -> None:
    [finding] = told(stated=("cxi", "x.yaml:3"))
    assert (finding.status, finding.key) == (Status.SKIP, "cannot-send")
    assert "no provider of cxi, which x.yaml:3 says this node has" in sentences.summary(finding)


def test_variables_that_select_the_stated_fabric_are_evidence() -> None:
    sent = one(16, route="host") | {"chosen": {"UCX_TLS": "tcp,sm,self"}}
    [finding] = told(sent, sent, program="ucx_perftest", stated=("tcp", "x.yaml:3"))
    assert sentences.evidence(finding) == ("UCX_TLS=tcp,sm,self, for x.yaml:3 says tcp",)


def planned(fabric: FabricStack, **context: Any) -> list[Probe | Finding]:
    return list(check("fabric-small-message").probes(Context(TWO, fabric=fabric, **context)))


@pytest.mark.parametrize(
    ("tier", "on"),
    [
        (Tier.ACCEPTANCE, ["cuda:0 > cuda:1"]),
        (Tier.SOAK, ["cuda:0", "cuda:1", "cuda:0 > cuda:1", "cuda:1 > cuda:0"]),
    ],
)
def test_both_libraries_send_host_memory_and_ucx_device_memory(tier: Tier, on: list[str]) -> None:
    probes = [probe for probe in planned(FabricStack(PROGRAMS), tier=tier) if isinstance(probe, Probe)]
    found = [(probe.name, probe.subject) for probe in probes]
    assert found == [("libfabric", "node"), ("UCX", "node"), *(("UCX", subject) for subject in on)]


def test_probes_between_nodes_are_planned_on_request() -> None:
    across = Launch(("srun", "-n{ranks}"), nodes=2)
    probes = [probe for probe in planned(FabricStack(PROGRAMS), across=across) if isinstance(probe, Probe)]
    assert [probe.subject for probe in probes if probe.launch == across] == ["node", "node", "cuda:0"]
    assert all(probe.params["across"] == (probe.launch == across) for probe in probes)


@pytest.mark.parametrize("tries", [[one(16)], [one(16, "wrong")], []])
def test_roles_on_one_node_are_an_error_between_nodes(tries: list[Json]) -> None:
    [finding] = told(*tries, across=True)
    assert (finding.status, finding.key) == (Status.ERROR, "misplaced")
    assert told(one(16), nodes=("n1", "n2"), across=True)[0].status is Status.PASS


def test_without_programs_the_skip_names_their_packages() -> None:
    [skip] = planned(FabricStack(why_not="a simulated node has none"))
    assert isinstance(skip, Finding)
    assert (skip.status, skip.key) == (Status.SKIP, "no-program")
    assert "libfabric-bin" in skip.remedy
    assert "a simulated node has none" in sentences.summary(skip)


def test_messages_untested_for_lack_of_a_program_are_reported() -> None:
    programs = {"fi_pingpong": PROGRAMS["fi_pingpong"]}
    [probe] = planned(FabricStack(programs))
    assert isinstance(probe, Probe)
    roles = {role: {"tries": [one(16)], "node": "n1"} for role in ROLES}
    [finding] = conclude("fabric-small-message", roles, (), "libfabric", **probe.params)
    assert any(line.startswith("ucx_perftest was not found") for line in sentences.evidence(finding))


def test_rerun_leaves_out_the_message_that_hung() -> None:
    role = RoleOutcome("client", Ending.HUNG, records={"message": ["tcp", 16]})
    params = {"program": "/usr/bin/fi_pingpong", "sizes": SIZES, "failed": [], "env": {}}
    outcome = ProbeOutcome("libfabric", (), params, {"client": role}, "client", 1.0)
    [probe] = check("fabric-small-message").again(outcome)
    assert probe.name == "libfabric, the rest"
    assert probe.params["failed"] == [{"route": "tcp", "size": 16, "ended": "hung", "said": "client"}]


def test_run_of_all_sizes_that_hung_is_tried_one_by_one() -> None:
    role = RoleOutcome("client", Ending.HUNG, records={"message": ["host", "all sizes"]})
    params = {"program": "/usr/bin/ucx_perftest", "sizes": SIZES, "failed": [], "at_once": True, "env": {}}
    outcome = ProbeOutcome("UCX", (), params, {"client": role}, "client", 1.0)
    [probe] = check("fabric-small-message").again(outcome)
    assert (probe.name, probe.params["at_once"], probe.params["failed"]) == ("UCX, one by one", False, [])


@pytest.mark.parametrize(
    ("ending", "records", "blamed"),
    [
        (Ending.EXCEPTION, {}, "client"),
        (Ending.EXCEPTION, {"message": ["tcp", 16]}, "client"),
        (Ending.HUNG, {"message": ["tcp", 16]}, None),
        (Ending.HUNG, {}, "client"),
    ],
)
def test_other_failures_are_not_rerun(ending: Ending, records: dict[str, Json], blamed: str | None) -> None:
    role = RoleOutcome("client", ending, records=records)
    params = {"program": "/usr/bin/fi_pingpong", "sizes": SIZES, "failed": [], "env": {}}
    outcome = ProbeOutcome("libfabric", (), params, {"client": role}, blamed, 1.0)
    assert not list(check("fabric-small-message").again(outcome))


PEERS = tuple(replace(gpu, peers=frozenset({"cuda:0", "cuda:1"}) - {gpu.label}) for gpu in TWO)


def carried(
    how: str,
    by: str,
    devices: tuple[Device, ...] = PEERS,
    chosen: dict[str, str] | None = None,
    apart: dict[str, Any] | None = None,
) -> Finding:
    params: dict[str, Any] = {
        "program": "/usr/bin/ucx_perftest",
        "sizes": [4 << 20],
        "failed": [],
        "missing": [],
        "stated": None,
        "across": False,
    }
    told = {"message": [how, by], "put": ["peer", "cuda_ipc"]}
    client = {"tries": [one(4 << 20, route="cuda")], "node": "n1", "carried": told, "chosen": chosen or {}}
    client |= {"speed": 0.512, "copied": 41.26} if how == "host" else {"speed": 40.0}
    client |= {"apart": apart} if apart else {}
    [finding] = conclude(
        "fabric-small-message", {"server": {"node": "n1"}, "client": client}, devices, "UCX", **params
    )
    return finding


@pytest.mark.parametrize("by", ["tcp", "sysv", "host memory"])
def test_device_memory_through_the_host_between_peers_warns_with_both_speeds(by: str) -> None:
    finding = carried("host", by, chosen={"UCX_TLS": "tcp,self,cuda_copy"})
    assert (finding.status, finding.key) == (Status.WARN, "through-host")
    said = f"UCX moves device memory between peers by {by}: 0.512 GB/s; the driver's copy: 41.3 GB/s"
    assert sentences.summary(finding) == said
    assert "set here: UCX_TLS=tcp,self,cuda_copy" in sentences.evidence(finding)
    assert finding.remedy == "unset UCX_TLS"
    assert "ucx_info -d" in carried("host", by).remedy


@pytest.mark.parametrize(
    ("how", "by", "devices"),
    [
        ("peer", "cuda_ipc", PEERS),
        ("other", "rc_mlx5", PEERS),
        ("host", "tcp", TWO),
        ("host", "tcp", (PEERS[0], TWO[1])),
    ],
)
def test_transport_is_evidence_where_nothing_better_is_granted(
    how: str, by: str, devices: tuple[Device, ...]
) -> None:
    finding = carried(how, by, devices)
    assert finding.status is Status.PASS
    assert f"large messages between the GPUs: {by}" in sentences.evidence(finding)
    assert "large puts between the GPUs: cuda_ipc" in sentences.evidence(finding)


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        ({"us": 8388.608, "carried": {"message": ["host", "tcp"]}}, ", as in containers: tcp, 0.5 GB/s"),
        (
            {"us": 8388.608, "carried": {}},
            ", as in containers: UCX names several transports or none, 0.5 GB/s",
        ),
        ({"ended": "failed", "said": "exit code 124: "}, ": failed (exit code 124: )"),
        ({"ended": "not tried", "said": "unshare: not permitted"}, ": not tried (unshare: not permitted)"),
    ],
)
def test_transport_between_pid_namespaces_is_reported_and_not_judged(
    apart: dict[str, Any], said: str
) -> None:
    finding = carried("peer", "cuda_ipc", apart={"ended": "right", **apart})
    assert finding.status is Status.PASS
    assert f"in PID namespaces of their own{said}" in sentences.evidence(finding)
