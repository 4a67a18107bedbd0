"""Load MPI, UCX, libfabric and NCCL, and query their versions without initialising them."""

from __future__ import annotations

import os
import re
from typing import Any

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import shown
from gpuipc_doctor.node.loaded import mapped_files
from gpuipc_doctor.node.mpi_identity import identify
from gpuipc_doctor.node.survey_records import FactRow, load, record

MPI_FACTS = ("mpich", "cray-mpich", "openmpi", "intel-mpi", "mvapich", "other-mpi")

MPI4PY = "mpi4py"


def mpi(w: Worker) -> None:
    """Record the version from `MPI_Get_library_version`, which may be called before `MPI_Init`, and the
    versions of the loaded UCX and libfabric."""
    import ctypes

    file = w.params["library"]
    library = load(w, file, MPI_FACTS)
    if library is None:
        return
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()  # MPICH's MPI_MAX_LIBRARY_VERSION_STRING
    with w.armed("MPI_Get_library_version"):
        library.MPI_Get_library_version(text, ctypes.byref(length))
    record(w, _mpi_fact(text.value.decode(errors="replace"), file))
    _companions(w)


def mpi4py(w: Worker) -> None:
    """Record the version of the MPI library that mpi4py loads."""
    import mpi4py

    mpi4py.rc.initialize = False
    try:
        with w.armed("import mpi4py.MPI"):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        record(w, (MPI4PY, None, shown(str(error))))
        return
    with w.armed("MPI_Get_library_version"):
        text = MPI.Get_library_version()
    files = [file for file in sorted(mapped_files()) if "/libmpi" in file]
    record(w, _mpi_fact(text, f"{', '.join(files)} (mpi4py)"))
    _companions(w)


def _mpi_fact(text: str, where: str) -> FactRow:
    identity = identify(text)
    known = identity.family in MPI_FACTS
    name, value = (identity.family, identity.version) if known else ("other-mpi", identity.title)
    return name, shown(value), f"MPI_Get_library_version of {where}"


def _companions(w: Worker) -> None:
    """Record the versions of the UCX and libfabric that were loaded with an MPI library."""
    for file in sorted(mapped_files()):
        if re.search(r"/libucp\.so", file):
            _ask_ucx(w, file)
        elif re.search(r"/libfabric\.so", file):
            _ask_libfabric(w, file)


def ucx(w: Worker) -> None:
    _ask_ucx(w, w.params["library"])


def _ask_ucx(w: Worker, file: str) -> None:
    import ctypes

    if library := load(w, file, ["ucx"]):
        library.ucp_get_version_string.restype = ctypes.c_char_p
        with w.armed("ucp_get_version_string"):
            text = library.ucp_get_version_string()
        record(w, ("ucx", shown(text.decode(errors="replace")), f"ucp_get_version_string of {file}"))


_FI_TYPE_VERSION = 18
"""Argument with which `fi_tostr` returns libfabric's version (enum ``fi_type``, rdma/fabric.h)."""


def libfabric(w: Worker) -> None:
    file = w.params["library"]
    # Older releases initialise all vendors' GPUs in fi_getinfo; since 1.20 this setting prevents that.
    os.environ["FI_HMEM"] = "system"
    library = _ask_libfabric(w, file)
    if library is not None:
        with w.armed("fi_getinfo"):
            names = _providers(library)
        record(w, ("libfabric-providers", ", ".join(names) or None, f"fi_getinfo of {file}"))


def _ask_libfabric(w: Worker, file: str) -> Any:
    """Record the library's version; returns the library, or None if it cannot be loaded."""
    import ctypes

    name = "shs-libfabric" if "/cray/" in os.path.realpath(file) else "libfabric"
    library = load(w, file, [name])
    if library is not None:
        library.fi_tostr.restype = ctypes.c_char_p
        with w.armed("fi_tostr"):
            text = library.fi_tostr(b"", _FI_TYPE_VERSION)
        record(w, (name, shown(text.decode(errors="replace")), f"fi_tostr(FI_TYPE_VERSION) of {file}"))
    return library


def _providers(library: Any) -> list[str]:
    """Names of the providers without duplicates, preferred ones first; empty if there are none."""
    import ctypes

    class FabricAttr(ctypes.Structure):
        _fields_ = (("fabric", ctypes.c_void_p), ("name", ctypes.c_char_p), ("prov_name", ctypes.c_char_p))

    class Info(ctypes.Structure):
        """``struct fi_info`` of rdma/fabric.h up to the last member used."""

    Info._fields_ = (
        ("next", ctypes.POINTER(Info)),
        ("caps", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("addr_format", ctypes.c_uint32),
        ("src_addrlen", ctypes.c_size_t),
        ("dest_addrlen", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("src_addr", "dest_addr", "handle", "tx_attr", "rx_attr")),
        *((name, ctypes.c_void_p) for name in ("ep_attr", "domain_attr")),
        ("fabric_attr", ctypes.POINTER(FabricAttr)),
    )
    library.fi_version.restype = ctypes.c_uint32
    first = ctypes.POINTER(Info)()
    library.fi_getinfo(
        ctypes.c_uint32(library.fi_version()), None, None, ctypes.c_uint64(0), None, ctypes.byref(first)
    )
    names: dict[str, None] = {}
    info = first
    while info:
        names[shown(info.contents.fabric_attr.contents.prov_name.decode(errors="replace"))] = None
        info = info.contents.next
    return list(names)


def nccl(w: Worker) -> None:
    """Record the version of NCCL, or of RCCL, which has the same functions."""
    import ctypes

    name, file = w.params["facts"][0], w.params["library"]
    if library := load(w, file, [name]):
        number = ctypes.c_int()
        with w.armed("ncclGetVersion"):
            library.ncclGetVersion(ctypes.byref(number))
        record(w, (name, nccl_version(number.value), f"ncclGetVersion of {file}"))


def nccl_version(number: int) -> str:
    """The version as text: 2.24.3 for ``22403``; 2.7.8 for ``2708``, the form before 2.9 (NCCL's nccl.h)."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"
