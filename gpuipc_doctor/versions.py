"""Order of each component's versions, and ranges of affected versions.

Nothing is guessed: a version of an unknown form has no order, and a range is only as wide as the known
versions. The tests have examples of each form.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version

UNKNOWN = "unknown"
"""Stands for a bound that no source states."""

BEGINNING = "0"
"""A value of ``introduced``: the range begins with the component's first version."""

_RELEASE = r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,4}"
_NUMBERS = rf"({_RELEASE})"
_STAGED = rf"({_RELEASE}(?:(?:a|b|rc)[0-9]{{0,4}})?)"
"""Releases and pre-releases: 5.1.0a1, 3.0b, 2.2.0rc1."""

_BUILD = r"(?:(?!-rc)[-+][\w.+-]{0,99})?"
"""Packagers' suffixes are ignored (7.2.4.0-93-97f5574fe2, 2.9.0+cu128) unless they mark a pre-release."""

ORDERS = {
    "nvidia-driver": _NUMBERS,
    "cuda-driver": _NUMBERS,
    "cuda-runtime": _NUMBERS,
    "nvidia-peermem": _NUMBERS,
    "gdrcopy": rf"{_NUMBERS}{_BUILD}",
    "rocm": rf"{_NUMBERS}{_BUILD}",
    "hip-runtime": rf"{_NUMBERS}{_BUILD}",
    "amdgpu": _NUMBERS,
    "intel-compute-runtime": rf"{_NUMBERS}(?:[-+~][\w.+~-]{{0,99}})?",  # 26.31.39395.13-1~26.04~ppa1
    "mpich": rf"{_STAGED}(?:p([0-9]{{1,4}}))?",
    "cray-mpich": _NUMBERS,
    "openmpi": _STAGED,
    "intel-mpi": _NUMBERS,
    "mvapich": rf"{_STAGED}{_BUILD}",
    "ucx": rf"{_STAGED}{_BUILD}",
    "libfabric": _STAGED,
    "shs-libfabric": rf"{_STAGED}{_BUILD}",
    "shs": rf"{_NUMBERS}{_BUILD}",
    "cxi-driver": rf"{_NUMBERS}{_BUILD}",
    "psm2": rf"{_NUMBERS}{_BUILD}",
    "nccl": rf"{_NUMBERS}{_BUILD}",
    "rccl": rf"{_NUMBERS}{_BUILD}",
    "oneccl": rf"{_NUMBERS}{_BUILD}",
    # Distributions fix their kernels without changing the first numbers: a range can say when a feature came
    # into the kernel, but hardly ever when a fault left it.
    "kernel": rf"(?!.*-rc){_NUMBERS}(?:[-+.~][\w.+~-]{{0,199}})?",
    "slurm": rf"{_NUMBERS}{_BUILD}",
    "pytorch": rf"{_STAGED}{_BUILD}",
    "cupy": _STAGED,
    "kokkos": _NUMBERS,
    "vllm": rf"({_RELEASE}(?:(?:rc|\.post)[0-9]{{1,4}})?){_BUILD}",
}
"""Component → pattern of a version. Group 1 is ordered as in PEP 440; group 2 is a patch level."""

_ABBREVIATED = frozenset({"cray-mpich"})
"""Components whose versions are often abbreviated: the module cray-mpich/8.1.28 has the library 8.1.28.15. An
abbreviated version and a bound are compared only in the numbers that both have."""


@lru_cache(4096)
def parse(component: str, text: str) -> Version | None:
    """A version that compares with others of this component; None if it has no order."""
    from packaging.version import Version

    found = re.fullmatch(ORDERS.get(component, "(?!)"), text)
    if not found:
        return None
    patch = found[2] if found.re.groups == 2 else None
    return Version(f"{found[1]}.post{patch}" if patch else found[1])


class Verdict(enum.Enum):
    """A range's verdict on a version."""

    BAD = "bad"
    FINE = "fine"
    UNKNOWN = "cannot tell"


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """BAD if any is BAD, else UNKNOWN if any is UNKNOWN."""
    seen = set(verdicts)
    return next((verdict for verdict in (Verdict.BAD, Verdict.UNKNOWN) if verdict in seen), Verdict.FINE)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """FINE if any is FINE, else UNKNOWN if any is UNKNOWN, else BAD."""
    seen = set(verdicts)
    return next((verdict for verdict in (Verdict.FINE, Verdict.UNKNOWN) if verdict in seen), Verdict.BAD)


