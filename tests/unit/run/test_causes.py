"""The cause before the call: what explains a failure, what does not, and sources that hang."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.model import Device, DriverFault, EvidenceKind, Fact, Finding, Json, Shown
from gpuipc_doctor.probe_types import Calls, Ending, Launch, Probe, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import causes
from gpuipc_doctor.run.causes import node_sources, node_state
from gpuipc_doctor.run.results import Entry, ResultLog

MIB = 1 << 20
NO_FILE = "[Errno 2] No such file or directory"
SHM: dict[str, Json] = {"name": "/dev/shm", "free": 9000 * MIB, "inodes": 9, "is_read_only": False}
TMP = SHM | {"name": "/tmp"}
ROOMY: dict[str, Json] = {
    "shared memory": SHM,
    "temporary files": {"name": "/tmp", "free": 9000 * MIB, "inodes": None, "is_mount": False},
    "limits": {"locked memory": None},
    "job step": {"memory": [64 << 30, "/sys/fs/cgroup"], "killed": 0},
    "interfaces": {"network": ["eth0", "ib0", "lo"], "rdma": ["mlx5_0", "mlx5_1"]},
    "parameters": [],
    "preloads": [],
    "host name": {"name": "n1", "error": ""},
}
ALL_SMALL: dict[str, Json] = {
    "shared memory": SHM | {"free": 40 * MIB},
    "temporary files": TMP | {"free": 0},
    "limits": {"locked memory": 65536},
    "job step": {"memory": [1 << 30, "/g"], "killed": 2, "processes": [9, "/g"]},
    "interfaces": {"loopback": False, "network": ["eth0", "lo"], "rdma": []},
    "preloads": [["LD_PRELOAD", "/opt/libhook.so"]],
    "host name": {"name": "n1", "error": "", "elsewhere": "203.0.113.7"},
}
ALL_SET = {
    "NCCL_SOCKET_IFNAME": "eth7", "UCX_NET_DEVICES": "mlx5_9:1", "FI_PROVIDER": "tcp", "UCX_TLS": "self,sm",
    "OMPI_MCA_btl": "self,sm", "I_MPI_FABRICS": "shm", "MPIR_CVAR_ERROR_CHECKING": "0", "NCCL_NET": "Socket",
    "NCCL_CHECKS_DISABLE": "1",
}  # fmt: skip
TRANSLATES = (Fact("iommu", "translating (DMA-FQ)", ""),)
REDIRECTS = (Fact("iommu", "passthrough", ""), Fact("acs", "redirects at 0000:00:01.0", ""))


def calls(*names: str) -> tuple[Calls, ...]:
    return tuple(Calls(name, 3, 0.1) for name in names)


def role(operation: str, signal: str = "SIGSEGV", n: int = 1, *before: str, **more: Any) -> dict[str, Any]:
    ended = {"ending": Ending.CRASHED, "signal": signal, "operation": operation, "occurrence": n}
    return {**ended, "calls": calls(*before), **more}


FAILURES: dict[str, tuple[bool, str, dict[str, Any]]] = {
    "start": (True, "rank 0", role("MPI_Init_thread", "SIGBUS")),
    "abort at start": (True, "rank 0", role("MPI_Init_thread", "", exit_code=1)),
    "killed": (True, "rank 0", role("MPI_Init_thread", "SIGKILL")),
    "hang at start": (True, "rank 0", role("MPI_Init_thread", "", ending=Ending.HUNG)),
    "not started": (True, "rank 0", {"ending": Ending.NOT_STARTED}),
    "isend": (True, "rank 0", role("MPI_Isend", "SIGSEGV", 40, "MPI_Init_thread", "MPI_Isend")),
    "first send": (True, "rank 0", role("MPI_Send", "SIGSEGV", 1, "MPI_Init_thread")),
    "nccl start": (False, "rank 1", role("ncclCommInitRank")),
    "reduce": (False, "rank 1", role("ncclReduceScatter", "SIGSEGV", 3, "ncclCommInitRank")),
    "open": (False, "importer", role("cuIpcOpenMemHandle", "SIGSEGV", 2, "cuInit")),
    "hang": (False, "importer", role("cuIpcOpenMemHandle", "SIGKILL", 2, ending=Ending.HUNG)),
    "host memory": (False, "exporter", role("cuMemHostAlloc", "", 1, ending=Ending.DRIVER_ERROR,
                    fault=DriverFault("cuMemHostAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY"))),
    "init": (False, "importer", role("cuInit", "", 1, ending=Ending.DRIVER_ERROR,
                                     fault=DriverFault("cuInit", 999, "CUDA_ERROR_UNKNOWN"))),
    "data": (True, "rank 0", {"ending": Ending.COMPLETED}),
    "pair's data": (False, "importer", {"ending": Ending.COMPLETED}),
    "pair crashes": (False, "importer", role("cuMemcpyPeer")),
    "pair leaks": (False, "importer", {"ending": Ending.COMPLETED}),
}  # fmt: skip
"""Failure → whether a launcher starts its roles, the blamed role, and how it ended."""


def entry(failure: str, said: str = "") -> Entry:
    """A failed probe. ``said``: the lines that its blamed role printed."""
    launched, name, how = FAILURES[failure]
    launch = Launch(("mpiexec",)) if launched else None
    completed = how["ending"] is Ending.COMPLETED
    outcome = ProbeOutcome(
        *("", (), {}, {name: RoleOutcome(name, log_tail=tuple(said.splitlines()), **how)}),
        *(None if completed else name, 1.0),
        launch=launch,
    )
    devices = tuple(
        Device("cuda", n, f"GPU-{n}", "", "GPU", 1 << 30) for n in range(1 + failure.startswith("pair"))
    )
    check = SimpleNamespace(
        id="mpi-start", curable_warnings=(), workarounds=(), searches=False, explains_losses=frozenset(),
        judge=lambda done: [Finding.ok("started", "started")],
    )  # fmt: skip
    planned = SimpleNamespace(
        number=len(devices), repetition=1, check=check, place=0,
        probe=Probe("", {name: lambda w: None}, devices, launch=launch),
    )  # fmt: skip
    key = "grows" if failure == "pair leaks" else "wrong-data" if completed else "crashed"
    return Entry(planned, (Finding.fail(key, "it failed", remedy="the right one"),), outcome)  # type: ignore[arg-type]


def explained(
    failed: Entry,
    seen: Mapping[str, Json],
    environ: Mapping[str, str],
    culprit: str = "",
    *,
    facts: Sequence[Fact] = (),
    mpi: str = "",
    tries: bool = True,
) -> Finding:
    """The finding with what explains it. ``culprit``: variable without which reruns of the probe pass."""

    def rerun(planned: Any, env: Mapping[str, str], unset: frozenset[str], most_s: float) -> ProbeOutcome:
        assert failed.outcome
        good = RoleOutcome("rank 0", Ending.COMPLETED)
        passes = replace(failed.outcome, blamed=None, roles={"rank 0": good})
        return passes if culprit in {*env, *unset} else failed.outcome

    log = ResultLog()
    if failed.outcome and failed.outcome.completed:  # its check judges; a trial sees the same data as before
        failed.planned.check.judge = lambda done: (  # type: ignore[method-assign]
            failed.findings if done is failed.outcome else [Finding.ok("right", "correct")]
        )
    log._add(failed)
    after = ROOMY | dict(seen)
    before = after | (
        {} if "unchanged" in seen else {"job step": {**after["job step"], "killed": 0, "full": 0}}
    )  # type: ignore[dict-item]
    causes.explain(log, before, lambda: after, environ, facts, mpi=mpi, rerun=rerun if tries else None)
    (finding,) = failed.reported
    return finding


HOOK = {"preloads": [["LD_PRELOAD", "/opt/libhook.so"]]}
LIMITED = {"job step": {"memory": [1 << 30, "/g"], "killed": 2}, "unchanged": True}
LO_DOWN = {"interfaces": {"loopback": False, "network": ["eth0"], "rdma": []}}
ELSEWHERE = {"host name": {"name": "x7", "error": "", "elsewhere": "203.0.113.7"}}
UCX_INFO = "[1795930137.3] [n1:22] ucp_context.c:1 UCX  INFO  failed: self/memory tcp/eth0"
NO_DATA = "find_provider(3004)..........: OFI fi_getinfo() failed (No data available)"


@pytest.mark.parametrize(
    ("failure", "seen", "environ", "said"),
    [
        ("isend", {}, {"NCCL_SOCKET_IFNAME": "eth7"}, ""),
        ("reduce", {}, {"NCCL_SOCKET_IFNAME": "eth7"}, "NCCL WARN Call to ibv_x failed on eth7"),
        ("reduce", {}, {"UCX_NET_DEVICES": "mlx5_9:1"}, ""),
        ("isend", {}, {"UCX_NET_DEVICES": "mlx5_9:1"}, ""),
        ("reduce", {}, {"GLOO_SOCKET_IFNAME": "eth7"}, ""),
        ("nccl start", {}, {"FI_TCP_IFACE": "eth7"}, ""),
        ("nccl start", {}, {"NCCL_SOCKET_IFNAME": "^docker,veth"}, ""),
        ("nccl start", {}, {"NCCL_SOCKET_IFNAME": "bond0,eth0"}, ""),
        ("start", {}, {"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8"}, ""),
        ("reduce", {"shared memory": SHM | {"free": 40 * MIB}}, {}, ""),
        ("isend", {"shared memory": SHM | {"free": 40 * MIB}}, {}, ""),
        ("abort at start", {"shared memory": SHM | {"free": 40 * MIB}}, {"FI_PROVIDER": "tcp"}, NO_DATA),
        ("isend", {"shared memory": SHM | {"is_read_only": True}}, {}, ""),
        ("reduce", {"shared memory": SHM | {"inodes": 0}}, {}, ""),
        ("open", {"shared memory": SHM | {"free": 0}}, {}, ""),
        ("data", {"shared memory": SHM | {"free": 0}}, {}, ""),
        ("isend", {}, {"UCX_TLS": "self,sm,tcp,cuda_copy"}, UCX_INFO),
        ("isend", {}, {"FI_PROVIDER": "tcp"}, "[0] send failed: tcp"),
        ("isend", {}, {"FI_PROVIDER_PATH": "/opt/prov"}, "in /opt/prov/libtcp-fi.so: failed"),
        ("start", {}, {"FI_PROVIDER_PATH": "/opt/prov"}, "Failed to initialize hmem iface FI_HMEM_ZE"),
        ("isend", {}, {"OMPI_MCA_btl": "self,sm"}, ""),
        ("isend", {}, {"OMPI_MCA_pml": "ob1"}, "select: component ob1 selected, failed: cm"),
        ("isend", {}, {"I_MPI_FABRICS": "shm"}, "Assertion failed in file ../../src/mpid/ch4/shm/posix/x.h"),
        ("isend", {}, {"MPIR_CVAR_ERROR_CHECKING": "0"}, ""),
        ("reduce", {}, {"NCCL_CHECKS_DISABLE": "1"}, ""),
        ("isend", {}, {"NCCL_CHECKS_DISABLE": "1"}, ""),
        ("reduce", {}, {"NCCL_NET": "Socket"}, "NCCL WARN NET/Socket : failed"),
        ("data", {}, {"UCX_MEM_CUDA_HOOK_MODE": "none"}, ""),
        ("init", {}, {"NVIDIA_DISABLE_REQUIRE": "true"}, ""),
        ("open", {}, {"HSA_OVERRIDE_GFX_VERSION": "9.0.0"}, ""),
        ("open", HOOK, {}, ""),
        ("data", HOOK, {}, ""),
        ("open", {"preloads": [["/etc/ld.so.preload:1", "/lib/libx.so"]]}, {},
         "ERROR: ld.so: object '/lib/libx.so' from /etc/ld.so.preload cannot be preloaded: ignored."),
        ("open", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "pidfd_getfd failed: not permitted"),
        ("open", LIMITED, {}, ""),
        ("hang", LIMITED, {}, ""),
        ("killed", LIMITED, {}, ""),
        ("hang", {"job step": {"memory": [1 << 30, "/g"], "killed": 2}}, {}, ""),
        ("start", {"job step": {"processes": [9, "/g"]}}, {}, "socket: Resource temporarily unavailable"),
        ("isend", LO_DOWN, {}, "connection refused"),
        ("start", LO_DOWN, {}, NO_DATA),
        ("isend", ELSEWHERE, {}, "connect failed: No route to host"),
        ("start", {"host name": {"name": "x7", "error": "unknown"}}, {}, "unresolved symbol cuFoo: failed"),
        ("isend", {"limits": {"locked memory": 65536}}, {}, "ibv_reg_mr failed: Bad address"),
        ("open", {"limits": {"locked memory": 65536}}, {}, ""),
        ("isend", {"host name": None}, {}, ""),
        ("hang", {"temporary files": None}, {}, ""),
        ("start", {"temporary files": TMP | {"is_read_only": True}}, {},
         "libucp.so.0: cannot open shared object file: No such file or directory"),
        ("isend", {"temporary files": TMP | {"free": 0}}, {}, ""),
        ("abort at start", {}, {"FI_PROVIDER": "psm2"}, "providers: psm2, tcp"),
        ("abort at start", {}, {"NCCL_SOCKET_IFNAME": "eth7"}, "failed: no socket interface found"),
        ("killed", {"job step": {"memory": [1 << 30, "/g"], "full": 7}}, {}, ""),
        ("host memory", LIMITED, {}, ""),
        ("reduce", ALL_SMALL, ALL_SET, "NCCL WARN Cuda failure 700"),
        ("isend", ALL_SMALL, ALL_SET, ""),
        ("open", ALL_SMALL, ALL_SET, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tries", [True, False])
def test_what_is_merely_there_is_no_cause(
    failure: str, seen: Mapping[str, Json], environ: dict[str, str], said: str, tries: bool
) -> None:
    finding = explained(entry(failure, said), seen, environ, tries=tries)
    assert sentences.summary(finding) == "it failed"
    assert finding.remedy == "the right one"
    mentions = [line for line in sentences.evidence(finding) if line.startswith("also set here: ")]
    assert len(mentions) <= 1
    assert not (tries and mentions) or failure == "init" or environ is ALL_SET or "ld.so" in said


def tried(failure: str, name: str, value: str, *words: str, **others: str) -> tuple[object, ...]:
    return Shown.TRIED, failure, {}, {**others, name: value}, "", name, words or (f"{name}={value}",)


def stated(failure: str, seen: object, environ: object, said: str, *words: str) -> tuple[object, ...]:
    return Shown.STATED, failure, seen, environ, said, "", words


def measured(failure: str, seen: object, said: str, *words: str) -> tuple[object, ...]:
    return Shown.MEASURED, failure, seen, {}, said, "", words


def in_file(file: str, name: str, value: str, culprit: str, failure: str = "start") -> tuple[object, ...]:
    seen = {"parameters": [[f"{file}:2", name, value]]}
    return Shown.TRIED, failure, seen, {}, "", culprit, (f"{name}", f"{file}:2")


@pytest.mark.parametrize(
    ("how", "failure", "seen", "environ", "said", "culprit", "words"),
    [
        tried("start", "FI_PROVIDER", "psm2", I_MPI_FABRICS="shm:ofi"),
        tried("start", "FI_PROVIDER", "nosuch", "FI_PROVIDER=nosuch", MPIR_CVAR_CH4_NETMOD="ofi"),
        tried("start", "FI_PROVIDER_PATH", "/nonexistent"),
        tried("start", "I_MPI_FABRICS", "ofi"),
        tried("start", "I_MPI_OFI_PROVIDER", "psm2"),
        tried("start", "MPIR_CVAR_CH4_NETMOD", "nosuch"),
        tried("start", "UCX_TLS", "rc_verb"),
        tried("isend", "UCX_TLS", "rc,sm"),
        tried("start", "OMPI_MCA_btl", "self", OMPI_MCA_pml="ob1"),
        tried("start", "OMPI_MCA_pml", "ucxx"),
        tried("first send", "OMPI_MCA_btl", "self"),
        tried("start", "UCX_NET_DEVICES", "mlx5_4:1", "names no interface", "unset UCX_NET_DEVICES, or"),
        tried("start", "FI_TCP_IFACE", "eth7", FI_PROVIDER="tcp"),
        tried("first send", "OMPI_MCA_btl_tcp_if_include", "eth7"),
        tried("nccl start", "NCCL_SOCKET_IFNAME", "bond0", "NCCL_SOCKET_IFNAME=bond0 names no interface"),
        tried("nccl start", "NCCL_SOCKET_IFNAME", "=eth"),
        tried("nccl start", "NCCL_IB_HCA", "=mlx5_9"),
        tried("nccl start", "NCCL_NET", "Nosuch"),
        tried("isend", "MPIR_CVAR_ERROR_CHECKING", "0", "=0 switches a safety off: 0: MPI calls"),
        tried("isend", "OMPI_MCA_mpi_param_check", "false"),
        tried("reduce", "NCCL_CHECKS_DISABLE", "1"),
        tried("data", "UCX_MEM_CUDA_HOOK_MODE", "none"),
        tried("data", "FI_CXI_DISABLE_CUDA_SYNC_MEMOPS", "1"),
        (Shown.TRIED, "open", HOOK, {}, "", "LD_PRELOAD", ("/opt/libhook.so is preloaded", "unset LD_PRE")),
        (Shown.TRIED, "open", {}, {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments:True"}, "pidfd_open failed",
         "PYTORCH_ALLOC_CONF", ("has expandable segments",)),
        in_file("/h/.openmpi/mca-params.conf", "pml", "ucxx", "OMPI_MCA_pml"),
        in_file("/h/.nccl.conf", "NCCL_SOCKET_IFNAME", "bond0", "NCCL_CONF_FILE", "nccl start"),
        in_file("/h/ucx.conf", "UCX_TLS", "rc_verb", "UCX_TLS"),
        stated("start", {}, {"FI_PROVIDER": "psm2"}, "provider psm2 is unknown", "FI_PROVIDER=psm2"),
        stated("start", {}, {"UCX_TLS": "rc_verb"}, "ERROR no usable transports (asked rc_verb)", "rc_verb"),
        stated("start", {}, {"OMPI_MCA_pml": "ucxx"}, "Component ucxx was not found", "OMPI_MCA_pml=ucxx"),
        stated("nccl start", {}, {"NCCL_SOCKET_IFNAME": "bond0"}, "WARN no socket interface found", "bond0"),
        stated("open", {"preloads": [["/etc/ld.so.preload:1", "/lib/libx.so"]]}, {},
               "error in /lib/libx.so(+0x1)", "libx.so is preloaded before the driver", "edit /etc/ld.so"),
        stated("start", {"limits": {"locked memory": 65536}}, {},
               "ibv_reg_mr(len=9) failed: Cannot allocate memory", "(ulimit -l)"),
        stated("start", {"job step": {"processes": [9, "/g"]}}, {}, "can't start new thread", "only 9 more"),
        stated("not started", {"job step": {"processes": [9, "/g"]}}, {},
               "sh: fork: Resource temporarily unavailable", "only 9 more"),
        stated("start", {"host name": {"name": "x7", "error": "unknown"}}, {}, "gethostbyname failed", "x7"),
        measured("start", {"shared memory": SHM | {"free": 3 * MIB}}, "", "/dev/shm has 3 MiB free"),
        measured("nccl start", {"shared memory": SHM | {"free": 0}}, "", "/dev/shm has 0 MiB free"),
        measured("reduce", {"shared memory": SHM | {"free": 0}}, "WARN Error: posix_fallocate of /dev/shm/n "
                 "failed: No space left on device", "/dev/shm has 0 MiB free", "--shm-size=1g"),
        measured("start", {"shared memory": SHM | {"inodes": 0}}, "", "/dev/shm has no inode"),
        measured("start", {"shared memory": SHM | {"is_read_only": True}}, "Shared memory error", "mounted"),
        measured("start", {"shared memory": SHM | {"is_writable": False}}, "", "/dev/shm cannot be written"),
        measured("start", {"temporary files": TMP | {"is_read_only": True}}, "error: session dir", "/tmp is"),
        measured("not started", {"temporary files": {"unreadable": "No such file: '/t'"}},
                 "mkdir /t failed", "TMPDIR: No such file"),
        measured("not started", {"temporary files": TMP | {"free": 0}}, "", "/tmp has 0 MiB free"),
        measured("not started", {"temporary files": TMP | {"inodes": 0}}, "", "/tmp has no inode free"),
        measured("killed", {"job step": {"memory": [1 << 30, "/g"], "killed": 2}}, "", "may use 1024 MiB",
                 "killed for that: 2"),
        measured("host memory", {"job step": {"memory": [1 << 30, "/g"], "full": 7}}, "", "may use 1024 MiB"),
        measured("not started", LO_DOWN, "", "the loopback interface is down", "ip link set lo up"),
        measured("start", ELSEWHERE, "connect failed: No route to host", "another host's address (203.0"),
        measured("hang at start", {"host name": None}, "", "reading host name takes more than 1 s"),
        tried("first send", "OMPI_MCA_btl_tcp_if_include", "eth7", OMPI_MCA_btl="self,tcp"),
        (Shown.TRIED, "isend", {}, {"UCX_TLS": "rc,sm"}, "", "UCX_TLS",
         ("UCX_TLS=rc,sm has no transport for device memory", "add cuda_copy,cuda_ipc")),
        # a defect of the node stands before a setting that would avoid it; what is only likely stands behind
        (Shown.MEASURED, "start", {"shared memory": SHM | {"free": 0}}, {"I_MPI_FABRICS": "shm"}, "",
         "I_MPI_FABRICS", ("/dev/shm has 0 MiB free",)),
        (Shown.MEASURED, "abort at start", LO_DOWN, {"MPIR_CVAR_CH4_NETMOD": "ofi"},
         "OFI call tsenddata failed (default nic=lo: No such file or directory)", "MPIR_CVAR_CH4_NETMOD",
         ("the loopback interface is down",)),
        (Shown.TRIED, "abort at start", {"shared memory": SHM | {"free": 40 * MIB}},
         {"MPIR_CVAR_CH4_NETMOD": "nosuch"}, "", "MPIR_CVAR_CH4_NETMOD", ("MPIR_CVAR_CH4_NETMOD=nosuch",)),
        (Shown.TRIED, "abort at start", ELSEWHERE, {"FI_TCP_IFACE": "eth7"}, "connect failed: No route",
         "FI_TCP_IFACE", ("FI_TCP_IFACE=eth7 names no interface",)),
    ],
)  # fmt: skip
def test_cause_that_is_shown_stands_before_the_call(
    how: Shown, failure: str, seen: Mapping[str, Json], environ: dict[str, str], said: str, culprit: str,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    finding = explained(entry(failure, said), seen, environ, culprit, tries=bool(culprit))
    assert sentences.summary(finding).endswith("; it failed"), finding
    for word in words:
        assert word in f"{sentences.summary(finding)} {finding.remedy}"
    assert finding.remedy != "the right one"
    assert not [line for line in sentences.evidence(finding) if line.startswith("also set")]
    (cause,) = [item for item in finding.evidence if item.kind is EvidenceKind.CAUSE]
    assert cause.values["shown"] == how.value


@pytest.mark.parametrize(("failure", "named"), [("pair's data", 1), ("pair crashes", 0), ("pair leaks", 0)])
@pytest.mark.parametrize(
    ("facts", "words"), [(TRANSLATES, "may be due to the IOMMU"), (REDIRECTS, "ACS"), ((), "it failed")]
)
def test_iommu_and_acs_explain_wrong_data_between_gpus(
    facts: tuple[Fact, ...], words: str, failure: str, named: int
) -> None:
    finding = explained(entry(failure), {}, {}, facts=facts)
    assert (words in sentences.summary(finding)) is bool(named or not facts)


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


def test_sources_cost_little() -> None:
    """At most 0.15 s of processor time, also on a loaded machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    node_state.look()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.15


def test_node_is_not_read_again_if_nothing_failed() -> None:
    passed = entry("start")
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
