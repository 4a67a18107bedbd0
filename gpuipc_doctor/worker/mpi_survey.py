"""Examine an MPI library without initialising it or passing it a device pointer.

Runs in a worker: it loads the library and its dependencies and queries them; `mpi_transports` draws the
conclusions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.api.driver_errors import BackendUnavailable
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.model import Json
from gpuipc_doctor.node import elf, mpi_locate, mpi_transports
from gpuipc_doctor.node.loaded import mapped_files
from gpuipc_doctor.node.mpi_facts import EDGES, ENVIRONMENT, VARIABLES
from gpuipc_doctor.node.mpi_identity import identify
from gpuipc_doctor.worker.mpi_communicator import load_mpi4py

if TYPE_CHECKING:
    import ctypes

_MAX_VERSION_TEXT = 8192
"""Bytes of a version text: MPI_MAX_LIBRARY_VERSION_STRING of MPICH and its derivatives. Open MPI needs only
256."""


_MPI_LIBRARY = re.compile(r"libmpi(ch)?(_(?!gtl|usempi)\w+)?\.so")
"""Pattern for ``libmpi.so.40``, ``libmpich.so.12``, ``libmpi_gnu_91.so.12``; not for GTL or Fortran
libraries."""


def survey(library: str | None, arm: Arm) -> dict[str, Json]:
    """Load ``library`` (None: the one that mpi4py finds) and report its version, build and settings.

    The result has these keys. ``library``: its path, links resolved. ``version_text``: from
    `MPI_Get_library_version`. ``needs``: the sonames that the library itself links with. ``loaded``: file
    names of all libraries in this process. ``variables``: control variables (`mpi_facts.VARIABLES` and
    ``EDGES``) as the library reads them. ``ucx``: path, version and transports of the UCX that it uses; None
    if it uses none. ``cannot_load``: a library that `MPI_Init` will load → why that fails here.
    ``level_zero``: the loader of Level Zero that Intel MPI prefers to CUDA; empty if none. ``environment``:
    variables that matter (`mpi_facts.ENVIRONMENT`).

    Raises `BackendUnavailable` if the library is not found or is not an MPI library.
    """
    path = library or _found_by_mpi4py(arm)
    mpi = _load(path, arm)
    path = _path_of(mpi, path)
    with arm("MPI_Get_library_version"):
        version_text = _library_version(mpi)
    if identify(version_text).family == "openmpi":
        os.environ.update({**mpi_locate.opal_prefix(path), **os.environ})  # as its own mpiexec would
    with arm("MPI_T_init_thread"):
        variables = _control_variables(mpi)
    with arm("uct_query_components"):
        ucx = _ucx()
    cuda, refused = _offload_library("CUDA", variables, arm)
    level_zero, no_loader = _offload_library("LEVEL_ZERO", variables, arm)
    return {
        "library": path,
        "version_text": version_text,
        "needs": list(elf.needed(Path(path))),
        "loaded": sorted(Path(name).name for name in mapped_files()),
        "variables": variables,
        "ucx": ucx,
        "cannot_load": {cuda: refused} if refused else {},
        "level_zero": "" if no_loader else level_zero,
        "environment": {name: value for name, value in os.environ.items() if ENVIRONMENT.match(name)},
    }


def report(library: str | None, backends: Sequence[str], arm: Arm) -> dict[str, Json]:
    """``facts``: what a survey found; ``mpi``: the library's title; ``aware``: conclusions by backend."""
    seen = survey(library, arm)
    return {
        "facts": seen,
        "mpi": identify(seen["version_text"]).title,
        "aware": {backend: asdict(mpi_transports.gpu_aware(seen, backend)) for backend in backends},
    }


def _found_by_mpi4py(arm: Arm) -> str:
    load_mpi4py(arm)
    for path in sorted(mapped_files()):
        if _MPI_LIBRARY.match(Path(path).name):
            return path
    raise BackendUnavailable("mpi4py's MPI library has an unknown name", "name the library with --mpi-lib")


def _load(path: str, arm: Arm) -> ctypes.CDLL:
    import ctypes

    try:
        with arm(f"dlopen {path}"):
            library = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
            _ = library.MPI_Get_library_version
    except AttributeError:
        reason = f"{path} is not an MPI library: it has no MPI_Get_library_version"
        raise BackendUnavailable(reason, "name the library, libmpi.so.…, with --mpi-lib") from None
    except OSError as error:
        reason = f"cannot load the MPI library: {error}"
        raise BackendUnavailable(reason, "load your MPI's module, or name a library with --mpi-lib") from None
    return library


