"""``gpuipc-doctor config``: create, check, show and install site configs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from gpuipc_doctor import knownissues, node_name, surveys
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.known_issues import find_mistakes
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.files import reading
from gpuipc_doctor.files.trust import untrusted
from gpuipc_doctor.files.writing import OutputFile
from gpuipc_doctor.files.yamlfile import BadFile, Mistake
from gpuipc_doctor.node import first_config, mpi_ranks
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.prolog.hooks import EPILOG, HOOKS
from gpuipc_doctor.run import check_files, engine, finding_keys
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site import config, config_mistakes, hosts, layers
from gpuipc_doctor.site.layers import Layers
from gpuipc_doctor.site.show import rendered, shown


@click.group("config")
def command() -> None:
    """Create, check, show and install site configs."""


@command.command()
@options.config("Site config, or the name of a shipped one.")
@click.option("--origin", is_flag=True, help="Show the file and line of each value.")
@click.option("--all", "with_defaults", is_flag=True, help="Also show the defaults.")
def show(config_file: Path | None, *, origin: bool, with_defaults: bool) -> None:
    """Print the settings in force on this node, as a site config."""
    found, mistakes = config_mistakes.examine(
        layers.of_option(config_file) if config_file else None, options.matching
    )
    if mistakes:
        raise BadFile(mistakes)
    if with_defaults:
        defaults, _ = config_mistakes.examine(layers.shipped() / "generic.yaml")
        found = Layers((*found.documents, *defaults.documents))
    click.echo(rendered(found, origin=origin), nl=False)


@command.command()
@click.argument("files", nargs=-1, required=True, type=options.FilePath(), metavar="FILE...")
def validate(files: tuple[Path, ...]) -> None:
    """Report every mistake in these site configs, and in the checks and known issues that they add."""
    examined = {file: config_mistakes.examine(layers.of_option(file), options.matching) for file in files}
    mistakes = [mistake for found, wrong in examined.values() for mistake in _mistakes(found, wrong)]
    for mistake in dict.fromkeys(mistakes):
        say(mistake)
    if mistakes:
        raise SystemExit(2)
    for file, (found, _) in examined.items():
        is_ours = _is_of_this_node(found)
        elsewhere = (
            f"; {node_name.short()} is not one of its nodes, so modules and libraries were not checked"
        )
        click.echo(f"{sanitise(str(file))}: fine{elsewhere if is_ours is False else ''}")
        for absent in _absent(found) if is_ours is None else ():
            click.echo(f"  a mistake if the config is for this node: {absent}")


def _is_of_this_node(found: Layers) -> bool | None:
    """Whether a config is for this node; None if it names no nodes. A malformed node set matches no node."""
    if not (found.data.get("cluster") or found.data.get("hosts")):
        return None
    try:
        return hosts.is_of(found.data, node_name.short(), hosts.cluster_name(os.environ))
    except hosts.BadNodes:
        return False


def _absent(found: Layers) -> list[str]:
    """Messages on modules, files and programs that the ranks need but this node lacks."""
    absent = (line for node in config.of_nodes(found) for line in mpi_ranks.missing(node, os.environ))
    return list(dict.fromkeys(absent))


def _mistakes(found: Layers, wrong: Iterable[Mistake]) -> list[str]:
    said = list(map(str, wrong))
    if _is_of_this_node(found):
        said += _absent(found)
    for document in found.documents:
        can_load = not list(config_mistakes.of_directories(document, "checks_dirs"))
        loaded = check_files.load(config_mistakes.directories(document, "checks_dirs") if can_load else ())
        broken = [item.reason for item in loaded if isinstance(item, BrokenCheck)]
        checks = {item.check.id: item for item in loaded if isinstance(item, LoadedCheck)}
        if can_load:
            said += map(str, config_mistakes.unknown_checks(document, checks))
        options = {id_: item.check.options for id_, item in checks.items()}
        said += map(str, config_mistakes.bad_options(document, options))
        suppressed = {str(name).partition(".")[0] for name in document.written("suppressed")}
        keys = {id_: finding_keys.of_check(checks[id_].file) for id_ in suppressed & checks.keys()}
        said += map(str, config_mistakes.unknown_keys(document, keys))
        issues = config_mistakes.directories(document, "known_issues_dirs")
        if issues and not list(config_mistakes.of_directories(document, "known_issues_dirs")):
            own = knownissues.files(issues)[len(knownissues.files()) :]  # tests lint the package's
            said += map(str, find_mistakes(own, checks.keys()))
        said += broken
    return said


# -- the files that run the prolog before every job --------------------------------------------------------


_OURS = b"Written by `gpuipc-doctor config hooks"

MAX_BYTES = 1 << 20


@command.command()
@click.argument("which", type=options.Choice(list(HOOKS)))
@options.config("Site config for the prolog.", required=True)
@click.option(
    "--to",
    "directory",
    type=options.FilePath(exists=True, file_okay=False),
    metavar="DIR",
    help="Write the file into this directory instead of printing it.",
)
@click.option("--scontrol", metavar="FILE", help="Path of scontrol on the nodes.  [default: from PATH]")
@click.option("--epilog", is_flag=True, help="With slurm: an Epilog that runs `gpuipc-doctor epilog`.")
def hooks(
    which: str, config_file: Path, directory: Path | None, scontrol: str | None, *, epilog: bool
) -> None:
    """Run `gpuipc-doctor prolog` before every job, or `job --sweep` in between.

    slurm is a Prolog, Epilog and HealthCheckProgram for Slurm; nhc is a check for LBNL's Node Health Check;
    monitor is a plug-in for Kubernetes' node-problem-detector and a preflight check for NVSentinel. sweep is
    one for `gpuipc-doctor job --sweep`, and a HealthCheckProgram. The file has the paths of this Python, of
    the site config and of scontrol, and SLURM_CONF if that is set. Its first lines say how to use it.
    """
    config.load(config_file)
    if epilog and which != "slurm":
        raise click.UsageError("--epilog goes with slurm only")
    hook = EPILOG if epilog else HOOKS[which]
    file = directory.absolute() / hook.name if directory else None
    text = hook.written(
        file,
        python=sys.executable,
        config=config_file.absolute(),
        scontrol=_scontrol(scontrol) if which == "slurm" else "",
        slurm_conf=os.environ.get("SLURM_CONF", ""),
    )
    if file is None:
        click.echo(text, nl=False)
        return
    for path in (Path(sys.executable), Path(__file__)):
        if reason := untrusted(path):
            click.echo(f"gpuipc-doctor: warning: {path} {reason}", err=True)
    if file.exists() and not _is_ours(file):
        raise click.UsageError(f"{file} exists and was not written by this tool; move it away")
    try:
        OutputFile(file, hook.mode).write(text)
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from None
    click.echo(f"{file}: written; its first lines say how to use it")


def _is_ours(file: Path) -> bool:
    try:
        return _OURS in reading.read(file, MAX_BYTES)
    except reading.Unreadable:
        return False


def _scontrol(named: str | None) -> str:
    found = shutil.which(named or "scontrol")
    if not found and named and Path(named).is_absolute() and not Path(named).exists():
        click.echo(
            f"gpuipc-doctor: warning: {named} is not on this machine; the nodes must have it", err=True
        )
        return named
    if not found:
        what = f"program not found: {named}" if named else "scontrol not found on PATH"
        raise click.UsageError(f"{what}; give its path on the nodes, as --scontrol /usr/bin/scontrol")
    return str(Path(found).absolute())


# -- what pip does not install -----------------------------------------------------------------------------


@command.command()
@click.option(
    "--to",
    "prefix",
    type=options.FilePath(),
    metavar="PREFIX",
    default=Path("~/.local"),
    show_default=True,
    help="For all users: /usr/local.",
)
@click.pass_context
def shell(ctx: click.Context, prefix: Path) -> None:
    """Write completions for bash, zsh and fish, and a manual page, below PREFIX.

    The .deb and .rpm bring them; pip does not.
    """
    from gpuipc_doctor.cli import shell_files

    cli = ctx.find_root().command
    for name, text in {**shell_files.completions(cli), shell_files.MANUAL: shell_files.manual(cli)}.items():
        file = prefix.expanduser().absolute() / name
        with options.naming_option("--to", f"cannot write {file}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            OutputFile(file, 0o644).write(text)
        click.echo(f"{file}: written")
    click.echo("bash-completion, fish and man find them in a new shell; for zsh, before compinit:")
    click.echo(f"fpath+={prefix.expanduser().absolute() / 'share/zsh/site-functions'}")


# -- a first site config from the facts of this node -------------------------------------------------------


@command.command()
@options.node_options
@options.mpi_library("The jobs' MPI library.")
@click.option(
    "--to", type=options.FilePath(), metavar="FILE", help="Write the config to FILE instead of printing it."
)
def new(
    *, simulate: str | None, config_file: Path | None, backend: str, mpi_lib: str | None, to: Path | None
) -> None:
    """Write a first site config from the facts of this node, with comments.

    Run the command on one of the nodes to check, with the jobs' modules loaded.
    """
    options.require_mpi_library(mpi_lib)
    if to is not None and to.exists():
        raise click.UsageError(f"{to} exists; name another file, or move it away")
    config = options.site_config(config_file)
    base = options.matching() if config_file is None else config_file
    request = Request(checks=(surveys.MPI_LIBRARY,), backend=backend, mpi_lib=mpi_lib)
    with options.node(simulate) as node:
        devices, inventory, mpi = engine.survey_node(request, config, node, Silent())
        text = shown("\n".join(first_config.lines(node, base, devices, inventory.facts, mpi)))
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        OutputFile(to, 0o644).write(text)
    except OSError as error:
        raise click.UsageError(f"cannot write {to}: {error.strerror}") from None
    click.echo(f"{to}: written; read it, then: gpuipc-doctor config validate {to}")
