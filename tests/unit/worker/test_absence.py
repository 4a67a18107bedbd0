"""Reasons why a backend cannot be used, each with its own remedy and status."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.api.driver_errors import BackendUnavailable
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker.backends import cuda, hip, open_backend
from gpuipc_doctor.worker.backends.absence import NO_DEVICE, Absence

BUS = "sys/bus/pci/devices/0000:65:00.0"
CAUSES = {"cuda": cuda.CudaDriver.causes, "hip": hip.HipDriver.causes}
BINDING = {"cuda": "cuda.bindings", "hip": "hip"}
MODULE_FILES = {"cuda": ("proc/driver/nvidia/version",), "hip": ("sys/module/amdgpu/version", "dev/kfd")}
DEVICE_FILE = {"cuda": "dev/nvidiactl", "hip": "dev/kfd"}


@pytest.fixture(params=["cuda", "hip"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for vendor in SUPPORTED.values():
        for variable in vendor.hides:
            monkeypatch.delenv(variable, raising=False)
    return str(request.param)


def tree(root: Path, *names: str, text: str = "") -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def absence(backend: str, root: Path) -> Absence:
    return Absence(SUPPORTED[backend], CAUSES[backend], root, lambda operation: nullcontext())


def no_device(backend: str) -> DriverFault:
    return DriverFault({"cuda": "cuInit", "hip": "hipGetDeviceCount"}[backend], NO_DEVICE, "NO_DEVICE")


# Whether the node has a GPU of the vendor


def test_loaded_kernel_driver_shows_a_gpu(backend: str, tmp_path: Path) -> None:
    assert not absence(backend, tmp_path).node_has_gpu()
    assert absence(backend, tree(tmp_path, *MODULE_FILES[backend])).node_has_gpu()


@pytest.mark.parametrize(
    ("pci_class", "is_gpu"),
    [("0x030000", True), ("0x030200", True), ("0x120000", True), ("0x040300", False), ("0x068000", False)],
)
def test_a_pci_device_of_the_vendor_shows_a_gpu(
    backend: str, tmp_path: Path, pci_class: str, is_gpu: bool
) -> None:
    device = "sys/bus/pci/devices/0000:65:00.0"
    tree(tmp_path, f"{device}/vendor", text=f"{SUPPORTED[backend].pci}\n")
    tree(tmp_path, f"{device}/class", text=f"{pci_class}\n")
    assert absence(backend, tmp_path).node_has_gpu() is is_gpu
    other = {"cuda": "hip", "hip": "cuda"}[backend]
    assert not absence(other, tmp_path).node_has_gpu()


@pytest.mark.parametrize(("backend", "is_no_device"), [("cuda", False), ("hip", True)])
def test_invalid_device_of_amds_runtime_means_no_device(
    backend: str, is_no_device: bool, tmp_path: Path
) -> None:
    fault = DriverFault("init", 101, "INVALID_DEVICE")
    reason = absence(backend, tmp_path).initialising_failed(fault).reason
    assert ("this node has no" in reason) is is_no_device


@pytest.mark.parametrize("has_gpu", [True, False])
def test_no_device_is_an_error_only_if_the_node_has_a_gpu(
    backend: str, tmp_path: Path, has_gpu: bool
) -> None:
    if has_gpu:
        tree(tmp_path, *MODULE_FILES[backend])
    unavailable = absence(backend, tmp_path).initialising_failed(no_device(backend))
    assert unavailable.broken is has_gpu
    assert ("although this node has" if has_gpu else "this node has no") in unavailable.reason


# Obstacles between a process and the GPU


def test_required_bindings_equal_those_of_pyproject() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    required = [vendor.binding.requirement for vendor in SUPPORTED.values()]
    assert all(f'"{each}"' in pyproject for each in filter(None, required))


def test_missing_binding_is_reported_with_the_package(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, BINDING[backend], None)
    with pytest.raises(BackendUnavailable) as caught:
        open_backend(backend, lambda operation: nullcontext(), str(tmp_path))
    assert caught.value.reason == f"{SUPPORTED[backend].binding.package} is not installed"
    assert caught.value.remedy == f"pip install '{SUPPORTED[backend].binding.requirement}'"
    assert not caught.value.broken


def test_binding_that_does_not_import_is_reported_with_the_reason(backend: str, tmp_path: Path) -> None:
    error = ImportError("libstdc++.so.6: version `GLIBCXX_3.4.29' not found")
    assert "GLIBCXX_3.4.29" in absence(backend, tmp_path).binding_missing(error).reason


@pytest.mark.parametrize("value", ["", "7"])
def test_variable_that_hides_every_device_is_named(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    variable = next(iter(SUPPORTED[backend].hides))
    monkeypatch.setenv(variable, value)
    unavailable = absence(backend, tree(tmp_path, *MODULE_FILES[backend])).initialising_failed(
        no_device(backend)
    )
    assert f"{variable}={value} leaves no" in unavailable.reason
    assert f"unset {variable}" in unavailable.remedy


def test_empty_variable_that_hides_nothing_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    assert "HIP_VISIBLE" not in absence("hip", tmp_path).initialising_failed(no_device("hip")).reason


def test_device_file_without_permission_is_named(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, *MODULE_FILES[backend], DEVICE_FILE[backend])
    opened: list[str] = []
    os_open = os.open

    def denied(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if Path(path).is_relative_to(root / "dev"):  # like a container's device rules, for root as well
            raise PermissionError(1, "Operation not permitted", str(path))
        return os_open(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", denied)

    def arm(operation: str) -> nullcontext[None]:
        opened.append(operation)
        return nullcontext()

    unavailable = Absence(SUPPORTED[backend], CAUSES[backend], root, arm).initialising_failed(
        no_device(backend)
    )
    assert f"no permission to open {root / DEVICE_FILE[backend]}" in unavailable.reason
    assert unavailable.broken
    assert opened == [f"open {root / DEVICE_FILE[backend]}"]  # opening a device file can also hang


@pytest.mark.parametrize(
    ("backend", "code", "word"),
    [
        ("cuda", 34, "stub"),
        ("cuda", 802, "fabric"),
        ("cuda", 803, "reload"),
        ("cuda", 804, "compat"),
        ("cuda", 805, "nvidia-cuda-mps-control"),
        ("cuda", 807, "MPS"),
        ("cuda", 808, "MPS"),
        ("hip", 35, "amdgpu"),
    ],
    indirect=["backend"],
)
def test_code_with_a_known_cause_is_explained(backend: str, tmp_path: Path, code: int, word: str) -> None:
    unavailable = absence(backend, tmp_path).initialising_failed(DriverFault("cuInit", code, "NAME"))
    assert str(code) in unavailable.reason
    assert word in unavailable.reason + unavailable.remedy


def test_any_other_code_is_reported_as_it_is(backend: str, tmp_path: Path) -> None:
    unavailable = absence(backend, tmp_path).initialising_failed(
        DriverFault("cuInit", 999, "CUDA_ERROR_UNKNOWN")
    )
    assert unavailable.reason == "cuInit returned CUDA_ERROR_UNKNOWN (999)"


def deny(monkeypatch: pytest.MonkeyPatch, root: Path, *names: str, code: int = 1) -> None:
    """Make the device files unreadable, as a container's device rules do, for root as well."""
    os_open = os.open

    def denied(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if any(Path(path) == root / name for name in names):
            raise PermissionError(code, os.strerror(code), str(path))
        return os_open(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", denied)


GPU_FILES = {
    "cuda": ("dev/nvidia0", "dev/nvidia1"),
    "hip": ("dev/dri/renderD128", "dev/dri/renderD129"),
}


DENIED: dict[str, tuple[int, str, int, bool, str, str]] = {
    # why: (error, mark of a container, mode, whether the process is in the file's group, SELinux, remedy)
    "group, docker": (13, ".dockerenv", 0o660, False, "", "--group-add 4711"),
    "group, podman": (13, "run/.containerenv", 0o660, False, "", "podman: keep-groups"),
    "group, no container": (13, "", 0o660, False, "", "usermod -aG 4711 USER"),
    "mode without group": (13, "", 0o600, False, "", "the file's mode is 600"),
    "SELinux, docker": (13, ".dockerenv", 0o666, False, "1", "setsebool container_use_devices on"),
    "SELinux, member": (13, ".dockerenv", 0o660, True, "1", "setsebool container_use_devices on"),
    "SELinux permissive": (13, ".dockerenv", 0o666, False, "0", "the file's mode admits this process"),
    "AppArmor, no container": (13, "", 0o666, False, "", "AppArmor"),
    "device rules, docker": (1, ".dockerenv", 0o660, False, "", "a reload of systemd"),
    "device rules, docker, SELinux": (1, ".dockerenv", 0o666, False, "1", "a reload of systemd"),
    "device rules of a job": (1, "", 0o666, True, "", "--gres=gpu:1"),
}


@pytest.mark.parametrize("why", DENIED)
def test_each_refusal_of_a_device_file_has_its_own_remedy(
    why: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, mark, mode, is_member, selinux, remedy = DENIED[why]
    root = tree(tmp_path, *MODULE_FILES[backend], DEVICE_FILE[backend], *([mark] if mark else []))
    tree(root, "sys/fs/selinux/enforce", text=selinux)
    file = root / DEVICE_FILE[backend]
    stat = Path.stat

    def of_device(path: Path, **named: Any) -> os.stat_result:
        fields = stat(path, **named)
        return os.stat_result((0o20000 | mode, *fields[1:5], 4711, *fields[6:])) if path == file else fields

    monkeypatch.setattr(Path, "stat", of_device)
    monkeypatch.setattr(os, "getgroups", lambda: [4711] if is_member else [])
    deny(monkeypatch, root, DEVICE_FILE[backend], code=code)
    unavailable = absence(backend, root).initialising_failed(no_device(backend))
    assert f"no permission to open {file}" in unavailable.reason
    assert remedy in unavailable.remedy
    for word in ("systemd", "4711", "setsebool", "--gres"):
        assert (word in unavailable.remedy) is (word in f"{remedy} {'4711' * ('podman' in remedy)}")


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", "--gres"),
        ("ROCR_VISIBLE_DEVICES", "NoDevFiles", "--gres"),
        ("GPU_DEVICE_ORDINAL", "NoDevFiles", "--gres"),
        ("CUDA_VISIBLE_DEVICES", "-1", "unset CUDA_VISIBLE_DEVICES"),
        ("ROCR_VISIBLE_DEVICES", "", "unset ROCR_VISIBLE_DEVICES"),
        ("CUDA_VISIBLE_DEVICES", "nodevfiles", "unset CUDA_VISIBLE_DEVICES"),  # nothing of Slurm's
    ],
)
def test_job_that_slurm_gave_no_gpu_must_request_one(
    backend: str, name: str, value: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    unavailable = absence(backend, tree(tmp_path, *MODULE_FILES[backend])).initialising_failed(
        no_device(backend)
    )
    concerned = name in SUPPORTED[backend].hides
    assert (remedy in unavailable.remedy) is concerned
    assert ("Slurm gave this job no GPU" in unavailable.reason) is (concerned and "gres" in remedy)


MIG = [f"MIG-{digit * 8}-1111-1111-1111-111111111111" for digit in "123"]


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": ",".join(MIG)}, 3),
        ({"CUDA_VISIBLE_DEVICES": f"{MIG[0]},{MIG[0]}"}, 1),
        ({"CUDA_VISIBLE_DEVICES": MIG[1], "NVIDIA_VISIBLE_DEVICES": ",".join(MIG)}, 1),
        ({"NVIDIA_VISIBLE_DEVICES": ",".join(MIG)}, 3),
        ({"NVIDIA_VISIBLE_DEVICES": "0:0,0:1"}, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 0),
    ],
)
def test_instances_that_a_process_was_given_are_counted(
    environ: dict[str, str], given: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SUPPORTED["cuda"].instances:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert absence("cuda", tmp_path).instances_given() == given
    assert absence("hip", tmp_path).instances_given() == 0


ALIVE = b"\xde\x10\x35\x23"


@pytest.mark.parametrize(
    ("files", "lost"),
    [
        ({"config": b"\xff" * 64}, True),
        ({"config": ALIVE, "revision": b"0xff\n"}, True),
        ({"config": ALIVE, "revision": b"0xa1\n"}, False),
        ({}, False),  # a sandbox shows no configuration
        ({"config": b"\xff" * 64, "power/runtime_status": b"suspended\n"}, False),
        ({"config": b"\xff" * 64, "uevent": b"DRIVER=vfio-pci\n"}, False),
        ({"config": b"\xff" * 4 + b"\x07\x00" * 30}, False),  # a virtual function
        ({"config": b"\xff" * 20}, False),
    ],
)
def test_gpu_that_answers_no_more_is_named_by_its_address(
    backend: str, files: dict[str, bytes], lost: bool, tmp_path: Path
) -> None:
    root = tree(tmp_path, *MODULE_FILES[backend])
    tree(root, f"{BUS}/vendor", text=f"{SUPPORTED[backend].pci}\n")
    tree(root, f"{BUS}/class", text="0x030200\n")
    for name, content in files.items():
        tree(root, f"{BUS}/{name}")
        (root / BUS / name).write_bytes(content)
    assert absence(backend, root).off_bus() == (["0000:65:00.0"] if lost else [])
    unavailable = absence(backend, root).initialising_failed(no_device(backend))
    assert unavailable.off_bus == (["0000:65:00.0"] if lost else [])


@pytest.mark.parametrize("code", [NO_DEVICE, 999])
def test_gpu_of_another_job_is_no_cause(
    backend: str, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = GPU_FILES[backend]
    root = tree(tmp_path, *MODULE_FILES[backend], DEVICE_FILE[backend], "dev/nvidia-uvm", *files)
    deny(monkeypatch, root, files[1])
    assert "permission" not in absence(backend, root).initialising_failed(fault(code)).reason
    deny(monkeypatch, root, *files)
    assert "no permission to open" in absence(backend, root).initialising_failed(fault(code)).reason


def fault(code: int) -> DriverFault:
    return DriverFault("init", code, "NAME")


@pytest.mark.parametrize("code", [802, 803, 805])
def test_code_with_its_own_cause_stands_before_a_denied_device_file(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, *MODULE_FILES["cuda"], "dev/nvidiactl", "dev/nvidia0")
    deny(monkeypatch, root, "dev/nvidiactl", "dev/nvidia0")
    assert "permission" not in absence("cuda", root).initialising_failed(fault(code)).reason


def test_unknown_error_without_nvidia_uvm_names_that_module(tmp_path: Path) -> None:
    root = tree(tmp_path, *MODULE_FILES["cuda"], "dev/nvidiactl")
    unavailable = absence("cuda", root).initialising_failed(fault(999))
    assert "/dev/nvidia-uvm does not exist" in unavailable.reason
    assert "modprobe nvidia-uvm" in unavailable.remedy
    tree(root, "dev/nvidia-uvm")
    assert "nvidia-uvm" not in absence("cuda", root).initialising_failed(fault(999)).reason


@pytest.mark.parametrize(
    ("backend", "modules", "words"),
    [
        ("cuda", "kernel/drivers/net/dummy.ko:\n", "no nvidia module for the running kernel 6.1.0-1"),
        ("cuda", "updates/dkms/nvidia.ko.zst:\n", "nvidia is not loaded"),
        ("cuda", "updates/dkms/nvidia-uvm.ko: x\n", "no nvidia module"),
        ("hip", "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko: x\n", "amdgpu is not loaded"),
        ("hip", "", "no amdgpu module for the running kernel"),
    ],
    indirect=["backend"],
)
def test_kernel_module_that_is_not_loaded_is_named(
    backend: str, tmp_path: Path, modules: str, words: str
) -> None:
    device = "sys/bus/pci/devices/0000:65:00.0"
    tree(tmp_path, f"{device}/vendor", text=f"{SUPPORTED[backend].pci}\n")
    tree(tmp_path, f"{device}/class", text="0x030200\n")
    tree(tmp_path, "proc/sys/kernel/osrelease", text="6.1.0-1\n")
    tree(tmp_path, "lib/modules/6.1.0-1/modules.dep", text=modules)
    unavailable = absence(backend, tmp_path).initialising_failed(no_device(backend))
    assert words in unavailable.reason
    assert unavailable.broken
    tree(tmp_path, *MODULE_FILES[backend])
    assert (
        "although this node has" in absence(backend, tmp_path).initialising_failed(no_device(backend)).reason
    )


def test_gpus_given_to_virtual_machines_are_no_fault_of_the_node(backend: str, tmp_path: Path) -> None:
    device = "sys/bus/pci/devices/0000:65:00.0"
    tree(tmp_path, f"{device}/vendor", text=f"{SUPPORTED[backend].pci}\n")
    tree(tmp_path, f"{device}/class", text="0x030200\n")
    tree(tmp_path, f"{device}/uevent", text="DRIVER=vfio-pci\nPCI_CLASS=30200\n")
    assert absence(backend, tmp_path).on_bus() == 0
    unavailable = absence(backend, tmp_path).initialising_failed(no_device(backend))
    assert "assigned to vfio-pci" in unavailable.reason
    assert not unavailable.broken


@pytest.mark.parametrize(("mark", "word"), [("", "reboot"), ("run/.containerenv", "from the image")])
def test_libcuda_of_another_version_is_named_with_its_path(
    tmp_path: Path, mark: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tree, "of_machine", classmethod(lambda cls: cls(tmp_path)))
    tree(tmp_path, "proc/self/maps", text="7f r-xp 0 fe:00 1 /usr/lib/x86_64/libcuda.so.470.57.02\n")
    module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    tree(tmp_path, "proc/driver/nvidia/version", text=module)
    if mark:
        tree(tmp_path, mark)
    unavailable = absence("cuda", tmp_path).initialising_failed(fault(803))
    assert "/usr/lib/x86_64/libcuda.so.470.57.02" in unavailable.reason
    assert "550.54.15" in unavailable.reason
    assert word in unavailable.remedy


def test_limited_address_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, *MODULE_FILES["cuda"])
    assert "ulimit" not in absence("cuda", root).initialising_failed(fault(2)).remedy
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4 << 30, 4 << 30))
    unavailable = absence("cuda", root).initialising_failed(fault(2))
    assert "address space limited to 4096 MiB" in unavailable.reason


