"""First aid for nodes on which a call hung: what to save, and when to reset."""

from __future__ import annotations

from gpuipc_doctor.model import Status
from gpuipc_doctor.present.blocks import Entry, Item
from gpuipc_doctor.probe_types import Ending
from gpuipc_doctor.report_types import Report

KEYS = frozenset({"hung", "unkillable"})
"""Keys of the findings on calls that hung (`supervise.blame`)."""

_STEPS = (
    "Keep jobs away; running ones go on. Under Slurm: scontrol update NodeName={nodes} State=DRAIN "
    'Reason="gpuipc-doctor: hang"',
    "Save what a reset destroys: dmesg -T > dmesg.txt; nvidia-bug-report.sh (NVIDIA); the JSON report "
    "(--output). A job hangs too: gpuipc-doctor job --pid PID --save job.json",
    "Run the check again, alone. If it hangs again, or dmesg has an Xid or a failed reset, and no job "
    "is left on the node, reset the GPU: nvidia-smi --gpu-reset -i GPU; AMD: rocm-smi --gpureset -d GPU",
    "If the reset hangs, or processes stay in state D (ps -eo stat,pid,comm), reboot.",
    "Then gpuipc-doctor check --all; if it accepts the node: scontrol update NodeName={nodes} State=RESUME",
)


def of_report(report: Report) -> Entry | None:
    """First aid if a call of this node hung; else None."""
    hung = any(
        result.finding.status is Status.FAIL
        and any(role.ending in (Ending.HUNG, Ending.UNKILLABLE) for role in result.roles)
        for result in report.results
    )
    return of_nodes(report.host) if hung else None


def of_nodes(nodes: str) -> Entry:
    """First aid for a node or a set of nodes. What may cost data is said first."""
    title = "first aid. CAREFUL: a reset or reboot ends the node's jobs and loses their unsaved data"
    steps = (f"{number}. {step.format(nodes=nodes)}" for number, step in enumerate(_STEPS, 1))
    return Entry("HANG", title, tuple(Item(step, hang=3) for step in steps), look=Status.FAIL.value)
