"""Every fact names its source, and a missing one the places searched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.model import Effect, Fact, Setting
from gpuipc_doctor.node import inventory
from gpuipc_doctor.node.gpus import not_asked, of_job
from gpuipc_doctor.node.inventory_content import page, page_of_changes
from gpuipc_doctor.node.survey_plan import LOOKED_FOR, LOOKED_FOR_FOREIGN
from gpuipc_doctor.simulator import software
from gpuipc_doctor.simulator.node import claimed_files, prepare
from gpuipc_doctor.simulator.profile import load
from tests import golden

BOARD = "/sys/bus/pci/devices/0000:c1:00.0"
NVRM = "/proc/driver/nvidia/version"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U16)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         {}              {}            bytes     \n"
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The files of a node with two H200 and one Slingshot interface."""
    plant(tmp_path, "/etc/os-release", 'NAME="SLES"\nPRETTY_NAME="SUSE Linux Enterprise Server 15 SP5"\n')
    plant(tmp_path, "/proc/sys/kernel/osrelease", "5.14.21-150500.55.49_13.0.56-cray_shasta_c\n")
    plant(tmp_path, "/proc/cmdline", "root=live iommu=pt quiet pci=realloc=off numa_balancing=disable\n")
    plant(tmp_path, "/proc/sys/kernel/numa_balancing", "0\n")
    plant(tmp_path, "/proc/sys/kernel/yama/ptrace_scope", "1\n")
    plant(tmp_path, "/proc/self/limits", LIMITS.format("8388608", "unlimited"))
    plant(tmp_path, "/proc/self/status", "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n")
    plant(tmp_path, "/proc/812/comm", "nvidia-imex\n")
    plant(tmp_path, "/dev/nvidia-caps-imex-channels/channel0", "")
    plant(tmp_path, NVRM, OPEN)
    plant(tmp_path, "/sys/module/nvidia/version", "580.159.04\n")
    plant(tmp_path, "/sys/module/kdreg2/refcnt", "0\n")
    plant(tmp_path, "/sys/class/cxi/cxi0", "")
    plant(tmp_path, "/usr/lib64/libucp.so.0", "")
    plant(tmp_path, "/usr/lib64/pkgconfig/ucx.pc", "Name: ucx\nVersion: 1.15.0\n")
    link(tmp_path, "/opt/cuda/compat/libcuda.so.1", "libcuda.so.590.44.01")
    link(tmp_path, "/usr/lib64/libcuda.so.1", "libcuda.so.580.159.04")
    link(tmp_path, "/usr/lib64/libfabric.so.1", "../../opt/cray/libfabric/1.22.0/lib64/libfabric.so.1.25.0")
    return tmp_path


def facts_of(
    root: object, asked: Iterable[Fact] = (), environ: Mapping[str, str] | None = None
) -> tuple[Fact, ...]:
    """The whole inventory of a directory tree, as a run collects it."""
    found = inventory.facts_from_files(str(root), os.environ if environ is None else environ)
    found = (*inventory.of_modules(str(root)), *found)
    return inventory.merged(asked, found, foreign=str(root) == "/")


