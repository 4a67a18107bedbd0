"""Differences from the site config: missing GPUs FAIL, others are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.api.equal_gpus import LINKS
from gpuipc_doctor.model import Device, Fact, Finding, Status, Subject, Tier
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo, Result
from gpuipc_doctor.run import results, site_expectations, skips
from gpuipc_doctor.site import config
from gpuipc_doctor.site.config import (
    ExpectedGpus,
    ExpectedVersion,
    MpiConfig,
    NodeConfig,
    NodeGpus,
    NodeType,
    SiteConfig,
    SourcedValue,
)
from gpuipc_doctor.versions import Range


def gpus(*names: str) -> list[Device]:
    return [Device("cuda", number, f"GPU-{number}", "", name, 0) for number, name in enumerate(names)]


A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100"


@pytest.mark.parametrize(
    ("model", "count", "here", "says"),
    [
        ("", 0, [A100, H100], []),
        ("A100", 2, [A100, A100], []),
        ("a100", 0, [A100], []),
        ("A100", 4, [A100, A100], ["fewer-than-expected: found 2 × A100; x.yaml:1 expects 4"]),
        ("", 4, [], ["fewer-than-expected: found 0 × GPU; x.yaml:1 expects 4"]),
        ("A100", 2, [A100, H100], ["fewer-than-expected: found 1 × A100; x.yaml:1 expects 2"]),
        ("A100", 3, [H100, H100], ["fewer-than-expected: found 0 × A100; x.yaml:1 expects 3"]),
        (  # none is lost
            "A100",
            2,
            [H100, H100, H100],
            ["other-model: found 3 × NVIDIA H100 and no A100; x.yaml:1 expects 2 × A100"],
        ),
        ("A100", 1, [A100, A100], ["more-than-expected: found 2 × A100; x.yaml:1 expects 1"]),
        ("A100", 1, [A100, H100], ["other-model: found 1 × NVIDIA H100; x.yaml:1 expects A100"]),
        ("A100", 0, [H100], ["other-model: found 1 × NVIDIA H100; x.yaml:1 expects A100"]),
    ],
)
def test_gpus(model: str, count: int, here: list[str], says: list[str]) -> None:
    found = list(site_expectations.of_gpus(ExpectedGpus(model, count, "x.yaml:1"), gpus(*here), {}))
    assert [f"{finding.key}: {sentences.summary(finding)}" for finding in found] == says


def test_gpus_hidden_by_a_batch_system_are_not_missing() -> None:
    expected = ExpectedGpus("A100", 4, "x.yaml:1")
    assert list(site_expectations.of_gpus(expected, gpus(A100), {"CUDA_VISIBLE_DEVICES": "0"})) == []


@pytest.mark.parametrize(
    ("model", "count", "here", "says"),
    [
        ("A100", 4, [A100], ["fewer-than-expected: found 1 × A100; x.yaml:1 expects 4"]),
        ("A100", 1, [A100], []),
        ("MI300A", 0, [A100], []),
        (
            "MI300A",
            4,
            [A100],
            ["not-counted: only cuda GPUs were counted (--backend); x.yaml:1 expects 4 × MI300A"],
        ),
        ("", 4, [A100], ["not-counted: only cuda GPUs were counted (--backend); x.yaml:1 expects 4 × GPU"]),
        ("", 4, [], []),
    ],
)
def test_missing_gpus_of_one_driver(model: str, count: int, here: list[str], says: list[str]) -> None:
    """Other expected GPUs may be another vendor's. A driver without GPUs never passes anyway."""
    found = site_expectations.check_backend_gpus(
        "cuda", ExpectedGpus(model, count, "x.yaml:1"), gpus(*here), {}
    )
    assert [f"{finding.key}: {sentences.summary(finding)}" for finding in found] == says


def unexpected(versions: dict[str, Range], *facts: Fact, surveyed: bool = True) -> list[str]:
    site = SiteConfig(
        versions={name: ExpectedVersion(one, "x.yaml:2", "a reason") for name, one in versions.items()}
    )
    found = site_expectations.of_versions(site, facts, surveyed=surveyed)
    return [f"{finding.name} is {finding.found}, not {finding.wanted}: {finding.why}" for finding in found]


def test_versions() -> None:
    wanted = {"nvidia-driver": Range("nvidia-driver", "535", fixed="580")}
    assert unexpected(wanted, Fact("nvidia-driver", "550.54.15", "nvml")) == []
    assert unexpected(wanted, Fact("nvidia-driver", "580.65.06", "nvml"), Fact("rocm", "7.0", "file")) == [
        "nvidia-driver is 580.65.06 (nvml), not 535 to before 580: a reason"
    ]
    assert unexpected(wanted, Fact("nvidia-driver", "550.1x", "nvml")) == [
        "nvidia-driver is 550.1x (nvml), which cannot be compared, not 535 to before 580: a reason"
    ]
    absent = Fact("nvidia-driver", None, "no /proc/driver/nvidia/version")
    assert unexpected(wanted, absent) == ["nvidia-driver is not here, not 535 to before 580: a reason"]
    assert unexpected(wanted, absent, surveyed=False) == []


