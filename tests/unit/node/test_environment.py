"""Effect of each variable in the versions found; misspelt names are reported, and only those."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from gpuipc_doctor import knownissues
from gpuipc_doctor.files.yamlfile import read
from gpuipc_doctor.model import Effect, Fact, Setting
from gpuipc_doctor.node import environment, inventory, variables
from gpuipc_doctor.node.variables import SCHEMA, SHIPPED
from gpuipc_doctor.versions import ORDERS

VARIABLES = variables.load()


def judge(environ: dict[str, str], **versions: str) -> list[Setting]:
    """Settings of these variables on a node with these versions; ``_`` in a name stands for ``-``."""
    facts = [Fact(name.replace("_", "-"), version, "told") for name, version in versions.items()]
    return list(environment.judge(environment.read("/nowhere", environ), VARIABLES, facts))


def effect(name: str, value: str, **versions: str) -> Effect:
    [setting] = judge({name: value}, **versions)
    return setting.effect


# -- the table ------------------------------------------------------------------------------------------


def test_table_matches_its_schema_and_parses_equally_in_both_yaml_readers() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert read(SHIPPED, schema).data == yaml.safe_load(SHIPPED.read_text())


def test_no_variable_is_listed_twice() -> None:
    data = yaml.safe_load(SHIPPED.read_text())
    assert len(VARIABLES) == sum(len(group["variables"]) for group in data["groups"])


def test_each_range_can_contain_a_version() -> None:
    for name, variable in VARIABLES.items():
        for form in variable.forms:
            assert form.library in inventory.NAMES, name
            assert form.versions.contradictions() == [], name
            bounds = {form.versions.introduced, form.versions.fixed, form.versions.last_affected}
            assert form.library in ORDERS or bounds <= {"", "0", "unknown"}, name
            assert form.takes(form.default) or not form.default, name


def test_every_variable_that_a_workaround_sets_is_in_the_table() -> None:
    named = {
        name for issue in knownissues.load() for workaround in issue.workarounds for name in workaround.env
    }
    assert named <= set(VARIABLES)


# -- effect of a variable in a version ------------------------------------------------------------------


def test_effect_of_a_variable_in_a_version() -> None:
    expected = [
        ("MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE", "0", {"mpich": "4.1.2"}, Effect.WORKS),
        ("MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE", "0", {"mpich": "4.2.0"}, Effect.INVALID),
        ("MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE", "disabled", {"mpich": "5.0.2"}, Effect.WORKS),
        ("MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE", "disabled", {"mpich": "5.1.0a1"}, Effect.DEAD),
        ("MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE", "disabled", {"mpich": "4.3.0"}, Effect.WORKS),
        ("MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE", "disabled", {"mpich": "5.1.0a1"}, Effect.INVALID),
        ("MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE", "16", {"mpich": "4.3.0"}, Effect.INVALID),
        ("MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE", "16", {"mpich": "4.2.3"}, Effect.DEAD),
        ("GTL_DISABLE_HSA_IPC_SIGNAL_CACHE", "0", {"cray_mpich": "9.0.1"}, Effect.WORKS),
        ("GTL_DISABLE_HSA_IPC_SIGNAL_CACHE", "0", {"cray_mpich": "9.1.0"}, Effect.DEAD),
        ("GTL_ENABLE_HSA_IPC_SIGNAL_CACHE", "1", {"cray_mpich": "8.1.30"}, Effect.DEAD),
        ("OMPI_MCA_mpool_rgpusm_rcache_size_limit", "0", {"openmpi": "5.0.9"}, Effect.DEAD),
        ("OMPI_MCA_rcache_rgpusm_rcache_size_limit", "0", {"openmpi": "5.0.9"}, Effect.WORKS),
        ("UCX_CUDA_IPC_ENABLE_SAME_PROCESS", "n", {"ucx": "1.20.0"}, Effect.WORKS),
        ("UCX_CUDA_IPC_ENABLE_SAME_PROCESS", "n", {"ucx": "1.21.0"}, Effect.DEAD),
        ("UCX_CUDA_IPC_CACHE_MAX_SIZE", "4GB", {"ucx": "1.22.0"}, Effect.WORKS),
        ("UCX_CUDA_IPC_CACHE_MAX_SIZE", "inf", {"ucx": "1.20.1"}, Effect.DEAD),
        ("UCX_CUDA_IPC_MAX_STREAMS", "4", {"ucx": "1.17.0"}, Effect.WORKS),
        ("UCX_CUDA_IPC_MAX_STREAMS", "4", {"ucx": "1.22.0"}, Effect.WORKS),
        ("UCX_CUDA_IPC_LAT", "2us", {"ucx": "1.18.0"}, Effect.DEAD),
        ("UCX_CUDA_IPC_MAX_STREAMS", "4", {"ucx": "1.2.0"}, Effect.UNKNOWN),
        ("UCX_CUDA_IPC_CACHE", "maybe", {"ucx": "1.22.0"}, Effect.INVALID),
        ("UCX_CUDA_IPC_CACHE", "n", {}, Effect.UNUSED),
        ("FI_HMEM_CUDA_ENABLE_XFER", "1", {"libfabric": "1.18.1"}, Effect.WORKS),
        ("FI_HMEM_CUDA_ENABLE_XFER", "1", {"libfabric": "2.3.1"}, Effect.DEAD),
        ("FI_CXI_DISABLE_DMABUF_CUDA", "1", {"libfabric": "2.3.1"}, Effect.DEAD),
        ("FI_CXI_DISABLE_DMABUF_CUDA", "1", {"shs_libfabric": "1.22.0"}, Effect.WORKS),
        ("FI_HMEM_CUDA_USE_DMABUF", "1", {"libfabric": "1.22.0"}, Effect.DEAD),
        ("FI_PROVIDER_PATH", "", {"libfabric": "2.2.0"}, Effect.INVALID),
        ("FI_PROVIDER_PATH", "/opt/lib", {"libfabric": "2.2.0"}, Effect.WORKS),
        ("FI_MR_CACHE_MONITOR", "kdreg", {"libfabric": "2.3.1"}, Effect.INVALID),
        ("NCCL_CUMEM_HOST_ENABLE", "0", {"nccl": "2.21.5"}, Effect.DEAD),
        ("NCCL_CUMEM_HOST_ENABLE", "0", {"nccl": "2.21.5", "rccl": "2.24.3"}, Effect.WORKS),
        ("MV2_CUDA_IPC", "0", {"mvapich": "2.3.7"}, Effect.WORKS),
        ("MV2_CUDA_IPC", "0", {"mvapich": "4.0"}, Effect.DEAD),
        ("HSA_ENABLE_IPC_MODE_LEGACY", "1", {"rocm": "7.2.1"}, Effect.WORKS),
        ("MPIR_CVAR_NO_LOCAL", "1", {"cray_mpich": "8.1.30"}, Effect.WORKS),
        ("UCX_CUDA_IPC_CACHE_MAX_SIZE", "inf", {"ucx": "of the distribution"}, Effect.UNKNOWN),
    ]
    assert [
        (*case, effect(name, value, **versions)) for *case, _ in expected for name, value, versions in [case]
    ] == expected


def test_message_about_a_variable_without_effect() -> None:
    [setting] = judge({"MPIR_CVAR_CH4_IPC_GPU_MAX_CACHE_ENTRIES": "4"}, mpich="5.1.0a1")
    assert (
        setting.says == "mpich 5.1.0a1 does not know MPIR_CVAR_CH4_IPC_GPU_MAX_CACHE_ENTRIES, "
        "which mpich 4.3.0 to before 5.1.0a1 reads"
    )
    assert setting.instead == "MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE"


def test_message_about_a_wrong_value() -> None:
    [setting] = judge({"MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE": "8"}, mpich="5.0.2")
    assert setting.says == "mpich 5.0.2 does not accept '8'; it accepts unlimited, limited or disabled"


RIGHT = """
    FI_CXI_DEFAULT_VNI FI_CXI_LLRING_MODE FI_CXI_RDZV_OFFLOAD FI_OFI_RXM_TX_SIZE FI_OFI_RXM_RX_SIZE
    FI_PROVIDER MPIR_CVAR_CH4_OFI_ENABLE_RMA MPIR_CVAR_CH4_OFI_GPU_SEND_ENGINE_TYPE
    MPIR_CVAR_CH4_GPU_COLL_SWAP_BUFFER_SZ UCX_IB_TX_MAX_POLL UCX_TCP_RX_SEG_SIZE UCX_MEM_EVENTS
    UCX_RNDV_SCHEME UCX_RNDV_THRESH UCX_NET_DEVICES NCCL_DEBUG NCCL_IB_HCA NCCL_NET_GDR_LEVEL
    OMPI_MCA_pml OMPI_MCA_btl_smcuda_priority CUDA_HOME CUDA_PATH CUDA_MPS_LOG_DIRECTORY
    HIP_PLATFORM HSA_TOOLS_LIB MPICH_VERSION MPICH_DIR PATH LD_LIBRARY_PATH