def plant(root: Path, path: str, text: str | bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


def link(root: Path, path: str, target: str) -> None:
    """Create a link, and its target as an empty file."""
    file = root / path.lstrip("/")
    plant(root, str((file.parent / target).relative_to(root)), "")
    file.symlink_to(target)


def rows(root: Path, name: str, *asked: Fact, **environ: str) -> list[tuple[str | None, str]]:
    facts = facts_of(root, asked, environ)
    return [(fact.value, fact.source) for fact in facts if fact.name == name]


def value(root: Path, name: str, **environ: str) -> str | None:
    [(found, _)] = rows(root, name, **environ)
    return found


ASKED = (
    Fact("nvidia-driver", "580.159.04", "nvmlSystemGetDriverVersion"),
    Fact("cuda-driver", "13.0", "cuDriverGetVersion"),
    Fact("gpu-model", "2 × NVIDIA H200", "/proc/driver/nvidia/gpus/*/information"),
    Fact("mig", "off", "nvmlDeviceGetMigMode"),
    Fact("persistence", None, "nvidia: nvmlDeviceGetPersistenceMode #1 hung (5 s)"),
    Fact("cray-mpich", "8.1.30.16", "MPI_Get_library_version of /opt/cray/pe/lib64/libmpi_gnu_123.so.12"),
)
SETTINGS = (
    Setting("MPICH_GPU_IPC_ENABLED", "1", "environment", Effect.WORKS, "cray-mpich 8.1.30.16: GPU IPC"),
    Setting("NCCL_P2P_LEVEL", "SYS", "/etc/nccl.conf:3", Effect.UNUSED, "how far; no nccl was found here"),
    Setting(
        "FI_MR_CACHE_CUDA_MONITOR_ENABLED",
        "1",
        "environment",
        Effect.MISSPELT,
        "no library found here reads it; did you mean FI_MR_CUDA_CACHE_MONITOR_ENABLED?",
        "FI_MR_CUDA_CACHE_MONITOR_ENABLED",
    ),
)


def test_golden_file_of_a_node(node: Path) -> None:
    facts = facts_of(node, ASKED, {"LD_LIBRARY_PATH": "/opt/cuda/compat"})
    text = page(facts, SETTINGS) + "\n"
    assert max(map(len, text.splitlines())) <= 80
    golden.check("inventory/h200.txt", text)


def test_golden_file_of_changes(node: Path) -> None:
    facts = facts_of(node, ASKED, {})
    before = [
        Fact("nvidia-driver", "570.86.15", ""),
        Fact("cuda-driver", "13.0", ""),
        Fact("slurm", "24.05.4", ""),
        Fact("env:UCX_TLS", "all", ""),
    ]
    text = page_of_changes(before, facts) + "\n"
    assert max(map(len, text.splitlines())) <= 80
    golden.check("inventory/changes.txt", text)


def test_no_change() -> None:
    before, after = Fact("kernel", "6.8", "/proc"), Fact("kernel", "6.8", "elsewhere")
    assert page_of_changes([before], [after]) == "nothing has changed"


# -- rows -----------------------------------------------------------------------------------------------


def test_version_with_fewer_numbers_is_equal(tmp_path: Path) -> None:
    link(tmp_path, "/usr/lib64/libmpi_gnu_123.so.12", "../../opt/cray/pe/mpich/8.1.30/lib/libmpi.so.12.0.0")
    said = Fact("cray-mpich", "8.1.30.16", "MPI_Get_library_version")
    [(found, source)] = rows(tmp_path, "cray-mpich", said)
    assert found == "8.1.30.16"
    assert source == "MPI_Get_library_version; /usr/lib64/libmpi_gnu_123.so.12 (default)"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\nmodel name\t: x\n",
         "AMD EPYC 7763 64-Core Processor, "),
        ("CPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n", "Arm Neoverse V2, "),
        ("CPU implementer\t: 0x46\nCPU part\t: 0x001\n", "CPU part 0x001 of implementer 0x46, "),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported, "),
        ("processor\t: 0\nCPU architecture: 8\n", ""),
    ],
)  # fmt: skip
def test_processor_has_its_model_if_the_kernel_lists_it(tmp_path: Path, text: str, model: str) -> None:
    plant(tmp_path, "/proc/cpuinfo", text)
    assert value(tmp_path, "cpu") == f"{model}{os.uname().machine}"


def test_missing_fact_has_the_places_searched(tmp_path: Path) -> None:
    plant(tmp_path, NVRM, "no such words\n")
    plant(tmp_path, "/sys/module/amdgpu/version/is-a-directory", "")
    facts = facts_of(tmp_path, (), {})
    assert {fact.name for fact in facts if fact.value is not None} == {"container"}
    assert all(fact.source for fact in facts)
    assert rows(tmp_path, "kernel") == [(None, "no /proc/sys/kernel/osrelease")]
    assert rows(tmp_path, "nvidia-driver") == [
        (None, f"not stated in {NVRM}; no /sys/module/nvidia/version"),
    ]
    assert rows(tmp_path, "amdgpu") == [(None, "/sys/module/amdgpu/version: Is a directory")]
    assert rows(tmp_path, "ucx", LD_LIBRARY_PATH="/opt/ucx/lib") == [
        (None, "no libucp.so.0 in LD_LIBRARY_PATH, /etc/ld.so.cache, /usr/lib64, /usr/lib")
    ]