def _path_of(library: ctypes.CDLL, asked_for: str) -> str:
    """The library's real path; ``asked_for`` may be a bare name or a link."""
    name = Path(asked_for).name
    if Path(asked_for).is_absolute():
        return str(Path(asked_for).resolve())
    found = [path for path in mapped_files() if Path(path).name.startswith(name)]
    return found[0] if found else asked_for


def _library_version(mpi: ctypes.CDLL) -> str:
    import ctypes

    text, length = ctypes.create_string_buffer(_MAX_VERSION_TEXT), ctypes.c_int()
    mpi.MPI_Get_library_version(text, ctypes.byref(length))
    return text.value.decode(errors="replace").strip()


def _control_variables(mpi: ctypes.CDLL) -> dict[str, Json]:
    """Read control variables by `MPI_T`, which works before `MPI_Init`. Values are numbers or texts.

    MPI_T is not finalised: Open MPI would unload its components and their UCX, which is queried next.
    """
    import ctypes

    if mpi.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int())) != 0:
        return {}
    values = {name: _control_variable(mpi, name) for name in (*VARIABLES, *EDGES)}
    return {name: value for name, value in values.items() if value is not None}


def _control_variable(mpi: ctypes.CDLL, name: str) -> Json:
    import ctypes

    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    if mpi.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) != 0:
        return None
    if mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) != 0:
        return None
    value = ctypes.create_string_buffer(max(count.value, 1) * 16)  # the widest MPI type has 16 bytes
    read = mpi.MPI_T_cvar_read(handle, value)
    mpi.MPI_T_cvar_handle_free(ctypes.byref(handle))
    if read != 0:
        return None
    if count.value > 1:
        return value.value.decode(errors="replace")
    return int.from_bytes(value.raw[:4], "little", signed=True)


def _ucx() -> Json:
    """Query the transports of the library's UCX. The query loads UCX's modules."""
    import ctypes

    paths = {Path(path).name.partition(".")[0]: path for path in mapped_files()}
    if "libucp" not in paths or "libuct" not in paths:
        return None
    ucp, uct = ctypes.CDLL(paths["libucp"]), ctypes.CDLL(paths["libuct"])
    ucp.ucp_get_version_string.restype = ctypes.c_char_p
    return {
        "library": paths["libucp"],
        "version": ucp.ucp_get_version_string().decode(errors="replace"),
        "components": _components(uct),
    }


def _components(uct: ctypes.CDLL) -> list[str]:
    """The names of UCT's components, which group its transports (uct_query_components, uct/api/uct.h)."""
    import ctypes

    class Attributes(ctypes.Structure):
        """``uct_component_attr_t``: the fields to fill in, the name, and unused fields."""

        _fields_ = (
            ("field_mask", ctypes.c_uint64),
            ("name", ctypes.c_char * 16),
            ("rest", ctypes.c_char * 4096),
        )

    name_only = 1
    components: Any = ctypes.POINTER(ctypes.c_void_p)()
    count = ctypes.c_uint()
    if uct.uct_query_components(ctypes.byref(components), ctypes.byref(count)) != 0:
        return []
    names = []
    for number in range(count.value):
        attributes = Attributes(field_mask=name_only)
        if uct.uct_component_query(ctypes.c_void_p(components[number]), ctypes.byref(attributes)) == 0:
            names.append(attributes.name.decode(errors="replace"))
    uct.uct_release_component_list(components)
    return names


def _offload_library(api: str, variables: Mapping[str, Json], arm: Arm) -> tuple[str, str]:
    """(a driver library that Intel MPI loads by name, the reason if it does not load here); empty for other
    MPIs."""
    import ctypes

    default = variables.get(f"MPIR_CVAR_OFFLOAD_{api}_LIBRARY")
    if default is None:
        return "", ""
    # MPI_T reports the default before MPI_Init, regardless of the environment (seen in 2021.17).
    name = os.environ.get(f"I_MPI_OFFLOAD_{api}_LIBRARY") or str(default)
    try:
        with arm(f"dlopen {name}"):
            ctypes.CDLL(name)
    except OSError as error:
        return name, str(error)
    return name, ""