"""
"""Names that the libraries really read, from their own lists, and some common ones."""


# -- misspelt names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FI_MR_CACHE_CUDA_MONITOR_ENABLED", "FI_MR_CUDA_CACHE_MONITOR_ENABLED"),
        ("FI_MR_CUDA_CACHE_MONITOR_ENABLE", "FI_MR_CUDA_CACHE_MONITOR_ENABLED"),
        ("FI_HMEM_ROCM_USE_DMABUF", "FI_HMEM_ROCR_USE_DMABUF"),
        ("MPICH_GPU_SUPORT_ENABLED", "MPICH_GPU_SUPPORT_ENABLED"),
        ("MPICH_GPUSUPPORT_ENABLED", "MPICH_GPU_SUPPORT_ENABLED"),
        ("MPIR_CVAR_CH4_GPU_IPC_P2P_THRESHOLD", "MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD"),
        ("OMPI_MCA_mpool_rgpusm_rcache_empty_cache", "OMPI_MCA_rcache_rgpusm_empty_cache"),
        ("MPICH_GPU_SUPPORT", "MPICH_GPU_SUPPORT_ENABLED"),
        ("UCX_CUDA_IPC_CACHE_LIMIT", "UCX_CUDA_IPC_CACHE_MAX_REGIONS"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_misspelt_name_is_reported(name: str, meant: str) -> None:
    [setting] = judge({name: "1"})
    assert (setting.effect, setting.instead) == (Effect.MISSPELT, meant)


def test_correct_name_is_not_reported_as_misspelt() -> None:
    for name in RIGHT.split():
        assert judge({name: "1"}, mpich="5.0.2", ucx="1.22.0", libfabric="2.3.1", nccl="2.24.3") == []


def test_name_of_a_missing_library_may_be_meant_for_an_installed_one() -> None:
    facts = [Fact("mpich", "3.4", "told")]
    variables = {name: VARIABLES[name] for name in ("MPIR_CVAR_NOLOCAL", "MPICH_GPU_IPC_ENABLED")}
    found = environment.read("/nowhere", {"MPICH_GPU_IPC_ENABLED": "1", "MPIR_CVAR_NO_LOCAL": "1"})
    unused, slip = environment.judge(found, variables, facts)
    assert (unused.effect, slip.effect, slip.instead) == (Effect.UNUSED, Effect.MISSPELT, "MPIR_CVAR_NOLOCAL")


SITE = """\
# of the site
NCCL_P2P_DISABLE=1
 NCCL_SHM_DISABLE = 1 # why
