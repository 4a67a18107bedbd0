"""The cause before the call: name what makes a library fail without being at fault.

`look` reads the node's state before the first probe and after a failure; `attach` puts a cause before each
failure that it explains. The failed call stays behind it as evidence.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpuipc_doctor.api.gpu import OUT_OF_MEMORY
from gpuipc_doctor.model import Ending, Evidence, EvidenceKind, Fact, Finding, Json, RoleOutcome, Status
from gpuipc_doctor.node import variables
from gpuipc_doctor.run import preflight_sources
from gpuipc_doctor.run.preflight_sources import SOURCES
from gpuipc_doctor.run.results import Entry, ResultLog
from gpuipc_doctor.supervise import process_limits

PATIENCE_S = 1.0
"""Seconds for each source. One that takes longer, twice, hangs, which is a cause itself."""

START_UP_S = 10.0
"""Seconds until a process begins its first source, which a loaded node may delay."""

ROOM_BYTES = 64 << 20
"""Free shared memory with which two ranks of each known MPI start; Open MPI and NCCL need tens of MiB."""

TEMPORARY_BYTES = 16 << 20
FEW_PROCESSES = 256
LITTLE_LOCKED_BYTES = 64 << 20

LITTLE_MEMORY_BYTES = 4 << 30
"""Host memory with which two ranks start; a CUDA context alone takes some 0.5 GiB."""

Seen = Mapping[str, Json]
"""Source → what it says; None for a source that hangs."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What may make libraries fail here. ``explains``: whether it can explain this failed probe."""

    says: str
    values: Mapping[str, Json]
    remedy: str
    explains: Callable[[Entry], bool]
    of_data: bool = False
    """Whether it also explains what a completed probe found, such as wrong data."""


def look() -> Seen:
    """Ask all sources, each within `PATIENCE_S`, in processes that can be ended."""
    seen: dict[str, Json] = {"limits": process_limits.started_with()}
    while names := [name for name in SOURCES if name not in seen]:
        said = _ask(names)
        for slow in [name for name in said if said[name] is None]:
            said |= _ask([slow])
        seen |= said
    return seen


def _ask(names: list[str]) -> dict[str, Json]:
    """What the first of these sources say, up to one that hangs; at least one source."""
    command = [sys.executable, "-I", "-S", preflight_sources.__file__, *names]
    seen: dict[str, Json] = {}
    current = names[0]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        until = time.monotonic() + START_UP_S
        data = b""
        while select.select([process.stdout], [], [], max(until - time.monotonic(), 0.0))[0]:
            if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                break
            *lines, data = (data + chunk).split(b"\n")
            for line in map(json.loads, lines):
                until = time.monotonic() + PATIENCE_S
                current = line.pop("begins", current)
                seen |= line
        process.kill()
    return seen or {current: None}


def attach(
    log: ResultLog,
    before: Seen,
    after: Callable[[], Seen],
    environ: Mapping[str, str],
    facts: Iterable[Fact] = (),
) -> None:
    """Put the cause that explains it before each failure. ``after`` is called only if a probe failed.

    ``facts``: the node's inventory, which has the state of its IOMMU.
    """
    failed = [
        entry
        for entry in log.unsuccessful()
        if entry.outcome and not any(finding.key == process_limits.LIMITED for finding in entry.findings)
    ]
    if not failed:
        return
    found = [*causes(before, environ), *causes(after(), environ), *_of_peers(facts, failed)]
    for entry in failed:
        completed = bool(entry.outcome and entry.outcome.completed)
        fitting = (cause for cause in found if cause.of_data or not completed)
        if cause := next((cause for cause in fitting if cause.explains(entry)), None):
            entry.findings = [
                _explained(finding, cause) if not completed or _is_of_data(finding) else finding
                for finding in entry.findings
            ]


def _is_of_data(finding: Finding) -> bool:
    """Whether a check found wrong or old data, not a leak or a counter that cannot be trusted."""
    return finding.key.startswith(("wrong", "stale", "writes-lost", "overwrote"))


