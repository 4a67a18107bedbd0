"""``gpuipc-doctor inventory``: the node's hardware and software, with sources, and changes."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from gpuipc_doctor.cli import options, run_as, saved
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.model import Json, Node
from gpuipc_doctor.node.inventory_content import page, page_of_changes
from gpuipc_doctor.report.inventory_changes import changes
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request


@click.command()
@options.node_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.seconds("--deadline", "Time limit of each query.")
@click.option(
    "--diff",
    "before",
    type=options.FilePath(),
    metavar="FILE",
    help="Show only differences from an earlier inventory (--json) or report.",
)
def command(
    *,
    backend: str,
    simulate: str | None,
    config_file: Path | None,
    as_json: bool,
    deadline: float | None,
    before: Path | None,
) -> None:
    """Show this node's hardware and software, and the source of each value.

    Drivers and foreign libraries are queried in separate processes, as for a check: if one hangs, only its
    own rows are missing.
    """
    run_as.warn_root()
    config = options.site_config(config_file)
    old = saved.inventory(before) if before else ()
    request = Request(backend=backend, deadline_s=deadline)
    with options.node(simulate) as node, progress() as watcher:
        stock = engine.collect_inventory(request, config, node, watcher)
    if before and as_json:
        click.echo(_json([asdict(change) for change in changes(old, stock.told)]))
    elif before:
        click.echo(page_of_changes(old, stock.told))
    elif as_json:
        click.echo(_json(_document(node, stock)))
    else:
        if node.simulated:
            click.echo(f"SIMULATED (profile {node.simulated})")
        click.echo(page(stock.told, stock.settings))


def _document(node: Node, stock: engine.NodeInventory) -> Json:
    return {
        "host": socket.gethostname(),
        "taken": datetime.now().astimezone().isoformat(timespec="seconds"),
        "simulated": node.simulated,
        "facts": [asdict(fact) for fact in stock.told],
        "settings": [{**asdict(setting), "effect": setting.effect.value} for setting in stock.settings],
    }


def _json(data: Json) -> str:
    return json.dumps(data, indent=2)
