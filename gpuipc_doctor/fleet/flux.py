"""Flux as launcher and source of nodes. Written from Flux's documentation, tested only with a stand-in.

Sources, in flux-framework/flux-core: doc/man1/flux-run.rst, doc/man1/flux-resource.rst and
doc/man7/flux-shell-options.rst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuipc_doctor.fleet.slurm import printed_by

SHELL_OPTIONS = ("exit-timeout=none", "gpu-affinity=off", "pmi=off", "output.limit=1G")
"""Options of Flux's shell. By default, a job ends 30 s after its first task, and output ends at 10 MB."""


def run(nodes: Sequence[str], seconds: float) -> list[str]:
    """`flux run` with one task per node; each task sees all GPUs of its node."""
    shell = [word for option in SHELL_OPTIONS for word in ("-o", option)]
    where = [f"-N{len(nodes)}", f"-n{len(nodes)}", f"--requires=host:{','.join(nodes)}"]
    return ["flux", "run", *where, f"--time-limit={math.ceil(seconds)}s", *shell]


def nodes_of(*, queue: str | None, all_idle: bool) -> str:
    """Node set of a queue (default: the instance); ``all_idle``: only free nodes. Raises `slurm.Refused`."""
    which = ["-s", "free" if all_idle else "up"] + (["-q", queue] if queue else [])
    return ",".join(printed_by("flux", "resource", "list", "-n", "-o", "{nodelist}", *which).split())
