"""The known MPI families and their version strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

UNKNOWN = "unknown"

_FAMILIES: Mapping[str, tuple[str, str]] = {
    "cray-mpich": ("Cray MPICH", r"CRAY MPICH version (?P<version>\d[\w.]*)"),
    "mvapich": ("MVAPICH", r"^MVAPICH\S* Version\s*:\s*(?P<version>\S+)"),
    "openmpi": ("Open MPI", r"^Open MPI v(?P<version>[\w.]+)"),
    "intel-mpi": ("Intel MPI", r"^Intel\(R\) MPI Library (?P<version>\d+(\.\d+)*)( Update (?P<update>\d+))?"),
    "mpich": ("MPICH", r"^MPICH Version:\s*(?P<version>\S+)"),
}
"""Inventory name of a family's version → (display name, start of `MPI_Get_library_version`'s text). MPICH
comes last, because the texts of its derivatives may also match MPICH's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An MPI library. ``family`` is an inventory name (``openmpi``) or `UNKNOWN`."""

    family: str
    version: str
    title: str
    """Name and version: ``Open MPI 5.0.11``."""

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


def identify(version_text: str) -> Identity:
    """Identify the library from its `MPI_Get_library_version` text."""
    for family, (name, begins) in _FAMILIES.items():
        if found := re.search(begins, version_text, re.MULTILINE):
            parts = found.groupdict()
            version = ".".join(filter(None, (parts["version"], parts.get("update"))))
            return Identity(family, version, f"{name} {version}")
    first_line = version_text.strip().partition("\n")[0][:80]
    return Identity(UNKNOWN, "", first_line or "an MPI library that does not report its name")
