"""Settings of the environment and of files that a failed probe may be due to, and what trials showed of them.

A setting is no cause because it is there. The probe is rerun without it (`setting_trials`), or the failed
call's own words name it; else it is mentioned behind the failure. What the probe's library does not read, or
could not have met any more, is no candidate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpuipc_doctor.model import Evidence, Json, Shown, Trial
from gpuipc_doctor.node import variables
from gpuipc_doctor.run.causes.explaining import NodeFacts, Trials
from gpuipc_doctor.run.causes.failed_probe import (
    CONCERNS,
    ENDED,
    is_before_messages,
    is_of_collectives,
    is_of_ranks,
    own_words,
    says,
)
from gpuipc_doctor.run.causes.node_state import facts_of, list_of
from gpuipc_doctor.run.results import Entry, Explanation, is_of_data
from gpuipc_doctor.vendors import SUPPORTED

MOST_MENTIONED = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that a failed probe may be due to. ``env`` and ``unset``: how to start a process without it;
    both are empty if that is impossible."""

    name: str
    value: str
    where: str
    says: str
    remedy: str
    values: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()
    named_by: str = ""
    """Expression for the words of a failure that name this setting; empty if no words are enough."""
    hinted_by: str = "(?!)"
    """Expression for words that make it likely."""

    @property
    def can_be_tried(self) -> bool:
        return bool(self.env or self.unset)


class _Setting(NamedTuple):
    value: str
    where: str
    """``environment``, or ``file:line``."""
    of_library: bool = False
    """Whether the library itself reads it from a file."""


def candidates(failed: Entry, facts: NodeFacts) -> list[Candidate]:
    """The candidates for a failed probe: those that its own words name come first, then the likely ones."""
    found: dict[str, Candidate] = {}
    completed = bool(failed.outcome and failed.outcome.completed)
    if not completed or any(map(is_of_data, failed.to_cure)):
        settings = _settings(facts)
        for source in (_unsafe, _preloads) if completed else _SOURCES:
            for candidate in source(failed, facts, settings):
                found.setdefault(candidate.name, candidate)
    words = "\n".join(own_words(failed))

    def order(candidate: Candidate) -> tuple[bool, bool]:
        named = candidate.named_by and re.search(candidate.named_by, words)
        return not named, not re.search(candidate.hinted_by, words)

    return sorted(found.values(), key=order)


def chosen(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Settings without which the probe passes, and those that its words name and that could not be tried."""
    for candidate in candidates(failed, facts):
        tried, evidence = failed.without.get(candidate.name), tuple[Evidence, ...]()
        told = {"variable": candidate.name, "value": candidate.value, "where": candidate.where}
        if tried is Trial.HELPS:
            how = Shown.TRIED
            evidence = (Evidence.control("passes without {name}, fails with it", name=candidate.name),)
        elif tried is None and candidate.named_by and says(candidate.named_by)(failed):
            how = Shown.STATED
        else:
            continue
        cause = Evidence.cause(how, candidate.says, {**told, **candidate.values})
        yield Explanation(cause, candidate.remedy, evidence)


def mentioned(failed: Entry, facts: NodeFacts) -> Iterator[Explanation]:
    """One line of the settings whose effect is not known."""
    unknown = [
        f"{candidate.name}={candidate.value}" if candidate.value else f"{candidate.name} ({candidate.where})"
        for candidate in candidates(failed, facts)
        if failed.without.get(candidate.name, Trial.UNKNOWN) is Trial.UNKNOWN
    ]
    if unknown:
        some = [*unknown[:MOST_MENTIONED], *["…"][: len(unknown) - MOST_MENTIONED]]
        yield Explanation(evidence=(Evidence.seen("also set here: {settings}", settings=some),))


def _settings(facts: NodeFacts) -> dict[str, _Setting]:
    """Every variable that is set, also in files of parameters."""
    found = {
        name: _Setting(value, facts.of_site.get(name, "environment")) for name, value in facts.stated.items()
    }
    for where, name, value in list_of(facts.seen, "parameters"):
        variable = name if name.isupper() else f"OMPI_MCA_{name}"
        found.setdefault(variable, _Setting(value, where, of_library=True))
    return found


_DEFAULTS = {"UCX_TLS": "all", "UCX_NET_DEVICES": "all"}

_OF_CONTAINERS = ("NVIDIA_DISABLE_REQUIRE",)
"""Variables that only the start of a container reads: a process without them shows nothing."""


def _undo(name: str, setting: _Setting) -> str:
    return f"unset {name}" if setting.where == "environment" else f"remove {name} from {setting.where}"


def _without(name: str, setting: _Setting) -> dict[str, Any]:
    """How to start a process without a variable, as `Candidate` has it."""
    if not setting.of_library:
        return {} if name in _OF_CONTAINERS else {"unset": frozenset([name])}
    if name in _DEFAULTS:
        return {"env": {name: _DEFAULTS[name]}}
    if name.startswith("OMPI_MCA_"):
        return {"env": {name: ""}}
    if "/.nccl.conf:" in setting.where:
        return {"env": {"NCCL_CONF_FILE": "/dev/null"}}
    return {}


_FAMILIES = {
    "OMPI_": ("openmpi",),
    "I_MPI_": ("intel-mpi",),
    "MPIR_CVAR_": ("mpich", "cray-mpich", "mvapich"),
    "MPICH_": ("mpich", "cray-mpich"),
}


def _is_read(name: str, failed: Entry, facts: NodeFacts) -> bool:
    """Whether the libraries of the probe's ranks read a variable."""
    if name.startswith("NCCL_"):
        return is_of_collectives(failed)
    if failed.planned.probe.launch is None or name.startswith("GLOO_"):
        return False
    families = next((known for prefix, known in _FAMILIES.items() if name.startswith(prefix)), ())
    return not (families and facts.mpi) or facts.mpi in families


Settings = Mapping[str, _Setting]

_INTERFACE_LISTS = ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "NCCL_IB_HCA")
_SINGLE = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "FI_CXI_DEVICE_NAME", "MPIR_CVAR_CH3_NETWORK_IFACE")


