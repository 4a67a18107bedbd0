"""Options of several commands, and their types."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuipc_doctor import node_name
from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.vendors import SUPPORTED

if TYPE_CHECKING:  # the prolog shares these options and has no time for unneeded imports
    from gpuipc_doctor.model import Node
    from gpuipc_doctor.site.config import SiteConfig

Command = TypeVar("Command", bound=Callable[..., Any])

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made below it
_ROOMY_BYTES = 1 << 30
"""Bytes that a simulated node may need: more than Docker's default of 64 MB of shared memory."""

_MAX_SECONDS = 365 * 24 * 3600


class FilePath(click.Path):
    """A non-empty path of a file or directory; `Path` would read an empty one as the working directory."""

    def __init__(self, **more: Any) -> None:
        super().__init__(path_type=Path, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A positive number of seconds up to a year, which excludes ``inf``."""

    def __init__(self) -> None:
        super().__init__(min=0, max=_MAX_SECONDS, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):  # NaN is neither less nor more than any bound
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


def simulate(says: str) -> Callable[[Command], Command]:
    """The option ``--simulate``."""
    return click.option("--simulate", metavar="PROFILE", help=says, shell_complete=complete("profiles"))


OF_SUBJECT = {
    **dict.fromkeys(("nccl", "rccl"), "; its checks are of `collectives`"),
    **dict.fromkeys(("ucx", "libfabric", "ofi", "cxi"), "; its checks are of `fabric`"),
    **dict.fromkeys(("ipc", "nvlink", *SUPPORTED), "; its checks are of `memory`"),
}
"""What is required by another name → whose checks it has."""


class Subjects(click.ParamType):  # type: ignore[type-arg]  # generic from Click 8.4 on
    """A comma-separated list of subjects of the verdict."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from gpuipc_doctor.model import Subject

        if not isinstance(value, str):
            return value
        known = [subject.value for subject in Subject]
        for word in (words := [word.strip() for word in value.split(",")]):
            if word not in known:
                meant = OF_SUBJECT.get(word.casefold()) or did_you_mean(word, known, else_list=True)
                self.fail(f"{word!r} is no subject of the verdict{meant}", param, ctx)
        return frozenset(map(Subject, words))


def require(command: Command) -> Command:
    """The option ``--require``."""
    return click.option(
        "--require",
        "required",
        type=Subjects(),
        default=frozenset(),
        metavar="LIST",
        help="What must be tested, comma-separated: memory, mpi, collectives, fabric. If one of them is not, "
        "the result is an ERROR (exit 11).",
    )(command)


def seconds(name: str, says: str, **more: Any) -> Callable[[Command], Command]:
    """An option that takes a number of seconds."""
    return click.option(name, type=Seconds(), metavar="SECONDS", help=says, **more)


def config(says: str, **more: Any) -> Callable[[Command], Command]:
    """The option ``--config``, with a command's help text."""
    described = {"type": FilePath(), "metavar": "FILE", "help": says, **more}
    return click.option("--config", "config_file", **described)


def config_again(file: Path | None) -> str:
    """What a command that is printed needs to know what this one knows."""
    return f" --config {shlex.quote(os.fspath(file))}" if file else ""


@contextmanager
def naming_option(option: str, what: str) -> Iterator[None]:
    """Name the option in an error about a file that cannot be written. Raises `click.BadParameter`."""
    try:
        yield
    except OSError as error:
        raise click.BadParameter(f"{what}: {error.strerror or error}", param_hint=option) from error


def complete(*kinds: str) -> Callable[..., list[str]]:
    """A shell's completions of an argument: names of these kinds (``checks``, ``issues``, ``profiles``)."""

    def names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
        found: list[str] = []
        if "checks" in kinds:
            from gpuipc_doctor.api import loader

            found += loader.built_in()
        if "issues" in kinds:
            from gpuipc_doctor import knownissues

            found += [issue.id for issue in knownissues.load()]
            found += [message.id for message in knownissues.load_messages()]
        if "profiles" in kinds:
            from gpuipc_doctor.simulator import profile

            found += profile.names()
        return sorted(name for name in found if name.startswith(begun))

    return names


HOSTS = Path("/etc/hosts")


def complete_nodes(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """A shell's completions of a node set's last name: nodes with a report in ``--into``, else of /etc/hosts.

    No batch system and no command is asked: a completion must not wait.
    """
    from gpuipc_doctor.files import node_files

    before, comma, name = begun.rpartition(",")
    into, known = ctx.params.get("into"), set[str]()
    with suppress(OSError):
        known = {file.stem for file in Path(into).iterdir() if file.suffix == ".json"} if into else known
    if not known:
        lines = [line.partition("#")[0].split() for line in node_files.quietly(HOSTS).splitlines()]
        known = {host for _, *hosts in filter(None, lines) for host in hosts}
        known = {host for host in known if not host.startswith(("localhost", "ip6-"))}
    return [f"{before}{comma}{node}" for node in sorted(known) if node.startswith(name)]


class Choice(click.Choice[str]):
    """One of several words; an error suggests a similar one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as wrong:
            aliases = {
                vendor.name.lower(): name for name, vendor in SUPPORTED.items() if name in self.choices
            }
            meant = did_you_mean(aliases.get(str(value), str(value)), self.choices)
            if ctx and any(f"--{value}" in each.opts for each in ctx.command.params):
                meant = f"; did you mean '--{value}'?"
            self.fail(f"{wrong.message.removesuffix('.')}{meant or '.'}", param, ctx)


class LibraryName(click.ParamType):  # type: ignore[type-arg]  # generic from Click 8.4 on
    """A non-empty name or path of a library; it may exist only on other nodes."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value or self.fail("the name is empty", param, ctx)


def mpi_library(says: str) -> Callable[[Command], Command]:
    """The option ``--mpi-lib``; see `require_mpi_library`."""
    return click.option("--mpi-lib", type=LibraryName(), metavar="FILE", help=says)


def require_mpi_library(name: str | None) -> None:
    """Raise `click.UsageError` unless the library of ``--mpi-lib`` exists on this node."""
    if name:
        from gpuipc_doctor.node import mpi_locate

        try:
            mpi_locate.find_library(name, None, {})
        except mpi_locate.NotFound as absent:
            ctx = click.get_current_context(silent=True)
            raise click.UsageError(f"{absent.reason}; {absent.remedy}", ctx) from None


def require_nccl_library(name: str | None) -> None:
    """Raise `click.BadParameter` unless the library of ``--nccl-lib`` is a file of this node."""
    if name and not name.startswith("/"):
        raise click.BadParameter(f"{name}: not an absolute path", param_hint="'--nccl-lib'")
    if name and not Path(name).is_file():
        raise click.BadParameter(f"{name}: no such file", param_hint="'--nccl-lib'")


def table(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """A decorator that adds these options, in the order of the help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


node_options = table(
    config("Site config, or a shipped one's name; overrides /etc/gpuipc-doctor/site.yaml."),
    simulate("Probe a simulated node: a profile's name or file (`gpuipc-doctor list --profiles`)."),
    click.option(
        "--backend",
        type=Choice(["auto", *SUPPORTED, "all"]),
        default="auto",
        show_default=True,
        help="Driver to probe; auto: every driver found.",
    ),
)
"""``--config``, ``--simulate`` and ``--backend``: the node, and the drivers to use."""


def site_config(file: Path | None) -> SiteConfig:
    """The site config: ``--config`` and the files that it extends. Raises `BadFile`."""
    from gpuipc_doctor.files.yamlfile import BadFile, Mistake
    from gpuipc_doctor.site import config, layers

    if file and not os.path.lexists(layers.of_option(file)) and not layers.nameless(file):
        says = f"no such file; `gpuipc-doctor config new --to {file}` writes a first one"
        raise BadFile([Mistake(file, 0, says)])
    return config.load(layers.of_option(file) if file else None, matching)


def not_of_this_node(config: SiteConfig) -> str:
    """The warning that the config in use is for other nodes; empty if it is for this node."""
    from gpuipc_doctor.site import hosts

    node = node_name.short()
    if not config.hosts or hosts.hold(list(config.hosts), node):
        return ""
    return (
        f"{config.hosts_where}: hosts: {node} is not one of {','.join(config.hosts)}; the file is used "
        "anyway; correct the set, or name this node's file with --config"
    )


def matching() -> Path | None:
    """The shipped site config that matches this node. Raises `BadFile` if several do."""
    from gpuipc_doctor.files import yamlfile
    from gpuipc_doctor.site import hosts

    read = partial(yamlfile.read, schema=None)
    return hosts.matching(node_name.short(), hosts.cluster_name(os.environ), read)


@contextmanager
def node(profile: str | None) -> Iterator[Node]:
    """The node to probe; a simulated node's files are removed however this process ends."""
    if profile is None:
        from gpuipc_doctor.model import Node

        yield Node()
        return
    if not profile:
        raise click.BadParameter("the name is empty", param_hint="'--simulate'")
    from gpuipc_doctor.simulator.node import prepare
    from gpuipc_doctor.supervise import scratch

    # Simulated device memory consists of files; in shared memory they are never written to disk.
    places = (SHARED_MEMORY, *scratch.usual())
    with scratch.directory(places, _ROOMY_BYTES) as state:
        yield prepare(profile, state)
