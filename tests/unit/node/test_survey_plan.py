"""Surveys in workers: parsed answers; a hanging source loses only its own rows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpuipc_doctor.model import Fact, Node, Tier
from gpuipc_doctor.node import inventory
from gpuipc_doctor.node.gpus import of_each
from gpuipc_doctor.node.survey_devices import acs_control
from gpuipc_doctor.node.survey_libraries import nccl_version
from gpuipc_doctor.node.survey_programs import PACKAGES, PROGRAMS, versions_in
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.config import SiteConfig
from tests.unit.node.test_inventory import plant

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

MPI = """
#include <stdio.h>
#include <unistd.h>
{extra}
int MPI_Get_library_version(char *text, int *length)
{{
    {body}
    *length = sprintf(text, "MPICH Version:      4.2.2\\nMPICH Device:       ch4:ofi\\n");
    return 0;
}}
"""
UCX = 'const char *ucp_get_version_string(void) { return "1.15.0"; }'
LIBFABRIC = """
#include <stddef.h>
#include <stdint.h>
struct fabric_attr { void *fabric; char *name, *prov_name; };
struct info {
    struct info *next; uint64_t caps, mode; uint32_t addr_format; size_t src, dest;
    void *addresses[3], *attrs[4]; struct fabric_attr *fabric_attr;
};
static struct fabric_attr cxi = {0, "cxi", "cxi"}, shm = {0, "shm", "shm"};
static struct info third = {.fabric_attr = &cxi}, second = {.next = &third, .fabric_attr = &shm},
                   first = {.next = &second, .fabric_attr = &cxi};
