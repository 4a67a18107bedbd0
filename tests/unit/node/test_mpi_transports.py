"""MPI family, GPU awareness, and how to turn IPC off: derived from facts by the tables.

The texts are real output of the libraries; tests/e2e/test_mpi_libraries.py tests those that PyPI has.
"""

from __future__ import annotations

from string import Formatter
from typing import Any

import pytest

from gpuipc_doctor.node import mpi_choice, mpi_transports
from gpuipc_doctor.node.mpi_facts import Facts
from gpuipc_doctor.node.mpi_identity import identify
from gpuipc_doctor.node.mpi_ipc_settings import table
from gpuipc_doctor.node.mpi_transports import ROUTES
from gpuipc_doctor.probe_types import Launch, MpiStack

MPICH_5 = (
    "MPICH Version:      5.0.2\n"
    "MPICH Release date: Fri Sep 25 20:45:26 UTC 2026\n"
    "MPICH ABI:          18:2:6\n"
    "MPICH Device:       ch4:ucx ofi\n"
)
MPICH_OFI = "MPICH Version:      4.3.2\nMPICH Device:       ch4:ofi"
OPEN_MPI_5 = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, Sep 16, 2026"
UBUNTU = "Open MPI v4.1.6, package: Debian OpenMPI, ident: 4.1.6, repo rev: v4.1.6, Sep 30, 2023"
INTEL = "Intel(R) MPI Library 2021.17 for Linux* OS"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.28.2 (ANL base 3.4a2)\nMPI BUILD INFO : Wed Nov 15 21:59 2023"
MVAPICH_2 = "MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date :\tMarch 8, 2022\n"
MVAPICH_4 = "MVAPICH Version:      4.0\nMVAPICH Device:       ch4:ofi"

CUDA_UCX = {
    "library": "/opt/ucx/libucp.so.0",
    "version": "1.22.0",
    "components": ["self", "cuda_cpy", "cuda_ipc"],
}
PLAIN_UCX = {"library": "/opt/mpi/libucp.so.0", "version": "1.20.1", "components": ["self", "tcp"]}


def seen(version_text: str, **facts: Any) -> dict[str, Any]:
    """A survey's result with only these facts."""
    nothing = {"needs": [], "loaded": [], "variables": {}, "ucx": None, "cannot_load": {}, "environment": {}}
    nothing["level_zero"] = ""
    return {"library": "/opt/mpi/lib/libmpi.so", "version_text": version_text, **nothing, **facts}


@pytest.mark.parametrize(
    ("text", "family", "version", "title"),
    [
        (MPICH_5, "mpich", "5.0.2", "MPICH 5.0.2"),
        (
            "MPICH Version:\t3.3.2\nMPICH Release date:\tTue Nov 12 21:23:16 CST 2019",
            "mpich",
            "3.3.2",
            "MPICH 3.3.2",
        ),
        (CRAY, "cray-mpich", "8.1.28.2", "Cray MPICH 8.1.28.2"),
        (
            "MPI VERSION    : CRAY MPICH version 7.7.14 (ANL base 3.2)",
            "cray-mpich",
            "7.7.14",
            "Cray MPICH 7.7.14",
        ),
        (OPEN_MPI_5, "openmpi", "5.0.11", "Open MPI 5.0.11"),
        (
            "Open MPI v4.1.7rc1, package: Open MPI root@hpc Distribution",
            "openmpi",
            "4.1.7rc1",
            "Open MPI 4.1.7rc1",
        ),
        (INTEL, "intel-mpi", "2021.17", "Intel MPI 2021.17"),
        ("Intel(R) MPI Library 2019 Update 9 for Linux* OS", "intel-mpi", "2019.9", "Intel MPI 2019.9"),
        (MVAPICH_2, "mvapich", "2.3.7", "MVAPICH 2.3.7"),
        (MVAPICH_4, "mvapich", "4.0", "MVAPICH 4.0"),
        ("FUJITSU MPI Library 4.0.1\nmore", "unknown", "", "FUJITSU MPI Library 4.0.1"),
        ("", "unknown", "", "an MPI library that does not report its name"),
    ],
)
def test_library_is_identified_by_its_version_text(text: str, family: str, version: str, title: str) -> None:
    identity = identify(text)
    assert (identity.family, identity.version, identity.title) == (family, version, title)