# -- else: fail or warn -----------------------------------------------------------------------------------

NODE = {
    "sys/module/nvidia_peermem/x": "",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
}
FACTS = (
    Fact("nvidia-driver", "580.159.04", "nvml"),
    Fact("persistence", "on", "nvml"),
    Fact("iommu", None, "no /sys/class/iommu"),
)
SEEN = {"shared memory": {"free": 2 << 30}, "limits": {"locked memory": 8 << 20, "open files": None}}


def read(tmp_path: Path, text: str) -> SiteConfig:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return config.load(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("versions: {nvidia-driver: {from: '580', to: '580', else: fail}}", []),
        ("versions: {nvidia-driver: {from: '535', before: '580', else: fail}}", ["FAIL unexpected"]),
        ("versions: {nvidia-driver: {from: '535', before: '580'}}", ["WARN unexpected"]),
        ("versions: {rocm: {from: '6', else: fail}}", ["FAIL unexpected"]),
        ("settings: {persistence: on}", []),
        ("settings: {persistence: {is: [off], else: fail}}", ["FAIL unlike-the-site"]),
        ("settings: {iommu: {is: [off, passthrough], else: fail}}", ["ERROR setting-unknown"]),
        ("settings: {iommu: off}", ["WARN setting-unknown"]),
        ("kernel_modules: {nvidia-peermem: loaded, nouveau: absent}", []),
        ("kernel_modules: {gdrdrv: loaded, nvidia_peermem: absent}", ["WARN module-unlike-the-site"] * 2),
        ("adapters: {verbs: 1}", []),
        ("adapters: {verbs: 2}", ["FAIL fewer-adapters"]),
        ("adapters: {verbs: 2, cxi: 1, else: warn}", ["WARN fewer-adapters"] * 2),
        ("shared_memory: {free_gib: 2}", []),
        ("shared_memory: {free_gib: 2.5, else: fail}", ["FAIL little-shared-memory"]),
        ("limits: {locked_memory_mib: 8, open_files: unlimited}", []),
        ("limits: {locked_memory_mib: unlimited, else: fail}", ["FAIL low-limit"]),
        ("limits: {processes: 100, else: fail}", ["ERROR limit-unknown"]),
    ],
)
def test_node_that_differs_has_the_status_that_the_site_states(
    tmp_path: Path, text: str, found: list[str]
) -> None:
    for name, content in NODE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    site = read(tmp_path, text)
    versions = site_expectations.of_versions(site, (*FACTS, Fact("rocm", None, "")), surveyed=True)
    node = site_expectations.of_node(site, FACTS, str(tmp_path), SEEN)
    said = [f"{version.status.value} unexpected" for version in versions]
    assert [*said, *(f"{finding.status.value} {finding.key}" for finding in node)] == found


@pytest.mark.parametrize(
    ("gpus_of_site", "peers", "links", "found"),
    [
        ("{peers: all, nvlinks: 18}", 7, 18, []),
        ("{peers: all, nvlinks: 18}", 6, 17, ["FAIL no-peer-access", "FAIL fewer-nvlinks"]),
        ("{peers: all, nvlinks: 18, else: warn}", 6, 17, ["WARN no-peer-access", "WARN fewer-nvlinks"]),
        ("{peers: 6}", 6, 0, []),
        ("{peers: 7}", 6, 0, ["FAIL no-peer-access"]),
        ("{nvlinks: 18}", 7, 0, ["ERROR nvlinks-unknown"]),
        ("{nvlinks: 18, else: warn}", 7, 0, ["WARN nvlinks-unknown"]),
        ("{count: 9, else: warn}", 7, 0, ["WARN fewer-than-expected"]),
        ("{count: 4, else: fail}", 7, 0, ["FAIL more-than-expected"]),
        ("{model: A100, else: fail}", 7, 0, ["FAIL other-model"]),
    ],
)
def test_links_between_gpus(
    tmp_path: Path, gpus_of_site: str, peers: int, links: int, found: list[str]
) -> None:
    """Eight GPUs of a ring, each with peer access to the next ``peers``."""
    expected = read(tmp_path, f"gpus: {gpus_of_site}").node.gpus
    labels = [frozenset(f"cuda:{(n + step) % 8}" for step in range(1, peers + 1)) for n in range(8)]
    here = [Device("cuda", n, f"GPU-{n}", "", H100, 0, peers=labels[n]) for n in range(8)]
    traits: dict[str, Any] = {device.label: {LINKS: str(links)} for device in here} if links else {}
    said = [
        *site_expectations.of_gpus(expected, here, {}),
        *site_expectations.of_links(expected, here, traits, {}),
    ]
    assert [f"{finding.status.value} {finding.key}" for finding in said] == found