uint32_t fi_version(void) { return 1 << 16 | 22; }
char *fi_tostr(const void *data, int type) { return type == 18 ? "1.22.0" : "?"; }
int fi_getinfo(uint32_t version, char *node, char *service, uint64_t flags, void *hints, struct info **found)
{
    *found = &first;
    return 0;
}
"""
NCCL = "int ncclGetVersion(int *version) { *version = 22403; return 0; }"


class Silent:
    """A watcher that ignores everything."""

    def planned(self, checks: Sequence[str]) -> None: ...
    def started(self, key: str, text: str, deadline_s: float) -> None: ...
    def concluded(self, result: object) -> None: ...
    def finished(self, key: str) -> None: ...


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which this process and its workers find programs and libraries first."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    plant(tmp_path, "bin/mpiexec", "#!/bin/sh\n")
    (tmp_path / "bin/mpiexec").chmod(0o755)
    (tmp_path / "lib").mkdir()
    return tmp_path


def library(prefix: Path, soname: str, source: str) -> None:
    code = prefix / f"{soname}.c"
    code.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", prefix / "lib" / soname, code], check=True)


def stock(tier: Tier = Tier.ACCEPTANCE) -> dict[str, Fact]:
    """The inventory of this machine by name; the first row of each name."""
    request = Request(backend="cuda", deadline_s=2.0, tier=tier)
    facts = engine.collect_inventory(request, SiteConfig(), Node(), Silent()).facts
    found: dict[str, Fact] = {}
    for fact in facts:
        found.setdefault(fact.name, fact)
    return found


@needs_compiler
def test_each_library_is_queried_for_its_version(prefix: Path) -> None:
    library(prefix, "libmpi.so.12", MPI.format(extra="", body=""))
    library(prefix, "libucp.so.0", UCX)
    library(prefix, "libfabric.so.1", LIBFABRIC)
    library(prefix, "libnccl.so.2", NCCL)
    facts = stock()
    expected = {
        "mpich": ("4.2.2", f"MPI_Get_library_version of {prefix}/lib/libmpi.so.12"),
        "ucx": ("1.15.0", f"ucp_get_version_string of {prefix}/lib/libucp.so.0"),
        "libfabric": ("1.22.0", f"fi_tostr(FI_TYPE_VERSION) of {prefix}/lib/libfabric.so.1"),
        "libfabric-providers": ("cxi, shm", f"fi_getinfo of {prefix}/lib/libfabric.so.1"),
        "nccl": ("2.24.3", f"ncclGetVersion of {prefix}/lib/libnccl.so.2"),
    }
    assert {name: (facts[name].value, facts[name].source.partition(";")[0]) for name in expected} == expected


@needs_compiler
@pytest.mark.parametrize(
    ("extra", "body", "why"),
    [
        ("", "for (;;) pause();", "MPI_Get_library_version #1 hung (2 s)"),
        pytest.param(
            "",
            "*(int *)0 = 0;",
            "MPI_Get_library_version #1 ended the process by SIGSEGV",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "__attribute__((constructor)) static void load(void) { for (;;) pause(); }",
            "",
            "libmpi.so.12 #1 hung (2 s)",
            marks=pytest.mark.full,
        ),
    ],
)
def test_source_that_hangs_or_crashes_loses_only_its_own_rows(
    prefix: Path, extra: str, body: str, why: str
) -> None:
    library(prefix, "libmpi.so.12", MPI.format(extra=extra, body=body))
    library(prefix, "libucp.so.0", UCX)
    facts = stock()
    assert facts["mpich"].value is None
    assert why in facts["mpich"].source
    assert facts["ucx"].value == "1.15.0"
    assert facts["kernel"].value


@needs_compiler
def test_named_mpi_library_is_also_surveyed_for_a_simulated_node(prefix: Path) -> None:
    library(prefix, "libmpi_mine.so", MPI.format(extra="", body=""))
    request = Request(backend="cuda", mpi_lib=f"{prefix}/lib/libmpi_mine.so")
    node = Node(root=str(prefix / "tree"), simulated="tree")
    facts = engine.collect_inventory(request, SiteConfig(), node, Silent()).facts
    said = f"MPI_Get_library_version of {prefix}/lib/libmpi_mine.so"
    assert Fact("mpich", "4.2.2", said) in facts


@pytest.mark.full
def test_library_that_does_not_load_has_the_reason(prefix: Path) -> None:
    (prefix / "lib/libucp.so.0").write_text("no ELF\n")
    assert "invalid ELF header" in stock()["ucx"].source or "file too short" in stock()["ucx"].source


def test_programs_are_queried_for_their_versions(prefix: Path) -> None:
    plant(prefix, "bin/scontrol", "#!/bin/sh\necho slurm 24.05.4\n")
    plant(prefix, "bin/ofed_info", "#!/bin/sh\necho MLNX_OFED_LINUX-5.1-0.6.6.0:\n")
    for program in ("scontrol", "ofed_info"):
        (prefix / "bin" / program).chmod(0o755)
    facts = stock()
    assert (facts["slurm"].value, facts["slurm"].source) == ("24.05.4", f"{prefix}/bin/scontrol --version")
    assert facts["mlnx-ofed"].value == "5.1-0.6.6.0"


def test_prolog_runs_no_program_from_its_environment(prefix: Path) -> None:
    plant(prefix, "bin/scontrol", f"#!/bin/sh\ntouch {prefix}/ran\n")
    (prefix / "bin/scontrol").chmod(0o755)
    fact = stock(Tier.PROLOG)["slurm"]
    assert (fact.value, fact.source) == (None, "queried only on a real node, and not in a prolog")
    assert not (prefix / "ran").exists()


def test_unexpected_output_of_a_program_is_quoted(prefix: Path) -> None:
    plant(prefix, "bin/scontrol", "#!/bin/sh\necho cannot find slurm.conf\n")
    (prefix / "bin/scontrol").chmod(0o755)
    fact = stock()["slurm"]
    assert fact.value is None
    assert fact.source.endswith("scontrol --version said 'cannot find slurm.conf'")


# -- answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "version"), [(22403, "2.24.3"), (2708, "2.7.8"), (23007, "2.30.7")])
def test_version_number_of_nccl(number: int, version: str) -> None:
    assert nccl_version(number) == version


def test_slingshot_release_is_part_of_a_packages_release() -> None:
    text = (
        "cray-cxi-driver 1.0.0-SHS11.0.2_20240801T1234_abcdef\n"
        "package shs-version is not installed\n"
        "libze-intel-gpu1 26.31.39395.13-1~22.04\n"
    )
    assert list(versions_in(text, PACKAGES)) == [
        ("cxi-driver", "1.0.0-SHS11.0.2_20240801T1234_abcdef", "cray-cxi-driver"),
        ("shs", "11.0.2", "cray-cxi-driver"),
        ("intel-compute-runtime", "26.31.39395.13-1~22.04", "libze-intel-gpu1"),
    ]


@pytest.mark.parametrize("text", ["slurm 24.05.4", "slurm-wlm 23.11.4"])
def test_version_text_of_slurm(text: str) -> None:
    import re

    assert re.search(PROGRAMS["slurm"][2], text)


def config_space(*capabilities: tuple[int, int]) -> bytes:
    """4096 bytes with these extended capabilities, each (id, control register)."""
    space = bytearray(4096)
    for number, (id_, control) in enumerate(capabilities):
        at, following = 0x100 + 0x40 * number, 0x100 + 0x40 * (number + 1)
        last = number == len(capabilities) - 1
        space[at : at + 4] = (id_ | 1 << 16 | (0 if last else following) << 20).to_bytes(4, "little")
        space[at + 6 : at + 8] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "control"),
    [
        (config_space((0x0001, 0), (0x000D, 0x1D)), 0x1D),
        (config_space((0x000D, 0)), 0),
        (config_space((0x0001, 0)), None),
        (bytes(64), None),
        ((0x0001 | 0x100 << 20).to_bytes(4, "little").join([bytes(0x100), bytes(0x100)]), None),  # a loop
    ],
)
def test_access_control_of_a_bridge(space: bytes, control: int | None) -> None:
    assert acs_control(space) == control


@pytest.mark.parametrize(
    ("controls", "value"),
    [({"00:01.0": 0x1D, "00:03.0": 0x11}, "redirects traffic at 1 of 2 bridges"), ({"00:01.0": 0x11}, "off")],
)
def test_bridges_that_redirect_are_counted(tmp_path: Path, controls: Mapping[str, int], value: str) -> None:
    for device, control in controls.items():
        plant(tmp_path, f"/sys/bus/pci/devices/0000:{device}/class", "0x060400\n")
        plant(tmp_path, f"/sys/bus/pci/devices/0000:{device}/config", config_space((0x000D, control)))
    plant(tmp_path, "/sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n")
    plant(tmp_path, "/sys/bus/pci/devices/0000:3b:00.0/config", config_space((0x000D, 0x1D)))
    node = Node(root=str(tmp_path), simulated="tree")
    facts = engine.collect_inventory(Request(backend="cuda"), SiteConfig(), node, Silent()).facts
    assert [fact.value for fact in facts if fact.name == "acs"] == [value]


def test_models_are_counted(tmp_path: Path) -> None:
    for bus, model in (("19", "NVIDIA H200"), ("3b", "NVIDIA H200"), ("5e", "NVIDIA A2")):
        file = f"/proc/driver/nvidia/gpus/0000:{bus}:00.0/information"
        plant(tmp_path, file, f"Model: \t\t {model}\nIRQ:   \t\t 18\n")
    node = Node(root=str(tmp_path), simulated="tree")
    facts = engine.collect_inventory(Request(backend="cuda"), SiteConfig(), node, Silent()).facts
    assert [fact.value for fact in facts if fact.name == "gpu-model"] == ["2 × NVIDIA H200, NVIDIA A2"]


def test_surveys_are_a_check_file_that_loads() -> None:
    from gpuipc_doctor.api.loader import LoadedCheck, load_file

    item = load_file(inventory.SURVEYS)
    assert isinstance(item, LoadedCheck)
    assert item.check.id == inventory.CHECK
    assert "ctypes" not in vars(sys.modules[type(item.check).__module__])


def test_slots_of_gpus_are_named(tmp_path: Path) -> None:
    for bus in ("19", "3b"):
        where = f"/sys/bus/pci/devices/0000:{bus}:00.0"
        for name, text in (("vendor", "0x10de\n"), ("class", "0x030200\n"), ("config", bytes(64))):
            plant(tmp_path, f"{where}/{name}", text)
    for slot, address in (("7", "0000:3b:00\n"), ("8", "0000:99:00\n"), ("9", "\n")):
        plant(tmp_path, f"/sys/bus/pci/slots/{slot}/address", address)
    node = Node(root=str(tmp_path), simulated="tree")
    facts = engine.collect_inventory(Request(backend="cuda"), SiteConfig(), node, Silent()).facts
    assert [fact.value for fact in facts if fact.name == "gpu-slots"] == ["0000:3b:00.0 7"]


@pytest.mark.parametrize(
    ("told", "value"),
    [
        ({"a": "1650123456789", "b": "1650123456790"}, "a 1650123456789; b 1650123456790"),
        ({"a": "900-21010-0000-000", "b": "900-21010-0000-000"}, "900-21010-0000-000"),
        ({"a": "900-21010-0000-000", "b": "N/A"}, "a 900-21010-0000-000"),
        ({"a": "900-21010-0000-000"}, "a 900-21010-0000-000"),
        *(
            ({"a": garbage}, None)
            for garbage in (
                "",
                "0",
                "0000000000",
                "N/A",
                "[N/A]",
                "Unknown",
                "\ufffd650123",
                "1 2 3 4",
                "9" * 65,
                "1650\n123",
            )
        ),
    ],
)
def test_only_numbers_are_taken_for_serials(told: Mapping[str, str], value: str | None) -> None:
    assert [fact.value for fact in of_each("gpu-serials", told.items(), "NVML")] == [value] * (
        value is not None
    )
