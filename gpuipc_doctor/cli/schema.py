"""``gpuipc-doctor schema``: print the JSON Schemas of the documents that the tool reads and writes."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.files.near_miss import did_you_mean


def schemas() -> dict[str, Path]:
    """Name → file of each JSON Schema in the package."""
    files = Path(__file__).parents[1].glob("*/*schema.json")
    return dict(
        sorted((file.name.removesuffix("schema.json").rstrip(".") or "known-issues", file) for file in files)
    )


@click.command()
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Print a JSON Schema. Without NAME, list the names."""
    found = schemas()
    if name is None:
        click.echo("\n".join(found))
    elif name in found:
        click.echo(found[name].read_text(encoding="utf-8"), nl=False)
    else:
        raise click.UsageError(f"no schema {name!r}{did_you_mean(name, found)}")
