"""``gpuipc-doctor inventory``: what the node is made of, and where each value was read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from gpuipc_doctor import engine
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.model import Fact
from gpuipc_doctor.plan import Request

_SOURCE_COLUMNS = 40


@click.command()
@options.node_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(backend: str, simulate: str | None, config_file: Path | None, as_json: bool) -> None:
    """Show which drivers and libraries this node has, and where each version was read.

    The drivers are asked in a process of their own, as for a check.
    """
    config = options.site_config(config_file)
    with options.node(simulate) as (node, _), progress() as watcher:
        facts = engine.discover(Request(backend=backend), config, node, watcher)
    if as_json:
        import json

        data = {"simulated": node.simulated, "facts": [asdict(fact) for fact in facts]}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    if node.simulated:
        click.echo(f"SIMULATED (profile {node.simulated})")
    click.echo(table(facts))


def table(facts: tuple[Fact, ...]) -> str:
    """The facts as a table; what was not found says where it was looked for."""
    from tabulate import tabulate

    rows = [(fact.name, fact.value or "-", fact.source) for fact in facts]
    headers = ("name", "value", "source, or where it was looked for")
    widths = (None, None, _SOURCE_COLUMNS)
    return tabulate(rows, headers, "simple", disable_numparse=True, maxcolwidths=widths)
