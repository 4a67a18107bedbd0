"""The site config in use as YAML that can be read again, each value with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.site import config_mistakes, layers
from gpuipc_doctor.site.layers import Layers

if TYPE_CHECKING:
    from gpuipc_doctor.model import Json


def rendered(found: Layers, *, origin: bool) -> str:
    """The merged content of the files, in the schema's order."""
    files = [layers.shown(document.path) for document in found.documents]
    head = f"# layers, topmost first: {', '.join(files)}"
    if not files:
        return "# no file sets anything: the defaults apply; --all shows them\n"
    order = config_mistakes.schema()["properties"]
    lines = [line for key in order if key in found.data for line in _section(found, key, origin=origin)]
    return shown("\n".join([head, *lines]))


def shown(text: str) -> str:
    """Lines of YAML without control sequences."""
    parts = re.split(r"(\n| +)", text)
    return "".join(part if part.isspace() else sanitise(part) for part in parts) + "\n"


def _section(found: Layers, key: str, *, origin: bool) -> Iterator[str]:
    def at(*keys: str) -> str:
        return f"  # {found.where(*keys)}" if origin else ""

    value = found.data[key]
    if not isinstance(value, dict) or not value:
        yield f"{key}: {flow(value)}{at(key)}"
        return
    yield f"{key}:"
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield f"  {name}:{at(key, name)}"
            yield from (f"    {inner}: {flow(said)}" for inner, said in entry.items())
        else:
            yield f"  {name}: {flow(entry)}{at(key, name)}"


def flow(value: Json) -> str:
    """A value on one line of YAML."""
    import yaml

    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=float("inf")
    )
    return str(text).removesuffix("...\n").strip()
