"""Stands between an MPI launcher and a worker: starts the worker of its rank and writes down how it ended.

A launcher keeps its ranks' exit codes to itself, or mixes them. Started once for each rank as
``python -I -S rank.py DIRECTORY``, with the standard library alone, so that it costs milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PLAN = "ranks.json"

COMPLAINT = "gpuipc-doctor: "
"""How a line begins that says why no worker was started."""

RANK_VARIABLES = (
    "PMIX_RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "FLUX_TASK_RANK",
)
"""Where launchers say which rank a process is: PRRTE, Hydra, Open MPI, MVAPICH, Slurm, Flux."""


def main(directory: Path) -> int:
    own = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), None)
    if own is None:
        return complain(f"the launcher sets none of {', '.join(RANK_VARIABLES)}")
    try:
        plan = json.loads((directory / PLAN).read_text())
    except FileNotFoundError:
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename  # our `node_name`, out of reach here
        return complain(
            f"{node} does not see {directory}: ranks on several nodes need a directory that all of them "
            "share; name one with --keep-logs, or as TMPDIR"
        )
    role = plan["roles"][int(own)]
    # A second process of the same rank ends here. Appending: see `evidence.bounded_logs`.
    log = os.open(directory / f"{role}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    worker = subprocess.Popen(
        [*plan["command"], role],
        env={**os.environ, **plan["environment"]},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        close_fds=False,  # the launcher's channels are for the worker
    )
    write_whole(directory / f"{role}.pid", f"{worker.pid} {boot_id()}")
    code = worker.wait()
    write_whole(directory / f"{role}.exit-status", str(code))
    return code if code >= 0 else 128 - code


def boot_id() -> str:
    """What tells this running kernel from those of other nodes."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def complain(text: str) -> int:
    """Say where the launcher hears it why there is no worker."""
    sys.stderr.write(f"{COMPLAINT}{text}\n")  # one write: a launcher mixes what ranks say
    return 1


def write_whole(path: Path, text: str) -> None:
    """Whoever reads the file finds all of it, or none."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
