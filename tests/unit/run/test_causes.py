"""The cause before the call: what explains a failure, what does not, and sources that hang."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.model import (
    Device,
    DriverFault,
    Ending,
    EvidenceKind,
    Fact,
    Finding,
    Json,
    Launch,
    LauncherEnd,
    Probe,
    ProbeOutcome,
    RoleOutcome,
    Status,
)
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import causes
from gpuipc_doctor.run.causes import node_sources, node_state
from gpuipc_doctor.run.results import Entry, ResultLog

MIB = 1 << 20
NO_FILE = "[Errno 2] No such file or directory"
SHM: dict[str, Json] = {"name": "/dev/shm", "free": 9000 * MIB, "inodes": 9, "is_read_only": False}
ROOMY: dict[str, Json] = {
    "shared memory": {"name": "/dev/shm", "free": 9000 * MIB, "inodes": 1000, "is_mount": True},
    "temporary files": {"name": "/tmp", "free": 9000 * MIB, "inodes": None, "is_mount": False},
    "limits": {"locked memory": None},
    "job step": {"memory": [64 << 30, "/sys/fs/cgroup"], "killed": 0},
    "interfaces": {"network": ["eth0", "ib0", "lo"], "rdma": ["mlx5_0", "mlx5_1"]},
    "parameters": [],
    "preloads": [],
    "host name": {"name": "n1", "error": ""},
}


def entry(*, ranks: bool = True, said: str = "", role: Mapping[str, Any] | None = None) -> Entry:
    """A failed probe. ``said``: the last line that its launcher printed."""
    blamed = RoleOutcome("rank 0", **{"ending": Ending.CRASHED, "signal": "SIGBUS", **(role or {})})
    launch = Launch(("mpiexec",)) if ranks else None
    outcome = ProbeOutcome(
        "", (), {}, {"rank 0": blamed}, "rank 0", 1.0, launch=launch, launcher=LauncherEnd(1, 0.0, (said,))
    )
    check = SimpleNamespace(id="mpi-start", curable_warnings=(), workarounds=())
    planned = SimpleNamespace(
        number=1, repetition=1, check=check, place=0,
        probe=Probe("", {"rank 0" if ranks else "exporter": lambda w: None}, launch=launch),
    )  # fmt: skip
    return Entry(planned, (Finding.fail("crashed", "rank 0 crashed"),), outcome)  # type: ignore[arg-type]


def explained(failed: Entry, seen: Mapping[str, Json], **environ: str) -> Finding:
    log = ResultLog()
    log._add(failed)
    causes.explain(log, ROOMY | dict(seen), lambda: ROOMY | dict(seen), environ)
    (finding,) = failed.reported
    return finding


@pytest.mark.parametrize(
    ("seen", "environ", "said", "words"),
    [
        ({"shared memory": {"name": "/dev/shm", "free": 3 * MIB, "inodes": 9}}, {}, "", "/dev/shm has 3 MiB"),
        ({"temporary files": {"name": "/tmp", "free": 0, "inodes": 9}}, {}, "", "/tmp has 0 MiB free"),
        ({"temporary files": {"name": "/tmp", "free": 9 << 30, "inodes": 0}}, {}, "", "/tmp has no inode"),
        ({"limits": {"locked memory": 65536}}, {}, "ibv_reg_mr() failed", "(ulimit -l)"),
        ({"job step": {"memory": [1 << 30, "/g"]}}, {}, "", "may use 1024 MiB of host memory (/g)"),
        ({"job step": {"memory": [64 << 30, "/g"], "killed": 2}}, {}, "", "killed for that: 2"),
        ({"job step": {"processes": [9, "/g"]}}, {}, "can't start new thread", "start only 9 more"),
        ({}, {"MPIR_CVAR_ERROR_CHECKING": "0"}, "", "MPIR_CVAR_ERROR_CHECKING=0, which switches a safety"),
        ({}, {"OMPI_MCA_mpi_param_check": "false"}, "", "OMPI_MCA_mpi_param_check=false, which"),
        ({"parameters": [["/h/nccl.conf:2", "MPIR_CVAR_ERROR_CHECKING", "0"]]}, {}, "", "switches a safety"),
        ({"host name": {"name": "x7", "error": "unknown"}}, {}, "gethostbyname failed", "x7"),
        ({"host name": {"name": "x7", "error": "", "elsewhere": "203.0.113.7"}}, {}, "No route", "203.0.113"),
        ({"interfaces": {"loopback": False, "network": [], "rdma": []}}, {}, "", "loopback interface is"),
        ({"shared memory": SHM | {"inodes": 0}}, {}, "", "/dev/shm has no inode"),
        ({"shared memory": SHM | {"is_read_only": True}}, {}, "", "/dev/shm is mounted read-only"),
        ({"shared memory": SHM | {"is_writable": False}}, {}, "", "/dev/shm cannot be written"),
        ({"temporary files": SHM | {"name": "/t", "is_read_only": True}}, {}, "session dir", "/t is m"),
        ({"temporary files": {"unreadable": "No such file: '/t'"}}, {}, "mkdir /tmp", "TMPDIR: No"),
        ({}, {"FI_PROVIDER": "efa"}, "OFI call getinfo failed", "FI_PROVIDER=efa (environment) chooses"),
        ({}, {"UCX_TLS": "rc_verb"}, "no usable transports/devices", "UCX_TLS=rc_verb (environment) chooses"),
        ({}, {"I_MPI_FABRICS": "ofi"}, "OFI fabric is unreachable", "I_MPI_FABRICS=ofi (environment)"),
        ({}, {"OMPI_MCA_btl": "self"}, "pair of MPI processes are unable to reach", "OMPI_MCA_btl=self"),
        ({}, {"NCCL_SOCKET_IFNAME": "bond0"}, "", "NCCL_SOCKET_IFNAME=bond0 names no interface"),
        ({}, {"NCCL_SOCKET_IFNAME": "=eth"}, "", "NCCL_SOCKET_IFNAME==eth names no interface"),
        ({}, {"UCX_NET_DEVICES": "mlx5_4:1"}, "", "UCX_NET_DEVICES=mlx5_4:1"),
        ({}, {"FI_TCP_IFACE": "eth7"}, "", "FI_TCP_IFACE=eth7"),
        ({}, {"OMPI_MCA_pml": "ucxx"}, "Component: ucxx was not able to find", "OMPI_MCA_pml"),
        ({"parameters": [["/h/mca.conf:1", "pml", "ucxx"]]}, {}, "ucxx not found", "/h/mca.conf:1"),
        ({"parameters": [["/h/nccl.conf:2", "NCCL_SOCKET_IFNAME", "bond0"]]}, {}, "", "=bond0 names no"),
        ({"preloads": [["LD_PRELOAD", "/opt/libhook.so"]]}, {}, "in /opt/libhook.so", "/opt/libhook.so is"),
        ({"preloads": [["/etc/ld.so.preload:1", "/lib/libx.so"]]}, {}, "'/lib/libx.so' from", "preload:1)"),
        ({}, {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments:True"}, "pidfd_getfd: x", "PYTORCH_ALLOC"),
        ({}, {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}, "pidfd_open: x", "PYTORCH_HIP_ALLOC"),
        ({"host name": None}, {}, "", "reading host name takes more than 1 s"),
    ],
)  # fmt: skip
def test_cause_stands_before_the_call(
    seen: Mapping[str, Json], environ: dict[str, str], said: str, words: str
) -> None:
    finding = explained(entry(said=said), seen, **environ)
    assert words in sentences.summary(finding)
    assert sentences.summary(finding).endswith("; rank 0 crashed")
    assert finding.remedy
    assert finding.status is Status.FAIL


@pytest.mark.parametrize(
    ("seen", "environ", "said"),
    [
        ({}, {}, ""),
        ({"limits": {"locked memory": 65536}}, {}, "segmentation fault"),
        ({"host name": {"name": "n1", "error": "", "elsewhere": ""}}, {}, "No route to host"),
        ({"host name": {"name": "n1", "error": "", "elsewhere": "203.0.113.7"}}, {}, "segmentation fault"),
        ({"temporary files": SHM | {"is_read_only": True}}, {}, "segmentation fault"),
        ({"interfaces": {"loopback": True, "network": ["lo"], "rdma": []}}, {}, ""),
        ({"shared memory": SHM, "temporary files": SHM | {"is_writable": True}}, {}, ""),
        ({}, {"FI_PROVIDER": "tcp", "NCCL_NET": "Socket", "OMPI_MCA_btl": ""}, "segmentation fault"),
        ({"limits": {"locked memory": None}}, {}, "ibv_reg_mr failed"),
        ({"host name": {"name": "x7", "error": "Name or service not known"}}, {}, "invalid device pointer"),
        ({}, {"NCCL_SOCKET_IFNAME": "^docker,veth"}, ""),
        ({}, {"NCCL_SOCKET_IFNAME": "eth"}, ""),
        ({}, {"NCCL_SOCKET_IFNAME": "bond0,eth0"}, ""),
        ({}, {"NCCL_IB_HCA": "mlx5"}, ""),
        ({}, {"UCX_NET_DEVICES": "all"}, ""),
        ({}, {"UCX_NET_DEVICES": "mlx5_0:1,eth0"}, ""),
        ({}, {"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8"}, ""),
        ({}, {"OMPI_MCA_pml": "ucx"}, "segmentation fault"),
        ({}, {"I_MPI_FABRICS": "shm"}, "Assertion failed in file ../../src/mpid/ch4/shm/posix/intel_recv.h"),
        ({}, {"I_MPI_FABRICS": "shm:ofi"}, "/opt/intel/lib/libfabric.so.1(+0x1f3a0) [0x7f5eee5470b2]"),
        ({}, {"OMPI_MCA_btl": "tcp"}, "opal/mca/btl/tcp/btl_tcp.c:92: Assertion `0' failed."),
        (
            {"parameters": [["/h/nccl.conf:2", "NCCL_SOCKET_IFNAME", "bond0"]]},
            {"NCCL_SOCKET_IFNAME": "eth0"},
            "",
        ),
        ({"preloads": [["LD_PRELOAD", "/opt/libhook.so"]]}, {}, "segmentation fault"),
        ({"job step": {"memory": [64 << 30, "/g"], "killed": 0}}, {}, "killed"),
        ({"job step": {"processes": [9000, "/g"]}, "limits": {}}, {}, "can't start new thread"),
        ({"job step": {}, "limits": {}}, {}, "can't start new thread"),
        ({}, {"MPIR_CVAR_ERROR_CHECKING": "1"}, ""),
        ({}, {"NCCL_CHECKS_DISABLE": "1"}, ""),  # these ranks are MPI's
        ({}, {"HSA_OVERRIDE_GFX_VERSION": "9.0.0"}, ""),  # on an NVIDIA GPU
        ({}, {"UCX_MEM_CUDA_HOOK_MODE": "none"}, ""),  # a crash is no wrong data
        ({"preloads": [["LD_PRELOAD", "/opt/libmpi_gtl_cuda.so"]]}, {}, "in /opt/libmpi_gtl_cuda.so"),
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, "pidfd_getfd: x"),
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "segmentation fault"),
        ({"interfaces": {"unreadable": "no such device"}}, {"NCCL_SOCKET_IFNAME": "bond0"}, ""),
        ({"shared memory": {"unreadable": "No such file or directory"}}, {}, ""),
    ],
)
def test_what_cannot_explain_a_failure_is_not_named(
    seen: Mapping[str, Json], environ: dict[str, str], said: str
) -> None:
    assert sentences.summary(explained(entry(said=said), seen, **environ)) == "rank 0 crashed"


@pytest.mark.parametrize(("value", "named"), [("rc,sm", True), ("tcp", True), ("^cuda_ipc", False)])
@pytest.mark.parametrize("operation", ["", "MPI_Send"])
def test_transports_without_device_memory(value: str, named: bool, operation: str) -> None:
    finding = explained(entry(role={"operation": operation}), {}, UCX_TLS=value)
    assert ("cuda_copy" in sentences.summary(finding)) is (named and bool(operation))
    for right in ("rc,sm,cuda_copy", "all", "cuda,sm", "rocm,tcp"):
        assert "UCX_TLS" not in sentences.summary(
            explained(entry(role={"operation": "x"}), {}, UCX_TLS=right)
        )


@pytest.mark.parametrize(("launched", "role"), [(True, "sender"), (False, "rank 0")])
def test_ranks_are_those_of_a_launcher_and_those_of_nccl(launched: bool, role: str) -> None:
    failed = entry(ranks=launched)
    failed.planned = SimpleNamespace(  # type: ignore[assignment]
        **{
            **vars(failed.planned),
            "probe": Probe("", {role: lambda w: None}, launch=Launch(("mpiexec",)) if launched else None),
        }
    )
    full = {"shared memory": {"name": "/dev/shm", "free": 0, "inodes": 0}}
    assert "/dev/shm has 0 MiB free" in sentences.summary(explained(failed, full))


def test_full_shared_memory_does_not_explain_a_probe_without_ranks() -> None:
    full = {"shared memory": {"name": "/dev/shm", "free": 0, "inodes": 0}}
    assert sentences.summary(explained(entry(ranks=False), full)) == "rank 0 crashed"


TRANSLATES = (Fact("iommu", "translating (DMA-FQ)", ""),)
REDIRECTS = (Fact("iommu", "passthrough", ""), Fact("acs", "redirects at 0000:00:01.0", ""))


def of_devices(numbers: tuple[int, ...], *, completed: bool = True, check: str = "ipc-peer") -> Entry:
    """A probe that found wrong data, or that failed."""
    failed = entry(ranks=False)
    devices = tuple(Device("cuda", n, f"GPU-{n}", "", "GPU", 1 << 30) for n in numbers)
    failed.planned = SimpleNamespace(  # type: ignore[assignment]
        number=hash(numbers), repetition=1,
        check=SimpleNamespace(id=check, curable_warnings=(), workarounds=()),
        probe=replace(failed.planned.probe, devices=devices),
    )  # fmt: skip
    if completed:
        assert failed.outcome
        failed.findings = (Finding.fail("wrong-data", "rank 0 crashed"),)
        failed.outcome = replace(failed.outcome, blamed=None)
    return failed


@pytest.mark.parametrize("completed", [True, False])
@pytest.mark.parametrize(
    ("facts", "words"), [(TRANSLATES, "may be due to the IOMMU"), (REDIRECTS, "ACS"), ((), "")]
)
def test_iommu_and_acs_explain_faults_between_gpus(
    facts: tuple[Fact, ...], words: str, completed: bool
) -> None:
    pair, single = of_devices((0, 1), completed=completed), of_devices((2,), check="ipc-reopen")
    log = ResultLog()
    log._add(pair)
    log._add(single)
    causes.explain(log, ROOMY, lambda: ROOMY, {}, facts)
    assert words in sentences.summary(pair.reported[0])
    assert sentences.summary(single.reported[0]) == "rank 0 crashed"
    assert ("; " in sentences.summary(pair.reported[0])) is bool(words)


def test_setting_of_a_file_is_removed_from_the_file() -> None:
    files = {"parameters": [["/h/nccl.conf:2", "NCCL_SOCKET_IFNAME", "bond0"]]}
    assert "/h/nccl.conf:2" in explained(entry(), files).remedy


@pytest.mark.parametrize(
    ("environ", "ending", "fault", "ranks", "named"),
    [
        ({"UCX_MEM_CUDA_HOOK_MODE": "none"}, Ending.COMPLETED, None, True, True),
        ({"UCX_MEM_CUDA_HOOK_MODE": "bistro"}, Ending.COMPLETED, None, True, False),
        ({"UCX_MEM_CUDA_HOOK_MODE": "none"}, Ending.COMPLETED, None, False, False),
        ({"FI_CXI_DISABLE_CUDA_SYNC_MEMOPS": "1"}, Ending.COMPLETED, None, True, True),
        ({"FI_CXI_DISABLE_CUDA_SYNC_MEMOPS": "0"}, Ending.COMPLETED, None, True, False),
        ({"NVIDIA_DISABLE_REQUIRE": "true"}, Ending.DRIVER_ERROR, "cuInit", False, True),
        ({"NVIDIA_DISABLE_REQUIRE": "true"}, Ending.DRIVER_ERROR, "cuMemAlloc", False, False),
        ({"NVIDIA_DISABLE_REQUIRE": "0"}, Ending.DRIVER_ERROR, "cuInit", False, False),
    ],
)
def test_safety_that_is_off_explains_what_it_prevents(
    environ: dict[str, str], ending: Ending, fault: str | None, ranks: bool, named: bool
) -> None:
    role = {"ending": ending, "fault": DriverFault(fault, 1, "X") if fault else None, "signal": ""}
    failed = entry(ranks=ranks, role=role)
    failed.findings = (Finding.fail("wrong-data", "rank 0 crashed"),)
    if ending is Ending.COMPLETED:
        assert failed.outcome
        failed.outcome = replace(failed.outcome, blamed=None)
    assert ("switches a safety off" in sentences.summary(explained(failed, {}, **environ))) is named


GROUP = {
    "proc": "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
    "sys": {
        "memory.max": "max\n",
        "system.slice/slurmstepd.scope/job_7/memory.max": "1073741824\n",
        "system.slice/slurmstepd.scope/job_7/step_0/memory.max": "2147483648\n",
        "system.slice/slurmstepd.scope/job_7/step_0/memory.events": "low 0\noom 3\noom_kill 2\n",
        "system.slice/slurmstepd.scope/job_7/step_0/pids.max": "100\n",
        "system.slice/slurmstepd.scope/job_7/step_0/pids.current": "90\n",
    },
}
FIRST = {
    "proc": "9:pids:/a\n5:cpu,memory:/a\n1:name=systemd:/a\nnonsense\n",
    "sys": {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/a/memory.limit_in_bytes": "1073741824\n",
        "memory/a/memory.oom_control": "oom_kill_disable 0\noom_kill 2\n",
        "pids/a/pids.max": "100\n",
        "pids/a/pids.current": "90\n",
    },
}


@pytest.mark.parametrize(("files", "at"), [(GROUP, "job_7"), (FIRST, "memory/a")])
def test_limits_of_a_job_step_are_those_of_its_control_groups(
    files: dict[str, Any], at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").write_text(files["proc"])
    for name, text in files["sys"].items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    conf = tmp_path / "slurm.conf"
    conf.write_bytes(b"#PropagateResourceLimits=ALL\n\xff\npropagateresourcelimits = NONE # a comment\n")
    monkeypatch.setattr(node_sources, "GROUP_FILE", str(tmp_path / "cgroup"))
    monkeypatch.setattr(node_sources, "GROUPS", str(tmp_path / "fs"))
    monkeypatch.setattr(node_sources, "SLURM_FILES", (str(tmp_path / "none"), str(conf)))
    said: Any = node_sources.job_step()
    assert said["memory"][0] == 1 << 30
    assert said["memory"][1].endswith(at)
    assert (said["processes"][0], said["killed"]) == (10, 2)
    assert said["propagated"] == f"propagateresourcelimits=NONE ({conf})"


def test_iommu_does_not_explain_a_leak() -> None:
    pair = of_devices((0, 1))
    pair.findings = (Finding.fail("grows", "memory grows"),)
    log = ResultLog()
    log._add(pair)
    causes.explain(log, ROOMY, lambda: ROOMY, {}, TRANSLATES)
    assert sentences.summary(pair.reported[0]) == "memory grows"


def test_iommu_does_not_explain_what_also_fails_on_one_gpu() -> None:
    pair, single = of_devices((0, 1)), of_devices((2,))
    log = ResultLog()
    log._add(pair)
    log._add(single)
    causes.explain(log, ROOMY, lambda: ROOMY, {}, TRANSLATES)
    assert sentences.summary(pair.reported[0]) == "rank 0 crashed"


def test_full_shared_memory_does_not_explain_wrong_data() -> None:
    wrong = entry()
    assert wrong.outcome
    wrong.outcome = replace(wrong.outcome, blamed=None)
    full = {"shared memory": {"name": "/dev/shm", "free": 0, "inodes": 0}}
    assert sentences.summary(explained(wrong, full)) == "rank 0 crashed"


def test_sources_cost_little() -> None:
    """At most 0.15 s of processor time, also on a loaded machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    node_state.look()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.15


