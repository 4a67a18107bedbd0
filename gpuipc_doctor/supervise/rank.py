"""Runs between an MPI launcher and a worker: starts the worker of a rank and records how it ended.

A launcher does not return its ranks' exit codes, or mixes them. Started once per rank as ``python -I -S
rank.py DIRECTORY``, with the standard library only, so that it costs milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PLAN = "ranks.json"

COMPLAINT = "gpuipc-doctor: "
"""Prefix of a line that says why no worker was started."""


def main(directory: Path) -> int:
    try:
        plan = json.loads((directory / PLAN).read_text())
    except FileNotFoundError:
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename  # `node_name` is out of reach
        return complain(
            f"{node} does not see {directory}; with --keep-logs or TMPDIR, name a directory that all nodes "
            "share"
        )
    own = next((os.environ[name] for name in plan["rank_variables"] if name in os.environ), None)
    if own is None:
        return complain(f"the launcher sets none of {', '.join(plan['rank_variables'])}")
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
    """Identity of the running kernel, different on every node; the node's name if the kernel has none."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(errors="replace")
    except OSError:
        text = ""
    return text.strip() or os.uname().nodename


def complain(text: str) -> int:
    """Print to the launcher why there is no worker."""
    sys.stderr.write(f"{COMPLAINT}{text}\n")  # one write: a launcher mixes the ranks' output
    return 1


def write_whole(path: Path, text: str) -> None:
    """Write the file atomically."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
