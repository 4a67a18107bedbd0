"""The formats of a command's output: one decorator for the options, one function for the text."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import Any

import click

from gpuipc_doctor.cli.options import Choice, Command
from gpuipc_doctor.cli.stdio import has_color

Writer = Callable[..., str]
"""Makes the text of a value in one format."""

_ON_TERMINAL = ("matrix", "screen", "table")
"""Formats for people at a terminal: their functions take its width, and whether it has colours."""


def options(formats: Sequence[str], says: str, json: str = "Print JSON.") -> Callable[[Command], Command]:
    """Add ``--format`` with the help ``says`` (default: the first format) and, if ``json`` is not empty,
    ``--json`` with the help ``json``."""

    def add(command: Command) -> Any:
        @wraps(command)
        def run(*args: Any, form: str, as_json: bool = False, **more: Any) -> Any:
            return command(*args, form="json" if as_json else form, **more)

        option = click.option(
            "--format", "form", type=Choice(formats), default=formats[0], show_default=True, help=says
        )
        return (
            click.option("--json", "as_json", is_flag=True, help=json)(option(run)) if json else option(run)
        )

    return add


def page() -> dict[str, Any]:
    """Width and colours of the terminal, for a screen."""
    return {"width": shutil.get_terminal_size().columns, "color": has_color()}


def text(value: Any, form: str, writers: Mapping[str, Writer]) -> str:
    """The value in a format. ``writers``: format → function."""
    require(form)
    return writers[form](value, **(page() if form in _ON_TERMINAL else {}))


def require(form: str) -> None:
    """Refuse a format whose library is not installed."""
    if form == "html" and find_spec("jinja2") is None:
        raise click.UsageError("--format html needs jinja2: pip install jinja2")
