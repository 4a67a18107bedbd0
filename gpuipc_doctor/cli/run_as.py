"""Whose code runs: ``--user`` gives up root's rights, and without it root is warned of others' programs."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.files import trust

_PR_SET_DUMPABLE = 4  # <sys/prctl.h>
_SEPARATORS = {"PATH": ":", "LD_LIBRARY_PATH": "[:;]", "LD_PRELOAD": "[: ]", "MPI4PY_LIBMPI": "\0"}
"""Variables that name files and directories from which workers run code, and what is between two names."""
_MOST_PLACES = 4


def user(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    """Become this user for the rest of the run: groups, home and directories for temporary files included.

    Raises `click.BadParameter` unless root names a user that exists.
    """
    if name is None or ctx.resilient_parsing:
        return
    if os.geteuid() != 0:
        raise click.BadParameter("only root can run checks as another user", ctx, param)
    try:
        account = pwd.getpwnam(name)
    except (KeyError, ValueError):  # ValueError: a NUL byte
        raise click.BadParameter(f"unknown user {name!r}", ctx, param) from None
    try:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    except OSError as error:  # in a user namespace, for example
        raise click.BadParameter(f"cannot become {name}: {error.strerror}", ctx, param) from None
    if not all(
        os.access(file, os.R_OK, effective_ids=True) for file in (sys.executable, os.__file__, __file__)
    ):
        raise click.BadParameter(f"{name} cannot read this Python or its packages ({sys.prefix})", ctx, param)
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # its /proc files would stay root's
    for variable in [each for each in os.environ if each in _OF_ROOT or each.startswith("XDG_")]:
        del os.environ[variable]
    os.environ.update(HOME=account.pw_dir, USER=name, LOGNAME=name, SHELL=account.pw_shell)


_OF_ROOT = ("TMPDIR", "TEMP", "TMP", "MAIL", "SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_COMMAND")


def warn_root() -> None:
    """As root, name in one line the variables by which others' code may run."""
    if os.geteuid() == 0 and (found := [*untrusted_places(os.environ)]):
        shown = ", ".join(found[:_MOST_PLACES]) + f" and {len(found) - _MOST_PLACES} more" * (
            len(found) > _MOST_PLACES
        )
        say(f"WARN as root, this runs code from places that others may write: {shown}; see check --user")


def untrusted_places(environ: Mapping[str, str]) -> Iterator[str]:
    """``variable: place`` of each place of code that another user may write; empty and relative places are
    those of the working directory."""
    for variable in _SEPARATORS:
        value = environ.get(variable, "")
        for place in re.split(_SEPARATORS[variable], value) if value else ():
            # ld.so(8): LD_PRELOAD's empty places are none, and a name without a slash is searched for.
            if variable == "LD_PRELOAD" and "/" not in place:
                continue
            if trust.untrusted(Path(place or ".")):
                yield f"{variable}: {place or '(working directory)'}"
