"""Standard input, output and error: there are always three, and no terminal acts upon what errors quote."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import IO


def open_standard() -> None:
    """Where standard input, output or error is closed, open /dev/null.

    Otherwise the next file or socket gets its number, and workers take that for their standard streams.
    To write to an output that was closed fails all the same.
    """
    for number, mode in enumerate((os.O_RDWR, os.O_RDONLY, os.O_RDWR)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # gets the lowest free number: this one
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def is_writable() -> bool:
    """Whether standard output is open for writing."""
    return fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def give_up(number: int) -> None:
    """Write no more to this stream: what is left in its buffer would fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def has_color() -> bool:
    """Whether standard output is a terminal whose user has nothing against colours (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def can_redraw(stream: IO[str]) -> bool:
    """Whether what was written can be written over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def say(text: str) -> None:
    """A line on standard error, or several, of which a terminal acts upon nothing."""
    import click

    from gpuipc_doctor.present.text import sanitise

    for line in text.splitlines():
        click.echo(f"gpuipc-doctor: {sanitise(line)}", err=True)
