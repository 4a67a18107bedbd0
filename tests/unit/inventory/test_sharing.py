"""How stacks share memory, by version and variable; what is not known is said so."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import yaml

from gpuipc_doctor.api.gpu import CAPABILITIES
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli.explain_sharing import document, page
from gpuipc_doctor.inventory import NAMES, sharing, variables
from gpuipc_doctor.model import Fact
from gpuipc_doctor.run import check_files
from tests import golden
from tests.checks.judging import check

SHARING = sharing.load()
CHECKS = [item.check for item in check_files.load(()) if isinstance(item, LoadedCheck)]
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}


def facts(versions: dict[str, str], environ: dict[str, str]) -> tuple[Fact, ...]:
    found = (Fact(name, version, f"/usr/lib64/{name}") for name, version in versions.items())
    names = {name for memory in SHARING for way in memory.ways for name in way.variables} | set(environ)
    env = (
        Fact(f"env:{name}", environ.get(name), "environment" if name in environ else "not set")
        for name in sorted(names)
    )
    return (*found, *env)


def ways(stack: str, version: str, **environ: str) -> list[str]:
    return [one.by for one in sharing.of_node(facts({stack: version}, environ), SHARING)]


# -- the file -------------------------------------------------------------------------------------------


def test_the_file_follows_its_schema() -> None:
    schema = json.loads(sharing.SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(sharing.SHIPPED.read_text()), schema)


def test_the_file_names_what_exists() -> None:
    ids = {one.id for one in CHECKS}
    known = variables.load()
    for memory in SHARING:
        assert memory.stack in NAMES
        assert set(memory.checks) <= ids
        for way in memory.ways:
            assert set(way.variables) <= set(known)
            assert set(way.by) <= set(sharing.MECHANISMS)
            assert not way.versions.contradictions()
            re.compile(way.matches)
    assert set(sharing.MECHANISMS.values()) <= CAPABILITIES


def test_what_decides_is_what_the_check_environment_tells() -> None:
    import sys

    assert sys.modules[type(check("environment")).__module__].DECIDE == sharing.DECISIVE


# -- what holds -----------------------------------------------------------------------------------------

LEGACY, NOT_SHARED, NOT_KNOWN = "legacy handle", "not shared", "not known"
MESSAGE, PIDFD = "file descriptor by SCM_RIGHTS", "file descriptor by pidfd_getfd"


@pytest.mark.parametrize(
    ("version", "environ", "within", "between"),
    [
        ("2.17.1", {}, LEGACY, NOT_SHARED),
        ("2.17.1", {"NCCL_CUMEM_ENABLE": "1"}, LEGACY, NOT_SHARED),
        ("2.18.5", {}, LEGACY, NOT_SHARED),
        ("2.18.5", {"NCCL_CUMEM_ENABLE": "1"}, MESSAGE, NOT_SHARED),
        ("2.19.3", {}, MESSAGE, NOT_SHARED),
        ("2.20.5", {}, MESSAGE, NOT_KNOWN),
        ("2.27.3", {}, MESSAGE, "fabric handle"),
        ("2.27.3", {"NCCL_CUMEM_ENABLE": "0"}, LEGACY, "fabric handle"),
        ("2.27.3", {"NCCL_MNNVL_ENABLE": "0"}, MESSAGE, NOT_SHARED),
        ("git-main", {}, NOT_KNOWN, NOT_KNOWN),
    ],
)
def test_nccl(version: str, environ: dict[str, str], within: str, between: str) -> None:
    assert ways("nccl", version, **environ) == [within, between]


@pytest.mark.parametrize(
    ("version", "transports", "cuda", "vmm"),
    [
        ("1.15.0", "", LEGACY, NOT_SHARED),
        ("1.18.0", "", LEGACY, "fabric handle"),
        ("1.21.0", "", LEGACY, "fabric handle"),
        ("1.22.0", "", LEGACY, f"fabric handle, else {PIDFD}"),
        ("1.22.0", "all", LEGACY, f"fabric handle, else {PIDFD}"),
        ("1.22.0", "rc,cuda", LEGACY, f"fabric handle, else {PIDFD}"),
        ("1.22.0", "^tcp", LEGACY, f"fabric handle, else {PIDFD}"),
        ("1.22.0", "sm,cuda_copy", NOT_SHARED, NOT_SHARED),
        ("1.22.0", "^cuda_ipc", NOT_SHARED, NOT_SHARED),
        ("1.22.0", "^tcp,cuda_ipc", NOT_SHARED, NOT_SHARED),
    ],
)
def test_ucx(version: str, transports: str, cuda: str, vmm: str) -> None:
    environ = {"UCX_TLS": transports} if transports else {}
    assert ways("ucx", version, **environ)[:2] == [cuda, vmm]


@pytest.mark.parametrize(
    ("stack", "version", "environ", "way"),
    [
        ("pytorch", "2.9.0+cu130", {}, LEGACY),
        ("pytorch", "2.9.0+cu130", EXPANDABLE, PIDFD),
        ("pytorch", "2.9.0+cu130", {"PYTORCH_ALLOC_CONF": "expandable_segments: true"}, PIDFD),
        ("pytorch", "2.9.0+cu130", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, LEGACY),
        ("pytorch", "2.4.1", EXPANDABLE, NOT_SHARED),
        ("vllm", "0.20.2", {}, LEGACY),
        ("vllm", "0.20.2", EXPANDABLE, NOT_SHARED),
        ("mpich", "5.0.1", {}, LEGACY),
        ("mpich", "5.0.1", {"MPIR_CVAR_ENABLE_GPU": "0"}, NOT_SHARED),
        ("cray-mpich", "8.1.30", {}, NOT_SHARED),
        ("cray-mpich", "8.1.30", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, LEGACY),
        (
            "cray-mpich",
            "8.1.30",
            {"MPICH_GPU_SUPPORT_ENABLED": "1", "MPICH_GPU_IPC_ENABLED": "0"},
            NOT_SHARED,
        ),
        ("openmpi", "5.0.9", {}, LEGACY),
        ("mvapich", "2.3.7", {"MV2_USE_CUDA": "1"}, NOT_KNOWN),
        ("mvapich", "2.3.7", {}, NOT_SHARED),
        ("mvapich", "4.0", {}, NOT_KNOWN),
        ("intel-mpi", "2021.15", {}, NOT_KNOWN),
        ("rccl", "2.24.3", {}, NOT_KNOWN),
        ("libfabric", "2.3.1", {"FI_HMEM_DISABLE_P2P": "1"}, NOT_SHARED),
        ("shs-libfabric", "1.22.0", {}, LEGACY),
    ],
)
def test_other_stacks(stack: str, version: str, environ: dict[str, str], way: str) -> None:
    assert ways(stack, version, **environ) == [way]


def test_every_way_is_reached_by_some_version() -> None:
    """A way behind one that always holds would never be told."""
    for memory in SHARING:
        for n, way in enumerate(memory.ways[:-1]):
            assert way.variables or str(way.versions) != "all", (memory.stack, n)


# -- as a user reads it -----------------------------------------------------------------------------------

NODE = (
    Fact("ptrace-scope", "1", "/proc/sys/kernel/yama/ptrace_scope"),
    Fact("seccomp", "filter (1)", "/proc/self/status"),
    Fact("container", "apptainer", "/.singularity.d"),
    Fact("namespaces", "the node's own", "/proc/self/ns"),
    Fact("imex-channels", None, "no /dev/nvidia-caps-imex-channels/channel*"),
    Fact("imex-daemon", "runs", "/proc/812/comm"),
    *facts(
        {"cray-mpich": "8.1.30", "ucx": "1.22.0", "nccl": "2.27.3", "rccl": "2.24.3", "pytorch": "2.9.0"},
        {**EXPANDABLE, "MPICH_GPU_SUPPORT_ENABLED": "1"},
    ),
)


SHOWN = [
    one
    for one in CHECKS
    if one.id
    in ("allocator-ipc", "ipc-fabric", "ipc-handles", "ipc-pool", "ipc-reopen", "ipc-vmm", "ipc-vmm-release")
]
"""Some, so that what is expected does not change with each new check."""


def test_a_node_as_a_user_reads_it() -> None:
    text = page(NODE, SHOWN) + "\n"
    assert all(len(line) <= 80 for line in text.splitlines() if "https://" not in line)
    golden.check("sharing/node.txt", text)


def test_a_program_reads_the_same() -> None:
    told = json.loads(document(NODE, SHOWN, "healthy-both"))
    assert told["simulated"] == "healthy-both"
    assert [fact["name"] for fact in told["node"]] == list(sharing.DECISIVE)
    assert told["checks"]["file descriptor"] == ["ipc-vmm", "ipc-vmm-release"]
    [tensors] = [one for one in told["stacks"] if one["stack"]["name"] == "pytorch"]
    assert (tensors["by"], tensors["route"]) == (["file descriptor"], "pidfd_getfd")
    assert tensors["setting"]["name"] == "PYTORCH_CUDA_ALLOC_CONF"
    assert tensors["checks"] == ["ipc-vmm", "ipc-vmm-release", "allocator-ipc"]
    [rccl] = [one for one in told["stacks"] if one["stack"]["name"] == "rccl"]
    assert (rccl["known"], rccl["by"]) == (False, [])


def test_a_value_of_the_environment_reaches_no_terminal_as_it_is() -> None:
    evil = (
        Fact("nccl", "2.27.3", "/x\x1b[2Jy"),
        Fact("env:NCCL_CUMEM_ENABLE", "0", "/etc/\x1b]0;nccl.conf:1"),
    )
    assert "\x1b" not in page(evil, CHECKS)
