"""Find the file that the dynamic loader would load for a library, without loading it.

The search order is that of ld.so(8): ``LD_LIBRARY_PATH``, the cache of ldconfig, the default directories. A
program's own run path, which precedes the cache, is unknown here.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from gpuipc_doctor.files.node_files import Tree, shown
from gpuipc_doctor.model import Fact

CACHE = "/etc/ld.so.cache"
DEFAULT = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII5I")
_ENTRY = struct.Struct("<iIIIQ")
"""A cache entry: flags, offset of the name, offset of the path, and two unused fields (glibc, dl-cache.h)."""


@dataclass(frozen=True, slots=True)
class Library:
    """The path of a library's file on the node, and how the loader finds it."""

    file: str
    via: str

    @property
    def source(self) -> str:
        return f"{self.file} ({self.via})"


class Libraries:
    """Library search on one node, with one environment."""

    def __init__(self, tree: Tree, environ: Mapping[str, str]) -> None:
        self._tree = tree
        path = environ.get("LD_LIBRARY_PATH", "")
        self._path = [directory for directory in re.split("[:;]", path) if directory.startswith("/")]
        self.searched = ", ".join([*(["LD_LIBRARY_PATH"] if self._path else []), CACHE, *DEFAULT[1::2]])

    def find(self, soname: str) -> Library | None:
        """The file that a process gets for ``soname``."""
        return next(self._all(soname), None)

    def all(self, soname: str) -> list[Library]:
        """Every file with this name that the loader knows, in the order of its search."""
        return self._distinct(self._all(soname))

    def matching(self, pattern: str) -> list[Library]:
        """The file that a process loads for each matching soname (``*`` matches any text), without
        duplicates.
        """
        sonames: dict[str, Library] = {}
        for library in self._all(pattern):
            sonames.setdefault(library.file.rpartition("/")[2], library)
        return self._distinct(sonames.values())

    def _distinct(self, libraries: Iterable[Library]) -> list[Library]:
        files: dict[str, Library] = {}
        for library in libraries:
            files.setdefault(self._tree.real_name(library.file), library)
        return list(files.values())

    def _all(self, pattern: str) -> Iterator[Library]:
        for directory in self._path:
            for file in self._tree.glob(f"{directory}/{pattern}"):
                yield Library(file, "LD_LIBRARY_PATH")
        for soname, file in self._cache.items():
            if fnmatchcase(soname, pattern) and self._tree.exists(file):
                yield Library(file, CACHE)
        for directory in DEFAULT:
            for file in self._tree.glob(f"{directory}/{pattern}"):
                yield Library(file, "default")

    @cached_property
    def _cache(self) -> dict[str, str]:
        """Soname → file in ldconfig's cache; empty if missing or of an older format."""
        try:
            raw = self._tree.raw(CACHE)
        except OSError:
            return {}
        start = raw.find(_MAGIC)
        if start < 0:
            return {}
        try:
            count = _HEADER.unpack_from(raw, start)[1]
            entries = [
                _ENTRY.unpack_from(raw, start + _HEADER.size + n * _ENTRY.size)[:3] for n in range(count)
            ]
        except struct.error:
            return {}
        found: dict[str, str] = {}
        for flags, soname, file in entries:
            name, path = _string(raw, start + soname), _string(raw, start + file)
            # The second byte is the architecture; 0 for i386's libraries, not for 64-bit ones.
            if path.startswith("/") and (flags & 0xFF00 or sys.maxsize < 1 << 32):
                found.setdefault(name, path)
        return found


def _string(raw: bytes, at: int) -> str:
    """The text at an offset; empty if unterminated, as in a truncated file."""
    end = raw.find(b"\0", at)
    return raw[at:end].decode(errors="replace") if end >= 0 else ""


@dataclass(frozen=True, slots=True)
class _Mark:
    """How to find a library's version without loading it: in its path, or in a file next to it."""

    fact: str
    soname: str
    version: str
    """Regular expression whose group 1 is the version."""
    beside: str = ""
    """File with the version, relative to the library's directory; empty: it is in the library's path."""

    in_name: str = ""
    """Regular expression for the version in the library's name, used if the file ``beside`` is missing."""


