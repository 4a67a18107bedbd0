"""Only the MPI of the run, and the UCX under it, can be confirmed by what its probes find."""

from __future__ import annotations

from gpuipc_doctor.model import Fact, Launch, MpiStack
from gpuipc_doctor.mpi.choice import COMPONENTS, in_use

NODE = (
    Fact("nvidia-driver", "580.159.04", "NVML"),
    Fact("openmpi", "4.1.6", "/usr/lib"),
    Fact("ucx", "1.16.0", "/usr/lib"),
    Fact("mpich", None, "no mpichversion"),
)


def values(stack: MpiStack) -> dict[str, str | None]:
    return {fact.name: fact.value for fact in in_use(NODE, stack)}


def test_another_mpi_of_the_node_took_no_part() -> None:
    stack = MpiStack("intel-mpi", "2021.17", "/impi/libmpi.so.12", Launch(()))
    assert values(stack) == {"nvidia-driver": "580.159.04", "intel-mpi": "2021.17"}


def test_the_ucx_under_it_is_the_one_it_uses() -> None:
    stack = MpiStack("mpich", "5.0.2", "/mpich/libmpi.so.12", Launch(()), ucx="1.22.0")
    assert values(stack) == {"nvidia-driver": "580.159.04", "mpich": "5.0.2", "ucx": "1.22.0"}


def test_the_components_are_facts_of_the_inventory() -> None:
    from gpuipc_doctor.inventory import NAMES

    assert set(NAMES) >= COMPONENTS
