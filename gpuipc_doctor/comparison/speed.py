"""What became slower or faster: the time of every driver and MPI call, and what checks measure.

The unit is one repetition of a check on a subject. Rounds within a probe share a processor and a moment, and
a hundred of them would make bounds so narrow that the next run crosses them; only repetitions count, and one
says nothing. All bounds of a comparison hold together with the confidence of one.

How long workers take to start, in which no driver has a part, is the control: where that differs between
the reports, the node was busier or slower altogether, and nothing counts that did not change by more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gpuipc_doctor.comparison.check_changes import Subject
from gpuipc_doctor.comparison.ratio import Ratio, ratio, samples_needed
from gpuipc_doctor.model import Result, Status
from gpuipc_doctor.report import digest

DOUBT = 0.05
"""The chance that any of the bounds of a comparison misses the true ratio."""

LEAST_S = 50e-6
"""A call that takes so few seconds more says nothing: writing down that it begins costs some ten µs."""

CONTROL = "start of a worker"

_SMALLEST, _LARGEST = 1e-15, 1e18
"""Of nothing there is no ratio, and nothing that a node does is beyond these."""


class SpeedVerdict(enum.Enum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "no difference"
    """None that is larger than the tolerance, beyond doubt."""
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is compared: the mean time of a call within a check, or a measurement of that check."""

    name: str
    unit: str
    check: str = ""
    subject: Subject = ()
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Speed:
    """A quantity in both reports: the samples' medians and numbers, and the ratio of after to before."""

    quantity: Quantity
    before: float
    after: float
    samples: tuple[int, int]
    ratio: Ratio | None
    """None where the samples are too few."""
    pace: SpeedVerdict


@dataclass(frozen=True, slots=True)
class Speeds:
    """All quantities that both reports have."""

    all: tuple[Speed, ...] = ()
    control: Speed | None = None
    needed: int = 0
    """Samples a side with which so many quantities can be compared."""

    def of(self, pace: SpeedVerdict) -> list[Speed]:
        return [speed for speed in self.all if speed.pace is pace]


def compare(before: Sequence[Result], after: Sequence[Result], tolerance: float) -> Speeds:
    """``tolerance``: a ratio within 1 + this, and its inverse, counts as none.

    The subjects of ``before`` must have been put into the labels of ``after``.
    """
    old, new = _completed(before), _completed(after)
    probes = [probe for probe in old if probe in new]
    old_samples, new_samples = (_samples({p: runs[p] for p in probes}) for runs in (old, new))
    control = Quantity(CONTROL, "s")
    if control not in old_samples or control not in new_samples:
        return Speeds()
    repeated = min(len(old_samples[control]), len(new_samples[control])) > 1
    both = [  # finding the devices, say, is not repeated
        quantity
        for quantity in new_samples
        if min(len(old_samples.get(quantity, ())), len(new_samples[quantity])) > repeated
    ]
    doubt = DOUBT / len(both)
    ratios = {q: ratio(old_samples[q], new_samples[q], doubt) for q in both}
    limits = _limits(ratios[control], tolerance)
    speeds = [_speed(q, old_samples[q], new_samples[q], ratios[q], limits) for q in both]
    return Speeds(
        tuple(speed for speed in speeds if speed.quantity != control),
        next(speed for speed in speeds if speed.quantity == control),
        samples_needed(doubt),
    )


def _limits(shift: Ratio | None, tolerance: float) -> tuple[float, float] | None:
    """Ratios above the first and below the second count, where the control has shifted by ``shift``."""
    if shift is None:
        return None
    return max(shift.high, 1.0) * (1 + tolerance), min(shift.low, 1.0) / (1 + tolerance)


def _speed(
    quantity: Quantity,
    before: Sequence[float],
    after: Sequence[float],
    found: Ratio | None,
    limits: tuple[float, float] | None,
) -> Speed:
    was, now = median(before), median(after)
    pace = SpeedVerdict.TOO_FEW
    if found and limits:
        cost = found.inverse if quantity.more_is_better else found
        if quantity.unit == "s" and abs(now - was) < LEAST_S:
            pace = SpeedVerdict.SAME
        else:
            slower, faster = cost.low > limits[0], cost.high < limits[1]
            pace = SpeedVerdict.SLOWER if slower else SpeedVerdict.FASTER if faster else SpeedVerdict.SAME
    return Speed(quantity, was, now, (len(before), len(after)), found, pace)


# -- samples --------------------------------------------------------------------------------------------

ProbeOf = tuple[str, Subject, str]
"""A check's id, the subject, and the probe's name."""

Runs = Mapping[ProbeOf, Mapping[int, Sequence[Result]]]
"""The results of each probe that did what it was to do, by repetition."""


def _completed(results: Iterable[Result]) -> dict[ProbeOf, dict[int, list[Result]]]:
    """What failed says nothing of speed: a hang has taken its deadline."""
    runs: dict[ProbeOf, dict[int, list[Result]]] = {}
    for result in results:
        if result.roles:
            repetitions = runs.setdefault((result.check, result.devices, result.probe), {})
            repetitions.setdefault(result.repetition, []).append(result)
    for probe, repetitions in list(runs.items()):
        good = {n: of for n, of in repetitions.items() if digest.worst(of) in (Status.PASS, Status.WARN)}
        if good:
            runs[probe] = good
        else:
            del runs[probe]
    return runs


def _samples(runs: Runs) -> dict[Quantity, list[float]]:
    """A value for each repetition, of those that have all probes of the check on the subject."""
    samples: dict[Quantity, list[float]] = {}
    for check, subject in dict.fromkeys((check, subject) for check, subject, _ in runs):
        own = [of for (c, s, _), of in runs.items() if (c, s) == (check, subject)]
        for repetition in sorted(set.intersection(*(set(of) for of in own))):
            for quantity, value in _quantities(check, subject, [of[repetition] for of in own]):
                if _SMALLEST < value < _LARGEST:
                    samples.setdefault(quantity, []).append(value)
    starts: dict[int, list[float]] = {}
    for of in runs.values():
        for repetition, results in of.items():
            starts.setdefault(repetition, []).extend(role.start_up_s for role in results[0].roles)
    medians = (median(times) for times in starts.values())
    if values := [value for value in medians if _SMALLEST < value < _LARGEST]:
        samples[Quantity(CONTROL, "s")] = values
    return samples


def _quantities(
    check: str, subject: Subject, probes: Sequence[Sequence[Result]]
) -> Iterator[tuple[Quantity, float]]:
    """What one repetition of a check on a subject says; all results of a probe have the same roles."""
    count: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for results in probes:
        for calls in (calls for role in results[0].roles for calls in role.calls):
            count[calls.operation] = count.get(calls.operation, 0) + calls.count
            seconds[calls.operation] = seconds.get(calls.operation, 0.0) + calls.seconds
        for result in results:
            for one in result.finding.measured:
                name = f"{one.name} ({result.probe})" if result.probe else one.name
                yield Quantity(name, one.unit, check, subject, one.more_is_better), one.value
    for operation, number in count.items():
        yield Quantity(operation, "s", check, subject), seconds[operation] / number
