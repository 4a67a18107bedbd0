"""Where the program starts, as ``gpuipc-doctor`` and as ``python -I -m gpuipc_doctor`` alike."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:2] == ["prolog"]:  # before anything is imported that could be somebody else's
        from gpuipc_doctor import isolation

        isolation.isolate()
    from gpuipc_doctor.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
