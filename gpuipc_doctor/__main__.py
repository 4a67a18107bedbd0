"""Entry point of ``gpuipc-doctor`` and ``python -I -m gpuipc_doctor``."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in: in no directory
import gc
import os
import sys

from gpuipc_doctor.files import python

TYPE_CHECKING = False  # not from typing: nothing is imported yet that could be planted
if TYPE_CHECKING:
    from typing import NoReturn

GARBAGE_AFTER = 100_000
"""Number of new objects after which Python collects garbage. Python's default is about a thousand."""


def main() -> None:
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # if ignored, no child's end would be known
    try:
        _main()
    except (ImportError, MemoryError, OSError, RuntimeError, SystemError) as error:
        _give_up(error)


def _give_up(error: Exception) -> NoReturn:
    """Report an error that occurred before the command line was read. Without memory for its modules Python
    raises any of these. A prolog's job starts."""
    is_lacking = isinstance(error, ModuleNotFoundError)
    hint = "the installation lacks it" if is_lacking else "see `ulimit -a` and `df`"
    line = f"gpuipc-doctor: ERROR cannot start: {type(error).__name__}: {error}; {hint}\n"
    is_prolog = sys.argv[1:2] == ["prolog"]
    os.write(1 if is_prolog else 2, line.encode(errors="replace"))
    os._exit(0 if is_prolog else 1)


def _interrupted(*_: object) -> NoReturn:
    """End a command that a signal interrupts during its imports, as `cli.main` does later."""
    os.write(2, b"gpuipc-doctor: interrupted before any result\n")
    os._exit(130)


def _main() -> None:
    gc.set_threshold(GARBAGE_AFTER)
    if sys.argv[1:2] != ["prolog"]:
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
            if _signal.getsignal(number) != _signal.SIG_IGN:  # as nohup(1) requests
                _signal.signal(number, _interrupted)
    else:  # before any import that another user could have planted
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
