"""From what was seen of an MPI library to the `MpiStack` that checks run on. Loads nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpuipc_doctor.model import Fact, Json, Launch, MpiStack, Workaround
from gpuipc_doctor.mpi import families, finding, logs

COMPONENTS = frozenset({"mpich", "cray-mpich", "openmpi", "intel-mpi", "mvapich", "ucx"})
"""The facts of the inventory that say which MPI library and which UCX are on a node."""


def launch(seen: Mapping[str, Json], template: str, environment: Mapping[str, str], nodes: int) -> Launch:
    """How ranks start under the library of which ``seen`` is the survey. Raises `finding.NotFound`."""
    facts = seen["facts"]
    identity = families.identify(facts["version_text"])
    return finding.find_launcher(identity, facts["library"], template, environment, nodes=nodes).launch


def stack(
    seen: Mapping[str, Json],
    backends: Collection[str],
    launch: Launch,
    environment: Mapping[str, str],
    *,
    simulated: bool,
) -> MpiStack:
    """The MPI that checks run on, and which backends' device pointers it takes.

    Simulated device memory is the host's, so on a simulated node an MPI that knows of no GPU takes it, too.
    """
    facts = seen["facts"]
    identity = families.identify(facts["version_text"])
    aware = {backend: families.gpu_aware(facts, backend) for backend in sorted(backends)}
    unable = [verdict for verdict in aware.values() if not verdict.able]
    able = frozenset(backend for backend, verdict in aware.items() if verdict.able)
    some = next(iter(able or aware))
    ucx = facts["ucx"]["version"] if aware[some].via == "ucx" and facts["ucx"] else ""
    return MpiStack(
        family=identity.family,
        version=identity.version,
        library=facts["library"],
        launch=launch,
        takes=able or (frozenset(aware) if simulated else frozenset()),
        why_not=unable[0].why_not if unable else "",
        remedy=unable[0].remedy if unable else "",
        ipc_off=families.ipc_off(facts, some),
        workarounds=tuple(Workaround(s.env, s.cost) for s in families.switches(facts, some)),
        edges=families.edges(facts, some),
        louder=logs.raised(identity.family, over_ucx=bool(ucx), environment=environment),
        ucx=ucx,
    )


def in_use(facts: Iterable[Fact], stack: MpiStack) -> tuple[Fact, ...]:
    """The inventory as this run's probes saw it: of MPI libraries, and of UCX, only the one in use.

    What else is installed took no part, so nothing that a probe finds can speak for or against it.
    """
    used = {stack.family: stack.version, "ucx": stack.ucx}
    others = tuple(fact for fact in facts if fact.name not in COMPONENTS)
    return (*others, *(Fact(name, version, stack.library) for name, version in used.items() if version))