def test_hip_variable_that_counts_what_the_other_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    unavailable = absence("hip", tree(tmp_path, *MODULE_FILES["hip"])).initialising_failed(no_device("hip"))
    assert "counts, from 0, only the GPUs that ROCR_VISIBLE_DEVICES leaves" in unavailable.remedy


LOADED = "proc/driver/nvidia/version"
LOCKED = "none [integrity] confidentiality\n"

OF_CODES: dict[str, tuple[str, int, dict[str, str], str, str]] = {
    "nouveau": (
        "cuda",
        100,
        {f"{BUS}/uevent": "DRIVER=nouveau\n"},
        "nouveau is bound to",
        "blacklist nouveau",
    ),
    "nvidia drives it": ("cuda", 999, {f"{BUS}/uevent": "DRIVER=nvidia\n"}, "(999)", "dmesg"),
    "lockdown": (
        "cuda",
        100,
        {
            "sys/kernel/security/lockdown": LOCKED,
            "proc/sys/kernel/osrelease": "6.8\n",
            "lib/modules/6.8/modules.dep": "updates/nvidia.ko: x\n",
        },
        "refuses unsigned modules",
        "Secure Boot",
    ),
    "overcommit": ("cuda", 2, {"proc/sys/vm/overcommit_memory": "2\n"}, "overcommit", "overcommit_memory=0"),
    "overcommit allowed": ("cuda", 2, {"proc/sys/vm/overcommit_memory": "1\n"}, "(2)", "dmesg"),
    "overcommit of hip": ("hip", 2, {"proc/sys/vm/overcommit_memory": "2\n"}, "overcommit", "overcommit"),
    "no control file": ("cuda", 100, {LOADED: "", "dev/null": ""}, "/dev/nvidiactl does not exist", "--gpus"),
    "no gpu file": (
        "cuda",
        100,
        {LOADED: "", "dev/null": "", "dev/nvidiactl": ""},
        "/dev/nvidia0 does not exist",
        "--gpus",
    ),
    "no kfd": (
        "hip",
        100,
        {"sys/module/amdgpu/version": "", "dev/null": ""},
        "/dev/kfd does",
        "--device",
    ),
    "no render node": (
        "hip",
        100,
        {"sys/module/amdgpu/version": "", "dev/null": "", "dev/kfd": ""},
        "/dev/dri/renderD128 does not exist",
        "--device=/dev/dri",
    ),
    "hip unknown, no kfd": (
        "hip",
        999,
        {"sys/module/amdgpu/version": "", "dev/null": "", "dev/dri/renderD128": ""},
        "/dev/kfd does not exist",
        "--device=/dev/kfd",
    ),
    "hip unknown": ("hip", 999, {}, "(999)", "dmesg"),
}


