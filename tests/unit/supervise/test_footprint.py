"""Environment variables that limit what a worker's driver sees and creates."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Node
from gpuipc_doctor.probe_types import Probe
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.start import one_queue, visible_devices
from tests.checks.judging import gpu

FILE = Path(__file__).parents[2] / "fixtures" / "misbehaving.py"
ONE = gpu(0)


def test_workers_have_a_single_queue_unless_their_streams_are_concurrent(tmp_path: Path) -> None:
    names = ("describe_the_process", "wait_for_partner")
    probe = Probe("probe", {name: loader.role(FILE, name) for name in names}, (ONE,))

    def queues(*concurrent: str) -> str | None:
        asked = replace(probe, concurrent=frozenset(concurrent))
        outcome = session.run("misbehaving", FILE, asked, until=time.monotonic() + 120)
        environment: dict[str, str] = outcome.records["describe_the_process"]["environment"]
        return environment.get("CUDA_DEVICE_MAX_CONNECTIONS")

    with Session(Node(env={"OF_THE_NODE": "yes"}), Limits(), keep_logs=tmp_path) as session:
        assert [queues(), queues("wait_for_partner"), queues("describe_the_process")] == ["1", "1", None]


def test_users_choice_is_kept() -> None:
    assert one_queue((ONE,), {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}) == {}


def test_other_vendors_and_processes_without_a_device_get_no_limits() -> None:
    assert one_queue((replace(ONE, backend="hip"),), {}) == {}
    assert one_queue((), {}) == {}
    assert visible_devices((), {}) == {}


def test_all_devices_stay_visible_without_uuids() -> None:
    assert visible_devices((replace(ONE, uuid=""), replace(ONE, index=1)), {}) == {}


def test_indices_refer_to_the_users_choice() -> None:
    amd = replace(ONE, backend="hip", index=1)
    assert visible_devices((amd,), {"HIP_VISIBLE_DEVICES": "4,6"}) == {"HIP_VISIBLE_DEVICES": "6"}
