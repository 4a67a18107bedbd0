"""Tests of check driver-init: planned probes, and findings from recorded results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Context, Finding, Json, Probe
from gpuipc_doctor.api.equal_gpus import picture
from gpuipc_doctor.model import Status, Tier
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, check, conclude, gpu, statuses

TWO_H200 = [
    {
        "backend": "cuda",
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"0000:{index}:00.0",
        "name": "NVIDIA H200",
        "total_bytes": 139 << 30,
    }
    for index in range(2)
]


def initialised(
    on_bus: int = 2,
    hiding: Json = (),
    driver: str | None = "580.159.04",
    cuda: str | None = "13.0",
    seen: Json = {},  # noqa: B006 - it is not changed
    **of_each: Json,
) -> list[Finding]:
    facts = [["nvidia-driver", driver, "NVML"], ["cuda-driver", cuda, "cuDriverGetVersion returned 0"]]
    devices = [{**device, **of_each} for device in TWO_H200]
    seen = {"devices": devices, "on_bus": on_bus, "hiding": hiding, "facts": facts, **seen}
    return conclude("driver-init", {"driver": seen}, (), "cuda", backend="cuda", required=False)


def test_prolog_tests_each_backend() -> None:
    probes = surveys.of_drivers(Context(options={"backends": ["cuda", "hip"], "required": True}))
    assert [(probe.name, probe.params["backend"]) for probe in probes if isinstance(probe, Probe)] == [
        ("cuda", "cuda"),
        ("hip", "hip"),
    ]
    assert check("driver-init").tier is Tier.PROLOG


@pytest.mark.parametrize("on_bus", [0, 2])
def test_all_devices_found_pass_with_their_names(on_bus: int) -> None:
    (finding,) = initialised(on_bus)
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "2 × NVIDIA H200"


def test_text_that_is_not_utf_8_is_a_warning_about_the_driver() -> None:
    passes, garbled = initialised(on_bus=2, driver="\N{REPLACEMENT CHARACTER}80.159.04")
    assert passes.status is Status.PASS
    assert (garbled.status, garbled.key) == (Status.WARN, "not-text")


def test_a_driver_without_a_version_is_a_warning_but_nvml_may_be_missing() -> None:
    passes, nameless = initialised(cuda=None)
    assert passes.status is Status.PASS
    assert (nameless.status, nameless.key) == (Status.WARN, "no-version")
    assert "cuDriverGetVersion returned 0" in sentences.summary(nameless)
    assert statuses(initialised(driver=None)) == GOOD


@pytest.mark.parametrize("total", [0, -1, 1 << 50, 2**64 - 1])
def test_impossible_memory_size_fails_for_each_device(total: int) -> None:
    _, *wrong = initialised(total_bytes=total)
    assert [(finding.status, finding.key) for finding in wrong] == [(Status.FAIL, "wrong-size")] * 2
    assert [finding.values["device"] for finding in wrong] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("of_each", "status", "key"),
    [
        ({"uuid": "GPU-0"}, Status.FAIL, "same-identity"),
        ({"uuid": "GPU-0", "pci": "0000:01:00.0"}, Status.FAIL, "same-identity"),
        ({"uuid": "", "pci": "0000:01:00.0"}, Status.FAIL, "same-identity"),
        ({"pci": "0000:01:00.0"}, Status.WARN, "same-pci-address"),  # partitions of one GPU
    ],
)
def test_devices_that_look_alike_are_named(of_each: dict[str, Json], status: Status, key: str) -> None:
    alike = initialised(**of_each)[-1]
    assert (alike.status, alike.key) == (status, key)
    assert sentences.summary(alike).startswith("the driver reports the same ")
    assert "cuda:0, cuda:1" in sentences.summary(alike)


@pytest.mark.parametrize(("of_each", "what"), [({"name": ""}, "name"), ({"pci": ""}, "PCI address")])
def test_devices_without_a_name_or_an_address_are_a_warning_about_the_driver(
    of_each: dict[str, Json], what: str
) -> None:
    _, lacking = initialised(**of_each)
    assert (lacking.status, lacking.key) == (Status.WARN, "not-described")
    assert sentences.summary(lacking) == f"the driver reports no {what} for cuda:0, cuda:1"


def test_missing_uuids_are_not_equal_uuids() -> None:
    assert statuses(initialised()) == GOOD
    assert "same-identity" not in {finding.key for finding in initialised(uuid="")}


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_a_warning() -> None:
    passes, missing = initialised(on_bus=3)
    assert passes.status is Status.PASS
    assert (missing.status, missing.key) == (Status.WARN, "not-listed")
    assert sentences.summary(missing).startswith("1 of 3 GPUs on the PCI bus not tested")


def test_a_gpu_that_a_variable_hides_is_a_skip_that_names_it() -> None:
    _, hidden = initialised(on_bus=8, hiding=["CUDA_VISIBLE_DEVICES=0,1"])
    assert (hidden.status, hidden.key) == (Status.SKIP, "hidden")
    assert (
        sentences.summary(hidden)
        == "6 of 8 GPUs on the PCI bus not tested: CUDA_VISIBLE_DEVICES=0,1 hides them"
    )


@pytest.mark.parametrize(
    ("on_bus", "off_bus", "hiding", "keys"),
    [
        (3, ["0000:1c:00.0"], [], ["off-bus"]),
        (4, ["0000:1c:00.0"], [], ["off-bus", "not-listed"]),
        (3, ["0000:1c:00.0"], ["CUDA_VISIBLE_DEVICES=0,1"], ["off-bus"]),
        (4, ["0000:1c:00.0"], ["CUDA_VISIBLE_DEVICES=0,1"], ["off-bus", "hidden"]),
        (2, [], [], []),
    ],
)
def test_gpu_off_the_bus_fails_by_its_address_and_is_not_counted_again(
    on_bus: int, off_bus: list[str], hiding: list[str], keys: list[str]
) -> None:
    found = [
        finding
        for finding in initialised(on_bus, hiding, seen={"off_bus": off_bus})
        if finding.status is not Status.PASS
    ]
    assert [finding.key for finding in found] == keys
    if off_bus:
        assert found[0].status is Status.FAIL
        assert sentences.summary(found[0]).startswith("0000:1c:00.0 answers no more")


def test_gpu_off_the_bus_fails_although_the_driver_does_not_initialise() -> None:
    seen = {"unavailable": "cuInit returned …", "remedy": "", "broken": True, "off_bus": ["0000:1c:00.0"]}
    found = conclude("driver-init", {"driver": seen}, (), "cuda", backend="cuda", required=False)
    assert [(finding.key, finding.status) for finding in found] == [
        ("off-bus", Status.FAIL),
        ("unavailable", Status.ERROR),
    ]


@pytest.mark.parametrize(("given", "warned"), [(0, False), (1, False), (2, False), (3, True)])
def test_instances_that_cuda_does_not_show_are_counted(given: int, warned: bool) -> None:
    _, *found = initialised(seen={"instances": given})
    assert [finding.key for finding in found] == ["instances-not-shown"] * warned
    if warned:
        assert "cuda:0, cuda:1 is tested, 1 are not" in sentences.summary(found[0])


def test_mistake_in_the_variable_is_named_with_the_hidden_gpu() -> None:
    seen = {"devices": TWO_H200[:1], "on_bus": 2, "hiding": ["CUDA_VISIBLE_DEVICES=0,7"], "facts": []}
    mistakes = ["CUDA_VISIBLE_DEVICES lists 7, but this node's GPUs are 0 to 1"]
    *_, hidden = conclude(
        "driver-init", {"driver": {**seen, "mistakes": mistakes}}, (), "cuda", backend="cuda", required=False
    )
    assert sentences.summary(hidden).endswith(f"CUDA_VISIBLE_DEVICES=0,7 hides them; {mistakes[0]}")


@pytest.mark.parametrize(
    ("broken", "required", "status"),
    [
        (False, False, Status.SKIP),
        (False, True, Status.ERROR),
        (True, False, Status.ERROR),
        (True, True, Status.ERROR),
    ],
)
def test_missing_driver_is_an_error_if_one_is_required(broken: bool, required: bool, status: Status) -> None:
    seen = {"unavailable": "no libcuda.so.1", "remedy": "install it", "broken": broken}
    found = conclude("driver-init", {"driver": seen}, (), "cuda", backend="cuda", required=required)
    assert statuses(found) == [status]
    assert (sentences.summary(found[0]), found[0].remedy) == ("no libcuda.so.1", "install it")
    assert statuses(initialised(2)) == GOOD


def equal_gpus(
    number: int = 8,
    lost: dict[int, set[int]] | None = None,
    name: str = "NVIDIA H200",
    odd: dict[str, str] | None = None,
    usual: dict[str, str] | None = None,
    **of_third: Json,
) -> list[Finding]:
    """Findings on equal GPUs, of which number 3 may be odd. ``lost``: GPU → GPUs that it cannot access."""
    lost = lost or {}

    def reaches(a: int, b: int) -> bool:
        return a != b and b not in lost.get(a, ())

    devices = [
        {
            **TWO_H200[0],
            **{"index": index, "uuid": f"GPU-{index}", "pci": f"0000:0{index}:00.0", "name": name},
            "peers": [f"cuda:{other}" for other in range(number) if reaches(index, other)],
            **(of_third if index == 3 else {}),
        }
        for index in range(number)
    ]
    traits = {f"cuda:{index}": (odd or {}) if index == 3 else (usual or {}) for index in range(number)}
    seen = {"devices": devices, "on_bus": number, "hiding": (), "facts": [], "traits": traits, "ways": {}}
    _, *found = conclude("driver-init", {"driver": seen}, (), "cuda", backend="cuda", required=False)
    return found


EVERY = set(range(8))
SOCKETS = {gpu: EVERY - set(range(gpu // 4 * 4, gpu // 4 * 4 + 4)) for gpu in range(8)}
BRIDGES = {gpu: EVERY - {gpu, gpu ^ 1} for gpu in range(8)}


@pytest.mark.parametrize(
    ("lost", "status", "key"),
    [
        ({}, None, ""),
        ({3: EVERY}, Status.FAIL, "lost-peer-access"),
        ({3: {5}}, Status.WARN, "differs"),  # either of the two may be odd
        ({3: {5, 6}}, Status.FAIL, "lost-peer-access"),
        ({gpu: {3} for gpu in EVERY - {3}}, Status.FAIL, "lost-peer-access"),  # in one direction only
        (dict.fromkeys(EVERY, EVERY), None, ""),  # no peer access by design
        (SOCKETS, None, ""),
        (BRIDGES, None, ""),
        ({**SOCKETS, 3: EVERY}, Status.WARN, "differs"),
    ],
)
def test_one_gpu_without_peers_among_equal_ones_is_named(
    lost: dict[int, set[int]], status: Status | None, key: str
) -> None:
    found = equal_gpus(lost=lost)
    assert [(finding.status, finding.key) for finding in found] == ([(status, key)] if status else [])
    assert all("cuda:3" in finding.values["device"] for finding in found)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_few_equal_gpus_show_no_odd_one(number: int) -> None:
    assert equal_gpus(number, {0: EVERY}, odd={"VBIOS": "1"}, usual={"VBIOS": "2"}) == []


@pytest.mark.parametrize(
    ("trait", "odd", "usual", "name", "status"),
    [
        ("active NVLinks", "17", "18", "NVIDIA H200", None),  # gpu-health knows that it needs 18
        ("active NVLinks", "7", "8", "NVIDIA H800", Status.FAIL),
        ("active NVLinks", "0", "18", "NVIDIA H100 80GB HBM3", Status.FAIL),
        ("active NVLinks", "0", "12", "NVIDIA A100 80GB PCIe", Status.WARN),
        ("active NVLinks", "0", "18", "NVIDIA H100 NVL", Status.WARN),
        ("active NVLinks", "4", "0", "NVIDIA RTX A6000", None),
        ("active NVLinks", "18", "18", "NVIDIA H200", None),
        ("NVLink speed", "13281 MB/s", "26562 MB/s", "NVIDIA H200", Status.WARN),
        ("xGMI links", "6 with 384 GB/s", "7 with 448 GB/s", "AMD Instinct MI300X", Status.WARN),
        ("xGMI links", "7 with 416 GB/s", "7 with 448 GB/s", "AMD Instinct MI300X", Status.WARN),
        ("PCIe link", "x8", "x16", "NVIDIA H200", Status.WARN),
        ("ECC", "off", "on", "NVIDIA H200", Status.WARN),
        ("VBIOS", "96.00.5E.00.01", "96.00.61.00.01", "NVIDIA H200", Status.WARN),
        ("compute partition", "CPX", "SPX", "AMD Instinct MI300X", Status.WARN),
    ],
)
def test_one_gpu_with_another_trait_is_named_with_both_values(
    trait: str, odd: str, usual: str, name: str, status: Status | None
) -> None:
    found = equal_gpus(name=name, odd={trait: odd}, usual={trait: usual})
    assert statuses(found) == ([status] if status else [])
    for finding in found:
        assert all(word in sentences.summary(finding) for word in ("cuda:3", odd, usual))


def test_trait_that_one_gpu_does_not_report_is_no_finding() -> None:
    assert equal_gpus(usual={"ECC": "on"}) == []


def test_peers_of_four_gpus_or_more_are_pictured() -> None:
    devices = [gpu(index) for index in range(4)]
    linked = [replace(device, peers=frozenset({"cuda:0", "cuda:1", "cuda:2"})) for device in devices]
    lines = picture(linked, {"cuda:0": {"cuda:1": "NV18", "cuda:3": "SYS"}})
    assert [line.values["ways"] for line in lines] == [
        ["X", "NV18", "P2P", "-"],
        ["P2P", "X", "P2P", "-"],
        ["P2P", "P2P", "X", "-"],
        ["P2P", "P2P", "P2P", "X"],
    ]
    assert picture(linked[:3], {}) == []


def test_several_gpus_with_uuids_of_zeros_are_a_warning() -> None:
    _, finding = initialised(uuid="")
    assert (finding.status, finding.key) == (Status.WARN, "no-uuid")
    assert "cuda:0, cuda:1" in sentences.summary(finding)
