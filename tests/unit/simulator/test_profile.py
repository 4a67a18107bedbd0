"""Profiles: inheritance, mistakes, and the resulting drivers and /proc."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuipc_doctor.files.yamlfile import BadFile, read
from gpuipc_doctor.model import MemoryShare, Status
from gpuipc_doctor.simulator import node, profile, vocabulary
from gpuipc_doctor.worker.backends.levelzero.functions import ze_result_t
from tests.e2e.test_moving_counter import MOVEMENTS

ONE_GPU = """\
description: One GPU.
devices:
  - {backend: cuda, name: Tesla V100, memory: 16 GiB}
versions:
  nvidia-driver: 460.32.03
  cuda-driver: "11.2"
"""


def write(directory: Path, text: str, name: str = "site.yaml") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def mistakes(path: str) -> list[str]:
    """The mistakes in the file at ``path`` as ``line: text``."""
    with pytest.raises(BadFile) as caught:
        profile.load(path)
    return [f"{mistake.line}: {mistake.text}" for mistake in caught.value.mistakes]


def test_every_shipped_profile_has_expected_findings() -> None:
    """Except where it depends on the moment what can be told; `MOVEMENTS` have a test of their own."""
    for name in profile.names():
        loaded = profile.load(name)
        assert loaded.name == name
        assert bool(loaded.expect) != (name in MOVEMENTS), name
        for expectation in loaded.expect.values():
            worst = max((found.status.severity for found in expectation.findings), default=0)
            codes = {Status.FAIL: {12}, Status.ERROR: {11, 3}}
            assert expectation.exit_code in codes.get(list(Status)[worst], {0}), name


def test_every_shipped_profile_matches_the_schema() -> None:
    schema = json.loads(profile.SCHEMA.read_text())
    for name in profile.names():
        read(profile.file_of(name), schema)


def test_devices_of_a_node_are_distinct() -> None:
    for name in {*profile.names()} - {"one-uuid", "one-pci-address"}:
        devices = profile.load(name).devices
        assert len({device.uuid for device in devices}) == len(devices), name
        assert len({device.pci for device in devices}) == len(devices), name


def test_identity_of_a_device_is_stable(tmp_path: Path) -> None:
    path = write(tmp_path, ONE_GPU)
    assert profile.load(path) == profile.load(path)


def test_extended_profile_keeps_values_that_are_not_overridden() -> None:
    base, child = profile.load("nvidia-455.32.00"), profile.load("nvidia-460.32.03")
    assert child.faults == base.faults
    assert child.expect == base.expect
    assert child.versions == {**base.versions, "nvidia-driver": "460.32.03", "cuda-driver": "11.2"}


def test_path_extends_a_file_in_the_same_directory(tmp_path: Path) -> None:
    write(tmp_path, ONE_GPU, "base.yaml")
    child = profile.load(write(tmp_path, "description: Child.\nextends: base.yaml\nfaults: []\n"))
    assert [device.name for device in child.devices] == ["Tesla V100"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            ONE_GPU + "faults: [{call: ipc-opne, do: hang}]\n",
            "7: unknown call 'ipc-opne'; did you mean 'ipc-open'?",
        ),
        (
            ONE_GPU + "faults:\n  - {call: ipc-open, do: error, error: INVALID_HANDEL}\n",
            "8: unknown error 'INVALID_HANDEL'; did you mean 'INVALID_HANDLE'?",
        ),
        (ONE_GPU + "faults: [{call: ipc-open, do: error}]\n", "7: faults[0]: key 'error' is missing"),
        (ONE_GPU + "faults: [{call: ipc-open, do: leak}]\n", "7: faults[0]: key 'bytes' is missing"),
        (
            ONE_GPU + "faults: [{call: mem-alloc, do: corrupt-byte}]\n",
            "7: 'corrupt-byte' has no effect on 'mem-alloc', only on copy, copy-from-device, ipc-open, ",
        ),
        (
            ONE_GPU + "faults: [{call: pool-reuse, do: corrupt-byte}]\n",
            "7: 'corrupt-byte' has no effect on 'pool-reuse', only on copy, ",
        ),
        (
            ONE_GPU + "faults: [{call: mem-info, do: misstate, bytes: 1 GiB}]\n",
            "7: 'misstate' has no effect on 'mem-info', only on device-memory",
        ),
        (
            ONE_GPU + "faults: [{call: vmm-export, do: blank}]\n",
            "7: 'blank' has no effect on 'vmm-export', only on ipc-get",
        ),
        (
            ONE_GPU + "faults: [{call: ipc-open, do: lag, ms: 20}]\n",
            "7: 'lag' has no effect on 'ipc-open', only on mem-info",
        ),
        (
            ONE_GPU + "faults: [{call: ipc-open, do: late, ms: 20}]\n",
            "7: 'late' has no effect on 'ipc-open', only on exit",
        ),
        (
            ONE_GPU + "faults: [{call: runtime-version, backend: cuda, do: hang}]\n",
            "7: call 'runtime-version' exists for hip, not for cuda",
        ),
        (ONE_GPU.replace("Tesla V100", "V" * 300), "3: devices[0].name: "),
        (ONE_GPU.replace("460.32.03", "4" * 70 + ".1.1"), "5: versions.nvidia-driver: "),
        (
            ONE_GPU + "mpi-faults: [{call: MPI_Send, do: leak}]\n",
            "7: mpi-faults[0]: key 'bytes' is missing",
        ),
        (
            ONE_GPU + "mpi-faults: [{call: MPI_Send, do: stale}]\n",
            "7: mpi-faults[0].call: 'MPI_Send' is not known",
        ),
        (ONE_GPU + "peers: {cuda: [[0, 1]]}\n", "7: 0 to 1 is not a pair of 1 devices"),
        (ONE_GPU.replace("16 GiB", "16 GiB, held: 17 GiB"), "3: held memory exceeds the device's memory"),
        (
            ONE_GPU.replace("16 GiB", "16 GiB, count: 2, pci: '0000:65:00.0'"),
            "3: with 'count' above 1, remove 'uuid' and 'pci'",
        ),
        (ONE_GPU.replace("16 GiB", "16 GB"), "3: devices[0].memory: '16 GB' is not a size with its unit"),
        (ONE_GPU.replace("cuda-driver", "hip-runtime"), "4: a cuda device needs the key 'cuda-driver'"),
        (
            ONE_GPU + "expect: {exit: 12, findings: [{check: a, status: FAIL, mentions: ['{ipc-opn}']}]}\n",
            "7: unknown word in '{ipc-opn}'",
        ),
        (
            ONE_GPU + "expect: {exit: 12, findings: [{check: a, status: FAIL, backend: hip}]}\n",
            "7: the profile is not for hip but for cuda",
        ),
        (
            ONE_GPU + "files: {/proc/../etc/passwd: x}\n",
            "7: files: key '/proc/../etc/passwd' is not a plain path",
        ),
        (
            ONE_GPU + "extends: healthy-cud\n",
            "7: extends: no profile 'healthy-cud'; did you mean 'healthy-cuda'?",
        ),
        (ONE_GPU + "extends: ./site.yaml\n", "7: extends: './site.yaml' is a cycle"),
    ],
)
def test_mistake_is_reported_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    found = mistakes(write(tmp_path, text))
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_mistake_in_an_extended_profile_has_its_own_file_and_line(tmp_path: Path) -> None:
    base = write(tmp_path, ONE_GPU + "faults: [{call: fly, do: hang}]\n", "base.yaml")
    with pytest.raises(BadFile, match=f"{base}:7: unknown call 'fly'"):
        profile.load(write(tmp_path, "description: Child.\nextends: base.yaml\n"))


def test_unknown_profile_suggests_the_nearest_name() -> None:
    with pytest.raises(
        BadFile, match=r"helthy-cuda: no such simulator profile; did you mean 'healthy-cuda'\?"
    ):
        profile.load("helthy-cuda")


def test_mentions_use_the_vendors_names(tmp_path: Path) -> None:
    found = "{check: a, status: FAIL, mentions: ['{ipc-open} {MAP_FAILED}']}"
    text = f"{ONE_GPU}expect: {{exit: 12, backends: [cuda, hip], findings: [{found}]}}\n"
    expect = profile.load(write(tmp_path, text)).expect
    assert expect["cuda"].findings[0].mentions == ("cuIpcOpenMemHandle CUDA_ERROR_MAP_FAILED",)
    assert expect["hip"].findings[0].mentions == ("hipIpcOpenMemHandle hipErrorMapFailed",)


def test_finding_of_one_backend_is_not_expected_on_the_other(tmp_path: Path) -> None:
    found = "{check: a, status: FAIL}, {check: b, status: WARN, backend: hip}"
    text = f"{ONE_GPU}expect: {{exit: 12, backends: [cuda, hip], findings: [{found}]}}\n"
    expect = profile.load(write(tmp_path, text)).expect
    assert {on: expect[on].checks for on in expect} == {"cuda": ("a",), "hip": ("a", "b")}


def test_calls_have_the_drivers_names() -> None:
    calls = vocabulary.calls()
    assert calls["ipc-open"] == {
        "cuda": "cuIpcOpenMemHandle",
        "hip": "hipIpcOpenMemHandle",
        "ze": "zeMemOpenIpcHandle",
    }
    assert calls["vmm-create"] == {"cuda": "cuMemCreate", "hip": "hipMemCreate"}
    assert calls["exit"] == {}


@pytest.mark.cuda
def test_error_codes_are_those_of_cuda() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    for code, names in vocabulary.errors().values():
        assert int(getattr(driver.CUresult, names["cuda"])) == code


@pytest.mark.hip
def test_error_codes_are_those_of_hip() -> None:
    hip = pytest.importorskip("hip").hip
    for code, names in vocabulary.errors().values():
        if "hip" in names:
            assert int(getattr(hip.hipError_t, names["hip"])) == code


def test_errors_of_level_zero_are_results_of_its_specification() -> None:
    results = {result.name for result in ze_result_t}
    assert {names["ze"] for _, names in vocabulary.errors().values() if "ze" in names} <= results


def test_drivers_read_one_record_per_line(tmp_path: Path) -> None:
    text = ONE_GPU + "faults: [{call: ipc-open, nth: 2, do: error, error: INVALID_HANDLE, device: 0}]\n"
    loaded = profile.load(write(tmp_path, text.replace("V100", "V100 100%")))
    assert node.driver_file(loaded).splitlines() == [
        "sim format=1 profile=site",
        "version nvidia-driver=460.32.03 cuda-driver=11020",
        f"device backend=cuda index=0 name=Tesla%20V100%20100%25 uuid={loaded.devices[0].uuid} "
        "pci=0000:11:00.0 memory=17179869184 held=0 holder=0 granule=2097152 addresses=0 arch=9.0 imex=0 "
        "mode=usual",
        "fault backend=any nth=2 from=0 every=0 least=0 min=0 max=0 device=0 exporter=-1 when=always peer=0 "
        "code=400 bytes=0 ms=0 call=ipc-open do=error",
    ]


def test_faults_of_mpi_are_for_a_separate_library(tmp_path: Path) -> None:
    text = "mpi-faults:\n  - {call: MPI_Recv, do: hang, rank: 1, memory: device, size: 16 B, log: info}\n"
    text += "  - {call: MPI_Send, min: 1 MiB, do: leak, bytes: 2 KiB, from: 3, cured-by: UCX_TLS=^cuda_ipc}\n"
    loaded = profile.load(write(tmp_path, ONE_GPU + text))
    assert loaded.needs_mpi
    assert node.mpi_faults_file(loaded).splitlines() == [
        "fault call=MPI_Recv do=hang memory=device rank=1 min=16 max=16 bytes=0 keeps=0 nth=0 from=0 every=0 "
        "until=0 log=info variable=- value=- overlapped=0 outstanding=0 elsewhere=0 in_place=0 "
        "zero_count=0 negative_bound=0 thread=0 idle=0 with=any",
        f"fault call=MPI_Send do=leak memory=any rank=-1 min=1048576 max={2**63 - 1} bytes=2048 "
        "keeps=0 nth=0 from=3 every=0 until=0 log=warn variable=UCX_TLS value=%5Ecuda_ipc overlapped=0 "
        "outstanding=0 elsewhere=0 in_place=0 zero_count=0 negative_bound=0 thread=0 idle=0 with=any",
    ]
    assert "MPI" not in node.driver_file(loaded)


def test_only_ranks_of_a_node_with_faults_of_mpi_preload_them(tmp_path: Path) -> None:
    faulty, healthy = tmp_path / "faulty", tmp_path / "healthy"
    faulty.mkdir()
    healthy.mkdir()
    prepared = node.prepare("mpi-segv", faulty)
    assert Path(prepared.rank_env["LD_PRELOAD"]).name == "libmpi-faults.so"
    assert Path(prepared.rank_env["GPUIPC_SIM_MPI"]).read_text().startswith("fault call=MPI_Isend do=segv ")
    assert "LD_PRELOAD" not in prepared.env
    assert "LD_PRELOAD" not in node.prepare("healthy-cuda", healthy).rank_env


def test_empty_name_is_shown() -> None:
    with pytest.raises(BadFile, match=r'^"": no such simulator profile'):
        profile.load("")


def test_peers_are_ordered_pairs_and_default_to_all() -> None:
    peers = [
        line for line in node.driver_file(profile.load("healthy-both")).splitlines() if line[:4] == "peer"
    ]
    assert peers == [
        "peer backend=cuda a=0 b=1",
        "peer backend=cuda a=1 b=0",
        "peer backend=hip a=0 b=1",
        "peer backend=hip a=1 b=0",
    ]
    assert not profile.load("no-peer-access").peers


def test_versions_become_the_numbers_that_driver_calls_return() -> None:
    assert node.driver_versions({"cuda-driver": "11.2", "hip-runtime": "6.4.43482"}) == {
        "cuda-driver": 11020,
        "hip-runtime": 60443482,
        "hip-driver": 60443482,
    }


def test_files_follow_from_the_versions_and_the_devices() -> None:
    loaded = profile.load("nvidia-460.32.03")
    files = node.claimed_files(loaded)
    pci, uuid = loaded.devices[0].pci, loaded.devices[0].uuid
    assert "Kernel Module  460.32.03  " in files["/proc/driver/nvidia/version"]
    assert f"GPU UUID: \t {uuid}\n" in files[f"/proc/driver/nvidia/gpus/{pci}/information"]
    assert files[f"/sys/bus/pci/devices/{pci}/vendor"] == "0x10de\n"
    assert "/sys/module/amdgpu/version" not in files


def test_profile_adds_its_own_files(tmp_path: Path) -> None:
    loaded = profile.load(write(tmp_path, ONE_GPU + "files: {/proc/driver/nvidia/version: NVRM!}\n"))
    assert node.claimed_files(loaded)["/proc/driver/nvidia/version"] == "NVRM!"


def test_prepared_node_is_only_in_its_directory_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = pytest.importorskip("gpuipc_doctor.simulator.build")
    monkeypatch.setattr(build, "build", lambda: Path("/libraries"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/site/lib")
    prepared = node.prepare("healthy-cuda", tmp_path)
    assert prepared.simulated == "healthy-cuda"
    assert prepared.env["LD_LIBRARY_PATH"] == "/libraries:/opt/site/lib"
    assert Path(prepared.env["GPUIPC_SIM_NODE"]).read_text().startswith("sim format=1 profile=healthy-cuda\n")
    assert Path(prepared.env["GPUIPC_SIM_STATE"]).is_relative_to(tmp_path)
    assert (Path(prepared.root) / "proc/sys/kernel/osrelease").read_text() == "6.8.0-60-generic\n"


def test_profile_may_set_a_larger_memory_limit_for_its_drill(tmp_path: Path) -> None:
    assert profile.load(write(tmp_path, ONE_GPU)).memory == MemoryShare()
    more = profile.load(write(tmp_path, f"{ONE_GPU}options: {{most_gib: 3}}\n"))
    assert more.memory == MemoryShare(most_gib=3)


@pytest.mark.parametrize("size", [4098, "4098", "4098B", "4 MB", ""])
def test_size_without_a_unit_says_what_it_needs(size: object) -> None:
    with pytest.raises(ValueError, match="it needs a unit, such as '4098 B'"):
        profile.parse_size(size)  # type: ignore[arg-type]
