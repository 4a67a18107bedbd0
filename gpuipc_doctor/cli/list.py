"""``gpuipc-doctor list``: list the checks."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.present.terminal import table
from gpuipc_doctor.run import check_files


def _list_profiles(as_json: bool) -> None:
    from gpuipc_doctor.simulator import profile

    rows = [(name, profile.load(name).description) for name in profile.names()]
    if as_json:
        import json

        click.echo(json.dumps([{"name": name, "description": says} for name, says in rows], indent=2))
    else:
        click.echo(table(rows, ("profile", "simulates"), wrapped=1))


@click.command()
@options.config("Add a site's own checks.")
@click.option("--profiles", is_flag=True, help="List the simulated nodes instead, for --simulate and drill.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(config_file: Path | None, profiles: bool, as_json: bool) -> None:
    """List the checks with their purpose and lowest tier."""
    if profiles:
        _list_profiles(as_json)
        return
    loaded = check_files.load(options.site_config(config_file).checks_dirs)
    if as_json:
        import json

        checks = [
            {
                "id": item.check.id,
                "tier": item.check.tier.label,
                "title": item.check.title,
                "requires": sorted(item.check.requires),
                "file": str(item.file),
            }
            for item in loaded
            if isinstance(item, LoadedCheck)
        ]
        click.echo(json.dumps(checks, indent=2))
    else:
        rows = [
            (item.check.id, item.check.tier.label, item.check.title)
            if isinstance(item, LoadedCheck)
            else (item.id, "-", f"does not load: {item.reason}")
            for item in loaded
        ]
        click.echo(table(rows, ("check", "tier", "asks whether"), wrapped=2))
