"""The turn of a probe that has its devices to itself.

Until it comes, the probe's workers start and initialise the driver, which takes nothing of a device.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.model import AtRest


@dataclass
class Turn:
    """Between who knows which devices are free, and the supervisor of a probe, whose thread is another.

    ``at_rest``: how the probe's devices are at rest, once its turn has come. ``given_up``: it will not come,
    and the probe is to end as it stands.
    """

    at_rest: Sequence[AtRest] | None = None
    given_up: bool = False


def announce(path: Path, at_rest: Sequence[AtRest]) -> None:
    """Have the roles learn that their turn has come."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(at_rest))
    draft.replace(path)


def announced(path: Path) -> list[AtRest] | None:
    """How the devices are at rest; None as long as the turn has not come."""
    try:
        return [AtRest(*each) for each in json.loads(path.read_text())]
    except FileNotFoundError:
        return None
