"""Versions of the libraries that a process has loaded, found with the inventory's readers."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import libraries
from gpuipc_doctor.node.collective_libraries import wheel_version
from gpuipc_doctor.node.libraries import Libraries, Library
from gpuipc_doctor.stacks import rights


class _Loaded(Libraries):
    """A search that finds only libraries that a process has loaded, not those that the loader would find."""

    def __init__(self, tree: Tree, paths: tuple[str, ...]) -> None:
        super().__init__(tree, {})
        self._files = paths
        self.searched = "the mapped files"

    def matching(self, pattern: str) -> list[Library]:
        return [
            Library(path, "loaded")
            for path in self._files
            if fnmatchcase(name := Path(path).name, pattern) or fnmatchcase(name, f"{pattern}.*")
        ]


@lru_cache(maxsize=8)
def facts(paths: tuple[str, ...], root: str = "/") -> tuple[Fact, ...]:
    """Versions as facts, read from the names of these files and from neighbouring files."""
    tree = Tree(Path(root))
    return tuple(fact for fact in libraries.facts(tree, _Loaded(tree, paths)) if fact.value is not None)


def versions(process: Process) -> dict[str, str]:
    """Component → version. A container's files are read in the process's own root."""
    namespaces = [rights.namespace(pid, "mnt") for pid in (process.pid, os.getpid())]
    root = "/" if namespaces[0] in ("", namespaces[1]) else f"/proc/{process.pid}/root"
    found = {fact.name: fact.value for fact in facts(process.libraries, root) if fact.value}
    if "nccl" not in found and (version := _nccl_of_wheel(process.libraries, root)):
        found["nccl"] = version
    return found


_WHEEL = re.compile(r"(/.+)/nvidia/nccl/lib/libnccl\.so[\d.]*$")


@lru_cache(maxsize=8)
def _nccl_of_wheel(paths: tuple[str, ...], root: str) -> str:
    """The version of NCCL that PyTorch's wheels bring, whose file is libnccl.so.2: that of its metadata."""
    for path in paths:
        if found := _WHEEL.match(path):
            return wheel_version(Tree(Path(root)), found[1])
    return ""