@pytest.mark.parametrize(("backend", "code", "files", "reason", "remedy"), OF_CODES.values(), ids=OF_CODES)
def test_code_is_explained_by_the_nodes_files(
    tmp_path: Path, backend: str, code: int, files: dict[str, str], reason: str, remedy: str
) -> None:
    for name, text in {f"{BUS}/vendor": SUPPORTED[backend].pci, f"{BUS}/class": "0x030200"}.items():
        tree(tmp_path, name, text=text)
    for name, text in files.items():
        tree(tmp_path, name, text=text)
    unavailable = absence(backend, tmp_path).initialising_failed(fault(code))
    assert reason in unavailable.reason
    assert remedy in unavailable.remedy


NO_FILE = "libcuda.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("said", "environ", "remedy"),
    [
        ("/usr/lib/libcuda.so.1: file too short", {}, "remove it"),
        ("libcuda.so.1: wrong ELF class: ELFCLASS32", {}, "LD_LIBRARY_PATH"),
        ("/x/libcuda.so.1: invalid ELF header", {}, "LD_LIBRARY_PATH"),
        ("/lib/libc.so.6: version `GLIBC_2.34' not found (required by /x/libcuda.so.1)", {}, "GLIBC_2.34"),
        (
            "libnvidia-gone.so.1: cannot open shared object file: No such file",
            {},
            "package that has libnvidia-g",
        ),
        (NO_FILE, {}, "install the NVIDIA driver"),
        (NO_FILE, {"NVIDIA_VISIBLE_DEVICES": "void"}, "NVIDIA_VISIBLE_DEVICES=all"),
        (NO_FILE, {"NVIDIA_DRIVER_CAPABILITIES": "graphics,utility"}, "compute,utility"),
        (
            NO_FILE,
            {"NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_VISIBLE_DEVICES": "all"},
            "install the NVIDIA",
        ),
    ],
)
def test_library_that_cannot_be_loaded_is_told_from_one_that_is_missing(
    said: str, environ: dict[str, str], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert remedy in absence("cuda", tmp_path).library_missing(OSError(said)).remedy


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0,0", "lists 0 twice"),
        ("1,01", "lists 01 twice"),
        ("GPU-8c101110,GPU-8C101110-0000", "lists GPU-8C101110-0000 twice"),
        ("0,-1,0,gpu0", ""),
        ("0,7", "lists 7, but this node's GPUs are 0 to 1"),
        ("gpu0", "has 'gpu0', which is neither a number nor a uuid"),
        ("0, ,1", "has '', which is neither a number nor a uuid"),
        ("GPU-dead", "lists a uuid that no GPU of this node has: GPU-dead"),
        ("GPU-8c10", ""),
        ("GPU-8c101110,GPU-8c101111", ""),
        ("1,0", ""),
        ("-1", ""),
        ("MIG-8c101111-0000-0000-0000-000000000000", ""),
    ],
)
def test_mistake_in_a_list_of_gpus_is_named(
    tmp_path: Path, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    for number in (0, 1):
        device = f"sys/bus/pci/devices/0000:6{number}:00.0"
        tree(tmp_path, f"{device}/vendor", text="0x10de")
        tree(tmp_path, f"{device}/class", text="0x030200")
        uuid = f"GPU UUID: \t GPU-8C10111{number}-0000-0000-0000-000000000000\n"
        tree(tmp_path, f"proc/driver/nvidia/gpus/{number}/information", text=uuid)
    here = absence("cuda", tmp_path)
    assert here.mistakes() == ([f"CUDA_VISIBLE_DEVICES {words}"] if words else [])
    assert words in here.initialising_failed(no_device("cuda")).reason


def test_uuid_is_no_mistake_if_that_of_a_gpu_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-dead")
    for number, uuid in enumerate(("GPU-8c101110-0000", "GPU-????????-????")):  # not initialised since boot
        tree(tmp_path, f"proc/driver/nvidia/gpus/{number}/information", text=f"GPU UUID: \t {uuid}\n")
    assert absence("cuda", tmp_path).mistakes() == []


def test_uuid_of_an_amd_gpu_is_no_mistake_beside_nvidia_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "GPU-0123456789abcdef")
    tree(tmp_path, "proc/driver/nvidia/gpus/0/information", text="GPU UUID: \t GPU-8c101110-0000\n")
    assert absence("hip", tmp_path).mistakes() == []


@pytest.mark.parametrize(("denied", "is_cause"), [("renderD129", True), ("renderD128", False)])
def test_render_node_of_another_vendors_gpu_explains_nothing(
    denied: str, is_cause: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pci in {"renderD128": "0x8086", "renderD129": "0x1002", "renderD130": "0x10de"}.items():
        tree(tmp_path, f"dev/dri/{name}")
        tree(tmp_path, f"sys/class/drm/{name}/device/vendor", text=pci)
    deny(monkeypatch, tmp_path, f"dev/dri/{denied}", "dev/dri/renderD130")
    unavailable = absence("hip", tmp_path).initialising_failed(DriverFault("hipInit", 46, "x"))
    assert ("no permission to open" in unavailable.reason) is is_cause
