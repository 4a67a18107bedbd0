"""Judges used memory after the rounds of a loop: growth counts only beyond that of the loop's control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuipc_doctor.api.memory_counter import NOISE_BYTES, PROMPT_S
from gpuipc_doctor.api.slopes import Slope, is_even, slope, smallest_found
from gpuipc_doctor.model import Evidence, Finding
from gpuipc_doctor.probe_types import RoleOutcome
from gpuipc_doctor.report_types import Line, Series

CREEP_BYTES = 64 << 10
"""Bytes by which used memory may grow from the first round of a loop to its last."""

FEWEST_SAMPLES = 6
"""Minimum readings of used memory that show a steady rise in a loop without a control."""

RERUN_IDLE = "rerun on an idle device; if used memory changes again, the driver causes it"
"""Remedy for a change of used memory by an unknown process."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Used memory after the rounds of a loop, and after those of its control."""

    what: str
    rounds: Sequence[int]
    used: Sequence[float]
    control: Sequence[float]
    at: Sequence[float] = ()
    control_at: Sequence[float] = ()
    """Times of the readings in seconds."""
    ours: Sequence[float | None] = ()
    control_ours: Sequence[float | None] = ()
    """What the processes of this run held at each reading; None if the driver does not say."""

    def of_this_run(self) -> Loop | None:
        """The loop by what the processes of this run held; None if the driver did not say."""
        ours, control = (
            [held for held in each if held is not None] for each in (self.ours, self.control_ours)
        )
        is_known = 0 < len(ours) == len(self.used) and len(control) == len(self.control)
        return replace(self, used=ours, control=control) if is_known else None

    @property
    def growth(self) -> Slope:
        return slope(self.rounds, self.used)

    @property
    def unsuspicious(self) -> float:
        """Bytes per round to ignore: the control's growth, or noise."""
        return max(CREEP_BYTES / max(self.rounds), self._without_rounds)

    @property
    def _without_rounds(self) -> float:
        """Bytes per round in the control; if it grew steadily, in the time that a round takes."""
        control = slope(self.rounds, self.control)
        return control.high * self._pace if control.low > 0 else control.high

    @property
    def _pace(self) -> float:
        """Duration of a round, relative to one of the control."""
        if not (self.at and self.control_at):
            return 1.0
        return max((self.at[-1] - self.at[0]) / max(self.control_at[-1] - self.control_at[0], PROMPT_S), 1.0)

    @property
    def _is_of_rounds(self) -> bool:
        """Whether the growth may be what each round loses: it is even, and the control changed by less."""
        changed = max(max(self.control) - min(self.control) - NOISE_BYTES, 0.0) * self._pace
        return is_even(self.used) and changed < (self.used[-1] - self.used[0]) / 2

    def judge(self, device: str) -> Finding | None:
        """Judge whether each round loses memory, all of them alike."""
        growth = self.growth
        if growth.low <= self.unsuspicious:
            return None
        if not self._is_of_rounds:
            return Finding.error(
                "unexplained-change",
                "used memory of {device} rose by {missing:mib}, but not steadily: cannot tell which process "
                "did it",
                Evidence.seen("seen in {rounds} rounds of {what}", rounds=max(self.rounds), what=self.what),
                remedy=RERUN_IDLE,
                device=device,
                missing=int(self.used[-1] - self.used[0]),
                what=self.what,
            )
        return Finding.fail(
            "grows",
            "used memory of {device} grows by {growth:bytes} with each {what}",
            interval(growth, max(self.rounds)),
            device=device,
            what=self.what,
            growth=growth.estimate,
        )

    def explains(self, missing: int) -> bool:
        """Whether this amount equals the loss of all rounds together, within 25 %."""
        return math.isclose(missing, self.growth.estimate * max(self.rounds), rel_tol=0.25)

    def sensitivity(self, device: str, block: int) -> Evidence:
        """Evidence: the smallest growth that would have been detected. ``block``: see `smallest_found`."""
        smallest = smallest_found(self.rounds, self.used, self.unsuspicious, block)
        return Evidence.measured(
            "growth of {smallest:bytes} or more on {device} with each {what} would have been detected "
            "in {rounds} rounds (the counter's step is {block:bytes})",
            rounds=max(self.rounds),
            smallest=smallest,
            what=self.what,
            device=device,
            block=block,
        )

    def series(self, device: str) -> Series:
        lines = ((self.what, self.used), (f"without {self.what}", self.control))
        return Series(
            f"change of used memory of {device} since the first sample",
            "rounds",
            tuple(self.rounds),
            tuple(Line(text, tuple(used - samples[0] for used in samples)) for text, samples in lines),
        )


def filled(role: RoleOutcome) -> Finding | None:
    """Judge a loop in which a call ran out of memory: the FAIL if the loop itself filled the device, else
    None.

    Without a control, used memory must have risen steadily, and by most of the free memory.
    """
    if not (running := role.loop):
        return None
    rounds, used = running["rounds"], running["used"]
    if len(used) < FEWEST_SAMPLES:
        return None
    growth, rose, free = slope(rounds, used), used[-1] - used[0], running["total"] - used[0]
    is_steady = math.isclose(growth.estimate * (rounds[-1] - rounds[0]), rose, rel_tol=0.25)
    if growth.low <= 0 or not is_steady or rose < free / 2:
        return None
    return Finding.fail(
        "grows",
        "used memory of {device} grows by {growth:bytes} with each {what}",
        interval(growth, rounds[-1]),
        Evidence.seen("after {rounds} rounds the device was full", rounds=rounds[-1]),
        device=running["device"],
        what=running["what"],
        growth=growth.estimate,
    )


def interval(growth: Slope, rounds: int) -> Evidence:
    return Evidence.measured(
        "95 % confidence interval of the growth: {low:bytes} to {high:bytes}, from {rounds} rounds",
        low=growth.low,
        high=growth.high,
        rounds=rounds,
    )
