"""Signatures match their messages in every log format, and are fast on any log."""

from __future__ import annotations

import re
import time
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues import Confidence, Signature
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.lines import REACH
from gpuipc_doctor.knownissues.regexes import objections
from gpuipc_doctor.knownissues.scanner import Search
from gpuipc_doctor.knownissues.signatures import spaced
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Verdict

ENTRIES = {entry.id: entry for entry in (*knownissues.load(), *knownissues.load_messages())}
SIGNATURES = [(entry, signature) for entry in ENTRIES.values() for signature in entry.signatures]
FACTS = [Fact(need.fact, "1", "x") for _, one in SIGNATURES for need in one.needs]


@cache
def search() -> Search:
    """All signatures. Not made at import: each worker of a test run imports every test file."""
    return Search([signature for _, signature in SIGNATURES])


def found(text: str, *facts: Fact, least: Confidence = Confidence.MEDIUM) -> set[str]:
    """The entries that a log shows by its signatures only."""
    shown = (SIGNATURES[number] for number in search().shown(text))
    return {
        entry.id
        for entry, signature in shown
        if signature.confidence >= least and signature.applies(facts) is Verdict.BAD
    }


def test_each_signature_is_shown_by_its_sample_in_a_log_of_all_and_names_its_file() -> None:
    searched = [(number, entry, one) for number, (entry, one) in enumerate(SIGNATURES) if one.patterns]
    shown = search().shown("".join(one.sample + "\n" * 2 * REACH for *_, one in searched))
    assert [entry.where for number, entry, one in searched if number not in shown or not one.source] == []


def test_high_confidence_is_for_lines_of_one_entry_only() -> None:
    for entry, signature in SIGNATURES:
        if signature.confidence is Confidence.HIGH and signature.patterns:
            assert found(signature.sample, *FACTS) <= {entry.id}, f"{entry.id} is not alone with its sample"


