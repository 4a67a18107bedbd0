"""What a meter's records are believed, and which loops filled a device, at each edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from gpuipc_doctor.api.leak_report import Entry, blind, leak_reports
from gpuipc_doctor.api.loop_growth import FEWEST_SAMPLES, filled
from gpuipc_doctor.api.memory_counter import ODD_BYTES
from gpuipc_doctor.api.meter import Meter
from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import sentences
from tests.checks.judging import ONE, TWO, metered, outcome
from tests.unit.api.test_meter import Device, Worker

MIB = 1 << 20
LEAST = range(100, 100 + 10 * FEWEST_SAMPLES, 10)
"""Used MiB after each round: the fewest samples, and 50 MiB more at the end than at the beginning."""


def full(used: Sequence[int], total: int) -> dict[str, Json]:
    """The record of a loop that ran out of memory. ``used`` after each round, and ``total``, in MiB."""
    rounds = list(range(1, len(used) + 1))
    bytes_used = [mib * MIB for mib in used]
    return {"device": "cuda:0", "what": "open", "rounds": rounds, "used": bytes_used, "total": total * MIB}


@pytest.mark.parametrize(
    ("loop", "is_full_by_it"),
    [
        (full(LEAST, 200), True),  # half of the 100 MiB that were free, and no less
        (full(LEAST, 202), False),
        (full(LEAST[:-1], 150), False),
        (full(LEAST[::-1], 100), False),
        (full([100, 100, 100, 100, 100, 150], 160), False),  # in one step
        (full([100] * FEWEST_SAMPLES, 100), False),
        (None, False),
    ],
    ids=["steadily", "too little", "too few", "falls", "one step", "constant", "no loop"],
)
def test_loop_that_filled_the_device_rose_steadily_by_half_of_what_was_free(
    loop: dict[str, Json] | None, is_full_by_it: bool
) -> None:
    found = filled(RoleOutcome("importer", Ending.DRIVER_ERROR, loop=loop))
    assert bool(found) == is_full_by_it
    if found:
        assert sentences.summary(found) == "used memory of cuda:0 grows by 10 MiB with each open"


def test_one_rise_that_fits_is_enough_to_believe_a_counter() -> None:
    """Another process may allocate during one of them."""
    role = metered()
    role["meters"][""]["rises"] = [[0, ODD_BYTES + 50 * MIB], [0, ODD_BYTES]]
    assert blind(outcome({"exporter": role}, ONE, "")) is None
    role["meters"][""]["rises"] = [[0, ODD_BYTES + 50 * MIB], [0, 0]]
    assert blind(outcome({"exporter": role}, ONE, "")) is not None


@pytest.mark.parametrize(
    ("missing", "repeated", "is_once"), [(3 * MIB, None, True), (3 * MIB, 0, False), (-3 * MIB, None, False)]
)
def test_loss_that_was_not_looked_for_again_was_seen_once(
    missing: int, repeated: int | None, is_once: bool
) -> None:
    seen, *_ = sentences.evidence(Entry("the end", missing, repeated=repeated).unexplained())
    assert seen.startswith("seen once, after the end;" if is_once else "seen after the end")


def test_each_devices_role_with_a_meter_has_a_report() -> None:
    records = {"exporter": metered(), "importer": metered(device="cuda:1")}
    assert [each.device for each in leak_reports(outcome(records, TWO, ""))] == ["cuda:0", "cuda:1"]
    assert [each.device for each in leak_reports(outcome(records, ONE, ""))] == ["cuda:0"]
    records["exporter"] = {}
    assert [each.device for each in leak_reports(outcome(records, TWO, ""))] == ["cuda:1"]


class Delayed(Device):
    """A device whose counter shows the first changes after these seconds, and later ones at once."""

    def __init__(self, *delays_s: float) -> None:
        super().__init__()
        self._delays_s, self._shown, self._until = iter(delays_s), 0, 0.0

    def memory_used(self) -> int:
        if self.now >= self._until:
            self._shown = self.allocated
        return 500 * MIB + self._shown

    @contextmanager
    def alloc(self, nbytes: int) -> Iterator[None]:
        self._change(nbytes)
        yield
        self._change(-nbytes)

    def _change(self, nbytes: int) -> None:
        self.memory_used()
        self.allocated += nbytes
        self._until = self.now + next(self._delays_s, 0.0)


def test_rounds_of_a_loop_are_recorded_while_it_runs() -> None:
    w: Any = Worker(Device())
    watching = Meter(w)
    assert watching.sampled(range(8)) == range(8)
    assert Meter(Worker(Delayed(0.5, 0.5))).sampled(range(8)) == range(3, 8, 4)  # type: ignore[arg-type]
    done: list[int] = []
    assert len(watching.used_after(range(0, 4, 2), range(4), done.append, "open")) == 2
    assert (done, w.loop["rounds"]) == ([0, 1, 2, 3], [0, 2])
    watching.sample("open", 7)
    assert w.loop["rounds"] == [0, 2, 7]
    watching.sample("close", 1)
    running = w.loop
    assert (running["what"], running["rounds"], len(running["used"])) == ("close", [1], 1)
