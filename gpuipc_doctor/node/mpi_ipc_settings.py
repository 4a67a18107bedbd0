"""Environment variables that disable an MPI library's IPC, or are known to help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gpuipc_doctor.files import tables
from gpuipc_doctor.node.mpi_facts import Facts
from gpuipc_doctor.vendors import SUPPORTED


@dataclass(frozen=True, slots=True)
class IpcSetting:
    """One setting, for the versions from ``introduced`` to before ``fixed``; an empty bound is no limit.

    ``family`` and ``via`` select the library, as in `routes`; ``*`` stands for every family. ``no_ipc``:
    whether the setting disables IPC completely, so that a probe with it is a control. ``cost`` is in words.
    """

    family: str
    env: Mapping[str, str]
    cost: str
    source: str
    via: str = "own"
    no_ipc: bool = False
    backends: tuple[str, ...] = tuple(SUPPORTED)
    introduced: str = ""
    fixed: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """The variable that limits how many buffers or bytes of other processes a library keeps mapped.

    ``introduced`` and ``fixed`` are versions of the library, or of UCX if ``via`` is ``ucx``.
    """

    family: str
    variable: str
    via: str = "own"
    introduced: str = ""
    fixed: str = ""
    backends: tuple[str, ...] = tuple(SUPPORTED)
    in_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The content of ``ipc_settings.yaml``. If several bounds match, the first is used."""

    switches: tuple[IpcSetting, ...]
    bounds: tuple[Bound, ...]


@cache
def table() -> Table:
    import msgspec

    return msgspec.convert(tables.table(Path(__file__).with_name("ipc_settings.yaml")), Table)


def bounding(facts: Facts, via: str) -> Bound | None:
    """The variable that limits a library's cache of mappings; None if unknown."""
    version = facts.ucx_version if via == "ucx" else facts.identity.version
    return next((row for row in table().bounds if _is_of(row, facts, via, version)), None)


def suitable(facts: Facts, via: str) -> tuple[IpcSetting, ...]:
    """The IPC settings for this library, version and environment that it reads, cheapest first."""
    return tuple(
        replace(
            row,
            env={
                name: _value(facts, name, value)
                for name, value in row.env.items()
                if facts.identity.family == "openmpi" or not name.startswith("OMPI_")
            },
        )
        for row in table().switches
        if _is_of(row, facts, via, facts.identity.version)
    )


def _is_of(row: IpcSetting | Bound, facts: Facts, via: str, version: str) -> bool:
    """Whether a row is for this library, its version, its backend and the code that moves its messages."""
    return (
        row.family in ("*", facts.identity.family)
        and row.via == via
        and facts.backend in row.backends
        and _covers(row, version)
    )


def _value(facts: Facts, name: str, value: str) -> str:
    """The value to set for a row. If UCX_TLS is already set, it is the present value of UCX_TLS without the
    IPC transport."""
    if name != "UCX_TLS" or facts.ucx_tls == "all":
        return facts.fill_in(value)
    vendor = facts.vendor
    if facts.ucx_tls.startswith("^"):
        return f"{facts.ucx_tls},{vendor.ucx_ipc}"
    without_alias = [
        vendor.ucx_copy if part == vendor.accelerator else part for part in facts.ucx_tls.split(",")
    ]
    return ",".join(alias for alias in without_alias if alias != vendor.ucx_ipc)


def _covers(row: IpcSetting | Bound, version: str) -> bool:
    from packaging.version import InvalidVersion, Version

    if not row.introduced and not row.fixed:
        return True
    try:
        ours = Version(version)
    except InvalidVersion:
        return False
    return not (row.introduced and ours < Version(row.introduced)) and not (
        row.fixed and ours >= Version(row.fixed)
    )
