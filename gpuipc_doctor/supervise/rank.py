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

RANK_VARIABLES = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
"""Where launchers say which rank a process is: PRRTE, Hydra, Open MPI, MVAPICH, Slurm."""


def main(directory: Path) -> int:
    own = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), None)
    if own is None:
        print(f"the launcher sets none of {', '.join(RANK_VARIABLES)}", file=sys.stderr)  # noqa: T201
        return 1
    plan = json.loads((directory / PLAN).read_text())
    role = plan["roles"][int(own)]
    with (directory / f"{role}.log").open("xb") as log:  # a second process of the same rank ends here
        worker = subprocess.Popen(
            [*plan["command"], role],
            env={**os.environ, **plan["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            close_fds=False,  # the launcher's channels are for the worker
        )
    _write(directory / f"{role}.pid", worker.pid)
    code = worker.wait()
    _write(directory / f"{role}.exit-status", code)
    return code if code >= 0 else 128 - code


def _write(path: Path, number: int) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(str(number))
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
