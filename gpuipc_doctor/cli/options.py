"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuipc_doctor import node_name
from gpuipc_doctor.near_miss import did_you_mean

if TYPE_CHECKING:  # the prolog shares these options and has no time for what it does not need
    from gpuipc_doctor.model import Device, Node
    from gpuipc_doctor.site.config import SiteConfig

Command = TypeVar("Command", bound=Callable[..., Any])

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made below it
_ROOMY_BYTES = 1 << 30
"""What a simulated node may need; of shared memory, Docker gives a container 64 MB."""

_SCHEDULERS = {"srun": "slurm", "flux": "flux"}
"""By launcher, the directory of its configuration in ``/etc``."""

ELSEWHERE = "elsewhere"
"""The object of a context in which a command is looked through that other nodes are to run."""

_MAX_SECONDS = 365 * 24 * 3600


class FilePath(click.Path):
    """The path of a file or directory, which has a name: of an empty one `Path` would make this directory."""

    def __init__(self, **more: Any) -> None:
        super().__init__(path_type=Path, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds, more than none; its bound of a year is there to leave out ``inf``."""

    def __init__(self) -> None:
        super().__init__(min=0, max=_MAX_SECONDS, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):  # it is neither less nor more than any bound
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


def seconds(name: str, says: str, **more: Any) -> Callable[[Command], Command]:
    """An option that takes a number of seconds."""
    return click.option(name, type=Seconds(), metavar="SECONDS", help=says, **more)


def config(says: str, **more: Any) -> Callable[[Command], Command]:
    """``--config``: a site config, which every command uses for something else."""
    return click.option("--config", "config_file", type=FilePath(), metavar="FILE", help=says, **more)


@contextmanager
def naming_option(option: str, what: str) -> Iterator[None]:
    """Name the option that says where to write, where that cannot be done. Raises `click.BadParameter`."""
    try:
        yield
    except OSError as error:
        raise click.BadParameter(f"{what}: {error.strerror or error}", param_hint=option) from error


class Choice(click.Choice[str]):
    """One of some words; of another one it says which was meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as wrong:
            meant = did_you_mean(str(value), self.choices)
            self.fail(f"{wrong.message.removesuffix('.')}{meant or '.'}", param, ctx)


def mpi_library(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """For ``--mpi-lib``: that there is such a library is found out before anything runs.

    Not by a context that is about `ELSEWHERE`: what is not here may be there.
    """
    if value == "":
        raise click.BadParameter("the name is empty", ctx, param)
    if value and ctx.obj != ELSEWHERE:
        from gpuipc_doctor.mpi import locate

        try:
            locate.find_library(value, None, {})
        except locate.NotFound as absent:
            raise click.UsageError(f"{absent.reason}; {absent.remedy}", ctx) from None
    return value


def node_options(command: Command) -> Command:
    """``--config``, ``--simulate`` and ``--backend``: which node, and which of its drivers."""
    for option in (
        click.option(
            "--backend",
            type=Choice(["auto", "cuda", "hip", "all"]),
            default="auto",
            show_default=True,
            help="Driver to probe; auto: whichever is here.",
        ),
        click.option(
            "--simulate", metavar="PROFILE", help="Probe a simulated node: a profile's name or file."
        ),
        config("Site config, or the name of a shipped one; beneath it lies /etc/gpuipc-doctor/site.yaml."),
    ):
        command = option(command)
    return command


def site_config(file: Path | None) -> SiteConfig:
    """What the site has decided: ``--config`` and what lies beneath it. Raises `BadFile`."""
    from gpuipc_doctor.site import config, layers

    return config.load(layers.of_option(file) if file else None, matching)


def not_of_this_node(config: SiteConfig) -> str:
    """That a config which holds here says it is of other nodes; empty where it does not."""
    from gpuipc_doctor.site import hosts

    node = node_name.short()
    if not config.hosts or hosts.hold(list(config.hosts), node):
        return ""
    return (
        f"{config.hosts_where}: hosts: {node} is not one of {','.join(config.hosts)}; the file is used all "
        "the same; correct the set, or name this node's with --config"
    )


def matching() -> Path | None:
    """The shipped site that matches this node. Raises `BadFile` where several do."""
    from gpuipc_doctor.site import hosts, yamlfile

    read = partial(yamlfile.read, schema=None)
    return hosts.matching(node_name.short(), hosts.cluster_name(os.environ), read)


def resembling(config: SiteConfig, node: Node, devices: Collection[Device]) -> list[str]:
    """The shipped sites that a node with these GPUs looks like; none where a config is in force."""
    from gpuipc_doctor.fabric.devices import adapters
    from gpuipc_doctor.site import hosts, resemblance

    if config.files.documents:
        return []
    root = Path(node.root)
    fabrics = [name for name, listed in adapters(root).items() if listed]
    schedulers = {name: (root / "etc" / directory).is_dir() for name, directory in _SCHEDULERS.items()}

    def has_launcher(name: str) -> bool:
        return schedulers.get(name, False) or (not node.simulated and which(name) is not None)

    return resemblance.resembling(devices, fabrics, has_launcher, hosts.cluster_name(os.environ))


@contextmanager
def node(profile: str | None) -> Iterator[Node]:
    """The node to probe; a simulated one has files, which are removed whatever becomes of this process."""
    if profile is None:
        from gpuipc_doctor.model import Node

        yield Node()
        return
    if not profile:
        raise click.BadParameter("the name is empty", param_hint="'--simulate'")
    from gpuipc_doctor.simulator.node import prepare
    from gpuipc_doctor.supervise import scratch

    # Simulated device memory is files, which never reach a disk if they are in shared memory.
    places = (SHARED_MEMORY, *scratch.usual())
    with scratch.directory(places, _ROOMY_BYTES) as state:
        yield prepare(profile, state)
