"""Completions for shells, and a manual page made of the commands' help: what pip does not install."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from gpuipc_doctor import __version__

_COMPLETIONS: dict[str, type[ShellComplete]] = {
    "share/bash-completion/completions/gpuipc-doctor": BashComplete,
    "share/zsh/site-functions/_gpuipc-doctor": ZshComplete,
    "share/fish/vendor_completions.d/gpuipc-doctor.fish": FishComplete,
}

MANUAL = "share/man/man1/gpuipc-doctor.1"


def completions(cli: click.Command) -> dict[str, str]:
    """File below a prefix, such as ``/usr`` or ``~/.local``, where its shell looks → its text."""
    return {
        file: shell(cli, {}, "gpuipc-doctor", "_GPUIPC_DOCTOR_COMPLETE").source()
        for file, shell in _COMPLETIONS.items()
    }


def manual(cli: click.Command) -> str:
    """A manual page in roff: the help of each command, as it is printed."""
    title = f'.TH GPUIPC-DOCTOR 1 "" "gpuipc-doctor {__version__}"'
    head = f"{title}\n.SH NAME\ngpuipc-doctor \\- {cli.get_short_help_str(90)}\n"
    return head + "".join(_section(name, text) for name, text in _helps(cli, "gpuipc-doctor", None))


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    ctx = click.Context(command, info_name=name, parent=parent, max_content_width=78, terminal_width=78)
    yield ctx.command_path, command.get_help(ctx)
    if isinstance(command, click.Group):
        for word in command.list_commands(ctx):
            if found := command.get_command(ctx, word):
                yield from _helps(found, word, ctx)


def _section(name: str, text: str) -> str:
    escaped = re.sub(r"(?m)^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"))
    escaped = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", escaped)
    return f".SH {name.upper()}\n.nf\n{escaped}\n.fi\n"