def _unknown_interfaces(failed: Entry, facts: NodeFacts, settings: Settings) -> Iterator[Candidate]:
    """Variables that name only interfaces that this node does not have: ranks meet them at their start."""
    known = facts_of(facts.seen, "interfaces")
    if not known or "unreadable" in known or not is_before_messages(failed):
        return
    names = [*known["network"], *known["rdma"]]
    if "FI_CXI_DEVICE_NAME" in settings:
        names += [f"cxi{number}" for number in range(16)] if Path("/sys/class/cxi").exists() else []
    for variable in (*_INTERFACE_LISTS, *_SINGLE):
        if variable not in settings or not _is_read(variable, failed, facts):
            continue
        value = settings[variable].value
        wanted = [part.partition(":")[0] for part in value.lstrip("=").split(",") if part]
        if not value or value.startswith("^") or "all" in wanted or any("/" in part for part in wanted):
            continue  # what it excludes, and networks by address, exist or not without harm
        exact = value.startswith("=") or variable not in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
        if not any(
            name == part or (not exact and name.startswith(part)) for name in names for part in wanted
        ):
            yield Candidate(
                variable,
                *settings[variable][:2],
                "{variable}={value} names no interface of this node ({names})",
                f"{_undo(variable, settings[variable])}, or name one of them",
                {"names": names},
                **_without(variable, settings[variable]),
                named_by=rf"{variable.removeprefix('OMPI_MCA_')}|(?<![\w/]){re.escape(wanted[0])}(?!\w)"
                r"|no (?:socket )?interface found",
                hinted_by="",  # it cannot be right
            )


_NOT_NAMES = re.compile(
    "self|sm|shm|all|tcp|ofi|ucx|ob1|cm|vader|verbs|sockets?|ib|cuda|basic|none|auto|udp", re.IGNORECASE
)
"""Words that logs have for other reasons, too."""


class _Choice(NamedTuple):
    names: str
    """Expression for variables."""
    what: str
    hinted_by: str
    """Expression for words of a failure that such a choice may explain."""
    at_start: bool = False
    """Whether only the start of ranks meets it."""


_CHOICES = (
    _Choice("FI_PROVIDER", "libfabric's provider", r"getinfo|fi_info|[Nn]o provider|No data available"),
    _Choice("UCX_TLS", "UCX's transports", r"no usable transports|no .*transport|unreachable"),
    _Choice(
        r"OMPI_MCA_(pml|btl|mtl|osc|coll|accelerator)",
        "components of Open MPI",
        "not found|was not able to find|[Uu]nreachable|able to reach",
    ),
    _Choice("I_MPI_OFI_PROVIDER", "Intel MPI's network", r"getinfo|\bfabric|No data available"),
    _Choice(r"FI_PROVIDER_PATH", "where libfabric finds providers", r"getinfo|[Nn]o provider", at_start=True),
    _Choice(r"MPIR_CVAR_CH4_NETMOD|MPICH_OFI_NIC_\w+", "MPICH's network", "netmod|getinfo|NIC"),
    _Choice("I_MPI_FABRICS", "Intel MPI's network", r"getinfo|\bfabric|No data available"),
    _Choice(r"UCX_PROTO_\w+", "UCX's protocols", r"(?!)"),
    _Choice(r"NCCL_NET(_PLUGIN)?", "NCCL's network", r"[Nn]etwork .*not found|NET/|plugin", at_start=True),
)
"""The most specific first."""