@pytest.mark.parametrize(
    ("serial", "found"),
    [("692231000131\n", ["0000:c1:00.0 692231000131"]), ("N/A\n", []), ("", []), (None, [])],
)
def test_serial_of_amd(tmp_path: Path, serial: str | None, found: list[str]) -> None:
    plant(tmp_path, f"{BOARD}/product_name", "AMD MI300A\n")
    plant(tmp_path, f"{BOARD}/product_number", "102-G30211-00\n")
    if serial is not None:
        plant(tmp_path, f"{BOARD}/serial_number", serial)
    assert [told for told, _ in rows(tmp_path, "gpu-serials")] == found
    assert value(tmp_path, "gpu-part-numbers") == "0000:c1:00.0 102-G30211-00"


def test_every_name_has_a_row_unless_listed_as_unread(tmp_path: Path) -> None:
    asked_of_drivers = {"cuda-driver", "hip-driver", "hip-runtime"}
    asked_of_drivers |= {"gpu-serials", "gpu-part-numbers", "gpu-slots", "nvlink-peers"}
    names = {fact.name for fact in facts_of(tmp_path, (), {})}
    assert names | asked_of_drivers | {"mpi4py", "psm2", "batch-system", "kokkos"} == set(inventory.NAMES)
    assert {*LOOKED_FOR, *LOOKED_FOR_FOREIGN} <= set(inventory.NAMES)


def test_names_are_a_closed_set_in_the_order_of_the_rows(node: Path) -> None:
    facts = facts_of(node, [Fact("hip-runtime", "7.2.53211", "hipRuntimeGetVersion")])
    names = list(dict.fromkeys(fact.name for fact in facts))
    assert names == sorted(names, key=list(inventory.NAMES).index)


# -- files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "name", "found"),
    [
        ("/opt/rocm/.info/version", "7.2.4.0-93-97f5574fe2\n", "rocm", "7.2.4.0-93-97f5574fe2"),
        ("/sys/module/amdgpu/version", "6.16.13\n", "amdgpu", "6.16.13"),
        ("/sys/module/nvidia_peermem/version", "580.159.04\n", "nvidia-peermem", "580.159.04"),
        ("/sys/module/xpmem/refcnt", "0\n", "xpmem", "loaded"),
        ("/sys/module/amdgpu/refcnt", "0\n", "amdgpu", None),
        ("/proc/cmdline", "ro quiet splash\n", "boot-parameters", "none of interest"),
        ("/proc/cmdline", "ro amd_iommu=on iommu=pt x=1\n", "boot-parameters", "amd_iommu=on iommu=pt"),
        ("/proc/self/limits", LIMITS.format("65536", "65536"), "memlock", "64 KiB"),
        ("/proc/self/limits", LIMITS.format("unlimited", "unlimited"), "memlock", "unlimited"),
        ("/proc/self/limits", LIMITS.format("8388608", "unlimited"), "memlock", "8 MiB, at most unlimited"),
        ("/proc/self/status", "Seccomp:\t0\nSeccomp_filters:\t0\n", "seccomp", "off"),
        ("/proc/self/status", "Seccomp:\t1\n", "seccomp", "strict"),
        ("/proc/self/status", "Seccomp:\t2\n", "seccomp", "filter"),
        ("/proc/self/status", "Seccomp:\t2\nSeccomp_filters:\t2\n", "seccomp", "filter (2)"),
        ("/proc/self/status", "Seccomp_filters:\t2\n", "seccomp", None),
        ("/dev/nvidia-caps-imex-channels/channel2", "", "imex-channels", "channel2"),
        ("/dev/nvidia-caps-imex-channels/README", "", "imex-channels", None),
        ("/boot/config-6.8", "CONFIG_PCI_P2PDMA=y\nCONFIG_NUMA=y\n", "kernel-dma-buf", "PCI_P2PDMA"),
        ("/sys/class/iommu/dmar0", "", "iommu", "on"),
        ("/.dockerenv", "", "container", "docker"),
        (f"{BOARD}/product_name", "AMD MI300A\n", "gpu-model", "AMD MI300A"),
        ("/sys/class/cxi/cxi0", "", "cxi-devices", "cxi0"),
    ],
)  # fmt: skip
def test_fact_from_one_file(tmp_path: Path, file: str, text: str, name: str, found: str | None) -> None:
    plant(tmp_path, "/proc/sys/kernel/osrelease", "6.8\n")
    plant(tmp_path, file, text)
    assert value(tmp_path, name) == found


