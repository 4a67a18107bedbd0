"""Find the node's NCCL and RCCL libraries without loading them.

Of each vendor's libraries, the first in this order is tested: the one that the user or the site config names,
PyTorch's own, that of the vendor's SDK or ROCm, and the system's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpuipc_doctor.files.node_files import Tree, shown
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node.libraries import Libraries
from gpuipc_doctor.probe_types import CollectiveLibrary, CollectiveStack
from gpuipc_doctor.vendors import SUPPORTED


def find(
    root: str, environ: Mapping[str, str], backends: Sequence[str], named: Sequence[tuple[str, str]] = ()
) -> CollectiveStack:
    """The libraries of these backends, best first.

    ``named``: (file, where it is named), the most important first. Such a file is of the backend whose
    library's name it has, by default of the first backend. It need not exist: loading it will say so.
    """
    tree = Tree(Path(root))
    found: dict[str, CollectiveLibrary] = {}
    for library in _candidates(tree, environ, backends, named):
        found.setdefault(str(Path(library.path).resolve()), library)
    searched = ", ".join(
        [
            "Python's path (nvidia/nccl, torch)",
            "/opt/nvidia/hpc_sdk",
            "/opt/rocm*",
            Libraries(tree, environ).searched,
        ]
    )
    return CollectiveStack(tuple(found.values()), searched)


def _candidates(
    tree: Tree, environ: Mapping[str, str], backends: Sequence[str], named: Sequence[tuple[str, str]]
) -> Iterator[CollectiveLibrary]:
    for file, where in named:
        name = Path(file).name
        named_so = (each.backend for each in SUPPORTED.values() if each.collectives.fact in name)
        backend = next(named_so, backends[0])
        path = tree.path(file) if not tree.is_real and tree.exists(file) else Path(file)
        yield CollectiveLibrary(backend, file, str(path), _version_in(tree.real_name(file)), where)
    for backend in backends:
        family = SUPPORTED[backend].collectives
        for pattern in family.in_wheels:
            for directory in dict.fromkeys(path for path in sys.path if path.startswith("/")):
                for file in tree.glob(f"{directory}/{pattern}"):
                    yield _library(tree, backend, file, "PyTorch's wheel", wheel_version(tree, directory))
        for pattern in family.in_sdks:
            for file in sorted(tree.glob(pattern), key=_numbers, reverse=True):
                yield _library(tree, backend, file, family.sdk)
        for library in Libraries(tree, environ).all(family.soname):
            yield _library(tree, backend, library.file, library.via)


def _library(tree: Tree, backend: str, file: str, via: str, version: str = "") -> CollectiveLibrary:
    version = version or _version_in(tree.real_name(file))
    return CollectiveLibrary(backend, file, str(tree.path(file)), version, via)


def _version_in(name: str) -> str:
    """The version in NCCL's file name; RCCL's file name has that of its interface."""
    stated = re.search(r"libnccl\.so\.([0-9]+\.[0-9]+\.[0-9]+)$", name)
    return stated[1] if stated else ""


def wheel_version(tree: Tree, directory: str) -> str:
    """The version of the wheel ``nvidia-nccl-cu12`` or ``-cu13``, if exactly one is installed."""
    names = [name.rpartition("/")[2] for name in tree.glob(f"{directory}/nvidia_nccl_cu*.dist-info")]
    versions = {name.removesuffix(".dist-info").rpartition("-")[2] for name in names}
    return shown(versions.pop()) if len(versions) == 1 else ""


def _numbers(name: str) -> list[int]:
    """The numbers in a path, to sort the newest SDK first."""
    return [int(digits) for digits in re.findall(r"[0-9]+", name)]


def in_use(facts: Iterable[Fact], stack: CollectiveStack) -> tuple[Fact, ...]:
    """The facts without the versions of NCCL and RCCL that no check tests: all but each backend's first."""
    facts = tuple(facts)
    for backend, vendor in SUPPORTED.items():
        if (first := next(iter(stack.of(backend)), None)) and first.version:
            tested = Fact(vendor.collectives.fact, first.version, first.file)
            facts = (*(fact for fact in facts if fact.name != tested.name), tested)
    return facts
