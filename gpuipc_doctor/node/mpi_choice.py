"""Make the `MpiStack` for checks from the survey of an MPI library. Loads nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.model import Fact, Json
from gpuipc_doctor.node import loaded, mpi_locate, mpi_verbosity
from gpuipc_doctor.node.mpi_identity import identify
from gpuipc_doctor.node.mpi_ranks import RankSetting
from gpuipc_doctor.probe_types import Launch, MpiStack, Workaround
from gpuipc_doctor.vendors import SUPPORTED

COMPONENTS = frozenset({"mpich", "cray-mpich", "openmpi", "intel-mpi", "mvapich", "ucx"})
"""Names of facts about the node's MPI libraries and UCX."""


def launcher(
    seen: Mapping[str, Json],
    template: str,
    setting: RankSetting,
    environment: Mapping[str, str],
    nodes: int,
    hosts: Sequence[str] = (),
) -> mpi_locate.Launcher:
    """How ranks start under the surveyed library ``seen``. Raises `mpi_locate.NotFound`."""
    facts = seen["facts"]
    found = mpi_locate.find_launcher(
        identify(facts["version_text"]),
        facts["library"],
        template,
        setting.of(environment),
        nodes=nodes,
        hosts=hosts,
        added=setting.environment,
    )
    return replace(found, launch=replace(found.launch, preload=setting.preload))


def stack(
    seen: Mapping[str, Json],
    backends: Collection[str],
    launch: Launch,
    environment: Mapping[str, str],
    *,
    simulated: bool,
) -> MpiStack:
    """The MPI for checks, with the backends whose device pointers it accepts.

    Where simulated device memory is host memory, every MPI accepts it.
    """
    from gpuipc_doctor.node import mpi_ipc_settings, mpi_transports  # most runs have no MPI
    from gpuipc_doctor.node.mpi_facts import Facts

    facts = seen["facts"]
    identity = identify(facts["version_text"])
    aware = {backend: mpi_transports.gpu_aware(facts, backend) for backend in sorted(backends)}
    on_host = [backend for backend in aware if SUPPORTED[backend].simulated_on_host]
    unable = [verdict for verdict in aware.values() if not verdict.able]
    able = frozenset(backend for backend, verdict in aware.items() if verdict.able)
    some = next(iter(able or aware))
    found, via = Facts(facts, some), aware[some].via
    ucx = found.ucx_version if via == "ucx" else ""
    settings = mpi_ipc_settings.suitable(found, via)
    bound = mpi_ipc_settings.bounding(found, via)
    buffers = found.environment.get(bound.variable, "") if bound and not bound.in_bytes else ""
    return MpiStack(
        family=identity.family,
        version=identity.version,
        library=facts["library"],
        launch=launch,
        has_gpu_path=bool(able),
        takes=able or frozenset(on_host if simulated else ()),
        why_not=unable[0].why_not if unable else "",
        remedy=unable[0].remedy if unable else "",
        ipc_off=next((setting.env for setting in settings if setting.no_ipc), {}),
        cache_bound=bound.variable if bound else "",
        cache_buffers=int(buffers) if buffers.isdecimal() else None,
        cache_in_bytes=bool(bound and bound.in_bytes),
        workarounds=tuple(Workaround(setting.env, setting.cost) for setting in settings),
        edges=found.edges,
        louder=mpi_verbosity.raised(identity.family, over_ucx=bool(ucx), environment=environment),
        ucx=ucx,
        lacks=aware[some].lacks,
    )


def in_use(
    facts: Iterable[Fact], stack: MpiStack, in_ranks: Collection[str] | None = None
) -> tuple[Fact, ...]:
    """The facts on this run's MPI and UCX, and all facts on other components.

    Other MPI libraries and UCXs of the node are omitted, because this run's probes did not test them.
    ``in_ranks``: the fabric libraries (`loaded.fabric`) that ranks had loaded, if known.
    """
    used = {stack.family: stack.version, "ucx": stack.ucx}
    facts = tuple(facts)
    is_only = {fact.value for fact in facts if fact.name == "ucx" and fact.value} == {stack.ucx}
    left_out = COMPONENTS if is_only or in_ranks else COMPONENTS | {"ucx-modules"}  # perhaps of another UCX
    others = tuple(fact for fact in facts if fact.name not in left_out)
    found = (*others, *(Fact(name, version, stack.library) for name, version in used.items() if version))
    return found if in_ranks is None else loaded.facts_of_loaded(found, in_ranks)


def relevant_facts(
    facts: Iterable[Fact], stack: MpiStack | None, in_ranks: Collection[str] | None = None
) -> tuple[Fact, ...]:
    """The `in_use` facts that can cause faults. An MPI that receives no device memory is excluded.

    Without a ``stack``, libfabric is also excluded if the inventory has no MPI that could load it.
    """
    if stack is None:
        facts = tuple(facts)
        has_user = any(fact.name in COMPONENTS - {"ucx"} and fact.value for fact in facts)
        return facts if has_user else tuple(fact for fact in facts if fact.name != "libfabric")
    found = in_use(facts, stack, in_ranks)
    without = COMPONENTS | {"libfabric"}
    return found if stack.has_gpu_path else tuple(fact for fact in found if fact.name not in without)


def messages_went_through(facts: Iterable[Fact], stack: MpiStack) -> tuple[Fact, ...]:
    """Facts from `in_use` on the MPI library, UCX and libfabric."""
    names = (stack.family, "ucx", "libfabric", "shs-libfabric")
    by_name = {fact.name: fact for fact in facts if fact.value}
    return tuple(by_name[name] for name in names if name in by_name)
