"""What a bug report must answer, where it goes, and whose a failure is, from ``components.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from gpuipc_doctor.files.tables import table
from gpuipc_doctor.job.document import Cause, JobReport
from gpuipc_doctor.ticket.subject import Subject
from gpuipc_doctor.vendors import SUPPORTED

SHIPPED = Path(__file__).with_name("components.yaml")

_OF_A_LIBRARY = {Cause.KERNEL, Cause.DEVICE_BUSY, Cause.MESSAGE_LOST, Cause.ALL_WAIT, Cause.FINALIZE}
"""What can be a library's fault. Of other jobs a rank is late, ended or in another call by its own code."""

_HARDWARE = {"links-down", "lost-links", "off-bus", "gpu-lost", "rows-failed", "recovery-required"}
"""Keys of findings about a part that is replaced, not mended by a new driver."""

_FAMILIES = ("cray-mpich", "openmpi", "mpich")
_IN_LIBRARY = re.compile(r"\(([\w.+-]+\.so[\w.]*)\)|^\[([\w.+-]+\.so[\w.]*)\]")
"""The library in a frame: ``function (file)`` or ``[file]``."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a bug report must say, and its source."""

    what: str
    command: str
    """A command that prints the value on the node, for documents that lack the value."""
    answer: str = ""
    """A key of `answers.ANSWERS`."""
    facts: tuple[str, ...] = ()
    """Names of inventory facts, any of which answers it."""
    file: str = ""
    """A file name pattern: an added file with such a name answers it."""
    about: str = ""
    """``report`` or ``job`` if it is asked for of one of them only."""


@dataclass(frozen=True, slots=True)
class Component:
    """A component whose maintainers take bug reports."""

    id: str
    name: str
    file_at: str
    """URL at which to file the report."""
    source: str
    """The page that says what to report."""
    read: date
    """The day on which the source was read."""
    owns: tuple[str, ...]
    """Facts and components of known issues that belong to it."""
    asks: tuple[Ask, ...]
    note: str = ""
    calls: tuple[str, ...] = ()
    """Regular expressions for the beginning of its functions' names."""
    libraries: tuple[str, ...] = ()
    """Regular expressions for the beginning of its libraries' file names."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    everyone: tuple[Ask, ...]
    components: tuple[Component, ...]


@cache
def catalogue() -> Catalogue:
    import msgspec

    return msgspec.convert(table(SHIPPED), Catalogue)


def load() -> Mapping[str, Component]:
    """The components by id."""
    return {each.id: each for each in catalogue().components}


def concerned(subject: Subject) -> Component | None:
    """The component whose maintainers should get the report; None if the documents do not tell.

    The first of these that names a component: a confirmed known issue, the failed call, the innermost library
    of the stacks, the MPI library of a message's check, the devices' vendor.
    """
    return next((each for each in _candidates(subject) if each), None)


def _candidates(subject: Subject) -> Iterator[Component | None]:
    of_job = isinstance(subject.about, JobReport)
    if isinstance(subject.about, JobReport) and subject.about.verdict.cause not in _OF_A_LIBRARY:
        return
    if subject.confirmed:
        yield from map(_owner, subject.confirmed)  # none for an issue of another component, such as PyTorch
        return
    if subject.bad and subject.bad[0].finding.key in _HARDWARE:
        yield load()["hardware"]
    calls = [str(paragraph.finding.values.get("call", "")) for paragraph in subject.bad]
    yield from (_named("calls", call) for call in (*calls, *(role.operation for role in subject.culprits)))
    for frame in (frame for frames in subject.stacks.values() for frame in frames):
        if library := _IN_LIBRARY.search(frame):
            yield _named("libraries", library[1] or library[2]) or _named("calls", frame)
    if of_job or any(check.startswith("mpi-") for check in subject.checks):
        yield from (_owner(family) for family in _FAMILIES if subject.facts(family))
    elif any(check.startswith("fabric-") for check in subject.checks):
        yield _owner("libfabric")
    elif not any(check.startswith("allocator-") for check in subject.checks):
        labels = [device for each in subject.bad for result in each.results for device in result.devices]
        yield from (load().get(_component(label)) for label in labels)


def _component(label: str) -> str:
    vendor = SUPPORTED.get(label.partition(":")[0])
    return vendor.component if vendor else ""


def _owner(fact: str) -> Component | None:
    return next((each for each in catalogue().components if fact in each.owns), None)


def _named(how: str, name: str) -> Component | None:
    """The component with a function (``calls``) or library (``libraries``) of this name."""
    return next(
        (
            each
            for each in catalogue().components
            if any(re.match(begin, name) for begin in getattr(each, how))
        ),
        None,
    )
