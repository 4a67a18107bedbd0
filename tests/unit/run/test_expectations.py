"""What a site expects and what is here: fewer GPUs fail, what else is different is said."""

from __future__ import annotations

import pytest

from gpuipc_doctor.model import Device, Fact
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import expectations
from gpuipc_doctor.site.config import (
    ExpectedGpus,
    ExpectedVersion,
    MpiConfig,
    NodeConfig,
    NodeType,
    Said,
    SiteConfig,
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
        ("A100", 4, [A100, A100], ["fewer-than-expected: 2 of the 4 × A100 that x.yaml:1 expects"]),
        ("", 4, [], ["fewer-than-expected: 0 of the 4 × GPU that x.yaml:1 expects"]),
        ("A100", 2, [A100, H100], ["fewer-than-expected: 1 of the 2 × A100 that x.yaml:1 expects"]),
        ("A100", 1, [A100, A100], ["more-than-expected: 2 × A100, and x.yaml:1 expects 1"]),
        ("A100", 1, [A100, H100], ["other-model: 1 × NVIDIA H100, and x.yaml:1 expects A100"]),
        ("A100", 0, [H100], ["other-model: 1 × NVIDIA H100, and x.yaml:1 expects A100"]),
    ],
)
def test_gpus(model: str, count: int, here: list[str], says: list[str]) -> None:
    found = list(expectations.of_gpus(ExpectedGpus(model, count, "x.yaml:1"), gpus(*here), {}))
    assert [f"{one.key}: {sentences.summary(one)}" for one in found] == says


def test_gpus_that_a_batch_system_hides_are_not_missed() -> None:
    expected = ExpectedGpus("A100", 4, "x.yaml:1")
    assert list(expectations.of_gpus(expected, gpus(A100), {"CUDA_VISIBLE_DEVICES": "0"})) == []


@pytest.mark.parametrize(
    ("model", "count", "here", "says"),
    [
        ("A100", 4, [A100], ["fewer-than-expected: 1 of the 4 × A100 that x.yaml:1 expects"]),
        ("A100", 1, [A100], []),
        ("MI300A", 0, [A100], []),
        ("MI300A", 4, [A100], ["not-counted: x.yaml:1 expects 4 × MI300A, and --backend cuda asks no other"]),
        ("", 4, [A100], ["not-counted: x.yaml:1 expects 4 × GPU, and --backend cuda asks no other"]),
        ("", 4, [], []),
    ],
)
def test_of_one_driver_gpus_are_missed_that_must_be_its_own(
    model: str, count: int, here: list[str], says: list[str]
) -> None:
    """What else is expected may be the other vendor's. A driver that lists none is no pass anyway."""
    found = expectations.of_gpus_of("cuda", ExpectedGpus(model, count, "x.yaml:1"), gpus(*here), {})
    assert [f"{one.key}: {sentences.summary(one)}" for one in found] == says


def unexpected(versions: dict[str, Range], *facts: Fact, surveyed: bool = True) -> list[str]:
    site = SiteConfig(
        versions={name: ExpectedVersion(one, "x.yaml:2", "a reason") for name, one in versions.items()}
    )
    found = expectations.of_versions(site, facts, surveyed=surveyed)
    return [f"{one.name} is {one.found}, not {one.wanted}: {one.why}" for one in found]


def test_versions() -> None:
    wanted = {"nvidia-driver": Range("nvidia-driver", "535", fixed="580")}
    assert unexpected(wanted, Fact("nvidia-driver", "550.54.15", "nvml")) == []
    assert unexpected(wanted, Fact("nvidia-driver", "580.65.06", "nvml"), Fact("rocm", "7.0", "file")) == [
        "nvidia-driver is 580.65.06 (nvml), not 535 to before 580: a reason"
    ]
    assert unexpected(wanted, Fact("nvidia-driver", "550.1x", "nvml")) == [
        "nvidia-driver is 550.1x (nvml), of which it cannot be told, not 535 to before 580: a reason"
    ]
    absent = Fact("nvidia-driver", None, "no /proc/driver/nvidia/version")
    assert unexpected(wanted, absent) == ["nvidia-driver is not here, not 535 to before 580: a reason"]
    assert unexpected(wanted, absent, surveyed=False) == []


# -- types of nodes -------------------------------------------------------------------------------------

SITE = SiteConfig(
    node=NodeConfig(
        gpus=ExpectedGpus("A40", 4, "x.yaml:1"),
        environment={"A": Said("site", "x.yaml:2"), "B": Said("site", "x.yaml:3")},
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
                environment={"A": Said("cpu", "x.yaml:8")},
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
        ("gpu03", ["NVIDIA A40"], "x.yaml:1"),
    ],
)
def test_a_node_is_of_the_type_that_its_name_says_else_its_gpus(
    host: str, here: list[str], where: str
) -> None:
    assert SITE.of_node(host, gpus(*here)).node.gpus.where == where


def test_what_a_type_does_not_say_the_site_says() -> None:
    node = SITE.of_node("gpu03", []).node
    assert {name: one.value for name, one in node.environment.items()} == {"A": "cpu", "B": "site"}
    assert node.mpi == MpiConfig("/opt/libmpi.so", "mpiexec -n {ranks}", "x.yaml:9")
    assert SITE.of_node("gpu01", []).node.mpi == SITE.node.mpi