MPICH_WITH_CUDA = {"needs": ["libcudart.so.12", "libcuda.so.1"], "variables": {"MPIR_CVAR_ENABLE_GPU": 1}}
MPICH_OVER_UCX = {"ucx": CUDA_UCX, "variables": {"MPIR_CVAR_ENABLE_GPU": 1, "MPIR_CVAR_NOLOCAL": 1}}
OPEN_MPI_WITH_CUDA = {"variables": {"accelerator_cuda_major_version": 5, "opal_cuda_support": 1, "pml": ""}}
OPEN_MPI_OVER_UCX = {
    "ucx": CUDA_UCX,
    "variables": {"opal_cuda_support": 0, "pml": "ucx", "pml_ucx_priority": 51},
}
OPEN_MPI_4_WITH_CUDA = {"variables": {"mpi_built_with_cuda_support": 1, "opal_cuda_support": 1, "pml": ""}}
INTEL_ON = {"variables": {"MPIR_CVAR_ENABLE_GPU": 1, "MPIR_CVAR_OFFLOAD_CUDA_LIBRARY": "libcuda.so"}}
CRAY_ON = {"environment": {"MPICH_GPU_SUPPORT_ENABLED": "1"}, "loaded": ["libmpi_gtl_cuda.so.0.0.0"]}
MVAPICH_2_ON = {"needs": ["libcudart.so.11.0"], "environment": {"MV2_USE_CUDA": "1"}}
MVAPICH_4_ON = {"needs": ["libcudart.so.12"], "variables": {"MVP_ENABLE_GPU": 1}}


@pytest.mark.parametrize(
    ("text", "facts", "via"),
    [
        (MPICH_OFI, MPICH_WITH_CUDA, "own"),
        (MPICH_5, MPICH_OVER_UCX, "ucx"),
        (OPEN_MPI_5, OPEN_MPI_WITH_CUDA, "own"),
        (UBUNTU, OPEN_MPI_4_WITH_CUDA, "own"),
        (OPEN_MPI_5, OPEN_MPI_OVER_UCX, "ucx"),
        (INTEL, INTEL_ON, "own"),
        (CRAY, CRAY_ON, "own"),
        (MVAPICH_2, MVAPICH_2_ON, "own"),
        (MVAPICH_4, MVAPICH_4_ON, "own"),
    ],
)
def test_gpu_aware_libraries_are_recognised(text: str, facts: dict[str, Any], via: str) -> None:
    aware = mpi_transports.gpu_aware(seen(text, **facts), "cuda")
    assert (aware.able, aware.via, aware.why_not, aware.remedy) == (True, via, "", "")


