"""The formats of a command's output: one decorator for the options, one function for the text."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import click

from gpuipc_doctor.cli.options import Choice, Command
from gpuipc_doctor.cli.stdio import has_color

_FUNCTIONS = {"matrix": "screen", "table": "screen", "markdown": "ticket", "json": "dumps"}
"""Format → function of a content module, if the names differ."""


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


def text(value: Any, form: str, *modules: ModuleType) -> str:
    """The value in a format, as text from the first module that has a function for the format."""
    require(form)
    name = _FUNCTIONS.get(form, form)
    make = next(getattr(module, name) for module in modules if hasattr(module, name))
    made: str = make(value, **(page() if name == "screen" else {}))
    return made


def require(form: str) -> None:
    """Refuse a format whose library is not installed."""
    if form == "html" and find_spec("jinja2") is None:
        raise click.UsageError("--format html needs jinja2: pip install jinja2")