def test_node_is_not_read_again_if_nothing_failed() -> None:
    passed = entry()
    passed.findings = (Finding.ok("started", "2 ranks started"),)
    log = ResultLog()
    log._add(passed)
    causes.explain(log, {}, lambda: pytest.fail("read again"), {})
    assert not [item for item in passed.reported[0].evidence if item.kind is EvidenceKind.CAUSE]


def test_this_machine_answers_every_source() -> None:
    seen = node_state.look()
    assert list(seen) == ["limits", *node_sources.SOURCES]
    assert all(said is not None for said in seen.values())


def test_source_that_hangs_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources' program, with one that never ends."""
    program = tmp_path / "sources.py"
    program.write_text(
        "import runpy, sys, time\n"
        f"space = runpy.run_path({node_sources.__file__!r}, run_name='sources')\n"
        "space['SOURCES']['preloads'] = lambda: time.sleep(60)\nspace['main'](sys.argv[1:])\n"
    )
    monkeypatch.setattr(node_state, "node_sources", SimpleNamespace(__file__=str(program)))
    monkeypatch.setattr(node_state, "PATIENCE_S", 3.0)
    seen = node_state.look()
    assert seen["preloads"] is None
    assert [name for name, said in seen.items() if said is None] == ["preloads"]
    assert set(seen) == {"limits", *node_sources.SOURCES}


