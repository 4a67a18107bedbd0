"""Probes can only confirm issues of the run's MPI and of the UCX that it uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import loaded
from gpuipc_doctor.node.mpi_choice import COMPONENTS, in_use, messages_went_through, relevant_facts
from gpuipc_doctor.probe_types import Launch, MpiStack

NODE = (
    Fact("nvidia-driver", "580.159.04", "NVML"),
    Fact("openmpi", "4.1.6", "/usr/lib"),
    Fact("ucx", "1.16.0", "/usr/lib"),
    Fact("mpich", None, "no mpichversion"),
)


def test_modules_are_those_of_the_ucx_in_use() -> None:
    stack = MpiStack("mpich", "5.0.2", "/mpich/libmpi.so.12", Launch(()), ucx="1.22.0")
    modules = Fact("ucx-modules", "cma ib", "/usr/lib/ucx of /usr/lib/libucp.so.0")
    other, own = Fact("ucx", "1.18.1", "/usr"), Fact("ucx", "1.22.0", "/usr")
    mine, theirs = ["/usr/lib/libucp.so.0"], ["/opt/libucp.so.0"]
    for node, in_ranks, kept in (
        ([own, modules], None, True),
        ([own, other, modules], None, False),
        ([own, other, modules], mine, True),
        ([own, modules], theirs, False),
    ):
        assert (modules in in_use(node, stack, in_ranks)) is kept, (node, in_ranks)


def test_mpi_without_device_memory_support_has_no_such_issues() -> None:
    stack = MpiStack("mpich", "5.0.2", "/mpich/libmpi.so.12", Launch(()), ucx="1.22.0")
    assert [fact.name for fact in relevant_facts(NODE, stack)] == ["nvidia-driver"]
    taking = replace(stack, has_gpu_path=True)
    assert [fact.name for fact in relevant_facts(NODE, taking)] == ["nvidia-driver", "mpich", "ucx"]


def test_library_that_no_rank_loaded_is_not_in_use() -> None:
    """An MPI may contain its own libfabric, whatever the distribution has."""
    stack = MpiStack("mpich", "4.0", "/mpich/libmpi.so.12", Launch(()))
    node = (*NODE, Fact("libfabric", "1.17.0", "/usr/lib"))
    assert "libfabric" in {fact.name for fact in in_use(node, stack)}
    assert "libfabric" not in {fact.name for fact in in_use(node, stack, [])}
    facts = in_use(node, stack, ["/usr/lib/libfabric.so.1.25.0"])
    assert [fact.name for fact in messages_went_through(facts, stack)] == ["mpich", "libfabric"]


def test_libfabric_not_used_for_device_memory_has_no_issues() -> None:
    fabric = Fact("libfabric", "1.17.0", "/usr/lib")
    taking = MpiStack("mpich", "5.0.2", "/mpich/libmpi.so.12", Launch(()), has_gpu_path=True)

    def names(*arguments: Any) -> set[str]:
        return {fact.name for fact in relevant_facts((*NODE, fabric), *arguments)}

    assert "libfabric" in names(taking)
    assert "libfabric" in names(taking, ["/usr/lib/libfabric.so.1"])
    assert "libfabric" not in names(taking, [])
    assert "libfabric" not in names(replace(taking, has_gpu_path=False))
    assert "libfabric" in names(None)  # Open MPI is on the node, but was not tested
    without_mpi = [Fact("openmpi", None, "no ompi_info"), fabric]
    assert [fact.name for fact in relevant_facts(without_mpi, None)] == ["openmpi"]


def test_library_of_the_same_name_in_another_directory_is_distinct(tmp_path: Path) -> None:
    for place in ("usr", "mpi"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "libfabric.so.1.2.3").touch()
        (tmp_path / place / "libfabric.so.1").symlink_to("libfabric.so.1.2.3")
    fact = Fact("libfabric", "1.17.0", f"rpm; fi_version of {tmp_path}/usr/libfabric.so.1")
    assert loaded.facts_of_loaded([fact], [f"{tmp_path}/usr/libfabric.so.1.2.3"]) == (fact,)
    assert loaded.facts_of_loaded([fact], [f"{tmp_path}/mpi/libfabric.so.1.2.3"]) == ()


def test_loaded_libraries_of_a_process_are_found() -> None:
    assert any("/libc.so" in path or "/libc-" in path or "/ld-" in path for path in loaded.mapped_files())


def test_components_are_facts_of_the_inventory() -> None:
    from gpuipc_doctor.node.inventory import NAMES

    assert set(NAMES) >= COMPONENTS