_NEEDED = ("FI_PROVIDER_PATH",)
"""Variables without which a stack may not start: only a trial shows that one is a cause."""


def _components(failed: Entry, facts: NodeFacts, settings: Settings) -> Iterator[Candidate]:
    """Choices of components, providers, transports and networks."""
    for choice in _CHOICES if is_of_ranks(failed) else ():
        for name, setting in settings.items():
            is_met = not choice.at_start or is_before_messages(failed)
            if not (re.fullmatch(choice.names, name) and is_met and _is_read(name, failed, facts)):
                continue
            told, remedy = f"{{variable}}={{value}} ({{where}}) chooses {choice.what}", _undo(name, setting)
            if (
                name == "UCX_TLS"
                and not is_before_messages(failed)
                and _takes_no_device_memory(setting.value)
            ):
                told = "{variable}={value} has no transport for device memory (cuda_copy, rocm_copy)"
                remedy = f"add cuda_copy,cuda_ipc (AMD: rocm_copy,rocm_ipc) to UCX_TLS, or {remedy}"
            first = setting.value.lstrip("^").partition(",")[0]
            is_name = re.fullmatch(r"[\w-]{3,}", first) and not _NOT_NAMES.fullmatch(first)
            named_by = rf"\b{name}\b|(?<![\w/]){re.escape(first)}(?![\w/])" if is_name else rf"\b{name}\b"
            yield Candidate(
                name,
                *setting[:2],
                told,
                remedy,
                **_without(name, setting),
                named_by="" if name in _NEEDED else named_by,
                hinted_by=choice.hinted_by,
            )


def _takes_no_device_memory(transports: str) -> bool:
    chosen = {part.strip() for part in transports.split(",")}
    names = [vendor.mpi for vendor in SUPPORTED.values()]
    with_it = {"all", *(each.accelerator for each in names), *(each.ucx_copy for each in names)}
    return not transports.startswith("^") and not chosen & with_it


_OF_SITES = re.compile(r"libmpi_gtl_|libxpmem|libdarshan")
"""Libraries that sites preload and that are no suspects."""


def _preloads(failed: Entry, facts: NodeFacts, settings: Settings) -> Iterator[Candidate]:
    """Libraries that are loaded before the driver."""
    for where, path in list_of(facts.seen, "preloads"):
        name = path.rpartition("/")[2]
        if not _OF_SITES.search(name):
            of_variable = where == "LD_PRELOAD"
            yield Candidate(
                "LD_PRELOAD" if of_variable else path,
                path if of_variable else "",
                where,
                "{path} is preloaded before the driver ({where})",
                f"run without it: {'unset LD_PRELOAD' if of_variable else f'edit {where}'}",
                {"path": path},
                unset=frozenset(["LD_PRELOAD"]) if of_variable else frozenset(),
                named_by=re.escape(name),
            )


_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def _expandable_segments(failed: Entry, facts: NodeFacts, settings: Settings) -> Iterator[Candidate]:
    """PyTorch's memory without legacy IPC handles, which is shared by descriptors (pidfd_getfd)."""
    words = r"pidfd_(open|getfd)|expandable.segments"
    uses_pytorch = any("torch" in module for module in failed.planned.probe.imports)
    for name in _ALLOCATOR_SETTINGS:
        setting = settings.get(name)
        is_on = setting and re.search(r"expandable_segments: ?true", setting.value, re.IGNORECASE)
        if setting and is_on and says(words)(failed):
            yield Candidate(
                name,
                *setting[:2],
                "{variable} has expandable segments, whose memory has no legacy IPC handle",
                f"take expandable_segments out of {name}",
                **_without(name, setting),
                named_by=words if uses_pytorch else "",
            )


def _unsafe(failed: Entry, facts: NodeFacts, settings: Settings) -> Iterator[Candidate]:
    """Variables that switch a safety of a library off, if the failure may be what the safety prevents."""
    for name, variable in variables.load().items():
        setting = settings.get(name)
        if not (setting and variable.unsafe and variable.unsafe.has(setting.value)):
            continue
        here = [
            form.has(fact.value)
            for form in variable.forms
            for fact in facts.inventory
            if fact.name == form.library and fact.value
        ]
        if here and not any(has is not False for has in here):
            continue  # these versions do not read it
        concerns = CONCERNS.get(variable.libraries[0])
        is_read = concerns(failed) if concerns else _is_read(name, failed, facts)
        if is_read and ENDED[variable.unsafe.then](failed):
            yield Candidate(
                name,
                *setting[:2],
                "{variable}={value} switches a safety off: {does}",
                f"{_undo(name, setting)}, then rerun",
                {"does": variable.does},
                **_without(name, setting),
            )


_SOURCES = (_unknown_interfaces, _components, _preloads, _expandable_segments, _unsafe)
