"""Whether this node has passed so recently that it need not be tested: the way that takes milliseconds.

It neither loads the engine nor checks the config: a config whose bytes are those of the last pass was checked
then, and any other does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.policy import PrologConfig
from gpuipc_doctor.prolog import identity, memory
from gpuipc_doctor.prolog.memory import NOTHING, Forgotten, Memory
from gpuipc_doctor.prolog.order import Order
from gpuipc_doctor.yamlfile import BadFile, read

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json


@dataclass(frozen=True, slots=True)
class Recall:
    """What is remembered that bears on an order."""

    why_not: str
    """Why it is no answer; empty where it is one."""
    age_s: float = 0.0
    policy: PrologConfig = field(default_factory=PrologConfig)
    """As the config has it, which nobody may have checked; but if this is an answer, somebody has."""
    identity: Mapping[str, str] = field(default_factory=dict)
    memory: Memory = NOTHING
    complaint: str = ""
    """Why what is there cannot be used."""


def recall(order: Order) -> Recall:
    if order.config is None:
        return Recall("not used: without a config nothing is remembered")
    try:
        content = order.config.read_bytes()
        data = read(order.config, None).data
        policy = PrologConfig.read(data["prolog"], order.config.absolute().parent)
        fresh_for_s = float(policy.fresh_for_s)
        extra = list(_extra(order.config, data, policy))
    except (BadFile, OSError, KeyError, TypeError, ValueError, AttributeError):
        return Recall("not used: the config has no section `prolog` that is in order")
    if not fresh_for_s:
        return Recall("not used: fresh_for_s is 0", policy=policy)
    now_is = identity.identity(content, str(order.config.absolute()), extra)
    try:
        remembered = memory.recall(Path(policy.state_dir))
    except Forgotten as reason:
        return Recall(f"not used: {reason}", 0.0, policy, now_is, complaint=str(reason))
    age_s = remembered.fresh(now_is, order.gpus, identity.now(), fresh_for_s)
    if isinstance(age_s, str):
        return Recall(f"not used: {age_s}", 0.0, policy, now_is, remembered)
    return Recall("", age_s, policy, now_is, remembered)


def _extra(config: Path, data: Json, policy: PrologConfig) -> Iterator[Path]:
    """The site's own checks and known issues, and the simulated node's file."""
    for key in ("checks_dirs", "known_issues_dirs"):
        for name in data.get(key, ()):
            yield config.absolute().parent / name
    if policy.simulate:
        yield Path(policy.simulate)