@pytest.mark.parametrize(
    "text", ["pml = ucxx  # a comment\n\n# btl = x\nnonsense\n", "\0\xff pml\npml = ucxx\n"]
)
def test_file_of_parameters_is_read_as_far_as_it_is_one(tmp_path: Path, text: str) -> None:
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text(text, encoding="latin-1")
    command = [sys.executable, "-I", "-S", node_sources.__file__, "parameters"]
    ended = subprocess.run(command, env={"HOME": str(tmp_path)}, capture_output=True, check=True)
    (said,) = [json.loads(line) for line in ended.stdout.splitlines() if b"begins" not in line]
    assert [setting[1:] for setting in said["parameters"]] == [["pml", "ucxx"]]


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs root and namespaces (unshare)",
)
@pytest.mark.parametrize(
    ("prelude", "source", "key", "value"),
    [
        (":", "interfaces", "loopback", False),
        ("mount -t tmpfs -o ro none /dev/shm", "shared memory", "is_read_only", True),
        ("mount -t tmpfs -o nr_inodes=1 none /dev/shm", "shared memory", "inodes", 0),
        ("export TMPDIR=/nowhere", "temporary files", "unreadable", f"{NO_FILE}: '/nowhere'"),
        ("mount --bind hosts /etc/hosts", "host name", "elsewhere", "203.0.113.7"),
    ],
)  # fmt: skip
def test_source_says_what_is_so(prelude: str, source: str, key: str, value: Json, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"203.0.113.7 {socket.gethostname()}\n")
    net = ["--net"] if source == "interfaces" else []
    said = subprocess.run(
        ["unshare", "--mount", *net, "--propagation", "private", "sh", "-c", f'{prelude} && exec "$@"', "sh",
         sys.executable, "-I", "-S", node_sources.__file__, source],
        capture_output=True, text=True, cwd=tmp_path, check=True,
    ).stdout.splitlines()[-1]  # fmt: skip
    assert json.loads(said)[source][key] == value