def _explained(finding: Finding, cause: Cause) -> Finding:
    if finding.status not in (Status.FAIL, Status.ERROR):
        return finding
    first = Evidence(EvidenceKind.CAUSE, cause.says, cause.values)
    return replace(finding, evidence=(first, *finding.evidence), remedy=cause.remedy)


# -- causes ------------------------------------------------------------------------------------------------


def causes(seen: Seen, environ: Mapping[str, str]) -> Iterator[Cause]:
    """The causes that are present, the most certain first."""
    of_files = {name: (value, where) for where, name, value in _list(seen, "parameters") if name.isupper()}
    stated, environ = environ, {**{name: value for name, (value, _) in of_files.items()}, **environ}
    undo = {name: f"remove {name} from {of_files[name][1]}" for name in of_files if name not in stated}
    for name, said in seen.items():
        if said is None:
            says = "reading {source} takes more than {limit:s}: a file system or name server hangs"
            values = {"source": name, "limit": PATIENCE_S}
            yield Cause(says, values, "find it with `df` and `getent hosts $(hostname)`", _is_start_up)
    yield from _no_room(seen)
    yield from _limited_step(seen)
    yield from _limited(seen)
    yield from _unknown_interfaces(seen, environ, undo)
    yield from _without_device_memory(environ, undo)
    yield from _components(seen, stated)
    yield from _preloads(seen)
    yield from _expandable_segments(environ)
    yield from _switched_off(environ, undo)
    if _of(seen, "interfaces").get("loopback") is False:
        yield Cause(
            "the loopback interface is down (127.0.0.1 cannot be used)",
            {},
            "ip link set lo up",
            lambda entry: _is_of_ranks(entry) and not _is_of_ranks_in_a_message(entry),
        )
    yield from _host_name(_of(seen, "host name"))


def _host_name(said: Mapping[str, Json]) -> Iterator[Cause]:
    remedy = f"add `127.0.1.1 {said.get('name')}` to /etc/hosts, or correct DNS"
    if said.get("elsewhere"):
        yield Cause(
            "this host's name, {name}, has another host's address ({elsewhere})",
            said,
            remedy,
            _mentions(r"[Cc]onnect|refused|timed out|[Nn]o route|unreachable|[Hh]ost ?name"),
        )
    if said.get("error"):
        yield Cause(
            "this host's name, {name}, has no address ({error})",
            said,
            remedy,
            _mentions(r"gethostby|getaddrinfo|[Nn]ame or service not known|resol|[Hh]ost ?name"),
        )


def _no_room(seen: Seen) -> Iterator[Cause]:
    yield from _not_writable(seen)
    shared = _of(seen, "shared memory")
    if shared.get("free", ROOM_BYTES) < ROOM_BYTES:
        yield Cause(
            "{name} has {free:mib} free, ranks need up to {need:mib}",
            {"name": shared["name"], "free": shared["free"], "need": ROOM_BYTES},
            "remove old files there, or `mount -o remount,size=1g /dev/shm`; in a container, --shm-size=1g",
            _is_of_ranks,
        )
    if shared.get("inodes") == 0:
        yield Cause(
            "{name} has no inode free", {"name": shared["name"]}, "remove old files there", _is_of_ranks
        )
    temporary = _of(seen, "temporary files")
    if temporary.get("free", TEMPORARY_BYTES) < TEMPORARY_BYTES or temporary.get("inodes") == 0:
        what = "no inode" if temporary.get("inodes") == 0 else "{free:mib}"
        values = {"name": temporary["name"], "free": temporary["free"]}
        yield Cause(f"{{name}} has {what} free", values, "remove files there, or set TMPDIR", _is_start_up)


