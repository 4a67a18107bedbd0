"""The error counters of a job's GPUs, kept from its prolog to its epilog: of the latest jobs of this boot.

The prolog stores them by job, the epilog as the latest look of all: a job whose prolog read none, such as one
with a stored pass, is compared with that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.files import private
from gpuipc_doctor.files.private import NotOurs
from gpuipc_doctor.report.error_counters import Look

if TYPE_CHECKING:
    from gpuipc_doctor.model import Json

FILE = "counters.json"

MAX_BYTES, MAX_JOBS = 1 << 17, 16

LATEST = "gpu "
"""Prefix of the names under which an epilog stores each GPU, before the PCI address."""


def recall(directory: Path, boot: str, job: str) -> tuple[Look | None, Look | None]:
    """What the prolog stored for this job, and the latest looks of epilogs, which began with the oldest.

    Raises `NotOurs`, `OSError`.
    """
    if not directory.exists():
        return None, None
    with private.directory(directory) as within:
        looks = _read(within, boot)
    latest = [look for name, look in looks.items() if name.startswith(LATEST)]
    gpus = {pci: counts for look in latest for pci, counts in look.gpus.items()}
    ends = Look(min(look.at for look in latest), max(look.log for look in latest), gpus) if latest else None
    return looks.get(job), ends


def begin(directory: Path, boot: str, job: str, look: Look) -> None:
    """Store the counters before a job. Raises `NotOurs`, `OSError`."""
    _update(directory, boot, lambda looks: {**looks, job: look})


def end(directory: Path, boot: str, job: str, look: Look) -> None:
    """Forget the job, and store these counters as the latest. Raises `NotOurs`, `OSError`."""
    latest = {f"{LATEST}{pci}": look._replace(gpus={pci: counts}) for pci, counts in look.gpus.items()}

    def change(looks: dict[str, Look]) -> dict[str, Look]:
        return {**{name: each for name, each in looks.items() if name != job}, **latest}

    _update(directory, boot, change)


def _update(directory: Path, boot: str, change: Callable[[dict[str, Look]], dict[str, Look]]) -> None:
    with private.directory(directory) as within, private.locked(within) as is_locked:
        if not is_locked:
            raise NotOurs(f"{directory} is locked by another process")
        looks = change(_read(within, boot))
        jobs = [name for name in looks if not name.startswith(LATEST)]
        jobs.sort(key=lambda name: looks[name].at)
        kept = [*jobs[-MAX_JOBS:], *(looks.keys() - set(jobs))]
        document = {"format": 1, "boot": boot}
        while True:
            data = json.dumps({**document, "looks": {name: looks[name] for name in kept}}).encode()
            if len(data) <= MAX_BYTES:
                break
            kept.pop(0)
        private.replace(FILE, data, within=within)


def _read(within: int, boot: str) -> dict[str, Look]:
    """Empty if there is none, of another boot, or anything that `_update` did not write."""
    try:
        document: Json = json.loads(private.read(FILE, MAX_BYTES, within=within))
        is_ours = document["format"] == 1 and document["boot"] == boot
        looks = {name: Look(*look) for name, look in document["looks"].items()} if is_ours else {}
        return looks if all(map(_is_valid, looks.values())) else {}
    except (NotOurs, FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _is_valid(look: Look) -> bool:
    values = [count for counts in look.gpus.values() for each in counts.values() for count in each]
    return all(isinstance(each, int | float | None) for each in (look.at, look.log, *values))
