"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # the prolog shares these options and has no time for what it does not need
    from gpuipc_doctor.config import SiteConfig
    from gpuipc_doctor.model import Node

Command = TypeVar("Command", bound=Callable[..., Any])

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made below it
_ROOMY_BYTES = 1 << 30
"""What a simulated node may need; of shared memory, Docker gives a container 64 MB."""

_MAX_SECONDS = 365 * 24 * 3600


class Seconds(click.FloatRange):
    """A number of seconds, more than none; its bound of a year is there to leave out ``inf``."""

    def __init__(self) -> None:
        super().__init__(min=0, max=_MAX_SECONDS, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):  # it is neither less nor more than any bound
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


def node_options(command: Command) -> Command:
    """``--config``, ``--simulate`` and ``--backend``: which node, and which of its drivers."""
    for option in (
        click.option(
            "--backend",
            type=click.Choice(["auto", "cuda", "hip", "all"]),
            default="auto",
            show_default=True,
            help="Driver to probe; auto: whichever is here.",
        ),
        click.option(
            "--simulate", metavar="PROFILE", help="Probe a simulated node: a profile's name or file."
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Site config; without it the defaults of site-configs/generic.yaml hold.",
        ),
    ):
        command = option(command)
    return command


def site_config(file: Path | None) -> SiteConfig:
    """The site config of ``--config``, else the defaults. Raises `BadFile`."""
    from gpuipc_doctor import config

    return config.load(file) if file else config.SiteConfig()


@contextmanager
def node(profile: str | None) -> Iterator[tuple[Node, list[Path]]]:
    """The node to probe, and the directories that exist for it alone."""
    if profile is None:
        from gpuipc_doctor.model import Node

        yield Node(), []
        return
    if not profile:
        raise click.BadParameter("the name is empty", param_hint="'--simulate'")
    from gpuipc_doctor.simulator.node import prepare

    state = Path(tempfile.mkdtemp(prefix="gpuipc-doctor-node-", dir=_roomy()))
    try:
        yield prepare(profile, state), [state]
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _roomy() -> Path | None:
    """Where simulated device memory goes, which is files: in shared memory they never reach a disk.

    None, the directory for temporary files, where shared memory is too small or not to be had.
    """
    if not os.access(SHARED_MEMORY, os.W_OK) or shutil.disk_usage(SHARED_MEMORY).free < _ROOMY_BYTES:
        return None
    return SHARED_MEMORY