LOGS = {
    # UCX tries huge pages first and continues without; any bad pointer ends with the second line.
    "sys.c:61  UCX  ERROR shmget(size=4194304 flags=0xfb0) for mm_x failed: Operation not permitted": set(),
    "Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address 0x7f1200)": set(),
    # Versions, ranks, hosts, line numbers and prefixes differ from the samples.
    "3: (GTL DEBUG: 3) cuIpcOpenMemHandle: invalid argument, CUDA_ERROR_INVALID_VALUE, line no 272": {
        "cray-mpich-gpu-binding-hides-peers",
    },
    "GTL_DEBUG: [12] hsa_amd_ipc_memory_attach: HSA_STATUS_ERROR_INVALID_ARGUMENT: One of": {
        "cray-mpich-gpu-binding-hides-peers",
    },
    "nid002: libfabric:9:17::cxi:mr:cxip_do_map():144<warn> nid002: cxil_map() failed: -22": {
        "cxi-device-memory-not-mapped",
    },
    "[5] register_mr_buffers:702 NCCL WARN NET/OFI Unable to register memory (type = 2) for device\n"
    " 3. RC: -22, Error: Invalid argument\nNET/OFI Selected Provider is cxi (found 4 nics)": {
        "cxi-device-memory-not-mapped",
        "ofi-nccl-memory-not-registered",
    },
    "[5] register_mr:1 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -22": {
        "ofi-nccl-memory-not-registered",
    },
    # Reasons of a /dev/kfd that cannot be opened, with and without a place in the group.
    "Unable to open /dev/kfd read-write: Cannot allocate memory\nuser is member of render group": {
        "rocm-kfd-not-accessible",
    },
    "Unable to open /dev/kfd read-write: Permission denied": {"rocm-kfd-not-accessible"},
    # Warnings of jobs that run well.
    "UCX  WARN  unused environment variable: UCX_A (set UCX_WARN_UNUSED_ENV_VARS=n to suppress)": set(),
    "srun: warning: can't honor --ntasks-per-node set to 4 which doesn't match the requested tasks 8": set(),
    "pyxis: importing docker image: nvcr.io/nvidia/notebook:24.01": set(),
    "DeprecationWarning: the parameter is deprecated": set(),
    "[proxy:0@n1] cache_put_flush (proxy/pmip_pmi.c:183): assert (s) failed": set(),
    "Multiple GPUs are visible to each MPI rank, This may lead to incorrect or suboptimal mapping.!": set(),
    "Open MPI's OFI driver detected multiple equidistant NICs from the current process,": set(),
    "MPI startup(): PMI server not found. Please set I_MPI_PMI_LIBRARY variable": set(),
    "mm_xpmem.c:85  UCX  WARN  remote segment id 200009a2f apid 200009a3e is not released": set(),
    "[0] MPI startup(): Warning: Runtime Level Zero library not found": set(),
    "slurmstepd: error: couldn't chdir to `/root/x': No such file or directory: going to /tmp instead": set(),
    "Kokkos::OpenMP::initialize WARNING: OMP_PROC_BIND environment variable not set": set(),
    "INFO:    User not listed in /etc/subuid, trying root-mapped namespace": set(),
    "*** WARNING: Using GASNet's mpi-conduit, which exists for portability convenience.": set(),
    "Warning *** The GPU and IB selected are not on the same socket.": set(),
    "systemd[1]: session-3.scope: Stopping timed out. Killing.": set(),
    "[n1:1] MCW rank 0 is not bound (or bound to all available processors)": set(),
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510": set(),
    "cuda_ipc_cache.c:301  UCX  ERROR cuIpcOpenMemHandle() failed: CUDA_ERROR_ALREADY_MAPPED": {
        "mpich-ipc-stale-mapping",
        "ucx-ipc-element-already-exists",
    },
    "RuntimeError: pidfd_open:Operation not permitted": {"torch-expandable-segments-pidfd"},
    "pidfd_getfd: Bad file descriptor": {"torch-expandable-segments-pidfd"},
    "include/shm.h:31 NCCL WARN Call to posix_fallocate failed: No space left on device": {
        "nccl-dev-shm-too-small",
    },
    "nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err 0)": {"nvidia-peermem-does-not-load"},
    "modprobe: ERROR: could not insert 'nv_peer_mem': Unknown symbol in module": {
        "nvidia-peermem-does-not-load",
    },
    "cuda_ipc_cache.c:151 UCX ERROR failed to open ipc mem handle. addr:0x7f41ca00000"
    "\n0 len:30680756736 (Element already exists)": {
        "ucx-ipc-element-already-exists",
    },
    "cuda_ipc_cache.c:77 UCX  ERROR failed to insert region 0x7f": {"ucx-ipc-element-already-exists"},
    "#2  MPL_gpu_fast_memcpy ()\n#5  MPIDI_GPU_copy_data_async ()\n#6  MPIDI_IPC_rndv_cb ()": {
        "mpich-ipc-evict-in-use",
    },
    # Built from the programs' format strings, with other values than in the samples.
    "[2026-01-12T08:22:20.530] error: Failed to destroy CXI Service ID 12 (cxi3): Device or resource busy": {
        "cxi-service-busy-after-job",
    },
    "error: switch_g_job_postfini: Device or resource busy": {"cxi-service-busy-after-job"},
    "error: switch_g_job_postfini: Unspecified error": set(),
    "error: Failed to destroy CXI Service ID 7 (cxi0): -16": {"cxi-service-busy-after-job"},
    "error: Failed to destroy CXI Service ID 7 (cxi0): Invalid argument": set(),
    "cxi_service: Could not delete service 44: Device or resource busy": {"cxi-service-busy-after-job"},
    "flux-slingshot: cxi3: cxil_alloc_svc: Invalid argument": {"cxi-service-cannot-be-made"},
    "flux-slingshot: cxi3: cxil_alloc_svc: No space left on device": set(),
    "event RC != RC_OK: NO_SPACE\nFailed to get target LINK event: No message of desired type": {
        "cxi-list-entries-exhausted",
    },
    "event RC != RC_OK: CANCELED": set(),
    "[2026-01-02 15:30:37][error][7] Unable to map CUDA IPC memory, error=201": {"cuda-context-gone"},
    "[2026-01-02 15:30:37][error][7] Unable to map CUDA IPC memory, error=1": set(),
    "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle, "
    "roundedUpAllocationSize, &prop, 0 ) on node-0, rank = 3 in Unicast() : memory.cpp:71": {
        "nvidia-fabric-handle-not-permitted",
    },
    "Call to cuMemCreate(&memHandle, nbytes, &prop, 0 ) failed. /w/gpu_utils.cc:113 (Cu failure: operation "
    "not permitted)": {"nvidia-fabric-handle-not-permitted"},
    "CU error encountered at: file=x/allocator.cu line=125, call='cuMemExportToShareableHandle(&h, handle,"
    " CU_MEM_HANDLE_TYPE_FABRIC, 0)' Reason=operation not supported.": {
        "torch-fabric-handle-accepted-then-fails"
    },
    "CU error encountered at: file=x/allocator.cu line=125, call='cuMemExportToShareableHandle(&h, handle,"
    " CU_MEM_HANDLE_TYPE_FABRIC, 0)' Reason=out of memory.": set(),
    "WARNING: ttm/ttm_bo.c:650 at amdttm_bo_unpin+0x6d/0x80 [amdttm], CPU#3: python/4711": {
        "rocm-vmm-memory-ipc-kernel-bug",
    },
    # An errno decides, and so does the program that prints it.
    "x1: cxil_map lni: 7 base: 0x1f len: 256 map_flags: 0x3c failure: -22, Invalid argument": {
        "cxi-device-memory-not-mapped",
    },
    "x1: cxil_map lni: 7 base: 0x1f len: 256 map_flags: 0x3c failure: -14, Bad address": {"cxi-bad-address"},
    "(GTL DEBUG: 1) cuIpcOpenMemHandle: CUDA_ERROR_ALREADY_MAPPED, line no 360": set(),
    "(GTL DEBUG: 1) cuIpcOpenMemHandle (in x.c at line 36): invalid argument, CUDA_ERROR_INVALID_VALUE": {
        "cray-mpich-gpu-binding-hides-peers",
    },
    "hipIpcGetMemHandle failed: invalid argument": set(),
    "cudaIpcGetMemHandle failed: invalid argument": {"cuda-ipc-async-memory"},
    "NVRM: Xid (PCI:0000:c1:00): 119, pid=77, name=python, Timeout waiting for RPC from GSP!": {
        "nvidia-gsp-timeout"
    },
    # Too common to mean anything alone.
    "NVRM: GPU0 GSP_LOCKDOWN_NOTICE": set(),
    "#5 ompi_errhandler_request_invoke () from libmpi.so.40": set(),
    "cudaErrorMemoryAllocation: out of memory": set(),
    "CUDA error: 2": set(),
    "UCX calls cuIpcCloseMemHandle and cudaIpcOpenMemHandle": set(),
    "HSA_STATUS_ERROR_INVALID_ARGUMENT": set(),
    "ucp_mm.c:110 UCX ERROR failed to register address 0x2a length 131072 on md[4]=ib": set(),
    "Segmentation fault (core dumped)": set(),
    # Healthy jobs print these.
    "cuda_dnn.cc:9261] Unable to register cuDNN factory: one has already been registered": set(),
    "WARNING: Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")": set(),
    "Error caught was: No module named 'triton'": set(),
    "cudaMalloc 700 bytes, cudaMemcpy 100 bytes, cuInit took 3 us": set(),
    "CUDA streams: 719 of 1000 kernels done, 0 failed": set(),
    "Unable to find CUDA in 700 ms; CUDA error count 0": set(),
    "cxi_core 0000:21:00.0: Failed to find Nvidia GPU symbols. Nvidia RDMA support disabled.": set(),
}


