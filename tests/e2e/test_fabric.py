"""libfabric without MPI: real programs with faults from a preloaded library, and as a control for MPI.

The cxi adapters are files, and a script that prints examples from HPE's documents; no real one was tested.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.report import exits, sentences
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.simulator import drill, fabric_programs, profile
from gpuipc_doctor.supervise import tree
from tests.e2e.conftest import full
from tests.e2e.test_faults import check, few_are_let_off
from tests.e2e.test_mpi_faults import HISTORIES, path_of, without

PREFIXES = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere"))
UCX = next(PREFIXES.glob("ucx/lib/python3*/site-packages/libucx/bin"), None)

pytestmark = pytest.mark.skipif("fi_pingpong" not in fabric_programs.here(), reason="no fi_pingpong on PATH")

SIZES = {"fabric-wrong-byte": [64, 128, 256]}
"""Few sizes, because each starts two processes that spin; other profiles use `OTHERS`."""

OTHERS = [16, 256]


@pytest.fixture
def few(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A site config with the sizes for the test's profile ``name``."""
    arguments = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    sizes = SIZES.get(arguments.get("name", ""), OTHERS)
    return with_sizes(tmp_path, sizes)


def with_sizes(directory: Path, sizes: list[int]) -> str:
    """A site config with these message sizes, with and without MPI."""
    checks = ("fabric-small-message", "mpi-small-message")
    options = ", ".join(f"{name}: {{sizes: {sizes}}}" for name in checks)
    (directory / "site.yaml").write_text(f"options: {{{options}}}\n")
    return str(directory / "site.yaml")


def runs() -> list[object]:
    """Profiles to run: a hang and a bad adapter; `full`: all. The test with MPI covers wrong bytes."""
    names = [name for name in profile.names() if (p := profile.load(name)).needs_fabric and not p.needs_mpi]
    first = {"fabric-hang-16", "cxi-no-retry-handler"}
    return [pytest.param(name, marks=[] if name in first else pytest.mark.full) for name in names]


def found(name: str, *arguments: str) -> Report:
    stated = without("" if HISTORIES in arguments else HISTORIES, profile.load(name))
    deadline = ["--deadline", str(stated.deadline_s)] if stated.deadline_s else []
    report, _ = check(*arguments, "--simulate", name, "--backend", "cuda", *deadline)
    verdict = drill.judge(stated.expect["cuda"], drill.rows(report), exits.code(drill.of_the_profile(report)))
    assert verdict.invented == ()
    assert verdict.missed == ()
    few_are_let_off(stated, stated.expect["cuda"], report)
    return report


@pytest.mark.parametrize("name", runs())
def test_fault_of_the_fabric_is_found_and_nothing_else(name: str, few: str) -> None:
    checks = profile.load(name).expect["cuda"].checks or ("fabric-info", "fabric-small-message")
    found(name, *checks, "--config", few)
    mine = {"fi_pingpong", "ucx_perftest", "fi_info"}
    assert not [process for process in tree.descendants(os.getpid()) if process.name in mine]


def stated(fabric: str, simulate: str, tmp_path: Path, *options: str) -> dict[str, tuple[Status, str, str]]:
    """Check and probe → status, summary and evidence, with this fabric in the site config."""
    site = tmp_path / "stated.yaml"
    site.write_text(f"# ours\nfabric: {fabric}\noptions: {{fabric-small-message: {{sizes: [16]}}}}\n")
    site.chmod(0o644)
    checks = ("fabric-info", "fabric-small-message", "known-versions")
    report, _ = check(*checks, "--simulate", simulate, "--backend", "cuda", "--config", str(site), *options)
    return {
        f"{result.check} {result.probe}".strip(): (
            result.finding.status,
            sentences.summary(result.finding).replace(str(site), "site.yaml"),
            " | ".join(sentences.evidence(result.finding)),
        )
        for result in report.results
        if result.subject == "node"
    }