def _not_writable(seen: Seen) -> Iterator[Cause]:
    """Places for files of ranks that are read-only, or refuse this user, or do not exist."""
    places = (
        (
            "shared memory",
            "mount -o remount,rw,mode=1777 /dev/shm; in a container, mount a tmpfs there",
            _is_of_ranks,
        ),
        ("temporary files", "set TMPDIR to a directory that you may write", _mentions(_NO_PLACE)),
    )
    for source, remedy, explains in places:
        said = _of(seen, source)
        why = "is mounted read-only" if said.get("is_read_only") else "cannot be written by this user"
        if said.get("is_read_only") or not said.get("is_writable", True):
            yield Cause(f"{{name}} {why}", {"name": said["name"]}, remedy, explains)
    missing = seen.get("temporary files")
    if isinstance(missing, dict) and "unreadable" in missing:
        yield Cause("TMPDIR: {why}", {"why": missing["unreadable"]}, remedy, explains)


_NO_PLACE = r"Read-only file system|Permission denied|No such file or directory|[Ss]ession dir|TMPDIR|/tmp"


def _limited(seen: Seen) -> Iterator[Cause]:
    """The limit that slurm.conf may give jobs from slurmd; for the others see `supervise.process_limits`."""
    limit = _of(seen, "limits").get("locked memory")
    if limit is not None and limit < LITTLE_LOCKED_BYTES:
        yield Cause(
            "locked memory is limited to {limit:mib} (ulimit -l)",
            {"limit": limit},
            "ulimit -l unlimited; under Slurm, LimitMEMLOCK=infinity in slurmd's unit and "
            f"PropagateResourceLimitsExcept=MEMLOCK{_is_now(seen)}",
            _mentions(r"memlock|[Ll]ocked memory|ibv_reg_mr|ibv_create|register(ing)? memory"),
        )


def _is_now(seen: Seen) -> str:
    stated = _of(seen, "job step").get("propagated")
    return f", now {stated}" if stated else ""


def _limited_step(seen: Seen) -> Iterator[Cause]:
    """Limits of the control group, which a job's step or a container sets."""
    step = _of(seen, "job step")
    limit, group = step.get("memory", [None, ""])
    if limit is not None and (limit < LITTLE_MEMORY_BYTES or step.get("killed")):
        yield Cause(
            "this job or container may use {limit:mib} of host memory ({group}); processes killed for that: "
            "{killed}",
            {"limit": limit, "group": group, "killed": step.get("killed", 0)},
            "give it more memory: under Slurm --mem, in a container --memory",
            lambda entry: _ran_out_of_memory(entry) or _was_killed(entry),
        )
    left, group = step.get("processes", [None, ""])
    if left is not None and left < FEW_PROCESSES:
        yield Cause(
            "this job or container may start only {left} more processes and threads ({group}/pids.max)",
            {"left": max(left, 0), "group": group},
            "raise pids.max: TasksMax of the service, --pids-limit of the container",
            _mentions(_NO_MORE_PROCESSES),
        )


_NO_MORE_PROCESSES = r"[Rr]esource temporarily unavailable|can't start new thread|pthread_create"

_INTERFACE_LISTS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")
_RDMA_LISTS = ("UCX_NET_DEVICES", "NCCL_IB_HCA")
_SINGLE = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "FI_CXI_DEVICE_NAME", "MPIR_CVAR_CH3_NETWORK_IFACE")


def _unknown_interfaces(seen: Seen, environ: Mapping[str, str], undo: Mapping[str, str]) -> Iterator[Cause]:
    """Variables that name only interfaces that this node does not have. ``undo``: for a setting that is in a
    file, what to do."""
    known = _of(seen, "interfaces")
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
            yield Cause(
                "{variable}={value} names no interface of this node ({names})",
                {"variable": variable, "value": value, "names": names},
                f"{undo.get(variable, f'unset {variable}')}, or name one of them",
                _is_of_ranks,
            )


