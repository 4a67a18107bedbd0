"""``gpuipc-doctor`` with short pauses between snapshots."""

from gpuipc_doctor.cli.main import main
from gpuipc_doctor.job import watcher

watcher.BETWEEN_S = 0.05  # type: ignore[misc]

if __name__ == "__main__":
    main()