@pytest.mark.full
def test_missing_stated_fabric_fails_and_no_other_is_used(tmp_path: Path) -> None:
    told = stated("verbs", "cxi-healthy", tmp_path)
    assert told["fabric-small-message libfabric"][0] is Status.SKIP
    assert "no provider of verbs, which site.yaml:2 says" in told["fabric-small-message libfabric"][1]
    told = stated("verbs", "fabric-healthy", tmp_path)
    said = "no InfiniBand or RoCE adapter found; site.yaml:2 says this node has verbs"
    assert Status.PASS in [status for status, *_ in told.values()]
    report, _ = check("fabric-info", "--simulate", "cxi-healthy", "--config", str(tmp_path / "stated.yaml"))
    fails = [result.finding for result in report.results if result.finding.status is Status.FAIL]
    assert [
        sentences.summary(finding).replace(str(tmp_path / "stated.yaml"), "site.yaml") for finding in fails
    ] == [said]
    assert sentences.evidence(fails[0]) == ("the kernel lists cxi0, cxi1 (cxi)",)


def test_stated_fabric_of_another_vendor(tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    state = "/sys/class/infiniband/hfi1_0/ports/1/state"
    node.write_text(
        f"extends: healthy-single\ndescription: A node with hfi1_0.\nfiles: {{{state}: '4: ACTIVE'}}\n"
    )
    status, said, _ = stated("opa", str(node), tmp_path)["fabric-info"]
    assert (status, said) == (Status.PASS, "opa on hfi1_0")


@pytest.mark.full
def test_stated_tcp_is_used_despite_an_adapter(tmp_path: Path) -> None:
    assert stated("cxi", "cxi-healthy", tmp_path)["fabric-small-message libfabric"][:2] == (
        Status.PASS,
        "messages of 1 sizes arrived correct over cxi",
    )
    assert stated("tcp", "cxi-healthy", tmp_path)["fabric-small-message libfabric"][:2] == (
        Status.PASS,
        "messages of 1 sizes arrived correct over tcp, shm",
    )


@pytest.mark.full
def test_stated_no_fabric_is_reported_by_both_checks_with_the_facts_found(
    tmp_path: Path,
) -> None:
    told = stated("none", "cxi-healthy", tmp_path)
    skip = (Status.SKIP, "site.yaml:2 says this node has no fabric")
    note = "the kernel lists cxi0, cxi1 (cxi)"
    assert told["fabric-info"] == told["fabric-small-message"] == (*skip, note)
    assert stated("none", "fabric-healthy", tmp_path)["fabric-info"] == (*skip, "")


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.usefixtures("resting")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mpi-wrong-fabric-wrong", ("--device", "0")),
        *(full(name, (HISTORIES,)) for name in ("mpi-wrong-fabric-right", "mpi-wrong-fabric-wrong")),
    ],
)
def test_failure_of_mpi_is_reported_with_the_result_without_mpi(
    name: str, options: tuple[str, ...], few: str
) -> None:
    found(
        name,
        *("mpi-small-message", "fabric-small-message", *options, "--config", few),
        *("--mpi-lib", path_of("mpich43"), "--no-workarounds"),
    )


@pytest.mark.mpi
def test_programs_of_intel_mpi_are_found(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(shutil.which("sh") or "/bin/sh"))  # noqa: PTH120
    library = path_of("impi")
    report, _ = check("fabric-info", "--simulate", "healthy-cuda", "--mpi-lib", library)
    [told] = [result.finding for result in report.results if result.check == "fabric-info"]
    assert told.status is Status.PASS
    assert any("fi_pingpong" in line for line in sentences.evidence(told))


OVER_CUDA = """
description: Messages of device memory meet a driver that {what}.
extends: fabric-healthy
faults:
  - {{call: {call}, do: {do}}}
"""


@pytest.fixture
def ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX's own program, from the wheel libucx-cu12, on ``PATH``."""
    if UCX is None:
        pytest.skip("no libucx-cu12 in GPUIPC_TEST_MPI")
    monkeypatch.setenv("PATH", f"{UCX}:{os.environ['PATH']}")


