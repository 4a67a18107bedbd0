"""The package's own tables: YAML files next to the module that reads them.

Reading YAML takes 0.2 s for each MiB, so a table is also stored in compiled form, as Python does with a
module: in ``__pycache__``, by the first process that may write there. The compiled form is used only while
the YAML file is unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from gpuipc_doctor import atomic_write

DIGEST_BYTES = 16


@cache
def table(file: Path) -> Any:
    """Contents of one of the package's YAML files, read once and not validated."""
    return compiled(file, [file], lambda: _read(file))


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a vendor does or allows in one case, and the source that says so."""

    value: str
    source: str


@cache
def rulings(file: Path, cases: str) -> Mapping[str, Mapping[str, Ruling]]:
    """Case → backend, or generation of its runtime → ruling: the key ``cases`` of a package's file."""
    data = table(file)
    return {
        case: {on: Ruling(value, source.format_map(data["sources"])) for on, (value, source) in said.items()}
        for case, said in data[cases].items()
    }


def _read(file: Path) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with file.open(encoding="utf-8") as opened:
        return yaml.load(opened, loader)  # noqa: S506 - both are safe loaders


def compiled(name: Path, files: Sequence[Path], read: Callable[[], Any]) -> Any:
    """The result of ``read`` for these files, from its compiled form if there is one.

    ``name``: path after which the compiled form is named. Raises `OSError` if a file cannot be read.
    """
    stored = Path(cache_from_source(str(name))).with_suffix(".marshal")
    sources = _digest(*(part for file in files for part in (file.name.encode(), file.read_bytes())))
    with contextlib.suppress(OSError):
        content = stored.read_bytes()
        value = content[2 * DIGEST_BYTES :]
        if content[: 2 * DIGEST_BYTES] == sources + _digest(value):
            return marshal.loads(value)  # noqa: S302 - as trustworthy as the compiled modules beside it
    found = read()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, ValueError):  # no permission, or a type that marshal does not have
            value = marshal.dumps(found)
            stored.parent.mkdir(exist_ok=True)
            atomic_write.write(stored, sources + _digest(value) + value)
    return found


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def frozen(data: Mapping[str, Any], *other: str) -> dict[str, Any]:
    """The mapping without the keys ``other``, and with tuples in place of lists."""
    return {
        name: tuple(said) if isinstance(said, list) else said
        for name, said in data.items()
        if name not in other
    }
