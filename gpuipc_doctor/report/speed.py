"""Changes in speed: the time of every driver and MPI call, and the checks' measurements.

The unit is one repetition of a check on a subject. Rounds within a probe are not independent: bounds from a
hundred rounds would be too narrow. A single repetition proves nothing. The stated confidence is for all
bounds of a comparison together.

The control is the start-up time of workers, which involves no driver. If it differs between the reports, the
node was busier or slower altogether, and only larger changes count. On a busy node a call of some µs waits as
long for a processor as one of a second: a call may then also be delayed by as many seconds as the control.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gpuipc_doctor.model import Status
from gpuipc_doctor.report import merged_results
from gpuipc_doctor.report.check_changes import Subject
from gpuipc_doctor.report.ratio import Ratio, ratio, samples_needed
from gpuipc_doctor.report_types import Result

DOUBT = 0.05
"""Probability that any bound of a comparison misses the true ratio."""

LEAST_S = 50e-6
"""Smaller increases per call, in seconds, are ignored, since journalling a call takes some ten µs."""

CONTROL = "start of a worker"

_SMALLEST, _LARGEST = 1e-15, 1e18
"""Limits of compared values: 0 has no ratio, and every real value lies within these limits."""


class SpeedVerdict(enum.Enum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "no difference"
    """The verdict: no change larger than the tolerance, with confidence."""
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A compared quantity: the mean time of a call within a check, or one of the check's measurements."""

    name: str
    unit: str
    check: str = ""
    subject: Subject = ()
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Speed:
    """A quantity in both reports: medians and numbers of samples, and the ratio of after to before."""

    quantity: Quantity
    before: float
    after: float
    samples: tuple[int, int]
    ratio: Ratio | None
    """None if there are too few samples."""
    pace: SpeedVerdict


@dataclass(frozen=True, slots=True)
class Speeds:
    """All quantities in both reports."""

    all: tuple[Speed, ...] = ()
    control: Speed | None = None
    needed: int = 0
    """Samples per side that are needed to compare this many quantities."""

    def of(self, pace: SpeedVerdict) -> list[Speed]:
        return [speed for speed in self.all if speed.pace is pace]


def compare(before: Sequence[Result], after: Sequence[Result], tolerance: float) -> Speeds:
    """Compare speeds. ``tolerance``: ratios from 1 / (1 + tolerance) to 1 + tolerance are ignored.

    The subjects of ``before`` must already have the labels of ``after``.
    """
    old, new = _completed(before), _completed(after)
    probes = [probe for probe in old if probe in new]
    old_samples, new_samples = (_samples({p: runs[p] for p in probes}) for runs in (old, new))
    control = Quantity(CONTROL, "s")
    if control not in old_samples or control not in new_samples:
        return Speeds()
    repeated = min(len(old_samples[control]), len(new_samples[control])) > 1
    both = [  # discovery, for example, is not repeated
        quantity
        for quantity in new_samples
        if min(len(old_samples.get(quantity, ())), len(new_samples[quantity])) > repeated
    ]
    doubt = DOUBT / len(both)
    ratios = {q: ratio(old_samples[q], new_samples[q], doubt) for q in both}
    limits = _limits(ratios[control], tolerance)
    delay_s = _delay_s(old_samples[control], new_samples[control], ratios[control], tolerance)
    speeds = [
        _speed(q, old_samples[q], new_samples[q], ratios[q], limits, delay_s if q != control else 0.0)
        for q in both
    ]
    return Speeds(
        tuple(speed for speed in speeds if speed.quantity != control),
        next(speed for speed in speeds if speed.quantity == control),
        samples_needed(doubt),
    )


def _limits(shift: Ratio | None, tolerance: float) -> tuple[float, float] | None:
    """Upper and lower limit of ratios to ignore, widened by the control's ``shift``; None without a
    control."""
    if shift is None:
        return None
    return max(shift.high, 1.0) * (1 + tolerance), min(shift.low, 1.0) / (1 + tolerance)


def _delay_s(before: Sequence[float], after: Sequence[float], shift: Ratio | None, tolerance: float) -> float:
    """Seconds by which the control took longer, negative if less; 0 within the tolerance."""
    if shift is None or 1 / (1 + tolerance) <= shift.estimate <= 1 + tolerance:
        return 0.0
    return median(after) - median(before)


def _speed(
    quantity: Quantity,
    before: Sequence[float],
    after: Sequence[float],
    found: Ratio | None,
    limits: tuple[float, float] | None,
    delay_s: float,
) -> Speed:
    was, now = median(before), median(after)
    pace = SpeedVerdict.TOO_FEW
    if found and limits:
        cost = found.inverse if quantity.more_is_better else found
        change = now - was
        is_like_control = change * delay_s > 0 and abs(change) < abs(delay_s)
        if quantity.unit == "s" and (abs(change) < LEAST_S or is_like_control):
            pace = SpeedVerdict.SAME
        else:
            slower, faster = cost.low > limits[0], cost.high < limits[1]
            pace = SpeedVerdict.SLOWER if slower else SpeedVerdict.FASTER if faster else SpeedVerdict.SAME
    return Speed(quantity, was, now, (len(before), len(after)), found, pace)


# -- samples --------------------------------------------------------------------------------------------

ProbeOf = tuple[str, Subject, str]
"""(check id, subject, name of the probe)."""

Runs = Mapping[ProbeOf, Mapping[int, Sequence[Result]]]
"""Results of each completed probe, by repetition."""


def _completed(results: Iterable[Result]) -> dict[ProbeOf, dict[int, list[Result]]]:
    """Results of completed probes only, because a hang takes its whole deadline."""
    runs: dict[ProbeOf, dict[int, list[Result]]] = {}
    for result in results:
        if result.roles:
            repetitions = runs.setdefault((result.check, result.devices, result.probe), {})
            repetitions.setdefault(result.repetition, []).append(result)
    for probe, repetitions in list(runs.items()):
        good = {
            n: of for n, of in repetitions.items() if merged_results.worst(of) in (Status.PASS, Status.WARN)
        }
        if good:
            runs[probe] = good
        else:
            del runs[probe]
    return runs


def _samples(runs: Runs) -> dict[Quantity, list[float]]:
    """Values of each quantity, one for each repetition in which all probes of the check and subject
    completed."""
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
            times = (role.start_up_s for role in results[0].roles)  # 0 for a visit to a process that runs
            starts.setdefault(repetition, []).extend(each for each in times if _SMALLEST < each < _LARGEST)
    if values := [median(times) for times in starts.values() if times]:
        samples[Quantity(CONTROL, "s")] = values
    return samples


def _quantities(
    check: str, subject: Subject, probes: Sequence[Sequence[Result]]
) -> Iterator[tuple[Quantity, float]]:
    """The figures of one repetition of a check on a subject, with the calls of each probe's first result."""
    count: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for results in probes:
        for calls in (calls for role in results[0].roles for calls in role.calls):
            count[calls.operation] = count.get(calls.operation, 0) + calls.count
            seconds[calls.operation] = seconds.get(calls.operation, 0.0) + calls.seconds
        for result in results:
            for figure in result.finding.measured:
                name = f"{figure.name} ({result.probe})" if result.probe else figure.name
                yield Quantity(name, figure.unit, check, subject, figure.more_is_better), figure.value
    for operation, number in ((operation, number) for operation, number in count.items() if number > 0):
        yield Quantity(operation, "s", check, subject), seconds[operation] / number