def by_ucx(simulate: str, directory: Path) -> dict[str, tuple[Finding, set[int]]]:
    """Device → finding of UCX's messages of three sizes in its memory, and how often each role started UCX:
    ``node`` (host), ``cuda:0``."""
    command = ("fabric-small-message", "--simulate", simulate, "--backend", "cuda", "--device", "cuda:0")
    report, _ = check(*command, "--config", with_sizes(directory, [1, 16, 256]))
    return {
        result.subject: (
            result.finding,
            {call.count for role in result.roles for call in role.calls if call.operation == "ucx_perftest"},
        )
        for result in report.results
        if result.probe == "UCX"
    }


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.usefixtures("ucx")
def test_ucx_delivers_in_host_and_simulated_device_memory(tmp_path: Path) -> None:
    """The real UCX, on the simulated driver."""
    told = {memory: finding for memory, (finding, _) in by_ucx("fabric-healthy", tmp_path).items()}
    assert {memory: finding.status for memory, finding in told.items()} == dict.fromkeys(
        ("node", "cuda:0"), Status.PASS
    )
    assert sentences.summary(told["node"]) == "messages of 3 sizes were delivered over host"
    assert sentences.summary(told["cuda:0"]) == "messages of 3 sizes were delivered over cuda"


def between(directory: Path, node: str) -> Finding:
    """The finding of UCX's messages between the two GPUs of a healthy node."""
    (directory / "node.yaml").write_text(
        f"description: UCX\nextends: {node}\nfabric: {{}}\nexpect: {{exit: 0}}\n"
    )
    command = ("fabric-small-message", "--simulate", str(directory / "node.yaml"), "--backend", "cuda")
    report, _ = check(*command, "--config", with_sizes(directory, [16, 4 << 20]))
    [finding] = [result.finding for result in report.results if len(result.devices) == 2]
    return finding


@pytest.mark.mpi
@pytest.mark.usefixtures("ucx")
def test_device_memory_by_tcp_between_peers_warns_and_the_setting_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self,cuda_copy")
    finding = between(tmp_path, "healthy-cuda")
    assert (finding.status, finding.key) == (Status.WARN, "through-host")
    assert "between peers by tcp: " in sentences.summary(finding)
    told = sentences.evidence(finding)
    assert "set here: UCX_TLS=tcp,self,cuda_copy" in told
    assert [line for line in told if line.startswith("Tried UCX_TLS=all: helps, ") and "GB/s" in line]


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.usefixtures("ucx")
@pytest.mark.parametrize(
    ("node", "settings", "by"),
    [
        ("healthy-cuda", {}, "cuda_ipc"),
        ("no-peer-access", {"UCX_TLS": "tcp,self,cuda_copy"}, "tcp"),
    ],
)
def test_transport_of_device_memory_is_evidence_where_nothing_better_is_granted(
    node: str, settings: dict[str, str], by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    finding = between(tmp_path, node)
    assert finding.status is Status.PASS
    told = sentences.evidence(finding)
    assert f"large messages between the GPUs: {by}" in told
    assert [line for line in told if line.startswith("in PID namespaces of their own")]


@pytest.mark.mpi
@pytest.mark.usefixtures("ucx")
def test_messages_from_device_memory_show_the_simulated_drivers_faults(tmp_path: Path) -> None:
    """This shows that the messages use the driver, not only the host's memory. All sizes are one run, and one
    run each if that fails."""
    node = tmp_path / "node.yaml"
    node.write_text(OVER_CUDA.format(what="dies in imports", call="ipc-open", do="abort"))
    told = by_ucx(str(node), tmp_path)
    host, starts = told["node"]
    assert (host.status, starts) == (Status.PASS, {1})
    device, starts = told["cuda:0"]
    assert (device.status, device.key, starts) == (Status.FAIL, "crashed", {4})
    assert "cuda: 1 B, 16 B, 256 B: SIGABRT; further sizes were not tried" in sentences.evidence(device)


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.usefixtures("ucx")
def test_ucx_uses_the_stated_fabric(tmp_path: Path) -> None:
    _, _, evidence = stated("tcp", "fabric-healthy", tmp_path)["fabric-small-message UCX"]
    assert "UCX_TLS=tcp,sm,self, for " in evidence