def _without_device_memory(environ: Mapping[str, str], undo: Mapping[str, str]) -> Iterator[Cause]:
    """A choice of UCX's transports that cannot move device memory."""
    value = environ.get("UCX_TLS", "")
    chosen = {part.strip() for part in value.split(",")}
    if value and not value.startswith("^") and not chosen & {"all", "cuda", "cuda_copy", "rocm", "rocm_copy"}:
        yield Cause(
            "UCX_TLS={value} has no transport for device memory (cuda_copy, rocm_copy)",
            {"value": value},
            "add cuda_copy,cuda_ipc (AMD: rocm_copy,rocm_ipc) to UCX_TLS, or "
            + undo.get("UCX_TLS", "unset it"),
            _is_of_ranks_in_a_message,
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


def _components(seen: Seen, environ: Mapping[str, str]) -> Iterator[Cause]:
    """Choices of components, providers and networks, which end MPI_Init or NCCL's if there is none such."""
    chosen = [
        *((name, value, "environment") for name, value in environ.items()),
        *((f"OMPI_MCA_{name}", value, where) for where, name, value in _list(seen, "parameters")),
    ]
    for name, value, where in chosen:
        for names, what, words in _CHOICES:
            if not re.fullmatch(names, name):
                continue
            first = re.escape(value.lstrip("^").partition(",")[0])
            pattern = rf"(?<![\w/]){first}(?![\w/])|{words}" if first else words  # no part of a path
            yield Cause(
                f"{{name}}={{value}} ({{where}}) chooses {what}",
                {"name": name, "value": value, "where": where},
                f"unset {name}" if where == "environment" else f"remove that line from {where}",
                _mentions(pattern),
            )


_OF_SITES = re.compile(r"libmpi_gtl_|libxpmem|libdarshan")
"""Libraries that sites preload and that are no suspects."""


def _preloads(seen: Seen) -> Iterator[Cause]:
    """Libraries that are loaded before the driver, if what failed names them."""
    for where, path in _list(seen, "preloads"):
        name = path.rpartition("/")[2]
        if not _OF_SITES.search(name):
            yield Cause(
                "{path} is preloaded before the driver ({where})",
                {"path": path, "where": where},
                "run without it: " + ("unset LD_PRELOAD" if where == "LD_PRELOAD" else f"edit {where}"),
                _mentions(re.escape(name)),
            )


_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def _expandable_segments(environ: Mapping[str, str]) -> Iterator[Cause]:
    """PyTorch's memory without legacy IPC handles, which is shared by descriptors (pidfd_getfd)."""
    for name in _ALLOCATOR_SETTINGS:
        if re.search(r"expandable_segments: ?true", environ.get(name, ""), re.IGNORECASE):
            yield Cause(
                "{name} has expandable segments, whose memory has no legacy IPC handle",
                {"name": name},
                f"take expandable_segments out of {name}",
                _mentions(r"pidfd_(open|getfd)|expandable.segments"),
            )


def _switched_off(environ: Mapping[str, str], undo: Mapping[str, str]) -> Iterator[Cause]:
    """Variables that switch a safety of a library off, if the failure may be what the safety prevents."""
    for name, variable in variables.load().items():
        if not (variable.unsafe and name in environ and variable.unsafe.has(environ[name])):
            continue
        concerns, then = _CONCERNS.get(variable.libraries[0], _is_of_ranks), variable.unsafe.then
        yield Cause(
            "this may be due to {name}={value}, which switches a safety off: {does}",
            {"name": name, "value": environ[name], "does": variable.does},
            f"{undo.get(name, f'unset {name}')}, then rerun",
            lambda entry, concerns=concerns, then=then: concerns(entry) and _ENDED[then](entry),  # type: ignore[misc]
            of_data=then == "data",
        )


def _of_peers(facts: Iterable[Fact], failed: Iterable[Entry]) -> Iterator[Cause]:
    """An IOMMU that translates, or switches that redirect, what one GPU sends to another.

    It explains no failure between GPUs of a check that also fails on a single one.
    """
    known = {fact.name: fact.value for fact in facts if fact.value is not None}
    iommu, acs = known.get("iommu", ""), known.get("acs", "")
    if iommu.startswith("translating"):
        words = "this may be due to the IOMMU, which translates addresses between GPUs"
        cure = "if the GPUs are connected by PCIe, boot with iommu=pt"
    elif "redirects" in acs:
        words = "this may be due to ACS of PCIe bridges ({state})"
        cure = "if the GPUs are connected by PCIe, switch ACS off in the BIOS"
    else:
        return
    alone = {entry.planned.check.id for entry in failed if len(_devices(entry)) == 1}
    yield Cause(
        words,
        {"state": acs},
        f"{cure}; in a virtual machine, on its host; until then NCCL_P2P_DISABLE=1, UCX_TLS=^cuda_ipc",
        lambda entry: len(_devices(entry)) > 1 and entry.planned.check.id not in alone,
        of_data=True,
    )


def _devices(entry: Entry) -> set[str]:
    return {device.label for device in entry.planned.probe.devices}


def _of(seen: Seen, source: str) -> Mapping[str, Json]:
    said = seen.get(source)
    return said if isinstance(said, dict) and "unreadable" not in said else {}


def _list(seen: Seen, source: str) -> Iterable[list[str]]:
    said = seen.get(source)
    return said if isinstance(said, list) else []


# -- what a cause can explain ------------------------------------------------------------------------------


def _roles(entry: Entry) -> Iterable[RoleOutcome]:
    return entry.outcome.roles.values() if entry.outcome else ()


def _is_of_ranks(entry: Entry) -> bool:
    """Whether the probe's roles are ranks, of MPI or of NCCL."""
    probe = entry.planned.probe
    return probe.launch is not None or all(role.startswith("rank ") for role in probe.roles)


def _is_of_ranks_in_a_message(entry: Entry) -> bool:
    blamed = entry.outcome and entry.outcome.blamed and entry.outcome.roles[entry.outcome.blamed]
    return bool(_is_of_ranks(entry) and blamed and blamed.operation)


def _is_of_collectives(entry: Entry) -> bool:
    return _is_of_ranks(entry) and entry.planned.probe.launch is None


def _has(ending: Ending) -> Callable[[Entry], bool]:
    """Whether a role of the probe ended in this way."""
    return lambda entry: any(role.ending is ending for role in _roles(entry))


def _is_of_driver_start(entry: Entry) -> bool:
    faults = [role.fault for role in _roles(entry) if role.fault]
    return any(fault.call.endswith("Init") for fault in faults)


def _is_start_up(entry: Entry) -> bool:
    ended = {role.ending for role in _roles(entry)}
    return _is_of_ranks(entry) or bool(ended & {Ending.NOT_STARTED, Ending.UNRECORDED})


def _ran_out_of_memory(entry: Entry) -> bool:
    return any(
        (role.fault and (role.fault.name in OUT_OF_MEMORY or "OPERATING_SYSTEM" in role.fault.name))
        or "MemoryError" in role.exception
        or role.ending in (Ending.NOT_STARTED, Ending.CRASHED)
        for role in _roles(entry)
    )


def _was_killed(entry: Entry) -> bool:
    return any(role.signal == "SIGKILL" for role in _roles(entry))


def _mentions(expression: str) -> Callable[[Entry], bool]:
    """Whether what a role or its launcher printed, or its exception, has a match of the expression."""
    pattern = re.compile(expression)

    def explains(entry: Entry) -> bool:
        launcher = entry.outcome.launcher if entry.outcome else None
        said = [
            line for role in _roles(entry) for line in (*role.log_tail, *role.native_stack, role.exception)
        ]
        return any(map(pattern.search, (*said, *(launcher.log_tail if launcher else ()))))

    return explains


_CONCERNS: Mapping[str, Callable[[Entry], bool]] = {
    "nccl": _is_of_collectives,
    "pytorch": _is_of_collectives,
    "rocm": lambda entry: any(device.backend == "hip" for device in entry.planned.probe.devices),
    "nvidia-driver": lambda entry: True,
}
"""Library → whether a probe uses it; other libraries are MPI's."""

_ENDED: Mapping[str, Callable[[Entry], bool]] = {
    "crash": _has(Ending.CRASHED),
    "hang": _has(Ending.HUNG),
    "data": lambda entry: bool(entry.outcome and entry.outcome.completed),
    "start": _is_of_driver_start,
}
"""What an unsafe setting may lead to → whether a probe ended like that."""