def test_log_shows_exactly_these_entries() -> None:
    assert {log: found(log) for log in LOGS} == LOGS


def test_text_with_a_fact_is_recognised() -> None:
    log = "cxi_core 0000:21:00.0: Failed to find Nvidia GPU symbols. Nvidia RDMA support disabled."
    assert found(log, Fact("nvidia-driver", "580.95.05", "NVML")) == {"cxi-device-memory-not-mapped"}
    assert found(log, Fact("nvidia-driver", None, "no /proc/driver/nvidia")) == set()
    oom = "CUDA error: 2\nMPICH ERROR [Rank 0]"
    hints = found(oom, Fact("cray-mpich", "8.1.28", "module"), least=Confidence.LOW)
    assert hints == {"cray-mpich-ipc-cache-leak"}


@pytest.mark.parametrize(
    ("pattern", "becomes"),
    [
        ("a b", r"a\s+b"),
        ("a   b", r"a\s+b"),
        ("a ?b", r"a\s*b"),
        ("a *b +c", r"a\s*b\s+c"),
        (r"a\ b[ x]c[]  ]d[^ ]", r"a\ b[ x]c[]  ]d[^ ]"),
    ],
)
def test_space_stands_for_any_white_space(pattern: str, becomes: str) -> None:
    assert spaced(pattern) == becomes
    re.compile(becomes)