@pytest.mark.parametrize(
    ("types", "mode"),
    [(["identity", "identity"], "passthrough"), (["identity", "DMA-FQ"], "translating"), ([], "on")],
)
def test_iommu_mode(tmp_path: Path, types: list[str], mode: str) -> None:
    plant(tmp_path, "/sys/class/iommu/ivhd0", "")
    for number, kind in enumerate(types):
        plant(tmp_path, f"/sys/kernel/iommu_groups/{number}/type", f"{kind}\n")
    assert value(tmp_path, "iommu") == mode


UNSEEN = "in a container, the node's processes are hidden"


@pytest.mark.parametrize(
    ("driver", "comm", "found"),
    [
        (True, "nvidia-imex\n", ("runs", "/proc/812/comm")),
        (True, "nvidia-imex-ctl\n", (None, f"no process nvidia-imex in /proc; {UNSEEN}")),
        (False, "nvidia-imex\n", (None, "no /proc/driver/nvidia")),
    ],
)  # fmt: skip
def test_imex_daemon_is_found_by_its_process(
    tmp_path: Path, driver: bool, comm: str, found: tuple[str | None, str]
) -> None:
    plant(tmp_path, "/proc/812/comm", comm)
    if driver:
        plant(tmp_path, NVRM, OPEN)
    assert rows(tmp_path, "imex-daemon") == [found]


def test_own_namespaces(tmp_path: Path) -> None:
    directory = tmp_path / "proc/self/ns"
    directory.mkdir(parents=True)
    for kind, inode in (("ipc", 4026531839), ("uts", 4026531838), ("user", 4026531837), ("pid", 4026532201)):
        (directory / kind).symlink_to(f"{kind}:[{inode}]")
    assert value(tmp_path, "namespaces") == "own pid"


def test_python_packages_are_found_by_their_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["", "/opt/venv/lib/python3.12/site-packages"])
    plant(tmp_path, "/opt/venv/lib/python3.12/site-packages/torch-2.9.0+cu130.dist-info/METADATA", "")
    plant(tmp_path, "/opt/venv/lib/python3.12/site-packages/cupy_cuda12x-13.6.0.dist-info/METADATA", "")
    assert value(tmp_path, "pytorch") == "2.9.0+cu130"
    assert value(tmp_path, "cupy") == "13.6.0"


@pytest.mark.parametrize(
    ("profile", "found"),
    [
        ("nvidia-460.32.03", {"nvidia-driver": "460.32.03", "nvidia-module": "proprietary"}),
        ("healthy-hip", {"rocm": "6.4.3"}),
    ],
)
def test_simulated_node_is_read_like_a_real_one(tmp_path: Path, profile: str, found: dict[str, str]) -> None:
    for path, text in claimed_files(load(profile)).items():
        plant(tmp_path, path, text)
    facts = {fact.name: fact.value for fact in facts_of(tmp_path)}
    assert {name: facts[name] for name in found} == found


CLAIMS = """\
description: One GPU and all the software that a node can claim.
devices: [{backend: hip, name: AMD Instinct MI300A, memory: 128 GiB}]
versions:
  hip-runtime: 7.2.0
"""


