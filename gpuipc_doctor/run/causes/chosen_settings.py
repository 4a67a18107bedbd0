"""Explainers: settings of the environment and of files, with which libraries fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.node import variables
from gpuipc_doctor.run.causes.explaining import NodeFacts, Trials, shown
from gpuipc_doctor.run.causes.failed_probe import (
    CONCERNS,
    ENDED,
    is_of_ranks,
    is_of_ranks_in_a_message,
    mentions,
)
from gpuipc_doctor.run.causes.node_state import facts_of, list_of
from gpuipc_doctor.run.results import Entry, Explanation

_INTERFACE_LISTS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")
_RDMA_LISTS = ("UCX_NET_DEVICES", "NCCL_IB_HCA")
_SINGLE = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "FI_CXI_DEVICE_NAME", "MPIR_CVAR_CH3_NETWORK_IFACE")


def unknown_interfaces(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Variables that name only interfaces that this node does not have. ``undo``: for a setting that is in a
    file, what to do."""
    seen, environ, undo = facts.seen, facts.environ, facts.undo
    known = facts_of(seen, "interfaces")
    if not known or "unreadable" in known:
        return
    names = [*known["network"], *known["rdma"]]
    if "FI_CXI_DEVICE_NAME" in environ:
        names += [f"cxi{number}" for number in range(16)] if Path("/sys/class/cxi").exists() else []
    for variable in (*_INTERFACE_LISTS, *_RDMA_LISTS, *_SINGLE):
        value = environ.get(variable, "")
        wanted = [part.partition(":")[0] for part in value.lstrip("=").split(",") if part]
        if not value or value.startswith("^") or "all" in wanted or any("/" in part for part in wanted):
            continue  # what it excludes, and networks by address, exist or not without harm
        exact = value.startswith("=") or variable not in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
        if not any(
            name == part or (not exact and name.startswith(part)) for name in names for part in wanted
        ):
            yield from shown(
                failed,
                "{variable}={value} names no interface of this node ({names})",
                {"variable": variable, "value": value, "names": names},
                f"{undo.get(variable, f'unset {variable}')}, or name one of them",
                is_of_ranks,
            )


def without_device_memory(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """A choice of UCX's transports that cannot move device memory."""
    environ, undo = facts.environ, facts.undo
    value = environ.get("UCX_TLS", "")
    chosen = {part.strip() for part in value.split(",")}
    if value and not value.startswith("^") and not chosen & {"all", "cuda", "cuda_copy", "rocm", "rocm_copy"}:
        yield from shown(
            failed,
            "UCX_TLS={value} has no transport for device memory (cuda_copy, rocm_copy)",
            {"value": value},
            "add cuda_copy,cuda_ipc (AMD: rocm_copy,rocm_ipc) to UCX_TLS, or "
            + undo.get("UCX_TLS", "unset it"),
            is_of_ranks_in_a_message,
        )


_CHOICES = (
    (
        r"OMPI_MCA_(pml|btl|mtl|osc|coll|accelerator)",
        "components of Open MPI",
        "not found|was not able to find|unreachable|pair of MPI processes are unable",
    ),
    (r"FI_PROVIDER(_PATH)?", "libfabric's provider", r"getinfo|fi_info|[Nn]o provider|No data available"),
    (r"MPIR_CVAR_CH4_NETMOD|MPICH_OFI_NIC_\w+", "MPICH's network", "netmod|getinfo|NIC"),
    (r"UCX_TLS|UCX_PROTO_\w+", "UCX's transports", r"no usable transports|no .*transport|unreachable"),
    (r"NCCL_NET(_PLUGIN)?", "NCCL's network", r"[Nn]etwork .*not found|NET/|net plugin"),
    (r"I_MPI_(FABRICS|OFI_PROVIDER)", "Intel MPI's network", r"getinfo|\bfabric|No data available"),
)
"""(variables, what they choose, words of a failure that such a choice can explain)."""


def components(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Choices of components, providers and networks, which end MPI_Init or NCCL's if there is none such."""
    seen, environ = facts.seen, facts.stated
    chosen = [
        *((name, value, "environment") for name, value in environ.items()),
        *((f"OMPI_MCA_{name}", value, where) for where, name, value in list_of(seen, "parameters")),
    ]
    for name, value, where in chosen:
        for names, what, words in _CHOICES:
            if not re.fullmatch(names, name):
                continue
            first = re.escape(value.lstrip("^").partition(",")[0])
            pattern = rf"(?<![\w/]){first}(?![\w/])|{words}" if first else words  # no part of a path
            yield from shown(
                failed,
                f"{{name}}={{value}} ({{where}}) chooses {what}",
                {"name": name, "value": value, "where": where},
                f"unset {name}" if where == "environment" else f"remove that line from {where}",
                mentions(pattern),
            )


_OF_SITES = re.compile(r"libmpi_gtl_|libxpmem|libdarshan")
"""Libraries that sites preload and that are no suspects."""


def preloads(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Libraries that are loaded before the driver, if what failed names them."""
    seen = facts.seen
    for where, path in list_of(seen, "preloads"):
        name = path.rpartition("/")[2]
        if not _OF_SITES.search(name):
            yield from shown(
                failed,
                "{path} is preloaded before the driver ({where})",
                {"path": path, "where": where},
                "run without it: " + ("unset LD_PRELOAD" if where == "LD_PRELOAD" else f"edit {where}"),
                mentions(re.escape(name)),
            )


_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def expandable_segments(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """PyTorch's memory without legacy IPC handles, which is shared by descriptors (pidfd_getfd)."""
    environ = facts.environ
    for name in _ALLOCATOR_SETTINGS:
        if re.search(r"expandable_segments: ?true", environ.get(name, ""), re.IGNORECASE):
            yield from shown(
                failed,
                "{name} has expandable segments, whose memory has no legacy IPC handle",
                {"name": name},
                f"take expandable_segments out of {name}",
                mentions(r"pidfd_(open|getfd)|expandable.segments"),
            )


def switched_off(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Variables that switch a safety of a library off, if the failure may be what the safety prevents."""
    environ, undo = facts.environ, facts.undo
    for name, variable in variables.load().items():
        if not (variable.unsafe and name in environ and variable.unsafe.has(environ[name])):
            continue
        here = [
            form.has(fact.value)
            for form in variable.forms
            for fact in facts.inventory
            if fact.name == form.library and fact.value
        ]
        if here and not any(has is not False for has in here):
            continue  # these versions do not read it
        concerns, then = CONCERNS.get(variable.libraries[0], is_of_ranks), variable.unsafe.then
        yield from shown(
            failed,
            "this may be due to {name}={value}, which switches a safety off: {does}",
            {"name": name, "value": environ[name], "does": variable.does},
            f"{undo.get(name, f'unset {name}')}, then rerun",
            lambda entry, concerns=concerns, then=then: concerns(entry) and ENDED[then](entry),  # type: ignore[misc]
            of_data=then == "data",
        )