_NUMBERS = r"[0-9]+(?:\.[0-9]+)+"
_IN_PC = r"(?m)^Version:\s*([0-9]\S*)"

_MARKS = (
    # The libcuda.so.1 of WSL and of the toolkit's stubs have no driver version in their names.
    _Mark("libcuda", "libcuda.so.1", r"\.so\.([0-9]{3,}\.[0-9]+(?:\.[0-9]+)?)$"),
    _Mark("cuda-runtime", "libcudart.so.*", r"\.so\.([0-9]+\.[0-9]+\.[0-9]+)$"),
    _Mark("gdrcopy", "libgdrapi.so.*", rf"\.so\.({_NUMBERS})$"),
    _Mark("nccl", "libnccl.so.*", r"\.so\.([0-9]+\.[0-9]+\.[0-9]+)$"),
    # Packages of distributions lack that file: libamdhip64.so.7.2.53211 is HIP 7.2, a part of ROCm 7.2.
    _Mark("rocm", "libamdhip64.so.*", r"^([0-9]\S*)", "../.info/version", r"\.so\.([0-9]+\.[0-9]+)\."),
    _Mark("level-zero", "libze_loader.so.1", r"\.so\.([0-9]+\.[0-9]+\.[0-9]+)$"),
    _Mark("oneccl", "libccl.so.1", r"/ccl/([0-9]+\.[0-9.]*[0-9])/"),
    # HPE installs each version in a directory with the version as its name.
    _Mark("cray-mpich", "libmpi*.so.12", rf"/cray/pe/mpich/({_NUMBERS})/"),
    _Mark("mpich", "libmpi.so.12", _IN_PC, "pkgconfig/mpich.pc"),
    _Mark("openmpi", "libmpi.so.40", _IN_PC, "pkgconfig/ompi.pc"),
    _Mark("shs-libfabric", "libfabric.so.1", rf"/cray/libfabric/({_NUMBERS}\w*)/"),
    _Mark("libfabric", "libfabric.so.1", _IN_PC, "pkgconfig/libfabric.pc"),
    _Mark("ucx", "libucp.so.0", _IN_PC, "pkgconfig/ucx.pc"),
)


def facts(tree: Tree, libraries: Libraries) -> Iterator[Fact]:
    """Versions of libraries, read without loading the libraries.

    If several rows of `_MARKS` match a file, the first that gives a version counts.
    """
    known: set[str] = set()
    for mark in _MARKS:
        found = [library for library in libraries.matching(mark.soname) if library.file not in known]
        if not found:
            yield Fact(mark.fact, None, f"no {mark.soname} in {libraries.searched}")
        for library in found:
            fact = _told(tree, mark, library)
            if fact.value:
                known.add(library.file)
            yield fact
    yield _ucx_modules(tree, next(iter(libraries.matching("libucp.so.0")), None))


def _ucx_modules(tree: Tree, library: Library | None) -> Fact:
    """UCX loads its transports from a directory next to its libraries (UCX_MODULE_DIR's default)."""
    if library is None:
        return Fact("ucx-modules", None, "no libucp.so.0")
    where = f"{tree.real_name(library.file).rpartition('/')[0]}/ucx"
    files = tree.glob(f"{where}/libuct_*.so*")
    modules = {file.rpartition("/libuct_")[2].partition(".so")[0] for file in files}
    source = f"{where} of {library.file}" if modules else f"no libuct_*.so in {where}"
    return Fact("ucx-modules", " ".join(sorted(modules)) or None, source)


def _told(tree: Tree, mark: _Mark, library: Library) -> Fact:
    real = tree.real_name(library.file)
    if not mark.beside:
        stated = re.search(mark.version, real)
        return Fact(
            mark.fact,
            shown(stated[1]) if stated else None,
            library.source if stated else f"no version in the name of {library.source}",
        )
    file = os.path.normpath(f"{real.rpartition('/')[0]}/{mark.beside}")
    try:
        stated = re.search(mark.version, tree.text(file))
    except OSError:
        named = re.search(mark.in_name, real) if mark.in_name else None
        return Fact(mark.fact, named[1], library.source) if named else Fact(mark.fact, None, f"no {file}")
    return Fact(mark.fact, shown(stated[1]) if stated else None, file if stated else f"not stated in {file}")
