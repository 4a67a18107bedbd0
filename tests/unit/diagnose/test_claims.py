"""A message claims no more than its text holds: neighbours of texts that were told too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.diagnose import diagnosis_content
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues import load, load_messages

ENTRIES = [*load(()), *load_messages()]

CASES = {
    "a reset that fails is no reset": (
        "amdgpu 0000:e3:00.0: amdgpu: GPU reset(2) failed",
        "reset of an AMD GPU failed",
        "the driver reset an AMD GPU",
    ),
    "a page may be mapped and not writable": (
        "Memory access fault by GPU node-4 on address 0x7f2c. Reason: Write access to a read-only page.",
        "not mapped or not allowed",
        "that is not mapped\n",
    ),
    "No ROCm runtime is not /dev/kfd": (
        "No ROCm runtime is found, using ROCM_HOME='/opt/rocm'",
        "finds no GPU",
        "/dev/kfd",
    ),
    "status 9 is an invalid request": (
        "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<41> with status=9 opcode=1",
        "refuses work",
        "receive buffers",
    ),
    "status 13 is receiver not ready": (
        " Completion with error at client\n Failed status 13: wr_id 0 syndrom 0x81",
        "receive buffers",
        "acknowledgement",
    ),
    "a local QP error is no access error": (
        "Failed status 2: IBV_WC_LOC_QP_OP_ERR local QP operation error",
        "refuses work",
        "refused access",
    ),
    "gdr_pin_buffer 22 with NCCL is no missing module": (
        "NCCL WARN gdr_pin_buffer(addr 7f12, size 65536) failed: 22",
        "a call of GDRCopy fails",
        "missing, too old",
    ),
    "cuMemCreate 800 does not name fabric handles": (
        "cuMemCreate failed: 800",
        "as for fabric handles",
        "memory for fabric handles cannot",
    ),
    "illegal state 401 is no fabric manager": (
        "CUDA error 401: the operation cannot be performed in the present state",
        "401",
        "fabric manager does not start",
    ),
    "999 in the middle of a run is no start": (
        "cudaMemcpyAsync failed: CUDA_ERROR_UNKNOWN",
        "unknown error",
        "CUDA does not start",
    ),
    "205 does not name a peer": (
        "cudaGraphicsMapResources failed: cudaErrorMapBufferObjectFailed",
        "cannot map",
        "peer access is reported",
    ),
    "804 is not an old driver": (
        "CUDA error 804: forward compatibility was attempted on non supported HW",
        "compatibility",
        "driver is too old",
    ),
    "a brand that an image requires is no driver": (
        "nvidia-container-cli: requirement error: unsatisfied condition: brand = tesla",
        "kind",
        "driver is too old",
    ),
    "a handle's unknown error is not off the bus": (
        "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error",
        "NVML",
        "has fallen off the bus",
    ),
    "a required reset is not off the bus": (
        'level=fatal msg="error getting device handle: ERROR_RESET_REQUIRED"',
        "needs a reset",
        "has fallen off the bus",
    ),
    "Xid 154 back to none needs nothing": (
        "NVRM: Xid (PCI:0000:01:00): 154, recovery action changed from 0x1 (Reset) to 0x0 (None)",
        "",
        "needs a reset",
    ),
    "Xid 32 is a push buffer": (
        "NVRM: Xid (PCI:0000:01:00): 32, pid=77, name=a.out, Channel ID 00000008 intr 00040000",
        "push buffer",
        "illegal access",
    ),
    "zero uncorrectable errors are none": (
        "GPU 3: uncorrectable ECC errors: 0, double bit errors: 0",
        "",
        "uncorrectable error",
    ),
    "a logged machine check may be corrected": (
        "mce: [Hardware Error]: Machine check events logged",
        "corrected or not",
        "processor or memory reports a hardware error",
    ),
    "a status of AER is not uncorrected": (
        "pcieport 0000:15:01.0: AER: aer_status: 0x00000001, aer_mask: 0x00002000",
        "",
        "uncorrected error",
    ),
    "std::bad_alloc is no killed process": (
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "cannot allocate host memory",
        "ran out",
    ),
    "a bus error is not always /dev/shm": (
        "*** Process received signal ***\nSignal: Bus error (7)",
        "bus error",
        "not a GPU's fault: a bus error",
    ),
    "an IPC open of 201 is a context": (
        "cuda_ipc_cache.c:284  UCX  ERROR cuIpcOpenMemHandle() failed: invalid device context",
        "context",
        "opens twice",
    ),
    "an assertion of PSM is no adapter": (
        "Assertion failure at psm_ep.c:832: ep->epid != 0",
        "assertion of PSM",
        "cannot open the network adapter",
    ),
    "PMIx errors are not versions": (
        "[n1:4711] PMIX ERROR: PMIX TEMPORARILY UNAVAILABLE in file ptl_tcp.c at line 688",
        "PMIx reports an error",
        "have different versions",
    ),
    "a conflict of modules is no missing module": (
        'Lmod has detected the following error: Cannot load module "cuda/12" beside "gcc/4"',
        "cannot be loaded",
        "does not exist on this system",
    ),
    "an expired credential is no lost node": (
        "srun: error: Task launch for StepId=3991.0 failed on node node07: Job credential expired",
        "cannot start a task",
        "lost a node",
    ),
    "an unrecoverable open does not continue": (
        "The call to cuIpcOpenMemHandle failed. This is an unrecoverable error and will",
        "cannot create or open",
        "continues without",
    ),
    "EFAULT of CMA is a buffer, not a permission": (
        "MPIDI_CMA_copy_data(54): \ncopy_iovs(201).........: process_vm_readv failed (errno 14)",
        "copies a buffer",
        "CMA is not permitted",
    ),
    "Cray's PCIe errors may abort no read": (
        "cxi_ss1 0000:41:00.0: cxi0[hsn0]: PCIe error: correctable error rate exceeds the specification",
        "PCIe",
        "corrected PCIe",
    ),
    "GTL asserts more than its start": (
        "Assertion failed in file ../src/mpid/common/cray/cray_gpu_ops.c at line 136: 0",
        "GTL",
        "no GPU is visible",
    ),
    "nvidia-smi that is not found is no container": (
        "bash: nvidia-smi: command not found",
        "nvidia-smi",
        "container runtime cannot",
    ),
    "an IPC open that Cray's GTL refuses names no binding": (
        "(GTL DEBUG: 3) cuIpcOpenMemHandle: invalid argument, CUDA_ERROR_INVALID_VALUE, line no 148",
        "as when Slurm's GPU binding",
        "binding hides the other",
    ),
    "MPICH's handle that is not mapped is not yet stale": (
        "MPIDI_GPU_ipc_handle_map(220): gpu_ipc_handle_map failed",
        "cannot create, open or release",
        "freed",
    ),
    "ENOMEM of ibv_create_qp may be the adapter's": (
        "ibv_create_qp(mlx5_0) failed: Cannot allocate memory (errno 12)",
        "mostly because",
        "because the limit is too low",
    ),
    "mismatched adapters may not hang yet": (
        "NCCL WARN Detected mixed local Net device counts across ranks",
        "can hang",
        "hang silently because",
    ),
    "a handle closed late is no hang": (
        "The call to cuIpcCloseMemHandle failed. This is a warning and the program will continue to run.",
        "cannot close an IPC handle",
        "MPI_Finalize hangs",
    ),
    "an MMU fault of an unknown client is one fault": (
        "NVRM: Xid (PCI:0018:01:00): 31, MMU Fault: ENGINE GRAPHICS UNRECOGNIZED_CLIENT faulted",
        "illegal access",
        "all GPUs of the node are lost",
    ),
    "EINVAL of a dmabuf names no allocator": (
        "ibv_reg_dmabuf_mr(fd=12) failed: Invalid argument",
        "as memory from cuMemCreate",
        "memory from cuMemCreate cannot",
    ),
    "EFAULT of ibv_reg_mr names no GPU": (
        "UCX ERROR ibv_reg_mr(address=0x7f12, length=64, access=0xf) failed: Bad address",
        "as device memory",
        "cannot register device memory",
    ),
    "a stuck watchdog is no late rank": (
        "[PG 0 Rank 25] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress",
        "watchdog itself",
        "a rank was late",
    ),
    "another program's provider is none of libfabric's": ("Storage provider s3 not found", "", "libfabric"),
    "another module's version magic is none of NVIDIA's": (
        "zfs: version magic '5.4.0-100' should be '5.4.0-105'",
        "",
        "NVIDIA",
    ),
    "SIGSEGV in Fortran has no place": (
        "forrtl: severe (174): SIGSEGV, segmentation fault occurred",
        "as far as its lines show",
        "not in a library",
    ),
    "a QP number of EFA is no region": (
        "efa_rdm_txe()<warn> Bad queue pair (QP) number (QP does not exist or is in error state)",
        "queue pair is not valid",
        "refused access",
    ),
    "a program that cannot open a device is no container runtime": (
        "open /dev/nvidiactl: no such file or directory",
        "device files are not there",
        "container runtime",
    ),
    "any program's shm_open is not MPICH's": (
        "shm_open(/psm2_shm.1) failed: Permission denied",
        "a program cannot use shared memory",
        "MPICH",
    ),
    "any program's connection is not NCCL's": ("Connect to db:5432 failed: Connection refused", "", "NCCL"),
    "any program's value is not UCX's": ("Invalid value for port: 'abc'", "", "UCX"),
    "zeInit fails on nodes of any vendor": ("Error: failure in zeInit 78000001", "finds no GPU", "CUDA"),
    "a GuC that is loaded is no hang": (
        "xe 0000:03:00.0: [drm] GT0: GuC firmware i915/bmg_guc.bin version 70.44.1 is loaded",
        "",
        "Intel GPU",
    ),
    "a GPU that hung is of no program": (
        "i915 0000:4d:00.0: [drm] GPU HANG: ecode 12:1:84dffffb, in python3 [4711]",
        "an Intel GPU hung",
        "Level Zero",
    ),
    "a refused handle of Level Zero has no age": (
        "oneCCL: ze_call.cpp:43 do_call: ze error at zeMemOpenIpcHandle, code: ZE_RESULT_ERROR_UNKNOWN",
        "export, exchange or open an IPC handle",
        "has freed",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message_claims_no_more_than_its_text(name: str, tmp_path: Path) -> None:
    text, says, never = CASES[name]
    (tmp_path / "job.log").write_text(f"{text}\n")
    diagnosis = diagnose([str(tmp_path / "job.log")], Examination(ENTRIES))
    found = [f"{one.issue.title}\n" for one in diagnosis.recognised]
    assert not says or any(says in title for title in found), found
    sure = [f"{one.issue.title}\n" for one in diagnosis.found]
    assert not any(never in title for title in sure), sure
    if not says:
        assert not found
    assert diagnosis_content.screen(diagnosis, width=100, exit_code=0)
