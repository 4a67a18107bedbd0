"""Standard streams: always open, and without control sequences from quoted text."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import IO


def open_standard() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next file or socket would get their numbers, and workers would use it as a standard stream.
    Writing to a closed output still fails.
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
    """Drop this stream, since Python would otherwise fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def has_color() -> bool:
    """Whether standard output is a terminal with colours, and the user allows them (no-color.org)."""
    return can_redraw(sys.stdout) and "NO_COLOR" not in os.environ


def can_redraw(stream: IO[str]) -> bool:
    """Whether the output can be redrawn in place."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def redraw(line: str, *, last: bool) -> None:
    """Replace the line of progress on standard error. It fits the terminal: a wrapped line would stay there
    and stack."""
    import click

    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 80
    room = max(min(columns - 1, 100), 1)  # in the last column some terminals wrap already
    click.echo(f"\r{line[:room]:<{room}}", nl=last, err=True)


def say(text: str) -> None:
    """Print lines on standard error, without control sequences."""
    import click

    from gpuipc_doctor.present.text import sanitise

    for line in text.splitlines():
        click.echo(f"gpuipc-doctor: {sanitise(line)}", err=True)
