"""Explainers: limits of this node, its file systems and its names, with which libraries fail."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.run.causes.explaining import NodeFacts, Trials, shown
from gpuipc_doctor.run.causes.failed_probe import (
    is_of_ranks,
    is_of_ranks_in_a_message,
    is_start_up,
    labels_of,
    mentions,
    ran_out_of_memory,
    was_killed,
)
from gpuipc_doctor.run.causes.node_state import PATIENCE_S, Seen, facts_of
from gpuipc_doctor.run.results import Entry, Explanation
from gpuipc_doctor.run.skips import redirection

ROOM_BYTES = 64 << 20
"""Free shared memory with which two ranks of each known MPI start; Open MPI and NCCL need tens of MiB."""

TEMPORARY_BYTES = 16 << 20
FEW_PROCESSES = 256
LITTLE_LOCKED_BYTES = 64 << 20

LITTLE_MEMORY_BYTES = 4 << 30
"""Host memory with which two ranks start; a CUDA context alone takes some 0.5 GiB."""


def hanging_sources(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    for name, said in facts.seen.items():
        if said is None:
            says = "reading {source} takes more than {limit:s}: a file system or name server hangs"
            values = {"source": name, "limit": PATIENCE_S}
            yield from shown(
                failed, says, values, "find it with `df` and `getent hosts $(hostname)`", is_start_up
            )


def not_writable(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Places for files of ranks that are read-only, or refuse this user, or do not exist."""
    seen = facts.seen
    places = (
        (
            "shared memory",
            "mount -o remount,rw,mode=1777 /dev/shm; in a container, mount a tmpfs there",
            is_of_ranks,
        ),
        ("temporary files", "set TMPDIR to a directory that you may write", mentions(_NO_PLACE)),
    )
    for source, remedy, explains in places:
        said = facts_of(seen, source)
        why = "is mounted read-only" if said.get("is_read_only") else "cannot be written by this user"
        if said.get("is_read_only") or not said.get("is_writable", True):
            yield from shown(failed, f"{{name}} {why}", {"name": said["name"]}, remedy, explains)
    missing = seen.get("temporary files")
    if isinstance(missing, dict) and "unreadable" in missing:
        yield from shown(failed, "TMPDIR: {why}", {"why": missing["unreadable"]}, remedy, explains)


_NO_PLACE = r"Read-only file system|Permission denied|No such file or directory|[Ss]ession dir|TMPDIR|/tmp"


def no_room(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    seen = facts.seen
    shared = facts_of(seen, "shared memory")
    if shared.get("free", ROOM_BYTES) < ROOM_BYTES:
        yield from shown(
            failed,
            "{name} has {free:mib} free, ranks need up to {need:mib}",
            {"name": shared["name"], "free": shared["free"], "need": ROOM_BYTES},
            "remove old files there, or `mount -o remount,size=1g /dev/shm`; in a container, --shm-size=1g",
            is_of_ranks,
        )
    if shared.get("inodes") == 0:
        yield from shown(
            failed,
            "{name} has no inode free",
            {"name": shared["name"]},
            "remove old files there",
            is_of_ranks,
        )
    temporary = facts_of(seen, "temporary files")
    if temporary.get("free", TEMPORARY_BYTES) < TEMPORARY_BYTES or temporary.get("inodes") == 0:
        what = "no inode" if temporary.get("inodes") == 0 else "{free:mib}"
        values = {"name": temporary["name"], "free": temporary["free"]}
        yield from shown(
            failed, f"{{name}} has {what} free", values, "remove files there, or set TMPDIR", is_start_up
        )


def limited_step(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """Limits of the control group, which a job's step or a container sets."""
    step = facts_of(facts.seen, "job step")
    limit, group = step.get("memory", [None, ""])
    if limit is not None and (limit < LITTLE_MEMORY_BYTES or step.get("killed")):
        yield from shown(
            failed,
            "this job or container may use {limit:mib} of host memory ({group}); processes killed for that: "
            "{killed}",
            {"limit": limit, "group": group, "killed": step.get("killed", 0)},
            "give it more memory: under Slurm --mem, in a container --memory",
            lambda entry: ran_out_of_memory(entry) or was_killed(entry),
        )
    left, group = step.get("processes", [None, ""])
    if left is not None and left < FEW_PROCESSES:
        yield from shown(
            failed,
            "this job or container may start only {left} more processes and threads ({group}/pids.max)",
            {"left": max(left, 0), "group": group},
            "raise pids.max: TasksMax of the service, --pids-limit of the container",
            mentions(_NO_MORE_PROCESSES),
        )


_NO_MORE_PROCESSES = r"[Rr]esource temporarily unavailable|can't start new thread|pthread_create"


def limited_locked_memory(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """The limit that slurm.conf may give jobs from slurmd; for the others see `supervise.process_limits`."""
    seen = facts.seen
    limit = facts_of(seen, "limits").get("locked memory")
    if limit is not None and limit < LITTLE_LOCKED_BYTES:
        yield from shown(
            failed,
            "locked memory is limited to {limit:mib} (ulimit -l)",
            {"limit": limit},
            "ulimit -l unlimited; under Slurm, LimitMEMLOCK=infinity in slurmd's unit and "
            f"PropagateResourceLimitsExcept=MEMLOCK{_is_now(seen)}",
            mentions(r"memlock|[Ll]ocked memory|ibv_reg_mr|ibv_create|register(ing)? memory"),
        )


def _is_now(seen: Seen) -> str:
    stated = facts_of(seen, "job step").get("propagated")
    return f", now {stated}" if stated else ""


def loopback_is_down(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    if facts_of(facts.seen, "interfaces").get("loopback") is False:
        yield from shown(
            failed,
            "the loopback interface is down (127.0.0.1 cannot be used)",
            {},
            "ip link set lo up",
            lambda entry: is_of_ranks(entry) and not is_of_ranks_in_a_message(entry),
        )


def host_name(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    said = facts_of(facts.seen, "host name")
    remedy = f"add `127.0.1.1 {said.get('name')}` to /etc/hosts, or correct DNS"
    if said.get("elsewhere"):
        yield from shown(
            failed,
            "this host's name, {name}, has another host's address ({elsewhere})",
            said,
            remedy,
            mentions(r"[Cc]onnect|refused|timed out|[Nn]o route|unreachable|[Hh]ost ?name"),
        )
    if said.get("error"):
        yield from shown(
            failed,
            "this host's name, {name}, has no address ({error})",
            said,
            remedy,
            mentions(r"gethostby|getaddrinfo|[Nn]ame or service not known|resol|[Hh]ost ?name"),
        )


def between_gpus(failed: Entry, facts: NodeFacts, _: Trials) -> Iterator[Explanation]:
    """An IOMMU that translates, or switches that redirect, what one GPU sends to another.

    It explains no failure between GPUs of a check that also fails on a single one.
    """
    if not (read := redirection(facts.inventory)):
        return
    words, cure = read
    alone = {entry.planned.check.id for entry in facts.failed if len(labels_of(entry)) == 1}
    yield from shown(
        failed,
        f"this may be due to {words}",
        {},
        f"if the GPUs are connected by PCIe, {cure}; in a virtual machine, on its host; "
        "until then NCCL_P2P_DISABLE=1, UCX_TLS=^cuda_ipc",
        lambda entry: len(labels_of(entry)) > 1 and entry.planned.check.id not in alone,
        of_data=True,
    )
