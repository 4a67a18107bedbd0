"""One line for a wrong command line: in which command, what is wrong, and what to type."""

from __future__ import annotations

import re

import click

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.present.text import sanitise

MEANT = {
    (
        "check",
        "--format",
    ): "JSON: --json; else write a report with --output FILE, then `gpuipc-doctor report FILE --format …`",
    ("check", "--gpus"): "choose GPUs with CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES",
    ("config", "check"): "type `gpuipc-doctor config validate FILE`",
    ("config show", "argument"): "type `gpuipc-doctor config show --config FILE`",
    ("diagnose", "--pid"): "type `gpuipc-doctor job --pid PID`",
    ("explain", "--json"): "known issues as JSON: `gpuipc-doctor known-issues show ID --json`",
    ("config hooks", "directory"): "name a directory that exists",
    ("fleet", "run"): "type `gpuipc-doctor fleet check`",
    ("fleet compare", "directory"): "`gpuipc-doctor fleet check --into DIR` writes one",
    (
        "fleet report",
        "directory",
    ): "`gpuipc-doctor fleet check --into DIR` writes one; of one node: report FILE",
    ("inventory", "--format"): "type --json",
    ("job", "argument"): "type `gpuipc-doctor job --pid PID`, or --slurm JOBID",
    ("known-issues", "affects"): "type `gpuipc-doctor known-issues list --component NAME`",
    ("known-issues", "search"): "type `gpuipc-doctor known-issues list WORD`",
    ("known-issues list", "--vendor"): "type --component NAME",
    ("list", "argument"): "checks: `gpuipc-doctor list`; simulated nodes: `gpuipc-doctor list --profiles`",
    ("memory", "--format"): "type --json",
    ("memory", "argument"): "all GPUs are shown; --backend chooses the driver",
    ("report", "--json"): "the file is JSON; other forms: --format",
}
"""(command, what was typed) → what to type instead. "argument" is any that the command does not take."""

_OUT_OF_RANGE = re.compile(r"(.*) is not (?:a valid (?:integer|float)(?: range)?|in the range .*)\.")


_NOT_WRITTEN = re.compile(r"[\w-]+: cannot write ")
_SAYS_WHAT_TO_TYPE = re.compile(r"`|; |did you mean|is not one of|\b(add|give|name|omit|needs?) ")
_NO_DIRECTORY = re.compile(r"Directory '.*' (does not exist|is a file)")


def line(error: click.UsageError) -> str:
    """The error with its command and what to type. A message that says so itself is kept as it is."""
    command = error.ctx.command_path if error.ctx else "gpuipc-doctor"
    name = command.partition(" ")[2]
    text, typed = _said(error)
    if meant := MEANT.get((name, typed)):
        text += f"; {meant}"
    elif _NOT_WRITTEN.match(text):
        text += "; name a place that you can write"
    elif not _SAYS_WHAT_TO_TYPE.search(text):
        text += f"; see `{command} --help`"
    return sanitise(f"{command}: {text}")


def _said(error: click.UsageError) -> tuple[str, str]:
    """What is wrong, and the word that was typed for it."""
    ctx, text = error.ctx, error.format_message()
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        known = [option for each in ctx.command.params for option in each.opts] if ctx else []
        near = did_you_mean(name, filter(None, [*known, "--help"])) if name not in _typed() else ""
        return f"no option {name}{near}", name
    if isinstance(error, click.MissingParameter) and ctx and error.param:
        return f"{_shown(error.param, ctx)} is missing; type `{_usage(ctx)}`", ""
    if isinstance(error, click.BadParameter):
        param = error.param
        own = (
            param.opts[-1] if isinstance(param, click.Option) else _shown(param, ctx) if param and ctx else ""
        )
        text = f"{str(error.param_hint or own).strip(chr(39))}: {_of_value(error).removesuffix('.')}"
        return text, "directory" if _NO_DIRECTORY.search(text) else ""
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", text):
        usage = f"; type `{_usage(ctx)}`" if ctx and ctx.command_path.partition(" ")[2] else ""
        return f"unexpected argument {extra[1]!r}{'' if _meant(ctx, 'argument') else usage}", "argument"
    if ctx and (wrong := re.match(r"No such command '(.*?)'", text)):
        known = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
        near = "" if _meant(ctx, wrong[1]) else did_you_mean(wrong[1], known, else_list=True)
        return f"no command {wrong[1]!r}{near}", wrong[1]
    return text.removesuffix("."), ""


def _typed() -> set[str]:
    return {typed for _, typed in MEANT}


def _meant(ctx: click.Context | None, typed: str) -> bool:
    return ctx is not None and (ctx.command_path.partition(" ")[2], typed) in MEANT


def _shown(param: click.Parameter, ctx: click.Context) -> str:
    """A parameter as one types it: ``--into DIR``, ``AFTER``."""
    name = param.make_metavar(ctx)
    return f"{param.opts[-1]} {name}" if isinstance(param, click.Option) else name


def _usage(ctx: click.Context) -> str:
    """The shortest command line that the command takes."""
    pieces = [piece for piece in ctx.command.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
    required = [
        _shown(each, ctx) for each in ctx.command.params if isinstance(each, click.Option) and each.required
    ]
    return " ".join([ctx.command_path, *required, *pieces])


def _of_value(error: click.BadParameter) -> str:
    """What is wrong with a value; of numbers in words, since click's are of Python's types."""
    param = error.param
    kind = param.type if param else None
    wrong = _OUT_OF_RANGE.fullmatch(error.message)
    if not (wrong and param and isinstance(kind, click.IntRange | click.FloatRange)):
        return error.message
    unit = {"SECONDS": "a number of seconds", "PERCENT": "a percentage, without a sign,"}.get(
        str(param.metavar), "a whole number" if isinstance(kind, click.IntRange) else "a number"
    )
    least = f" {'above' if kind.min_open else 'from'} {kind.min:g}" if kind.min is not None else ""
    most = f"{', at most' if kind.min_open else ' to'} {kind.max:.0f}" if kind.max is not None else ""
    value = wrong[1].strip("'").removesuffix(".0")
    return f"{value!r} is not {unit}{least}{most}"
