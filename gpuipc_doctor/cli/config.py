"""``gpuipc-doctor config``: create, check, show and install site configs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from gpuipc_doctor import knownissues, node_name
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.cli import hooks, new_config, options
from gpuipc_doctor.cli.known_issues import find_mistakes
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.files.yamlfile import BadFile, Mistake
from gpuipc_doctor.node import mpi_ranks
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.run import check_files, finding_keys
from gpuipc_doctor.site import config, hosts, layers
from gpuipc_doctor.site import mistakes as site_mistakes
from gpuipc_doctor.site.layers import Layers
from gpuipc_doctor.site.show import rendered


@click.group("config")
def command() -> None:
    """Create, check, show and install site configs."""


command.add_command(hooks.command)
command.add_command(new_config.command)


@command.command()
@options.config("Site config, or the name of a shipped one.")
@click.option("--origin", is_flag=True, help="Show the file and line of each value.")
@click.option("--all", "with_defaults", is_flag=True, help="Also show the defaults.")
def show(config_file: Path | None, *, origin: bool, with_defaults: bool) -> None:
    """Print the settings in force on this node, as a site config."""
    found, mistakes = site_mistakes.examine(
        layers.of_option(config_file) if config_file else None, options.matching
    )
    if mistakes:
        raise BadFile(mistakes)
    if with_defaults:
        defaults, _ = site_mistakes.examine(layers.shipped() / "generic.yaml")
        found = Layers((*found.documents, *defaults.documents))
    click.echo(rendered(found, origin=origin), nl=False)


@command.command()
@click.argument("files", nargs=-1, required=True, type=options.FilePath(), metavar="FILE...")
def validate(files: tuple[Path, ...]) -> None:
    """Report every mistake in these site configs, and in the checks and known issues that they add."""
    examined = {file: site_mistakes.examine(layers.of_option(file), options.matching) for file in files}
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
        can_load = not list(site_mistakes.of_directories(document, "checks_dirs"))
        loaded = check_files.load(site_mistakes.directories(document, "checks_dirs") if can_load else ())
        broken = [item.reason for item in loaded if isinstance(item, BrokenCheck)]
        checks = {item.check.id: item for item in loaded if isinstance(item, LoadedCheck)}
        if can_load:
            said += map(str, site_mistakes.unknown_checks(document, checks))
        options = {id_: item.check.options for id_, item in checks.items()}
        said += map(str, site_mistakes.bad_options(document, options))
        suppressed = {str(name).partition(".")[0] for name in document.written("suppressed")}
        keys = {id_: finding_keys.of_check(checks[id_].file) for id_ in suppressed & checks.keys()}
        said += map(str, site_mistakes.unknown_keys(document, keys))
        issues = site_mistakes.directories(document, "known_issues_dirs")
        if issues and not list(site_mistakes.of_directories(document, "known_issues_dirs")):
            own = knownissues.files(issues)[len(knownissues.files()) :]  # tests lint the package's
            said += map(str, find_mistakes(own, checks.keys()))
        said += broken
    return said
