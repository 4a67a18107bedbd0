"""The command line: a group that imports each command's module when it is used."""

from __future__ import annotations

import atexit
import errno
import importlib
import io
import os
import re
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from gpuipc_doctor import __version__
from gpuipc_doctor.cli import stdio
from gpuipc_doctor.files.near_miss import did_you_mean

COMMANDS = {
    "check": ("check", "Run checks on this node and print the health matrix."),
    "compare": ("compare", "Compare two reports."),
    "config": ("config", "Create, check, show and install site configs."),
    "diagnose": ("diagnose", "Find known issues in logs and stacks."),
    "drill": ("drill", "Run the checks on simulated faults."),
    "epilog": ("epilog", "After a job: which error counters of the GPUs rose, and what the job left."),
    "explain": ("explain", "Explain a check, known issue, word, code or line of a log."),
    "fleet": ("fleet", "Run checks on many nodes; find nodes that fail, differ or do not answer."),
    "inventory": ("inventory", "Show this node's drivers and libraries, with sources."),
    "job": ("job", "Find out which rank of a running job waits for which."),
    "known-issues": ("known_issues", "Query the database of known issues."),
    "list": ("list", "List the checks."),
    "memory": ("memory", "Show device memory by process, and its growth."),
    "prolog": ("prolog", "Test this node before a job: one line and one exit code, within a time limit."),
    "replay": ("replay", "Replay a history of memory operations, or print it as a C program."),
    "report": ("report", "Print a saved report for people, CI or Prometheus, or as a bug report."),
    "schema": ("schema", "Print the JSON Schema of a report or a file."),
}
"""Command name → (module below ``gpuipc_doctor.cli`` that defines ``command``, its one-line help)."""


_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full disk and a lost terminal; click handles a closed pipe."""


WAS = {"ticket": "gpuipc-doctor report FILE --format ticket"}
"""Command of 0.2.0 → what to type now."""


class LazyCommands(click.Group):
    """Imports a command's module only when the command runs; listing the commands imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gpuipc_doctor.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            was = WAS.get(name)
            ctx.fail(f"no command {name!r}{f'; type `{was}`' if was else did_you_mean(name, COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuipc-doctor")
def cli() -> None:
    """Test whether GPU inter-process memory works on this node.

    After a driver upgrade, run `gpuipc-doctor check --all`.
    """


def main() -> NoReturn:
    """Entry point. Ends the process directly, since unloading Python's modules takes 0.06 s."""
    code = _run()
    atexit._run_exitfuncs()
    os._exit(code)


def _run() -> int:
    """Run the command. A wrong command line or file gives one line and exit code 2, an interruption 130.

    Missing resources (space, processes) are reported in one line, with exit code 1.
    """
    try:
        stdio.open_standard()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal without "·" shows a "?"
                stream.reconfigure(errors="replace")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # this run's files are removed
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup(1) requests
                signal.signal(number, signal.default_int_handler)
        code = cli.main(prog_name="gpuipc-doctor", standalone_mode=False)
        sys.stdout.flush()
        return code or 0
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):  # later output is in the report
        click.echo("gpuipc-doctor: interrupted before any result", err=True)
        return 130
    except Exception as error:
        return report_error(error)


def _show(error: click.ClickException) -> None:
    """Print one line on a wrong command line, or the help of a group without a command.

    Without control characters; runs of spaces are kept: they form the columns of the help."""
    from gpuipc_doctor.cli import wrong_usage
    from gpuipc_doctor.present.text import sanitise

    if isinstance(error, click.UsageError) and not isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(wrong_usage.line(error), err=True)
        return

    said = io.StringIO()
    error.show(said)
    for line in said.getvalue().splitlines():
        parts = re.split("( {2,})", line)
        click.echo("".join(part if part.isspace() else sanitise(part) for part in parts), err=True)


def report_error(error: Exception) -> int:
    """Print an error that ended the command; returns the exit code."""
    from gpuipc_doctor.files.yamlfile import BadFile
    from gpuipc_doctor.run.request import NothingToSend, UnknownName
    from gpuipc_doctor.simulator.build import SimulatorUnavailable
    from gpuipc_doctor.supervise import process_limits
    from gpuipc_doctor.supervise.scratch import NoPlace
    from gpuipc_doctor.supervise.tree import REQUIRED

    if isinstance(error, NoPlace):
        stdio.say(str(error))
        return 1
    if process_limits.is_scarcity(error):
        stdio.say(process_limits.of_error(error))
        return 1
    if isinstance(error, BadFile | NothingToSend | UnknownName | SimulatorUnavailable):
        stdio.say(str(error))
        return 2
    if isinstance(error, OSError) and error.filename in REQUIRED:
        stdio.say(f"cannot open {error.filename}: {error.strerror}; it is required")
        return 1
    if isinstance(error, OSError) and _is_not_written(error):
        if is_output := _is_output(error):
            stdio.give_up(1)
        place = error.filename or (
            "the output" if is_output else "this tool's own files (TMPDIR names a place)"
        )
        stdio.say(f"cannot write {place}: {error.strerror}{process_limits.in_words()}")
        return 1
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        click.echo("gpuipc-doctor: the working directory was deleted; change to an existing one", err=True)
        return 2
    import traceback

    said = f"gpuipc-doctor {__version__}, Python {sys.version}, {sys.argv}\n\n"
    file = _written(said + "".join(traceback.format_exception(error)))
    stdio.say(f"internal error: {error!r}; please report it{file and f' with {file}'}")
    return 1


def _written(text: str) -> str:
    """Path of a new file with this text; empty if there is no place for it."""
    from gpuipc_doctor.files import writing
    from gpuipc_doctor.supervise import scratch

    for place in scratch.usual():
        file = place / f"gpuipc-doctor-error-{os.urandom(4).hex()}.txt"
        try:
            writing.write_new(file, text)
        except OSError:
            continue
        return str(file)
    return ""


def _is_not_written(error: OSError) -> bool:
    return error.errno in _NOT_WRITTEN or (error.errno == errno.EBADF and not stdio.is_writable())


def _is_output(error: OSError) -> bool:
    """Whether writing standard output failed, in whose libraries or by `_run` the error was raised."""
    from traceback import walk_tb

    frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return frames[-1] is _run.__code__ or any(
        part in frames[-1].co_filename for part in ("/click/", "/rich/")
    )


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