def changed(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """``facts`` with changes: mappings are merged, other values are replaced."""
    merged = {
        key: {**facts.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    return {**facts, **merged}


@pytest.mark.parametrize(
    ("text", "facts", "remedy"),
    [
        (INTEL, changed(INTEL_ON, level_zero="libze_loader.so.1"), ""),
        (
            "Intel(R) MPI Library 2021.9 for Linux* OS",  # Intel's GPUs only
            {"variables": {"MPIR_CVAR_ENABLE_GPU": 1}},
            "",
        ),
        (
            INTEL,
            changed(INTEL_ON, level_zero="libze_loader.so.1", environment={"I_MPI_OFFLOAD_MODE": "cuda"}),
            "set I_MPI_OFFLOAD_MODE=level_zero",
        ),
        (
            INTEL,
            changed(INTEL_ON, variables={"MPIR_CVAR_OFFLOAD_LEVEL_ZERO_LIBRARY": "libze_loader.so.1"}),
            "set I_MPI_OFFLOAD_LEVEL_ZERO_LIBRARY to the path of libze_loader.so.1",
        ),
    ],
)
def test_intel_mpi_takes_intel_gpus_by_the_loader(text: str, facts: dict[str, Any], remedy: str) -> None:
    aware = mpi_transports.gpu_aware(seen(text, **facts), "ze")
    assert (aware.able, aware.remedy) == (not remedy, remedy)


@pytest.mark.parametrize(
    ("text", "facts", "remedy"),
    [
        (MPICH_OFI, {}, "use a build of this MPI with CUDA (configure --with-cuda)"),
        (
            MPICH_OFI,
            changed(MPICH_WITH_CUDA, variables={"MPIR_CVAR_ENABLE_GPU": 0}),
            "set MPIR_CVAR_ENABLE_GPU=1",
        ),
        (MPICH_5, changed(MPICH_OVER_UCX, variables={"MPIR_CVAR_NOLOCAL": 0}), "set MPIR_CVAR_NOLOCAL=1"),
        (
            MPICH_5,
            changed(MPICH_OVER_UCX, environment={"MPIR_CVAR_CH4_NETMOD": "ofi"}),
            "set MPIR_CVAR_CH4_NETMOD=ucx",
        ),
        (
            MPICH_5,
            changed(MPICH_OVER_UCX, environment={"UCX_TLS": "sm,self"}),
            "add cuda_copy to UCX_TLS",
        ),
        (
            MPICH_5,
            changed(MPICH_OVER_UCX, ucx=PLAIN_UCX),
            "put a UCX with CUDA first in LD_LIBRARY_PATH and set UCX_MODULE_DIR to its lib/ucx",
        ),
        (
            OPEN_MPI_5,
            changed(OPEN_MPI_WITH_CUDA, variables={"opal_cuda_support": 0}),
            "set OMPI_MCA_opal_cuda_support=1",
        ),
        (
            OPEN_MPI_5,
            changed(OPEN_MPI_WITH_CUDA, variables={"pml_ucx_priority": 51}, ucx=PLAIN_UCX),
            "set OMPI_MCA_pml=ob1, or install a UCX with CUDA",
        ),
        (OPEN_MPI_5, changed(OPEN_MPI_OVER_UCX, variables={"pml": ""}), "set OMPI_MCA_pml=ucx"),
        (
            UBUNTU,
            {"variables": {"mpi_built_with_cuda_support": 0}},
            "use a build of this MPI with CUDA (configure --with-cuda)",
        ),
        (INTEL, changed(INTEL_ON, variables={"MPIR_CVAR_ENABLE_GPU": 0}), "set I_MPI_OFFLOAD=1"),
        (
            INTEL,
            changed(INTEL_ON, environment={"I_MPI_OFFLOAD_MODE": "level_zero"}),
            "set I_MPI_OFFLOAD_MODE=cuda",
        ),
        (INTEL, changed(INTEL_ON, level_zero="libze_loader.so.1"), "set I_MPI_OFFLOAD_MODE=cuda"),
        (
            INTEL,
            changed(INTEL_ON, cannot_load={"libcuda.so": "no such file"}),
            "set I_MPI_OFFLOAD_CUDA_LIBRARY to the path of libcuda.so.1",
        ),
        (
            "Intel(R) MPI Library 2021.9 for Linux* OS",
            {"variables": {"MPIR_CVAR_ENABLE_GPU": 1}},
            "use Intel MPI 2021.13 or later",
        ),
        (
            CRAY,
            changed(CRAY_ON, environment={"MPICH_GPU_SUPPORT_ENABLED": "0"}),
            "set MPICH_GPU_SUPPORT_ENABLED=1",
        ),
        (
            CRAY,
            changed(
                CRAY_ON, loaded=["libmpi_gtl_hsa.so"], environment={"CRAY_MPICH_ROOTDIR": "/opt/cray/mpich"}
            ),
            "set LD_PRELOAD=/opt/cray/mpich/gtl/lib/libmpi_gtl_cuda.so "
            "(for compiled programs: load craype-accel-nvidia90 and link again)",
        ),
        (MVAPICH_2, {"needs": ["libcudart.so.11.0"]}, "set MV2_USE_CUDA=1, or MV2_USE_ROCM=1 for AMD's GPUs"),
        (MVAPICH_4, changed(MVAPICH_4_ON, variables={"MVP_ENABLE_GPU": 0}), "set MVP_ENABLE_GPU=1"),
    ],
)
def test_missing_setting_is_reported_with_its_remedy(text: str, facts: dict[str, Any], remedy: str) -> None:
    aware = mpi_transports.gpu_aware(seen(text, **facts), "cuda")
    assert (aware.able, aware.remedy) == (False, remedy)
    assert aware.why_not


def test_another_build_is_recommended_if_much_is_missing() -> None:
    aware = mpi_transports.gpu_aware(seen(MPICH_5, ucx=PLAIN_UCX, variables={"MPIR_CVAR_NOLOCAL": 0}), "hip")
    assert aware.why_not == (
        "UCX 1.20.1 (/opt/mpi/libucp.so.0) has no ROCm transports; "
        "within a node, MPICH copies buffers without UCX, and this build has no ROCm"
    )
    assert aware.remedy == (
        "put a UCX with ROCm first in LD_LIBRARY_PATH and set UCX_MODULE_DIR to its lib/ucx, "
        "and set MPIR_CVAR_NOLOCAL=1; or use a build of this MPI with ROCm (configure --with-hip)"
    )


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (MPICH_OFI, {"needs": ["libamdhip64.so.6"], "variables": {"MPIR_CVAR_ENABLE_GPU": 1}}),
        (OPEN_MPI_5, {"variables": {"accelerator_rocm_major_version": 5, "opal_cuda_support": 0, "pml": ""}}),
        (CRAY, {"environment": {"MPICH_GPU_SUPPORT_ENABLED": "1"}, "loaded": ["libmpi_gtl_hsa.so.0"]}),
        (MVAPICH_2, {"needs": ["libamdhip64.so.5"], "environment": {"MV2_USE_ROCM": "1"}}),
    ],
)
def test_support_is_per_vendor(text: str, facts: dict[str, Any]) -> None:
    assert mpi_transports.gpu_aware(seen(text, **facts), "hip").able
    assert not mpi_transports.gpu_aware(seen(text, **facts), "cuda").able


def test_intel_mpi_has_no_support_for_amd() -> None:
    aware = mpi_transports.gpu_aware(seen(INTEL, **INTEL_ON), "hip")
    assert (aware.able, aware.why_not) == (False, "Intel MPI 2021.17 does not support ROCm")


def test_unknown_library_has_no_assumptions() -> None:
    aware = mpi_transports.gpu_aware(seen("FUJITSU MPI Library 4.0.1", needs=["libcuda.so.1"]), "cuda")
    assert not aware.able
    assert "does not know FUJITSU MPI Library 4.0.1" in aware.why_not


def stack(facts: dict[str, Any]) -> MpiStack:
    survey = {"facts": {"library": "libmpi.so", **facts}}
    return mpi_choice.stack(survey, ["cuda"], Launch(("mpiexec",)), {}, simulated=False)


def _bound(facts: dict[str, Any]) -> tuple[str, int | None, bool]:
    found = stack(facts)
    return found.cache_bound, found.cache_buffers, found.cache_in_bytes


def mpich(version: str) -> dict[str, Any]:
    return seen(f"MPICH Version:      {version}\nMPICH Device:       ch4:ofi", **MPICH_WITH_CUDA)


@pytest.mark.parametrize(
    ("version", "caches"),
    [
        ("4.1.3", [{"MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE": "0"}]),
        ("4.2.0", [{"MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE": "disabled"}]),
        (
            "5.0.2",
            [
                {"MPIR_CVAR_CH4_IPC_GPU_HANDLE_CACHE": "disabled"},
                {"MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE": "disabled"},
            ],
        ),
        ("5.1.0a1", [{"MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE": "0"}]),
    ],
)
def test_variable_has_the_values_of_the_librarys_version(version: str, caches: list[dict[str, str]]) -> None:
    off = {"MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD": "1000000000"}
    assert [dict(switch.env) for switch in stack(mpich(version)).workarounds] == [*caches, off]
    assert stack(mpich(version)).ipc_off == off


def test_settings_that_keep_ipc_precede_those_that_turn_it_off() -> None:
    offered = stack(seen(INTEL, **INTEL_ON)).workarounds
    assert [dict(switch.env) for switch in offered] == [
        {"I_MPI_OFFLOAD_CACHE_MAX_SIZE": "1"},
        {"I_MPI_OFFLOAD_IPC": "0"},
    ]


def test_settings_without_effect_are_not_offered() -> None:
    assert stack(mpich("3.3.2")).workarounds == ()
    assert stack(seen("FUJITSU MPI")).ipc_off == {}
    assert stack(seen(MVAPICH_4, **MVAPICH_4_ON)).workarounds == ()


@pytest.mark.parametrize(
    ("set_already", "off"),
    [
        ("", "^cuda_ipc"),
        ("all", "^cuda_ipc"),
        ("^tcp", "^tcp,cuda_ipc"),
        ("sm,cuda,self", "sm,cuda_copy,self"),
        ("sm,cuda_copy,cuda_ipc", "sm,cuda_copy"),
    ],
)
def test_turning_ipc_off_keeps_the_users_choice(set_already: str, off: str) -> None:
    facts = changed(MPICH_OVER_UCX, environment={"UCX_TLS": set_already})
    assert stack(seen(MPICH_5, **facts)).ipc_off["UCX_TLS"] == off


def test_settings_of_other_libraries_are_not_offered() -> None:
    assert dict(stack(seen(MPICH_5, **MPICH_OVER_UCX)).ipc_off) == {"UCX_TLS": "^cuda_ipc"}
    open_mpi = stack(seen(OPEN_MPI_5, **OPEN_MPI_OVER_UCX)).ipc_off
    assert open_mpi["OMPI_MCA_opal_common_ucx_tls"] == "any"


def test_protocol_thresholds_come_from_the_library_and_its_environment() -> None:
    open_mpi = seen(
        OPEN_MPI_5, variables={"btl_sm_eager_limit": 4096, "btl_tcp_eager_limit": 65536, "pml": ""}
    )
    assert stack(open_mpi).edges == (4096, 65536)
    never = seen(
        MPICH_5, variables={"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": -1}, environment={"UCX_RNDV_THRESH": "8192"}
    )
    assert stack(never).edges == (8192,)
    assert stack(seen(CRAY)).edges == (1024, 4096, 16384)
    assert stack(seen(CRAY, environment={"MPICH_GPU_IPC_THRESHOLD": "8192"})).edges == (
        4096,
        8192,
        16384,
    )


def test_every_row_has_a_source_and_no_open_values() -> None:
    conditions = [row for routes in ROUTES.values() for route in routes for row in route.conditions]
    assert all(row.source for row in (*conditions, *table().switches))
    assert all(switch.cost for switch in table().switches)
    facts = Facts(seen(MPICH_5), "cuda")
    for row in conditions:
        for text in (row.why_not, row.remedy):
            names = [name for _, name, _, _ in Formatter().parse(text) if name]
            assert "{" not in facts.fill_in(text), names


@pytest.mark.parametrize(
    ("text", "facts", "bound"),
    [
        (INTEL, {"environment": {}}, ("I_MPI_OFFLOAD_CACHE_MAX_SIZE", None, False)),
        (
            INTEL,
            {"environment": {"I_MPI_OFFLOAD_CACHE_MAX_SIZE": "64"}},
            ("I_MPI_OFFLOAD_CACHE_MAX_SIZE", 64, False),
        ),
        (
            INTEL,
            {"environment": {"I_MPI_OFFLOAD_CACHE_MAX_SIZE": "inf"}},
            ("I_MPI_OFFLOAD_CACHE_MAX_SIZE", None, False),
        ),
        (MVAPICH_4, {}, ("", None, False)),
    ],
)
def test_variable_that_limits_the_cache_and_its_number_of_buffers(
    text: str, facts: dict[str, Any], bound: tuple[str, int | None, bool]
) -> None:
    assert _bound(seen(text, **facts)) == bound
