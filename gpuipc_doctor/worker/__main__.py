"""Start a worker: ``python -m gpuipc_doctor.worker DIRECTORY ROLE [PEER]…``, see `running`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuipc_doctor.worker import process, running


def main(directory: str, role: str, *peers: str) -> None:
    process.die_with_parent()
    running.run(Path(directory), role, list(map(int, peers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
