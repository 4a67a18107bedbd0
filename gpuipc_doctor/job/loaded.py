"""Versions of the libraries that a process has loaded, found with the inventory's readers."""

from __future__ import annotations

import os
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from gpuipc_doctor.inventory import libraries
from gpuipc_doctor.inventory.libraries import Libraries, Library
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node_files import Tree


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
    namespaces = [_namespace(pid) for pid in (str(process.pid), "self")]
    root = "/" if namespaces[0] in ("", namespaces[1]) else f"/proc/{process.pid}/root"
    return {fact.name: fact.value for fact in facts(process.libraries, root) if fact.value}


def _namespace(pid: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 - it is no path
    return ""