HARMLESS = [
    "abc",
    r"a.*b.*c",
    r"(?:ab)*c",
    r"(foo|bar)baz",
    r"\d+:\d+ \S+",
    r"[^)]{0,40}\)",
    "(a|a)b",
    "x{3}y{2,4}",
    r"\(nil\)\s+len",
]
HARMFUL = {
    "(a+)+$": "in several ways",
    "(a|b)*c|(ab|a)*c": "in several ways",
    "(x?){40}y": "in several ways",
    "(?:a|ab)+": "in several ways",
    r"(\w+\s?)*:": "in several ways",
    "a.*b.*c.*d": "catastrophic backtracking",
    r"\s*\s*\s*\s*x": "catastrophic backtracking",
    "a?" * 12 + "a" * 12: "catastrophic backtracking",
    "(a|a)" * 12 + "b": "catastrophic backtracking",
    "x*": "matches the empty string",
    r"\b": "matches the empty string",
    "(?i)x": "sets flags",
    "(?i:x)": "sets flags",
    "(?=x)y": "look-around",
    r"(x)\1": "look-around",
    "[": "not a regular expression",
    "(" * 3000: "not a regular expression",
    "x{99999999999}": "not a regular expression",
}


@pytest.mark.parametrize("pattern", HARMLESS)
def test_harmless_pattern_is_accepted(pattern: str) -> None:
    assert list(objections(pattern)) == []


@pytest.mark.parametrize("pattern", HARMFUL)
def test_harmful_pattern_is_refused(pattern: str) -> None:
    (objection,) = objections(pattern)
    assert HARMFUL[pattern] in objection


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\s", " "])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,3}", "{2}"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=2).map(lambda both: f"(?:{'|'.join(both)})"),
    ),
    max_leaves=8,
)


@given(PATTERNS)
@example(r"(?:a*)b*a*c")
def test_accepted_patterns_do_not_take_exponential_time(pattern: str) -> None:
    """Patterns that pass the check are fast: an exponential one would take years on these 40 characters."""
    pattern += "c"
    if list(objections(pattern)):
        return
    compiled = re.compile(pattern)
    for text in ("a" * 40, "ab" * 20, " " * 40, "a b" * 13):
        started = time.process_time()
        compiled.search(text)
        assert time.process_time() - started < 1.0


@given(st.text(max_size=40))
def test_any_pattern_is_accepted_or_refused(pattern: str) -> None:
    if not list(objections(spaced(pattern))):
        re.compile(spaced(pattern))


def test_signatures_apply_if_their_needs_hold() -> None:
    needy = Signature(("x",), needs=(Need("ucx"), Need("env:A", "^0?$")))
    assert needy.applies(()) is Verdict.UNKNOWN
    assert needy.applies((Fact("ucx", "1.15.0", "x"), Fact("env:A", None, "not set"))) is Verdict.BAD
    assert needy.applies((Fact("ucx", "1.15.0", "x"), Fact("env:A", "1", "environment"))) is Verdict.FINE
