"""Standard input, output and error: there are always three, and no terminal acts upon what errors quote."""

from __future__ import annotations

import os
import sys


def open_standard() -> None:
    """Where standard input, output or error is closed, open /dev/null.

    Otherwise the next file or socket gets its number, and workers take that for their standard streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def has_color() -> bool:
    """Whether standard output is a terminal whose user has nothing against colours (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def say(text: str) -> None:
    """A line on standard error, or several, of which a terminal acts upon nothing."""
    import click

    from gpuipc_doctor.report.text import sanitise

    for line in text.splitlines():
        click.echo(f"gpuipc-doctor: {sanitise(line)}", err=True)