_NOT = {Verdict.BAD: Verdict.FINE, Verdict.FINE: Verdict.BAD, Verdict.UNKNOWN: Verdict.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Range:
    """A range of versions of one component; bounds are versions or `UNKNOWN`.

    ``fixed`` is the first version without the fault, ``last_affected`` the last one with it. At most one of
    them is given; without both, the range has no end. ``known_bad`` and ``known_good`` are versions that were
    tested or whose source was read. If a bound is unknown, only versions between the lowest and the highest
    of ``known_bad`` are bad; all others are unknown. In ``last_affected`` and lists, ``580`` stands for all
    versions that start with it, such as 580.159.04.
    """

    component: str
    introduced: str
    fixed: str = ""
    last_affected: str = ""
    known_bad: tuple[str, ...] = ()
    known_good: tuple[str, ...] = ()

    def judge(self, text: str) -> Verdict:
        """Verdict on this version of the component."""
        version = parse(self.component, text)
        if version is None:
            return Verdict.UNKNOWN
        if any(_begins(version, bad) for bad in self._parsed(self.known_bad)):
            return Verdict.BAD
        if any(_begins(version, good) for good in self._parsed(self.known_good)):
            return Verdict.FINE
        return all_of((self._since(version), self._until(version)))

    def lacks_cure(self, text: str) -> bool:
        """Whether this version is known to be older than the first version without the fault."""
        version, fixed = parse(self.component, text), parse(self.component, self.fixed)
        return bool(version and fixed and _at_least(self.component, version, fixed) is Verdict.FINE)

    def contradictions(self) -> list[str]:
        """Why no version can be in this range, or which versions in its lists contradict its bounds."""
        bounds = (self.introduced, self.fixed, self.last_affected)
        said = [
            f"{text!r} cannot be ordered as a version of {self.component}"
            for text in (*bounds, *self.known_bad, *self.known_good)
            if text not in ("", BEGINNING, UNKNOWN) and parse(self.component, text) is None
        ]
        if said:
            return said
        first = parse(self.component, self.introduced)
        if self.introduced not in (BEGINNING, UNKNOWN) and first and self._until(first) is Verdict.FINE:
            return [f"no version is in this range: {self}"]
        return [
            f"'known_bad' {text} is outside of the range {self}"
            for text, version in zip(self.known_bad, self._parsed(self.known_bad), strict=True)
            if all_of((self._since(version), self._until(version))) is Verdict.FINE
        ]

    def __str__(self) -> str:
        """The versions known to be bad: ``455.32.00 to 460.32.03``, ``before 4.3.1``."""
        tried = [text for _, text in sorted(zip(self._parsed(self.known_bad), self.known_bad, strict=True))]
        first = self.introduced if self.introduced != UNKNOWN else "".join(tried[:1])
        if self.fixed not in ("", UNKNOWN):
            return f"before {self.fixed}" if first in ("", BEGINNING) else f"{first} to before {self.fixed}"
        if not self.fixed and not self.last_affected:
            return "all" if first == BEGINNING else f"{first or 'unknown'} and later"
        last = self.last_affected if self.last_affected not in ("", UNKNOWN) else "".join(tried[-1:])
        if not last:
            return UNKNOWN if first in ("", BEGINNING) else f"{first} to {UNKNOWN}"
        return f"up to {last}" if first == BEGINNING else last if first == last else f"{first} to {last}"

    def _since(self, version: Version) -> Verdict:
        """Whether the fault existed in this version already."""
        if self.introduced == BEGINNING:
            return Verdict.BAD
        if first := parse(self.component, self.introduced):
            return _at_least(self.component, version, first)
        return Verdict.BAD if any(version >= bad for bad in self._parsed(self.known_bad)) else Verdict.UNKNOWN

    def _until(self, version: Version) -> Verdict:
        if fixed := parse(self.component, self.fixed):
            return _NOT[_at_least(self.component, version, fixed)]
        if last := parse(self.component, self.last_affected):
            return Verdict.BAD if _begins(version, last) else _NOT[_at_least(self.component, version, last)]
        if not self.fixed and not self.last_affected:
            return Verdict.BAD
        return Verdict.BAD if any(version <= bad for bad in self._parsed(self.known_bad)) else Verdict.UNKNOWN

    def _parsed(self, texts: Iterable[str]) -> list[Version]:
        return [version for text in texts if (version := parse(self.component, text))]


def _begins(version: Version, bound: Version) -> bool:
    """Whether ``version`` is ``bound`` or starts with its numbers, as 580.159.04 does with 580."""
    fewer = len(bound.release) < len(version.release)
    return version == bound or (fewer and version.release[: len(bound.release)] == bound.release)


def _at_least(component: str, version: Version, bound: Version) -> Verdict:
    """Whether ``version`` is ``bound`` or later: BAD if so, UNKNOWN if it has too few numbers to decide."""
    if component in _ABBREVIATED and len(version.release) < len(bound.release) and _begins(bound, version):
        return Verdict.UNKNOWN
    return Verdict.BAD if version >= bound else Verdict.FINE
