"""Explainers: limits of this node, its file systems and its names, with which libraries fail."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.model import Shown
from gpuipc_doctor.probe_types import Ending
from gpuipc_doctor.run.causes.explaining import NodeFacts, Trials, shown
from gpuipc_doctor.run.causes.failed_probe import (
    has,
    is_before_messages,
    is_untried,
    labels_of,
    lacks_room,
    ran_out_of_host_memory,
    says,
    was_killed,
)
from gpuipc_doctor.run.causes.node_state import PATIENCE_S, Seen, facts_of
from gpuipc_doctor.run.results import Entry, Explanation, is_of_data
from gpuipc_doctor.run.skips import UNCHECKED, UNSAFE, redirection
from gpuipc_doctor.supervise import process_limits

ROOM_BYTES = 64 << 20
"""Free shared memory with which two ranks of each known MPI start; Open MPI and NCCL need tens of MiB."""

TEMPORARY_BYTES = 16 << 20
FEW_PROCESSES = 256
LITTLE_LOCKED_BYTES = 64 << 20


_NOT_STARTED = has(Ending.NOT_STARTED, Ending.UNRECORDED)


def hanging_sources(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """They explain what hangs before the first message, and workers that do not start."""
    for name, said in facts.seen.items():
        if said is None:
            yield from shown(
                Shown.MEASURED,
                failed,
                "reading {source} takes more than {limit:s}: a file system or name server hangs",
                {"source": name, "limit": PATIENCE_S},
                "find it with `df` and `getent hosts $(hostname)`",
                lambda entry: (
                    _NOT_STARTED(entry)
                    or (has(Ending.HUNG)(entry) and is_before_messages(entry) and is_untried(entry))
                ),
            )


def not_writable(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Places for files of ranks that are read-only, or refuse this user, or do not exist."""
    seen = facts.seen
    places = (
        (
            "shared memory",
            "mount -o remount,rw,mode=1777 /dev/shm; in a container, mount a tmpfs there",
            lacks_room(_OF_SHARED_MEMORY),
        ),
        ("temporary files", "set TMPDIR to a directory that you may write", says(_NO_PLACE)),
    )
    for source, remedy, explains in places:
        said = facts_of(seen, source)
        why = "is mounted read-only" if said.get("is_read_only") else "cannot be written by this user"
        if said.get("is_read_only") or not said.get("is_writable", True):
            values = {"name": said["name"]}
            yield from shown(Shown.MEASURED, failed, f"{{name}} {why}", values, remedy, explains)
    missing = seen.get("temporary files")
    if isinstance(missing, dict) and "unreadable" in missing:
        values = {"why": missing["unreadable"]}
        yield from shown(Shown.MEASURED, failed, "TMPDIR: {why}", values, remedy, explains)


_OF_SHARED_MEMORY = (
    r"dev/shm|shm_?open|shmem|[Ss]hared.memory|memory.map|Read-only file system|No space left|ENOSPC|EROFS"
)
_NO_PLACE = r"Read-only file system|[Ss]ession dir|TMPDIR|/tmp|mkdir|mkstemp|temporary (file|dir)"


