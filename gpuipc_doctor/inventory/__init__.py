"""What a node is made of: versions and models, each with where it was read.

This side reads plain files below a root, which cannot hang as a driver's call can and does not tell a
simulated node from a real one. What only a driver can say comes as ``driver_facts`` from a worker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpuipc_doctor.inventory.names import NAMES
from gpuipc_doctor.model import Fact

__all__ = ["NAMES", "read"]

_MAX_BYTES = 64 << 10
"""No file read here is longer."""


def read(root: str, driver_facts: Iterable[Fact] = ()) -> tuple[Fact, ...]:
    """All facts of the node whose files stand below ``root``, in the order of `NAMES`.

    A driver's own word comes first. Sources that agree share a row and are named together; where they do
    not (an NVIDIA kernel module of one version under libraries of another), each keeps its row.
    """
    facts = [*driver_facts, *_from_files(Path(root)), _gpu_models(Path(root))]
    names = dict.fromkeys((*NAMES, *(fact.name for fact in facts)))
    return tuple(row for name in names for row in _rows([fact for fact in facts if fact.name == name]))


def _rows(facts: list[Fact]) -> Iterator[Fact]:
    """The facts of one name: a row for each value found, else one row that says where it was looked for."""
    found = [fact for fact in facts if fact.value is not None] or facts
    for value in dict.fromkeys(fact.value for fact in found):
        sources = dict.fromkeys(fact.source for fact in found if fact.value == value)
        yield Fact(found[0].name, value, "; ".join(sources))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _nvrm_version(text: str) -> str:
    """``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …``"""
    found = re.search(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+){1,2})\s", text, re.MULTILINE)
    return found[1] if found else ""


def _nvrm_licence(text: str) -> str:
    found = re.search(r"^NVRM version:.*?(Open )?Kernel Module", text, re.MULTILINE)
    return ("open" if found[1] else "proprietary") if found else ""


_FILES: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("kernel", "/proc/sys/kernel/osrelease", _first_line),
    ("nvidia-driver", "/proc/driver/nvidia/version", _nvrm_version),
    ("nvidia-driver", "/sys/module/nvidia/version", _first_line),
    ("nvidia-module", "/proc/driver/nvidia/version", _nvrm_licence),
    ("amdgpu", "/sys/module/amdgpu/version", _first_line),
    ("rocm", "/opt/rocm/.info/version", _first_line),
)
"""Name of a fact, the file that states it, and how it is found in the file's text."""


def _from_files(root: Path) -> Iterator[Fact]:
    for name, path, find in _FILES:
        try:
            value = _shown(find(_text(root / path.lstrip("/"))))
        except FileNotFoundError:
            yield Fact(name, None, f"no {path}")
        except OSError as error:
            yield Fact(name, None, f"{path}: {error.strerror}")
        else:
            yield Fact(name, value, path) if value else Fact(name, None, f"not stated in {path}")


def _gpu_models(root: Path) -> Fact:
    """The models that NVIDIA's kernel driver lists: ``4 × NVIDIA H200``."""
    where = "/proc/driver/nvidia/gpus/*/information"
    models: Counter[str] = Counter()
    for path in sorted(root.glob(where.lstrip("/"))):
        try:
            found = re.search(r"^Model:(.*)", _text(path), re.MULTILINE)
        except OSError:  # the GPU went away between the two calls
            continue
        models[_shown(found[1]) if found else "unknown model"] += 1
    names = [f"{count} × {name}" if count > 1 else name for name, count in models.items()]
    return Fact("gpu-model", ", ".join(names), where) if names else Fact("gpu-model", None, f"no {where}")


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")


def _shown(text: str) -> str:
    """A value as one printable line, for it ends up on terminals."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
