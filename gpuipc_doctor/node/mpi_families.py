"""Conclusions about an MPI library from the facts of `mpi_survey.survey`. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuipc_doctor.histories.mpi_library_limits import lacks
from gpuipc_doctor.model import Json
from gpuipc_doctor.node.mpi_facts import Facts
from gpuipc_doctor.node.mpi_identity import UNKNOWN
from gpuipc_doctor.node.mpi_transports import ROUTES, Condition, Route


@dataclass(frozen=True, slots=True)
class Awareness:
    """Whether an MPI library accepts device pointers; if not, why, and what to do."""

    able: bool
    via: str = ""
    """``own`` or ``ucx``: the code that moves, or would move, device memory."""
    why_not: str = ""
    remedy: str = ""
    lacks: tuple[str, ...] = ()
    """Features that are unsupported in device memory: ``derived types``."""


def gpu_aware(seen: Mapping[str, Json], backend: str) -> Awareness:
    """Judge the facts of `mpi_survey.survey` for one backend's devices.

    If device pointers can be enabled in several ways, the easiest is reported: a setting is easier than a
    build.
    """
    facts = Facts(seen, backend)
    if facts.identity.family == UNKNOWN:
        return Awareness(
            False,
            why_not=f"gpuipc-doctor does not know {facts.identity.title}",
            remedy="name another library with --mpi-lib",
        )
    unmet = {
        route.via: _unmet(route, facts)
        for route in ROUTES[facts.identity.family]
        if backend in route.backends
    }
    if not unmet:
        return Awareness(
            False,
            why_not=f"{facts.identity.title} does not support {facts.vendor.name}",
            remedy="use another MPI on this node and name its library with --mpi-lib",
        )
    via = min(unmet, key=lambda name: (any(not row.by_setting for row in unmet[name]), len(unmet[name])))
    remedies = [", and ".join(facts.fill_in(row.remedy) for row in unmet[via])]
    if len(unmet[via]) > 1:
        remedies += [facts.fill_in(rows[0].remedy) for name, rows in unmet.items() if name != via]
    return Awareness(
        able=not unmet[via],
        via=via,
        why_not="; ".join(facts.fill_in(row.why_not) for row in unmet[via]),
        remedy="; or ".join(remedies),
        lacks=lacks(facts.identity.family, over_ucx=not unmet[via] and via == "ucx"),
    )


def _unmet(route: Route, facts: Facts) -> list[Condition]:
    """The unmet conditions; if some require another build, only the first of these."""
    unmet = [row for row in route.conditions if not row.holds(facts)]
    return next(([row] for row in unmet if not row.by_setting), unmet)
