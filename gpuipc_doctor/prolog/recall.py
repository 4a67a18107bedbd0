"""Whether this node has passed so recently that it need not be tested: the way that takes milliseconds.

It neither loads the engine nor checks the config, nor, as a rule, reads it as YAML, which would make it a
third slower: a config whose bytes are those of the last pass was checked then and says what it said then, and
any other does not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.policy import SITE_DIRECTORIES, PrologConfig
from gpuipc_doctor.prolog import identity, memory
from gpuipc_doctor.prolog.memory import NOTHING, Forgotten, Memory
from gpuipc_doctor.prolog.order import Order

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

_STATE_DIR = re.compile(rb"""^[^#\n]*\bstate_dir["']? *: *["']?([^\s"',}]+)""", re.MULTILINE)


class Recall(NamedTuple):
    """What is remembered that bears on an order."""

    why_not: str
    """Why it is no answer; empty where it is one."""
    age_s: float = 0.0
    policy: PrologConfig = PrologConfig()
    """As the config has it, which nobody may have checked; but if this is an answer, somebody has."""
    identity: Mapping[str, str] = NOTHING.identity
    settings: Mapping[str, Json] = NOTHING.settings
    memory: Memory = NOTHING
    complaint: str = ""
    """Why what is there cannot be used."""

    def is_of(self, order: Order) -> bool:
        """Whether the order's config still is what it was when this was looked up."""
        if order.config is None:
            return False
        with contextlib.suppress(OSError):
            now_is = identity.of_config(order.config.read_bytes(), str(order.config.absolute()))
            return self.identity.get("config") == now_is
        return False


def recall(order: Order) -> Recall:
    if order.config is None:
        return Recall("not used: without a config nothing is remembered")
    try:
        config = order.config.absolute()
        content = config.read_bytes()
        now_is = identity.identity(content, str(config))
        settings = _remembered_settings(config, content, now_is) or _written_settings(config, content)
        policy = PrologConfig.read(settings["prolog"], config.parent)
        fresh_for_s = float(policy.fresh_for_s)
        now_is |= identity.of_site(_files_of_site(config, settings, policy))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return Recall("not used: the config has no section `prolog` that is in order")
    known = Recall("", 0.0, policy, now_is, settings)
    if not fresh_for_s:
        return known._replace(why_not="not used: fresh_for_s is 0")
    try:
        remembered = memory.recall(Path(policy.state_dir))
    except Forgotten as reason:
        return known._replace(why_not=f"not used: {reason}", complaint=str(reason))
    age_s = remembered.fresh(now_is, order.gpus, identity.now(), fresh_for_s)
    if isinstance(age_s, str):
        return known._replace(why_not=f"not used: {age_s}", memory=remembered)
    return known._replace(age_s=age_s, memory=remembered)


def _remembered_settings(config: Path, content: bytes, now_is: Mapping[str, str]) -> Mapping[str, Json]:
    """What this config said to this very tool, on this very node, at the last pass; nothing if not known.

    Where that is kept the config says, too, and that much is found without YAML. A wrong guess only costs
    time, for what is there is ours alone and names the config that it is of.
    """
    if found := _STATE_DIR.search(content):
        with contextlib.suppress(Forgotten):
            remembered = memory.recall(config.parent / os.fsdecode(found[1]))
            if not remembered.changed(now_is):
                return remembered.settings
    return {}


def _written_settings(config: Path, content: bytes) -> Mapping[str, Json]:
    """What the file says, as far as it takes part in looking up a pass."""
    from gpuipc_doctor.yamlfile import BadFile, parse

    try:
        data = parse(config, content, None).data
    except BadFile:
        return {}
    return {key: data[key] for key in ("prolog", *SITE_DIRECTORIES) if key in data}


def _files_of_site(config: Path, settings: Mapping[str, Json], policy: PrologConfig) -> Iterator[Path]:
    """The site's own checks and known issues, and the simulated node's file."""
    for key in SITE_DIRECTORIES:
        for name in settings.get(key, ()):
            yield config.parent / name
    if policy.simulate:
        yield Path(policy.simulate)
