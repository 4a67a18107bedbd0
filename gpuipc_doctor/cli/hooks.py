"""``gpuipc-doctor config hooks``: write the files that run the prolog before every job."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from gpuipc_doctor.cli import options
from gpuipc_doctor.files import reading
from gpuipc_doctor.files.trust import untrusted
from gpuipc_doctor.files.writing import OutputFile
from gpuipc_doctor.prolog.hooks import HOOKS
from gpuipc_doctor.site import config

_OURS = b"Written by `gpuipc-doctor config hooks"

MAX_BYTES = 1 << 20


@click.command("hooks")
@click.argument("which", type=options.Choice(list(HOOKS)))
@options.config("Site config for the prolog.", required=True)
@click.option(
    "--to",
    "directory",
    type=options.FilePath(exists=True, file_okay=False),
    metavar="DIR",
    help="Write the file into this directory instead of printing it.",
)
@click.option("--scontrol", metavar="FILE", help="Path of Slurm's scontrol, if it is not in PATH.")
def command(which: str, config_file: Path, directory: Path | None, scontrol: str | None) -> None:
    """Run `gpuipc-doctor prolog` before every job.

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
    if not found:
        what = f"program not found: {named}" if named else "scontrol not found on PATH"
        raise click.UsageError(f"{what}; name it with --scontrol FILE")
    return str(Path(found).absolute())