def test_claimed_software_of_a_simulated_node_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "libraries"
    (libraries / "collectives").mkdir(parents=True)
    for name in ("libnccl.so.2", "librccl.so.1"):
        (libraries / "collectives" / name).touch()
    monkeypatch.setattr("gpuipc_doctor.simulator.build.build", lambda: libraries)
    claims = {name: f"1.{number}.3" for number, name in enumerate(sorted(software.NAMES))}
    del claims["libfabric"]  # HPE's library has the same name
    del claims["rccl"]  # only the library itself says its version
    claims["libcuda"] = "580.82.07"
    profile = tmp_path / "claims.yaml"
    profile.write_text(CLAIMS + "".join(f"  {name}: {version}\n" for name, version in claims.items()))
    (tmp_path / "node").mkdir()
    node = prepare(str(profile), tmp_path / "node")
    facts = {fact.name: fact.value for fact in facts_of(node.root, (), {})}
    assert {name: facts[name] for name in claims} == claims
    assert facts["gpu-model"] == "AMD Instinct MI300A"


def test_simulated_node_has_no_fact_of_this_machine(tmp_path: Path) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": "/usr/lib:/usr/lib64", "APPTAINER_CONTAINER": "x.sif"}
    facts = facts_of(tmp_path, (), environ)
    assert [(fact.name, fact.value) for fact in facts if fact.value] == [("container", "none")]


@given(st.binary())
def test_any_content_of_a_file_becomes_one_printable_line(raw: bytes) -> None:
    from tempfile import TemporaryDirectory

    files = (NVRM, "/sys/module/nvidia/version", "/proc/cmdline", "/proc/self/limits", "/etc/ld.so.cache")
    with TemporaryDirectory() as root:
        for path in (*files, "/proc/config.gz", "/usr/lib/pkgconfig/ucx.pc", "/usr/lib/libucp.so.0"):
            plant(Path(root), path, raw)
        for fact in facts_of(root, (), {}):
            assert fact.value is None or (fact.value.isprintable() and fact.value.strip() == fact.value != "")


@pytest.mark.parametrize(
    ("file", "text", "name", "found"),
    [
        (
            "/proc/self/smaps",
            "00400000-00401000 r-xp\nSize: 4 kB\nKernelPageSize:       64 kB\n",
            "page-size",
            "64 KiB",
        ),
        ("/proc/driver/nvidia/params", 'CoherentGPUMemoryMode: "driver"\n', "gpu-memory-mode", "CDMM"),
        (
            "/proc/driver/nvidia/params",
            'CoherentGPUMemoryMode: ""\n',
            "gpu-memory-mode",
            "the driver's default",
        ),
        ("/proc/driver/nvidia/params", "EnableMSI: 1\n", "gpu-memory-mode", None),
    ],
)
def test_page_size_and_gpu_memory_mode(
    tmp_path: Path, file: str, text: str, name: str, found: str | None
) -> None:
    plant(tmp_path, file, text)
    assert value(tmp_path, name) == found


# -- Intel's GPUs ---------------------------------------------------------------------------------------

BUS = "/sys/bus/pci/devices"
PVC = ("0000:18:00.0", "0x8086", "0x0bd5", "0x038000", "i915")
ARC = ("0000:03:00.0", "0x8086", "0xe20b", "0x030000", "xe")
IN_PROCESSOR = ("0000:00:02.0", "0x8086", "0xa7a0", "0x030000", "i915")
NPU = ("0000:00:0b.0", "0x8086", "0x7d1d", "0x120000", "intel_vpu")
H200 = ("0000:19:00.0", "0x10de", "0x2335", "0x030200", "nvidia")
MI300 = ("0000:1a:00.0", "0x1002", "0x74a1", "0x120000", "amdgpu")
EXPERIMENTAL = f"{BUS} (experimental: never run on an Intel GPU)"


def plant_device(root: Path, address: str, vendor: str, device: str, kind: str, driver: str) -> None:
    for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
        plant(root, f"{BUS}/{address}/{name}", f"{text}\n")
    plant(root, f"{BUS}/{address}/uevent", f"DRIVER={driver}\n" if driver else "PCI_CLASS=30000\n")


