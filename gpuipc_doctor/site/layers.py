"""The layers of a site's config files, and their merged content.

``--config`` overrides `SITE_FILE`, which overrides the shipped site config for this node, which overrides the
defaults. A file with ``extends`` overrides the file that it names, instead of the next layer. Sections are
merged entry by entry; an entry is replaced as a whole.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.yamlfile import BadFile, Document, Key, Mistake
from gpuipc_doctor.site.policy import SITE_DIRECTORIES, anchored

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json

SITE_FILE = Path("/etc/gpuipc-doctor/site.yaml")

_OF_ONE_FILE = ("extends",)
"""Keys about the file itself, which are not inherited."""

Read = Callable[[Path], Document]
Find = Callable[[], Path | None]


def shipped() -> Path:
    """Directory of the shipped site configs."""
    package = importlib.import_module("gpuipc_doctor.site_configs")
    assert package.__file__ is not None
    return Path(package.__file__).parent


def names() -> list[str]:
    """Names of the shipped site configs."""
    return sorted(path.stem for path in shipped().glob("*.yaml"))


def find(name: str, here: Path) -> Path | None:
    """The file for ``name``: a path relative to ``here``, or the bare name of a shipped config.

    None if there is no such shipped config.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return here / name
    return shipped() / f"{name}.yaml" if name in names() else None


def of_option(name: Path) -> Path:
    """The file of ``--config``: a path, or if it does not exist, the bare name of a shipped config."""
    return name if _is_there(name) else find(str(name), Path()) or name


def nameless(path: Path) -> str:
    """An error if ``path`` is the bare name of neither a file nor a shipped config; else empty."""
    if path.parent != Path() or find(str(path), Path()) or _is_there(path):
        return ""
    return f"no file and no shipped site has this name{_meant(path)}"


def _meant(name: object) -> str:
    near = did_you_mean(str(name), names())
    return near or f"; the shipped sites are {', '.join(names())}"


def shown(path: Path) -> str:
    """A config's displayed name, independent of where the package is installed."""
    return f"site-configs/{path.name}" if path.parent == shipped() else str(path)


def lineage(top: Path | None, read: Read, match: Find = lambda: None) -> Iterator[Document]:
    """The files in use, topmost first. Raises `BadFile`, and any exception of ``read``.

    ``match`` finds the shipped config for this node, and is not called if ``extends`` names one.
    """
    seen: list[Path] = []
    path = top or _beneath_a_file(seen, match)
    while path is not None:
        document = read(path)
        seen.append(path.resolve())
        yield document
        base = document.data.get("extends")
        if base is not None:
            path = _extended(document, base, seen)
        elif path.parent == shipped():
            path = None
        else:
            path = _beneath_a_file(seen, match)


def _extended(document: Document, base: str, seen: Sequence[Path]) -> Path:
    found = find(base, document.path.parent)
    if found is None:
        text = f"extends: no shipped site {base!r}{_meant(base)}"
        raise BadFile([document.mistake(text, "extends")])
    if found.resolve() in seen:
        text = f"extends: {base!r} is a cycle; change 'extends' in one of its files"
        raise BadFile([document.mistake(text, "extends")])
    return found


def _beneath_a_file(seen: Sequence[Path], match: Find) -> Path | None:
    """The layer below: `SITE_FILE`, unless missing or already read; else the shipped config for this node."""
    if SITE_FILE.resolve() not in seen and _is_there(SITE_FILE):
        return SITE_FILE
    return match()


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True  # its reader reports the mistake
    return True


@dataclass(frozen=True)
class Layers:
    """The files in use, topmost first; without any, the defaults apply."""

    documents: tuple[Document, ...] = ()

    @cached_property
    def data(self) -> dict[str, Json]:
        """The merged content, with absolute directories."""
        merged: dict[str, Json] = {}
        for document in reversed(self.documents):
            for key, value in _anchored(document).items():
                below = merged.get(key)
                if isinstance(value, dict) and isinstance(below, dict):
                    value = {**below, **value}
                merged[key] = value
        return merged

    def document(self, section: str, *keys: Key) -> Document:
        """The file that sets a section, or one of its entries."""
        for document in self.documents:
            said = document.data.get(section, _ABSENT)
            if said is not _ABSENT and not (keys and isinstance(said, dict) and keys[0] not in said):
                return document
        raise KeyError(section)

    def where(self, section: str, *keys: Key) -> str:
        """``file:line`` of a section, or of a key in it."""
        document = self.document(section, *keys)
        return f"{shown(document.path)}:{document.line(section, *keys)}"

    def mistake(self, text: str, section: str, *keys: Key) -> Mistake:
        """A mistake that becomes visible only in the merged content."""
        return self.document(section, *keys).mistake(text, section, *keys)


_ABSENT: Json = object()


def _anchored(document: Document) -> dict[str, Json]:
    base = document.path.absolute().parent
    said = {key: value for key, value in document.data.items() if key not in _OF_ONE_FILE}
    for key in SITE_DIRECTORIES:
        if isinstance(said.get(key), list):
            said[key] = [str(base / name) for name in said[key]]
    for key in ("prolog", "sweep"):
        if isinstance(section := said.get(key), dict):
            said[key] = anchored(section, base)
    return said
