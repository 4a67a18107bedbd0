"""Entry point of ``gpuipc-doctor`` and ``python -I -m gpuipc_doctor``."""

from __future__ import annotations

import gc
import sys

from gpuipc_doctor.files import python

GARBAGE_AFTER = 100_000
"""Number of new objects after which Python collects garbage. Python's default is about a thousand."""


def main() -> None:
    gc.set_threshold(GARBAGE_AFTER)
    if sys.argv[1:2] == ["prolog"]:  # before any import that another user could have planted
        from gpuipc_doctor.prolog import isolation

        isolation.isolate()
        if len(sys.argv) == 4 and sys.argv[2] == "--config" and sys.argv[3]:
            # The hooks' short path: the full command line would take a third longer.
            from pathlib import Path

            from gpuipc_doctor.cli import stdio
            from gpuipc_doctor.prolog import answer

            stdio.open_standard()
            answer.run(Path(sys.argv[3]))
    python.restrict_environment()
    from gpuipc_doctor.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