PATH=/evil
"""


# -- places where variables are set -----------------------------------------------------------------------


def test_nccls_files_are_read_and_the_environment_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text(SITE)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.nccl.conf").write_text("NCCL_P2P_DISABLE=0\n")
    found = environment.read(str(tmp_path), {"HOME": "/home", "NCCL_CUMEM_ENABLE": "0"})
    assert found["NCCL_CUMEM_ENABLE"].where == "environment"
    assert (found["NCCL_P2P_DISABLE"].value, found["NCCL_P2P_DISABLE"].where) == ("0", "/home/.nccl.conf:1")
    assert (found["NCCL_SHM_DISABLE"].value, found["NCCL_SHM_DISABLE"].where) == ("1", "/etc/nccl.conf:3")
    assert "PATH" not in found


@pytest.mark.parametrize("kind", ["absent", "directory", "fifo", "binary"])
def test_unusable_file_of_nccl_is_ignored(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "nccl.conf"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "binary":
        path.write_bytes(bytes(range(256)))
    environ = {"NCCL_CONF_FILE": "/nccl.conf"}
    assert set(environment.read(str(tmp_path), environ)) == {"NCCL_CONF_FILE"}


def test_every_known_variable_has_a_fact_set_or_not() -> None:
    found = environment.read("/nowhere", {"UCX_TLS": "all\x1b[31m", "HOME": "/root"})
    facts = {fact.name: fact for fact in environment.facts(found, VARIABLES)}
    assert set(facts) == {f"env:{name}" for name in VARIABLES}
    assert facts["env:UCX_TLS"] == Fact("env:UCX_TLS", "all [31m", "environment")
    assert facts["env:NCCL_P2P_LEVEL"] == Fact("env:NCCL_P2P_LEVEL", None, "not set in the environment")