def no_room(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    seen = facts.seen
    shared = facts_of(seen, "shared memory")
    if shared.get("free", ROOM_BYTES) < ROOM_BYTES:
        yield from shown(
            Shown.MEASURED,
            failed,
            "{name} has {free:mib} free, ranks need up to {need:mib}",
            {"name": shared["name"], "free": shared["free"], "need": ROOM_BYTES},
            "remove old files there, or `mount -o remount,size=1g /dev/shm`; in a container, --shm-size=1g",
            lacks_room(_OF_SHARED_MEMORY),
        )
    if shared.get("inodes") == 0:
        yield from shown(
            Shown.MEASURED,
            failed,
            "{name} has no inode free",
            {"name": shared["name"]},
            "remove old files there",
            lacks_room(_OF_SHARED_MEMORY),
        )
    temporary = facts_of(seen, "temporary files")
    if temporary.get("free", TEMPORARY_BYTES) < TEMPORARY_BYTES or temporary.get("inodes") == 0:
        what = "no inode" if temporary.get("inodes") == 0 else "{free:mib}"
        values = {"name": temporary["name"], "free": temporary["free"]}
        yield from shown(
            Shown.MEASURED,
            failed,
            f"{{name}} has {what} free",
            values,
            "remove files there, or set TMPDIR",
            lambda entry: _NOT_STARTED(entry) or lacks_room(_OF_TEMPORARY_FILES)(entry),
        )


_OF_TEMPORARY_FILES = r"No space left|ENOSPC|[Ss]ession dir|TMPDIR|/tmp"


def limited_step(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Limits of the control group, which a job's step or a container sets, if they were reached meanwhile."""
    step, before = facts_of(facts.seen, "job step"), facts_of(facts.before, "job step")
    limit, group = step.get("memory", [None, ""])
    killed, full = (step.get(name, 0) - before.get(name, 0) for name in ("killed", "full"))
    if limit is not None and (killed > 0 or full > 0):
        yield from shown(
            Shown.MEASURED,
            failed,
            "this job or container may use {limit:mib} of host memory ({group}); processes killed for that: "
            "{killed}",
            {"limit": limit, "group": group, "killed": killed},
            "give it more memory: under Slurm --mem, in a container --memory",
            lambda entry: (killed > 0 and was_killed(entry)) or ran_out_of_host_memory(entry),
        )
    left, group = step.get("processes", [None, ""])
    if left is not None and left < FEW_PROCESSES:
        yield from shown(
            Shown.STATED,
            failed,
            "this job or container may start only {left} more processes and threads ({group}/pids.max)",
            {"left": max(left, 0), "group": group},
            "raise pids.max: TasksMax of the service, --pids-limit of the container",
            says(process_limits.NO_PROCESS),
        )


def limited_locked_memory(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """The limit that slurm.conf may give jobs from slurmd; for the others see `supervise.process_limits`."""
    seen = facts.seen
    limit = facts_of(seen, "limits").get("locked memory")
    if limit is not None and limit < LITTLE_LOCKED_BYTES:
        yield from shown(
            Shown.STATED,
            failed,
            "locked memory is limited to {limit:mib} (ulimit -l)",
            {"limit": limit},
            "ulimit -l unlimited; under Slurm, LimitMEMLOCK=infinity in slurmd's unit and "
            f"PropagateResourceLimitsExcept=MEMLOCK{_is_now(seen)}",
            says(_NOT_LOCKED),
        )


_NOT_LOCKED = (
    r"(?i)memlock|locked memory|"
    r"(ibv_reg_mr|ibv_create|register(ing)? memory)(?!.*(bad address|invalid|not supported|not permitted))"
)


def _is_now(seen: Seen) -> str:
    stated = facts_of(seen, "job step").get("propagated")
    return f", now {stated}" if stated else ""


def loopback_is_down(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    if facts_of(facts.seen, "interfaces").get("loopback") is False:
        yield from shown(
            Shown.MEASURED,
            failed,
            "the loopback interface is down (127.0.0.1 cannot be used)",
            {},
            "ip link set lo up",
            lambda entry: (
                is_before_messages(entry)
                and (
                    _NOT_STARTED(entry)
                    or says(r"nic=lo\b|127\.0\.0\.1")(entry)
                    or (says(_NOT_CONNECTED)(entry) and is_untried(entry))
                )
            ),
        )


_NOT_CONNECTED = r"[Cc]onnect|refused|timed out|[Nn]o route|unreachable|interface|[Hh]ost ?name"


def host_name(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    said = facts_of(facts.seen, "host name")
    remedy = f"add `127.0.1.1 {said.get('name')}` to /etc/hosts, or correct DNS"
    if said.get("elsewhere"):
        yield from shown(
            Shown.MEASURED,
            failed,
            "this host's name, {name}, has another host's address ({elsewhere})",
            said,
            remedy,
            lambda entry: is_before_messages(entry) and says(_NOT_CONNECTED)(entry) and is_untried(entry),
        )
    if said.get("error"):
        yield from shown(
            Shown.STATED,
            failed,
            "this host's name, {name}, has no address ({error})",
            said,
            remedy,
            says(r"gethostby|getaddrinfo|[Nn]ame or service not known|name resolution|[Hh]ost ?name"),
        )


def between_gpus(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """An IOMMU that translates, or switches that redirect, what one GPU sends to another.

    It explains wrong data and hangs between GPUs, of checks that do not also fail on a single one.
    """
    if any(fact.name == "peer-access" and fact.value == UNSAFE for fact in facts.inventory):
        words = f"{UNCHECKED}=1, without which the driver refuses peer access for the IOMMU or ACS"
        cure = f"unset {UNCHECKED}"
    elif read := redirection(facts.inventory):
        words = read[0]
        cure = f"if the GPUs are connected by PCIe, {read[1]}; in a virtual machine, on its host; until then "
        cure += "NCCL_P2P_DISABLE=1, UCX_TLS=^cuda_ipc"
    else:
        return
    alone = {entry.planned.check.id for entry in facts.failed if len(labels_of(entry)) == 1}
    yield from shown(
        Shown.MEASURED,
        failed,
        f"this may be due to {words}",
        {},
        cure,
        lambda entry: (
            len(labels_of(entry)) > 1
            and entry.planned.check.id not in alone
            and (has(Ending.HUNG)(entry) or any(map(is_of_data, entry.standing)))
            and is_untried(entry)
        ),
        of_data=True,
    )
