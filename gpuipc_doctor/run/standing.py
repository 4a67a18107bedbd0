"""A node's GPUs and its collective libraries, kept ready for probes that another node decides on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuipc_doctor.model import Device, Fact, Finding, Node
from gpuipc_doctor.probe_types import CollectiveStack
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request, Watcher
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.supervise.session import Session


@dataclass(frozen=True, slots=True)
class Standing:
    """``full``: GPUs without room for tests, and the finding about each."""

    session: Session
    devices: tuple[Device, ...]
    full: Mapping[Device, Finding]
    collectives: CollectiveStack
    facts: tuple[Fact, ...]


@contextlib.contextmanager
def standing(request: Request, config: SiteConfig, node: Node, watcher: Watcher) -> Iterator[Standing]:
    """Find GPUs and libraries, and hold a session until the block ends. Raises `UnknownName`."""
    with engine.prepared(request, config, node, watcher) as run:
        found = run.discovery.drivers()
        devices = request.select_devices(found.devices, found.left_out) if found.devices else ()
        full = run.room.full(devices)
        able = tuple(device for device in devices if device not in full)
        told = run.collect_inventory(found).told
        stacks = run.stack_discovery.stacks(able, found.site, start_ranks=False)
        yield Standing(run.schedule.session, able, full, stacks.collectives, told)
