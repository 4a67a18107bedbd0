"""Which files say what a site has decided, one above the other, and what they say together.

On top is the file of ``--config``, beneath it `SITE_FILE`, beneath that the shipped site that matches this
node. A file that ``extends`` another has chosen what lies beneath it; beneath a shipped one that extends
nothing are the defaults. A section is merged entry by entry, an entry replaced as a whole: what a file says
stands before all that lies beneath it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.near_miss import did_you_mean
from gpuipc_doctor.site.policy import SITE_DIRECTORIES, anchored
from gpuipc_doctor.site.yamlfile import BadFile, Document, Key, Mistake

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

SITE_FILE = Path("/etc/gpuipc-doctor/site.yaml")

_OF_ONE_FILE = ("extends",)
"""What speaks of the file that says it, and is not handed on."""

Read = Callable[[Path], Document]
Find = Callable[[], Path | None]


def shipped() -> Path:
    """The directory of the site configs that come with the package."""
    package = importlib.import_module("gpuipc_doctor.site_configs")
    assert package.__file__ is not None
    return Path(package.__file__).parent


def names() -> list[str]:
    """The site configs that come with the package."""
    return sorted(path.stem for path in shipped().glob("*.yaml"))


def find(name: str, here: Path) -> Path | None:
    """The file that ``name`` stands for: a path, relative to ``here``, or a shipped one's bare name.

    None where there is no shipped one of that name.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return here / name
    return shipped() / f"{name}.yaml" if name in names() else None


def of_option(name: Path) -> Path:
    """The file of ``--config``: a path, or where there is no such file, a shipped one's bare name."""
    return name if _is_there(name) else find(str(name), Path()) or name


def nameless(path: Path) -> str:
    """What is wrong with a bare name that is neither a file's nor a shipped site's; empty for any other."""
    if path.parent != Path() or find(str(path), Path()) or _is_there(path):
        return ""
    return f"there is no such file, and no shipped site of that name{_meant(path)}"


def _meant(name: object) -> str:
    """What to do about a name that no shipped site has."""
    near = did_you_mean(str(name), names())
    return near or f"; they are {', '.join(names())}"


def shown(path: Path) -> str:
    """A config's name as a person knows it, wherever the package is installed."""
    return f"site-configs/{path.name}" if path.parent == shipped() else str(path)


def lineage(top: Path | None, read: Read, match: Find = lambda: None) -> Iterator[Document]:
    """The files in force, from the top down. Raises `BadFile`, and what ``read`` raises.

    ``match`` finds the shipped site that matches this node; it is asked where one has a say.
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
        text = f"extends: there is no shipped site {base!r}{_meant(base)}"
        raise BadFile([document.mistake(text, "extends")])
    if found.resolve() in seen:
        text = f"extends: {base!r} leads back here; one of the files on the way must extend another, or none"
        raise BadFile([document.mistake(text, "extends")])
    return found


def _beneath_a_file(seen: Sequence[Path], match: Find) -> Path | None:
    """The site's own file, unless it was read or is not there; then the shipped one that matches."""
    if SITE_FILE.resolve() not in seen and _is_there(SITE_FILE):
        return SITE_FILE
    return match()


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True  # whoever reads it says what is wrong with it
    return True


@dataclass(frozen=True)
class Layers:
    """The files in force, from the top down; without any, the defaults hold."""

    documents: tuple[Document, ...] = ()

    @cached_property
    def data(self) -> dict[str, Json]:
        """What they say together; its directories are absolute."""
        merged: dict[str, Json] = {}
        for document in reversed(self.documents):
            for key, value in _anchored(document).items():
                below = merged.get(key)
                if isinstance(value, dict) and isinstance(below, dict):
                    value = {**below, **value}
                merged[key] = value
        return merged

    def document(self, section: str, *keys: Key) -> Document:
        """The file that has the say about a section, or about one of its entries."""
        for document in self.documents:
            said = document.data.get(section, _ABSENT)
            if said is not _ABSENT and not (keys and isinstance(said, dict) and keys[0] not in said):
                return document
        raise KeyError(section)

    def where(self, section: str, *keys: Key) -> str:
        """``file:line`` of a section, or of what is in it."""
        document = self.document(section, *keys)
        return f"{shown(document.path)}:{document.line(section, *keys)}"

    def mistake(self, text: str, section: str, *keys: Key) -> Mistake:
        """A mistake that only the reader of them all can see."""
        return self.document(section, *keys).mistake(text, section, *keys)


_ABSENT: Json = object()


def _anchored(document: Document) -> dict[str, Json]:
    """What one file says, with the paths in it that are relative to it as absolute ones."""
    base = document.path.absolute().parent
    said = {key: value for key, value in document.data.items() if key not in _OF_ONE_FILE}
    for key in SITE_DIRECTORIES:
        if isinstance(said.get(key), list):
            said[key] = [str(base / name) for name in said[key]]
    prolog = said.get("prolog")
    if isinstance(prolog, dict):
        said["prolog"] = anchored(prolog, base)
    return said
