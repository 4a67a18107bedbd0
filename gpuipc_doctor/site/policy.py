"""What a site has decided for the prolog: what each kind of result does, and what the prolog may keep."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json


BUDGET_S = 8.0
"""Seconds from the start of the prolog's process; also while the config is being read, which can hang."""

LOG_MAX_BYTES = 10 << 20

STATE_DIR = "/run/gpuipc-doctor"
"""Nothing that is remembered there counts after another boot, and /run is emptied then."""

SITE_DIRECTORIES = {"checks_dirs": (".py",), "known_issues_dirs": (".yaml", ".yml")}
"""Keys of a site config that name directories of the site's own, and how the files there end that decide over
results as those of the tool do."""


class Action(enum.Enum):
    """What the prolog does about a kind of result, gravest first."""

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
    gpus: int = 0
    """How many GPUs the node has; 0 where the site does not say."""
    shadow: bool = False
    """Never drain, but say what would have been done."""
    checks: tuple[str, ...] = ()
    """The checks to run; none of them: all of the prolog tier."""
    deadline_s: float | None = None
    """For each single operation; None leaves it to the check."""
    fresh_for_s: float = 0.0
    """How long a pass is remembered."""
    state_dir: str = STATE_DIR
    """Where that is remembered, and which GPUs' test has not come to its end."""
    log: str = ""
    """File for one line of JSON a run; empty for none."""
    log_max_bytes: int = LOG_MAX_BYTES
    """The log is renamed to ``….1`` before it grows beyond."""
    syslog: bool = True
    breaker: Mapping[str, float] = MappingProxyType({})
    simulate: str = ""
    """The profile of the simulated node that is tested instead of this one."""

    @classmethod
    def read(cls, section: Mapping[str, Json]) -> PrologConfig:
        """From a section that follows the config's schema, its paths `anchored`."""
        values = {
            **section,
            **{key: Action(section[key]) for key in section if key.startswith("on_")},
            "checks": tuple(section.get("checks", ())),
        }
        return cls(**values)

    def written(self) -> dict[str, Json]:
        """As a section that `read` takes."""
        values = {**self._asdict(), "breaker": dict(self.breaker)}
        return {name: value.value if isinstance(value, Action) else value for name, value in values.items()}

    @property
    def share(self) -> float:
        """The part of the nodes that may drain at all: bounds how many a bad release can drain."""
        return self.breaker.get("share", 1.0)


def anchored(section: Mapping[str, Json], base: Path) -> dict[str, Json]:
    """The section ``prolog`` with the paths that are relative to its file, in ``base``, as absolute ones."""
    return {**section, **{key: str(base / section[key]) for key in ("state_dir", "log") if key in section}}
