"""``gpuipc-doctor config hooks``: the files that put the prolog in front of every job."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.output import OutputFile
from gpuipc_doctor.prolog.hooks import HOOKS
from gpuipc_doctor.site import bounded, config
from gpuipc_doctor.site.trust import untrusted

_OURS = b"Written by `gpuipc-doctor config hooks"

MAX_BYTES = 1 << 20


@click.command("hooks")
@click.argument("which", type=options.Choice(list(HOOKS)))
@options.config("Site config that the prolog is to use.", required=True)
@click.option(
    "--to",
    "directory",
    type=options.FilePath(exists=True, file_okay=False),
    metavar="DIR",
    help="Write the file into this directory, instead of showing it.",
)
@click.option("--scontrol", metavar="FILE", help="Slurm's scontrol, if it is not found in PATH.")
def command(which: str, config_file: Path, directory: Path | None, scontrol: str | None) -> None:
    """Put `gpuipc-doctor prolog` in front of every job.

    slurm is a Prolog, Epilog and HealthCheckProgram for Slurm; nhc is a check for LBNL's Node Health Check;
    monitor is a plug-in for Kubernetes' node-problem-detector and a preflight check for NVSentinel. The file
    has the paths of this Python, of the site config and of scontrol, and SLURM_CONF if that is set. Its first
    lines say how to use it.
    """
    config.load(config_file)
    hook = HOOKS[which]
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
        raise click.UsageError(f"{file} is there, and is not one of ours; move it away")
    try:
        OutputFile(file, hook.mode).write(text)
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from None
    click.echo(f"{file}: written; its first lines say how to use it")


def _is_ours(file: Path) -> bool:
    try:
        return _OURS in bounded.read(file, MAX_BYTES)
    except bounded.Unreadable:
        return False


def _scontrol(named: str | None) -> str:
    found = shutil.which(named or "scontrol")
    if not found:
        what = f"there is no program {named}" if named else "there is no scontrol in PATH"
        raise click.UsageError(f"{what}; say where it is: --scontrol FILE")
    return str(Path(found).absolute())
