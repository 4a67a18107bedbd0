"""Sample documents for bug reports: nodes and jobs."""

from __future__ import annotations

from dataclasses import replace

from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.model import Fact, Finding
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.ticket.subject import Subject
from tests.sample_reports import gpus, healthy, replaced, seed_002
from tests.unit.job.test_job_content import ONE_LATE, STUCK

NODE = (
    Fact("os", "Rocky Linux 9.4 (Blue Onyx)", "/etc/os-release"),
    Fact("cpu", "AMD EPYC 7763 64-Core Processor, x86_64", "/proc/cpuinfo"),
    Fact("kernel", "5.14.0-427.13.1.el9_4.x86_64", "/proc/sys/kernel/osrelease"),
    Fact("container", "none", "no /.dockerenv"),
)
NVIDIA = (
    Fact("nvidia-driver", "580.159.04", "/proc/driver/nvidia/version"),
    Fact("nvidia-module", "open", "/proc/driver/nvidia/version"),
    Fact("cuda-driver", "13.0", "cuDriverGetVersion"),
    Fact("nvidia-peermem", "580.159.04", "/sys/module/nvidia_peermem/version"),
    Fact("gdrcopy", None, "no /sys/module/gdrdrv/version"),
)
AMD = (
    Fact("amdgpu", "6.10.5", "/sys/module/amdgpu/version"),
    Fact("rocm", "6.3.1", "/opt/rocm/.info/version"),
    Fact("hip-runtime", "6.3.42134", "/opt/rocm/lib/libamdhip64.so.6"),
)
OPEN_MPI = (
    Fact("openmpi", "5.0.7", "/usr/lib64/openmpi/lib/libmpi.so.40 (/etc/ld.so.cache)"),
    Fact("ucx", "1.17.0", "/usr/lib64/libucp.so.0"),
    Fact("env:UCX_TLS", "rc,cuda_ipc", "the environment"),
    Fact("env:OMPI_MCA_pml", "ucx", "the environment"),
    Fact("mlnx-ofed", "24.10", "ofed_info"),
)
HPE = (
    Fact("cray-mpich", "8.1.30", "/opt/cray/pe/mpich/8.1.30/ofi/gnu/12.3/lib/libmpi.so.12"),
    Fact("libfabric", "1.15.2.0", "fi_tostr"),
    Fact("shs", "11.0.0", "rpm -q"),
    Fact("cxi-devices", "cxi0, cxi1", "/sys/class/cxi"),
    Fact("cxi-driver", "loaded", "/sys/module/cxi_ss1"),
)


def rank(number: int, ending: Ending, *stack: str, log: tuple[str, ...] = ()) -> RoleOutcome:
    return RoleOutcome(
        f"rank {number}", ending, 4711 + number, "MPI_Recv", 3, native_stack=stack, log_tail=log
    )


RECEIVE_HANGS = Result(
    "mpi-small-message",
    Finding.fail("hung", "{role}: MPI_Recv #3 hung (10 s)", role="rank 1", remedy="look at rank 0"),
    ("cuda:0",),
    roles=(
        rank(1, Ending.HUNG, "uct_rc_mlx5_iface_progress (libuct_ib.so.0)", "PMPI_Recv (libmpi.so.40)",
             log=("[n1:4712] UCX ERROR ib_mlx5_log.c:177 Transport retry count exceeded", "ready")),
        rank(0, Ending.STOPPED),
    ),
    logs="logs/mpi-small-message",
)  # fmt: skip

WRONG = Result(
    "ipc-peer",
    Finding.fail(
        "wrong-data", "{call}: importer read other bytes: 4096 of 4096 differ", call="hipMemcpyDtoH"
    ),
    ("hip:0", "hip:1"),
)


def node(*facts: Fact, host: str = "n1", backend: str = "cuda", bad: Result = RECEIVE_HANGS) -> Report:
    devices = gpus(4, backend, "NVIDIA H200" if backend == "cuda" else "AMD Instinct MI300X")
    return replaced(healthy(devices), bad, inventory=(*NODE, *facts), host=host)


def repeated(report: Report, times: int, bad_in: set[int]) -> Report:
    """The run repeated ``times`` times, with bad findings only in repetitions ``bad_in``."""
    results = [
        replace(result, repetition=number)
        for number in range(1, times + 1)
        for result in report.results
        if result.finding.status.value == "PASS" or number in bad_in
    ]
    return replace(report, results=tuple(results))


def with_versions(job: JobReport, **versions: str) -> JobReport:
    return replace(job, ranks=tuple(replace(each, versions=dict(versions)) for each in job.ranks))


def older(report: Report) -> Report:
    """The same node with an older NCCL and driver, on which everything passed."""
    facts = (Fact("nvidia-driver", "570.86.15", ""), Fact("nccl", "2.26.2", ""))
    kept = tuple(fact for fact in report.inventory if fact.name not in ("nvidia-driver", "nccl"))
    fine = Result("mpi-small-message", Finding.ok("right", "as it should be"), ("cuda:0",))
    return replaced(
        healthy(report.devices), fine, inventory=(*kept, *facts), started="2026-10-01T08:00:00+00:00"
    )


NCCL = node(*NVIDIA, Fact("nccl", "2.27.7", "/usr/lib64/libnccl.so.2"), Fact("env:NCCL_DEBUG", "INFO", ""))

SUBJECTS = {
    "nvidia": Subject(
        replace(repeated(seed_002(), 3, {1, 2, 3}), inventory=(*NODE, *NVIDIA)),
        files=("nvidia-bug-report.log.gz",),
    ),
    "amd": Subject(node(*AMD, backend="hip", bad=WRONG)),
    "ucx": Subject(node(*NVIDIA, *OPEN_MPI), files=("ucx_info.txt",)),
    "nccl": Subject(repeated(NCCL, 10, {2, 3, 7}), before=older(NCCL)),
    "hpe": Subject(node(*NVIDIA, *HPE, host="nid001001"), also=(node(*NVIDIA, *HPE, host="nid001002"),)),
    "openmpi-job": Subject(with_versions(STUCK, openmpi="5.0.7", ucx="1.17.0")),
    "hpe-job": Subject(with_versions(ONE_LATE, **{"cray-mpich": "8.1.30", "libfabric": "1.15.2.0"})),
}