@pytest.mark.parametrize("peers", ["all", "1"])
@pytest.mark.parametrize(
    ("facts", "remedy", "never"),
    [
        ((), "Xid errors", "iommu"),
        ((Fact("peer-access", skips.REFUSED, "asked"),), "iommu=pt and switch ACS off", "Xid"),
        (
            (Fact("peer-access", skips.REFUSED, "asked"), Fact("iommu", "translating", "")),
            "boot with iommu=pt (",
            "ACS",
        ),
        ((Fact("peer-access", skips.UNSAFE, "asked"),), "Xid errors", "iommu"),
        (
            (Fact("iommu", "translating", ""),),
            "Xid errors",
            "iommu",
        ),  # it was not asked, or did not change the answer
    ],
)
def test_peer_access_that_the_driver_refuses_is_no_broken_link(
    tmp_path: Path, peers: str, facts: tuple[Fact, ...], remedy: str, never: str
) -> None:
    expected = read(tmp_path, f"gpus: {{peers: {peers}, else: fail}}").node.gpus
    here = [Device("cuda", n, f"GPU-{n}", "", H100, 0) for n in range(2)]
    (finding,) = site_expectations.of_links(expected, here, {}, {}, skips.refusal_of_peers(facts))
    assert (finding.status.value, finding.key) == ("FAIL", "no-peer-access")
    assert remedy in finding.remedy
    assert never not in finding.remedy


def test_required_check_that_was_not_tested_is_an_error(tmp_path: Path) -> None:
    site = read(tmp_path, "required: [ipc-peer, mpi-histories, ipc-pear]")
    skipped = Result("ipc-peer", Finding.skip("incapable", "no peer access"))
    assert results.require(skipped, site.required).finding.status is Status.ERROR
    assert results.require(skipped, {}) == skipped
    known = {"ipc-peer": Tier.ACCEPTANCE, "mpi-histories": Tier.SOAK}
    missing = site_expectations.of_required(site, ["ipc-peer"], known, Tier.ACCEPTANCE)
    assert [(info.id, sentences.summary(result.finding).rpartition(": ")[2]) for info, result in missing] == [
        ("mpi-histories", "it is part of tier soak"),
        ("ipc-pear", "there is no such check"),
    ]


def test_required_subject_that_no_check_tested_is_an_error(tmp_path: Path) -> None:
    site = read(tmp_path, "required: [ipc-peer, memory, mpi]")
    assert [*site.required] == ["ipc-peer"]
    infos = [CheckInfo("ipc-stale", "", Tier.ACCEPTANCE, Subject.MEMORY)]
    passed = [Result("ipc-stale", Finding.ok("so", "so"))]
    (missing,) = site_expectations.of_subjects(site.required_subjects, infos, passed, Tier.ACCEPTANCE)
    assert (missing[0].id, missing[1].finding.status) == ("mpi", Status.ERROR)
    assert sentences.summary(missing[1].finding).startswith("not tested, but ")


# -- types of nodes -------------------------------------------------------------------------------------

SITE = SiteConfig(
    node=NodeConfig(
        gpus=ExpectedGpus("A40", 4, "x.yaml:1"),
        environment={"A": SourcedValue("site", "x.yaml:2"), "B": SourcedValue("site", "x.yaml:3")},
        mpi=MpiConfig(library="/opt/libmpi.so", launcher="srun -n{ranks}", where="x.yaml:4"),
    ),
    node_types=(
        NodeType("named", ("gpu[01-02]",), NodeConfig(gpus=ExpectedGpus("H200", 8, "x.yaml:5"))),
        NodeType("four", (), NodeConfig(gpus=ExpectedGpus("A100", 4, "x.yaml:6"))),
        NodeType("eight", (), NodeConfig(gpus=ExpectedGpus("A100", 8, "x.yaml:7"))),
        NodeType(
            "cpu",
            (),
            NodeConfig(
                environment={"A": SourcedValue("cpu", "x.yaml:8")},
                mpi=MpiConfig(launcher="mpiexec -n {ranks}", where="x.yaml:9"),
            ),
        ),
    ),
)