@pytest.mark.parametrize(
    ("devices", "mask", "found"),
    [
        ([PVC], "", "8086:0bd5 (i915)"),
        ([PVC, ("0000:42:00.0", *PVC[1:]), H200, MI300], "", "2 × 8086:0bd5 (i915)"),
        ([IN_PROCESSOR, ARC], "0", "8086:a7a0 (i915, integrated), 8086:e20b (xe)"),
        ([(*ARC[:-1], "")], "", "8086:e20b (no driver)"),
        ([(*ARC[:-1], "vfio-pci")], "", "8086:e20b (vfio-pci)"),
        ([PVC], "4,5.1", "8086:0bd5 (i915), all hidden by ZE_AFFINITY_MASK=4,5.1"),
        ([PVC], "0.1", "8086:0bd5 (i915)"),
        ([PVC], "3", "8086:0bd5 (i915)"),  # a GPU may have four tiles
        ([PVC], "9,0", "8086:0bd5 (i915)"),
        ([PVC], "default", "8086:0bd5 (i915)"),
        ([PVC], ",", "8086:0bd5 (i915)"),
    ],
)
def test_intel_gpus_are_listed_with_their_driver(
    tmp_path: Path, devices: list[tuple[str, ...]], mask: str, found: str
) -> None:
    for device in devices:
        plant_device(tmp_path, *device)
    assert rows(tmp_path, "intel-gpus", ZE_AFFINITY_MASK=mask) == [(found, EXPERIMENTAL)]


def test_intel_npu_and_other_vendors_gpus_are_no_intel_gpus(tmp_path: Path) -> None:
    for device in (NPU, H200, MI300):
        plant_device(tmp_path, *device)
    assert rows(tmp_path, "intel-gpus") == [(None, f"no display controller of Intel in {BUS}")]
    assert not_asked(str(tmp_path)) == {"ze"}


def test_gpu_in_the_processor_is_no_gpu_to_test(tmp_path: Path) -> None:
    plant_device(tmp_path, *IN_PROCESSOR)
    assert not_asked(str(tmp_path)) == {"ze"}
    plant_device(tmp_path, *ARC)
    assert not_asked(str(tmp_path)) == frozenset()


def test_job_has_intel_gpus_by_number_or_render_node_whichever_driver_is_bound(tmp_path: Path) -> None:
    for device, render in ((IN_PROCESSOR, 128), (ARC, 129), (PVC, 130)):  # i915 and xe on one node
        plant_device(tmp_path, *device)
        plant(tmp_path, f"{BUS}/{device[0]}/drm/renderD{render}/dev", "226:1\n")
    listed = [(f"{gpu.backend}:{gpu.index}", gpu.pci) for gpu in of_job(str(tmp_path), "").chosen]
    assert listed == [("ze:0", ARC[0]), ("ze:1", PVC[0])]
    assert [gpu.pci for gpu in of_job(str(tmp_path), "129").chosen] == [ARC[0]]
    chosen = of_job(str(tmp_path), "1")
    assert chosen.visible["ZE_AFFINITY_MASK"] == "1"
    assert of_job(str(tmp_path), "7").missing == ("7",)


def test_render_nodes_that_this_user_may_not_open_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (128, 129):
        plant(tmp_path, f"/dev/dri/renderD{number}", "")
    assert rows(tmp_path, "render-nodes") == [("2, open to this user", "/dev/dri/renderD*")]
    monkeypatch.setattr(os, "access", lambda file, _: not str(file).endswith("129"))
    closed = ("1 of 2 closed to this user", "/dev/dri/renderD* (often group render)")
    assert rows(tmp_path, "render-nodes") == [closed]


def test_level_zeros_loader_and_oneccl_have_their_versions_in_their_paths(tmp_path: Path) -> None:
    link(tmp_path, "/usr/lib/x86_64-linux-gnu/libze_loader.so.1", "libze_loader.so.1.8.0")
    ccl = "/opt/intel/oneapi/ccl/2021.17/lib"
    link(tmp_path, f"{ccl}/libccl.so.1", "libccl.so.1.0")
    path = f"/usr/lib/x86_64-linux-gnu:{ccl}"
    assert value(tmp_path, "level-zero", LD_LIBRARY_PATH=path) == "1.8.0"
    assert value(tmp_path, "oneccl", LD_LIBRARY_PATH=path) == "2021.17"
