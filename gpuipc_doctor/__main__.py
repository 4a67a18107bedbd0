"""Where the program starts, as ``gpuipc-doctor`` and as ``python -I -m gpuipc_doctor`` alike."""

from __future__ import annotations

import gc
import sys

GARBAGE_AFTER = 100_000
"""New objects after which Python looks for garbage, of which ours are little; by itself after a thousand."""


def main() -> None:
    gc.set_threshold(GARBAGE_AFTER)
    if sys.argv[1:2] == ["prolog"]:  # before anything is imported that could be somebody else's
        from gpuipc_doctor.prolog import isolation

        isolation.isolate()
        if len(sys.argv) == 4 and sys.argv[2] == "--config" and sys.argv[3]:
            # As the hooks start it: with all of the command line's machinery it would take a third longer.
            from pathlib import Path

            from gpuipc_doctor.cli import stdio
            from gpuipc_doctor.prolog import answer

            stdio.open_standard()
            answer.run(Path(sys.argv[3]))
    from gpuipc_doctor.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