@pytest.mark.parametrize(
    ("host", "here", "where"),
    [
        ("gpu01", [A100] * 4, "x.yaml:5"),
        ("gpu03", [A100] * 4, "x.yaml:6"),
        ("gpu03", [A100] * 8, "x.yaml:7"),
        ("gpu03", [A100] * 3, "x.yaml:6"),
        ("gpu03", [A100] * 7, "x.yaml:7"),
        ("gpu03", [A100] * 9, "x.yaml:7"),
        ("gpu03", ["NVIDIA A40"], "x.yaml:1"),
    ],
)
def test_type_of_a_node_follows_from_its_name_or_its_gpus(host: str, here: list[str], where: str) -> None:
    assert SITE.of_node(host, NodeGpus(gpus(*here))).node.gpus.where == where


def judged(here: list[str], *, unlisted: int = 0, by_slurm: int = 0, types: SiteConfig = SITE) -> list[str]:
    """The findings on a node whose name the site config does not list."""
    node = NodeGpus(gpus(*here), {"cuda": unlisted}, lambda: by_slurm)
    found = [
        *site_expectations.of_types(types.types_of("gpu03", node), node, {}),
        *site_expectations.of_gpus(types.of_node("gpu03", node).node.gpus, node.devices, {}),
    ]
    return [f"{finding.status.value} {finding.key}: {sentences.summary(finding)}" for finding in found]


FOUR_OR_EIGHT = (
    "WARN node-type-unclear: 4 × NVIDIA A100-SXM4-40GB matches more than one node type of x.yaml:6: "
    "four, or eight with 4 missing"
)


def fewer(here: int, expected: int, line: int) -> str:
    says = f"found {here} × A100; x.yaml:{line} expects {expected}"
    return f"FAIL fewer-than-expected: {says}"


@pytest.mark.parametrize(
    ("here", "shown", "says"),
    [
        (8, {}, []),
        (7, {}, [fewer(7, 8, 7)]),
        (5, {}, [fewer(5, 8, 7)]),
        (4, {}, [FOUR_OR_EIGHT]),
        (4, {"by_slurm": 4}, []),
        (4, {"by_slurm": 8}, [fewer(4, 8, 7)]),
        (4, {"by_slurm": 28}, [FOUR_OR_EIGHT]),  # MIG instances are counted separately
        (4, {"unlisted": 4}, [fewer(4, 8, 7)]),
        (4, {"unlisted": 1}, [FOUR_OR_EIGHT]),  # a display controller of the same vendor, or a lost GPU
        (3, {"unlisted": 1}, [fewer(3, 4, 6)]),
        (3, {"by_slurm": 8, "unlisted": 1}, [fewer(3, 8, 7)]),
    ],
)
def test_lost_gpu_never_makes_a_node_one_of_a_smaller_type(
    here: int, shown: dict[str, int], says: list[str]
) -> None:
    found = judged([A100] * here, **shown)
    assert [finding for finding in found if not finding.startswith("WARN") or finding in says] == says
    assert all(finding.startswith(("FAIL", "WARN node-type-unclear")) for finding in found)


def test_three_gpus_of_types_with_four_or_eight_fail_with_an_unclear_type() -> None:
    unclear, failed = judged([A100] * 3)
    assert unclear.endswith("four with 1 missing, or eight with 5 missing")
    assert failed == fewer(3, 4, 6)


def test_gpus_of_another_model_do_not_count_for_the_type() -> None:
    assert judged([A100] * 7 + [H100])[-1] == fewer(7, 8, 7)


def of_types(**kinds: ExpectedGpus) -> SiteConfig:
    return SiteConfig(
        node_types=tuple(NodeType(name, (), NodeConfig(gpus=kind)) for name, kind in kinds.items())
    )


def test_node_without_gpus_has_a_type_without_unless_slurm_lists_some() -> None:
    assert judged([]) == [fewer(0, 4, 1).replace("A100", "A40")]  # `cpu` leaves the count to the site
    assert [kind.name for kind in SITE.types_of("x", NodeGpus())] == ["cpu"]
    assert judged([], by_slurm=8) == [fewer(0, 8, 7)]


def test_gpus_hidden_by_a_batch_system_leave_no_type_unclear() -> None:
    node = NodeGpus(gpus(*[A100] * 4))
    types = SITE.types_of("gpu03", node)
    assert [kind.name for kind in types] == ["four", "eight"]
    assert list(site_expectations.of_types(types, node, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})) == []


def test_values_missing_in_a_type_come_from_the_site() -> None:
    node = SITE.of_node("gpu03", NodeGpus()).node
    assert {name: one.value for name, one in node.environment.items()} == {"A": "cpu", "B": "site"}
    assert node.mpi == MpiConfig("/opt/libmpi.so", "mpiexec -n {ranks}", "x.yaml:9")
    assert SITE.of_node("gpu01", NodeGpus()).node.mpi == SITE.node.mpi
