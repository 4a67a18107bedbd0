"""Which variables are set: in the environment, and in the files in which NCCL looks for the same names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.model import Fact

ENVIRONMENT = "environment"
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable, its value, and where that was read: ``environment``, or ``file:line``."""

    name: str
    value: str
    where: str


def read(root: str, environ: Mapping[str, str]) -> dict[str, Assignment]:
    """All that is set, by name. The environment comes before files, and the user's file before the site's."""
    found = {name: Assignment(name, value, ENVIRONMENT) for name, value in environ.items()}
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    for name in (own, "/etc/nccl.conf"):
        if name.startswith("/"):
            for one in _settings(Path(root) / name.lstrip("/"), name):
                found.setdefault(one.name, one)
    return found


def _settings(path: Path, name: str) -> Iterator[Assignment]:
    """The lines ``NAME=VALUE`` of a file of NCCL's; ``#`` begins a comment."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        if stated := re.fullmatch(r"\s*(NCCL_\w+)\s*=\s*([^#]*?)\s*(?:#.*)?", line):
            yield Assignment(stated[1], stated[2], f"{name}:{number}")


def facts(found: Mapping[str, Assignment], names: Iterable[str]) -> Iterator[Fact]:
    """``env:NAME`` for each name that is known, set or not, so that known issues can ask for either."""
    for name in names:
        if one := found.get(name):
            yield Fact(f"env:{name}", "".join(c if c.isprintable() else " " for c in one.value), one.where)
        else:
            yield Fact(f"env:{name}", None, f"not set in the {ENVIRONMENT}")
