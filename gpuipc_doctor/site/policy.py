"""A site's prolog settings: the action for each kind of result, and the stored state."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json


BUDGET_S, MOST_BUDGET_S, BUDGET_OF_GPU_S = 8.0, 9.0, 0.125
"""Seconds from the start of the prolog's process, including reading the config, which can hang: the default,
its maximum, and the part of it for each GPU to test. Slurm's default MessageTimeout is 10 s."""


def budget_s(gpus: int) -> float:
    """The default budget for this many GPUs, in seconds."""
    return min(MOST_BUDGET_S, BUDGET_S + BUDGET_OF_GPU_S * gpus)


LOG_MAX_BYTES = 10 << 20

STATE_DIR = "/run/gpuipc-doctor"
"""A directory that is emptied by a reboot, after which stored results do not count."""

SITE_DIRECTORIES = {"checks_dirs": (".py",), "known_issues_dirs": (".yaml", ".yml")}
"""Keys for directories in a site config → suffixes of the files in them that affect results."""


class Action(enum.Enum):
    """The prolog's actions, most severe first."""

    DRAIN = "drain"
    LOG = "log"
    IGNORE = "ignore"


class PrologConfig(NamedTuple):
    """The site config's section ``prolog``; without one, the defaults. All times are seconds."""

    on_fail: Action = Action.DRAIN
    on_error: Action = Action.LOG
    on_budget: Action = Action.LOG
    on_unkillable: Action = Action.DRAIN
    on_missing: Action = Action.DRAIN
    on_busy: Action = Action.LOG
    gpus: int = 0
    """Number of GPUs of the node; 0 if the site does not state it."""
    shadow: bool = False
    """Whether to report a drain instead of draining the node."""
    checks: tuple[str, ...] = ()
    """The checks to run; empty: all of the prolog tier."""
    deadline_s: float | None = None
    """Seconds for each operation; None: the check's default."""
    fresh_for_s: float = 0.0
    """Seconds for which a stored pass counts."""
    state_dir: str = STATE_DIR
    """Directory for stored passes and unfinished tests."""
    log: str = ""
    """File for one JSON line per run; empty: none."""
    log_max_bytes: int = LOG_MAX_BYTES
    """Size at which the log is renamed to ``….1``."""
    syslog: bool = True
    breaker: Mapping[str, float] = MappingProxyType({})
    epilog_fail: Mapping[str, int] = MappingProxyType({})
    """Error counter → its least rise during a job that is a FAIL of the epilog; none: no rise is."""
    simulate: str = ""
    """Profile of the simulated node that is tested instead of this one."""

    @classmethod
    def read(cls, section: Mapping[str, Json]) -> PrologConfig:
        """Read the settings from a section that is valid for the schema and has `anchored` paths."""
        values = {
            **section,
            **{key: Action(section[key]) for key in section if key.startswith("on_")},
            "checks": tuple(section.get("checks", ())),
        }
        return cls(**values)

    def written(self) -> dict[str, Json]:
        """The section in the form that `read` accepts."""
        values = {**self._asdict(), "breaker": dict(self.breaker), "epilog_fail": dict(self.epilog_fail)}
        return {name: value.value if isinstance(value, Action) else value for name, value in values.items()}

    @property
    def share(self) -> float:
        """Fraction of the nodes that may drain with one version of this tool."""
        return self.breaker.get("share", 1.0)


class JobConfig(NamedTuple):
    """The site config's section ``job``."""

    late_after_s: float = 1800.0
    """Seconds between two looks after which a rank that works in one function counts as late."""


class SweepConfig(NamedTuple):
    """The site config's section ``sweep``: when a GPU of a job looks stuck. All times are seconds."""

    busy_percent: float = 95.0
    """Least utilisation of a GPU whose kernel may wait for another rank."""
    idle_percent: float = 1.0
    """Highest utilisation of a GPU that is idle after use."""
    power_share: float = 0.6
    """Fraction of the usual power that a busy GPU of a stuck job does not reach."""
    over_s: float = 600.0
    """Time over which a GPU must look stuck."""
    again_s: float = 3600.0
    """Time after which a job is examined again that was not stuck."""
    state_dir: str = "/var/lib/gpuipc-doctor-sweep"


def anchored(section: Mapping[str, Json], base: Path) -> dict[str, Json]:
    """A section with its relative paths resolved against ``base``, its file's directory."""
    return {**section, **{key: str(base / section[key]) for key in ("state_dir", "log") if key in section}}
