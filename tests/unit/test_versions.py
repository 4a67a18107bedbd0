"""Versions are ordered as their projects order them; a range gives no verdict beyond known versions."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from gpuipc_doctor.versions import ORDERS, Range, Verdict, all_of, any_of, parse

BAD, FINE, UNKNOWN = Verdict.BAD, Verdict.FINE, Verdict.UNKNOWN

IN_ORDER = {
    "nvidia-driver": "384.81 450.102.04 455.23.05 455.32.00 460.32.03 470.57.02 580.65.06 580.159.04",
    "cuda-driver": "11.2 12.9 12.10 13.0 13.0.1",
    "cuda-runtime": "11.8.89 12.9 12.10",
    "nvidia-peermem": "470.57.02 580.159.04",
    "gdrcopy": "2.3 2.4 2.4.1 2.4.4-1 2.5 2.5.2",
    "rocm": "6.4.3-123 7.2.0 7.2.4.0-93-97f5574fe2 7.10.0",
    "hip-runtime": "6.4.43483 7.2.53211-97f5574fe2",
    "amdgpu": "6.8.5 6.16.13",
    "intel-compute-runtime": "24.39.31294.12 26.27.39122.14-1 26.31.39395.13-1~26.04~ppa1",
    "mpich": "1.1.1 1.1.1p1 3.4a2 3.4 3.4.1 4.3.0a1 4.3.0b1 4.3.0rc1 4.3.0rc10 4.3.0 5.0.2 5.1.0a1 5.1.0",
    "cray-mpich": "8.1.9 8.1.28.15 8.1.30 8.1.32.110 9.0.1 9.1.0",
    "openmpi": "4.1.4 4.1.7a1 4.1.7 5.0.0rc9 5.0.0rc10 5.0.0 5.0.9 5.0.10",
    "intel-mpi": "2019.4 2021.6 2021.17.2",
    "mvapich": "2.3.7-1 3.0b 3.0rc 3.0 4.0",
    "ucx": "1.8.1 1.15.0 1.17.0 1.22.0",
    "libfabric": "1.15.2 1.22.0 2.2.0rc1 2.2.0 2.3.1 2.7.0a1",
    "shs-libfabric": "1.15.2.0 1.20.1 1.22.0 2.2.0rc1 2.3.1",
    "shs": "2.2.0 2.3 11.0.2 11.1 12.0 13.0 13.1 14.0",
    "cxi-driver": "1.0.0-SHS11.1.0_20241021 1.1.0",
    "psm2": "11.2.230 12.0.1",
    "nccl": "2.7.8 2.10 2.24.3-1 2.27.7+cuda12.4 2.30.6",
    "rccl": "2.20.5 2.27.7",
    "oneccl": "2021.14 2021.15.9 2021.17 2022.2.0",
    "kernel": "4.18.0-553.el8.x86_64 5.14.21-150500.55.65_13.0.73-cray_shasta_c 6.8.0-136-generic 6.15.2",
    "slurm": "23.02.7 23.11.10-1 24.05.0",
    "pytorch": "2.9.0a0+git1234 2.9.0+cu128 2.10.0",
    "cupy": "13.6.0 14.0.0rc1 14.0.0",
    "kokkos": "4.2.00 4.5.01",
    "vllm": "0.6.3 0.6.3.post1 0.10.0rc2 0.10.0+cu128",
}

VERSIONS = {
    "rocm": st.from_regex(r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9](-[0-9a-f]{1,4})?", fullmatch=True),
    "mpich": st.from_regex(r"[3-5]\.[0-4](\.[0-3])?((a|b|rc)[1-9]|p[12])?", fullmatch=True),
    "openmpi": st.from_regex(r"[3-5]\.[0-4]\.[0-9]{1,2}(a1|rc[0-9]{1,2})?", fullmatch=True),
    "libfabric": st.from_regex(r"[12]\.[0-9]{1,2}\.[0-9](rc[1-3]|a1)?", fullmatch=True),
    "kernel": st.from_regex(r"[456]\.[0-9]{1,2}\.[0-9](-[0-9]{1,3}-generic)?", fullmatch=True),
}
"""Versions in the formats of these projects; the others use numbers and dots."""


def versions(component: str) -> st.SearchStrategy[str]:
    plain = st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{2})?", fullmatch=True)
    return st.sampled_from(IN_ORDER[component].split()) | VERSIONS.get(component, plain)


def test_every_order_has_examples() -> None:
    assert IN_ORDER.keys() == ORDERS.keys()


def test_real_versions_are_ordered() -> None:
    for component, texts in IN_ORDER.items():
        parsed = [parse(component, text) for text in texts.split()]
        assert all(a is not None and b is not None and a < b for a, b in combinations(parsed, 2)), component


@given(st.sampled_from(sorted(IN_ORDER)), st.data())
@settings(max_examples=10 * settings.default.max_examples)
def test_order_is_total_antisymmetric_and_transitive(component: str, data: st.DataObject) -> None:
    a, b, c = (parse(component, data.draw(versions(component))) for _ in range(3))
    assert a is not None
    assert b is not None
    assert c is not None
    assert (a < b) + (a == b) + (a > b) == 1
    assert not (a <= b and b <= a) or a == b
    assert not (a <= b and b <= c) or a <= c


@pytest.mark.parametrize(
    ("component", "text"),
    [
        ("nvidia-driver", "460.32.03-open"),
        ("nvidia-driver", "R460"),
        ("nvidia-driver", ""),
        ("nvidia-driver", "460.\u0663\u0662"),  # digits, but not ASCII
        ("nvidia-driver", "9" * 5000),
        ("mpich", "4.3.0-git"),
        ("mpich", "v4.3.0"),
        ("rocm", "unknown"),
        ("cray-mpich", "8.1.28rc"),
        ("ucx", "1.15.0-rc1"),  # before 1.15.0, or a package of it? UCX does not say
        ("kernel", "6.19.0-rc1"),
        ("intel-mpi", "2019 Update 4"),
        ("pytorch", "2.9.0.dev20260101"),
        ("nvidia-driver", "1.2.3.4.5.6"),
        ("no-such-component", "1.0"),
    ],
)
def test_unordered_versions_are_refused(component: str, text: str) -> None:
    assert parse(component, text) is None
    assert Range(component, "0", fixed="999.0").judge(text) is UNKNOWN


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for component in ORDERS:
        parse(component, text)


REOPEN = Range("nvidia-driver", "unknown", "unknown", "", ("455.32.00", "460.32.03"), ("450.102.04",))
MPICH = Range("mpich", "3.4", fixed="4.2.0")
LAST = Range("nvidia-driver", "0", last_affected="580")
FOREVER = Range("mpich", "5.1.0a1")
UNFIXED = Range("mpich", "3.4", fixed="unknown", known_bad=("5.0.2",))
NOTHING = Range("mpich", "unknown", fixed="4.3.0")
CRAY = Range("cray-mpich", "8.1.26", fixed="8.1.30")
CRAY_BUILD = Range("cray-mpich", "8.1.28.15", fixed="8.1.32.110")
CRAY_LAST = Range("cray-mpich", "0", last_affected="8.1.28.15")


def test_verdict_of_a_range() -> None:
    verdicts = [
        (REOPEN, "450.80.02", UNKNOWN),
        (REOPEN, "450.102.04", FINE),
        (REOPEN, "455.23.05", UNKNOWN),
        (REOPEN, "455.32.00", BAD),
        (REOPEN, "455.45.01", BAD),
        (REOPEN, "460.32.03", BAD),
        (REOPEN, "460.39", UNKNOWN),
        (REOPEN, "580.159.04", UNKNOWN),
        (MPICH, "3.4a2", FINE),
        (MPICH, "3.4", BAD),
        (MPICH, "4.2.0rc1", BAD),
        (MPICH, "4.2.0", FINE),
        (LAST, "384.81", BAD),
        (LAST, "580.159.04", BAD),
        (LAST, "590.44.01", FINE),
        (FOREVER, "5.0.2", FINE),
        (FOREVER, "5.1.0a1", BAD),
        (FOREVER, "9.0", BAD),
        (UNFIXED, "3.3.2", FINE),
        (UNFIXED, "4.0", BAD),
        (UNFIXED, "5.1.0a1", UNKNOWN),
        (NOTHING, "4.2.3", UNKNOWN),
        (NOTHING, "4.3.0", FINE),
        (CRAY, "8.1.25", FINE),
        (CRAY, "8.1.26", BAD),
        (CRAY, "8.1.29.60", BAD),
        (CRAY, "8.1.30", FINE),
        (CRAY, "8.1.30.4", FINE),
        (CRAY, "8.1", UNKNOWN),
        (CRAY_BUILD, "8.1.28", UNKNOWN),
        (CRAY_BUILD, "8.1.28.14", FINE),
        (CRAY_BUILD, "8.1.28.15", BAD),
        (CRAY_BUILD, "8.1.30", BAD),
        (CRAY_BUILD, "8.1.32", UNKNOWN),
        (CRAY_BUILD, "8.1.32.110", FINE),
        (CRAY_LAST, "8.1.27", BAD),
        (CRAY_LAST, "8.1.28", UNKNOWN),
        (CRAY_LAST, "8.1.28.16", FINE),
    ]
    assert [(a, version, a.judge(version)) for a, version, _ in verdicts] == verdicts


@pytest.mark.parametrize(
    ("affected", "text"),
    [
        (REOPEN, "455.32.00 to 460.32.03"),
        (MPICH, "3.4 to before 4.2.0"),
        (LAST, "up to 580"),
        (FOREVER, "5.1.0a1 and later"),
        (UNFIXED, "3.4 to 5.0.2"),
        (NOTHING, "before 4.3.0"),
        (Range("mpich", "0"), "all"),
        (Range("mpich", "4.0", last_affected="4.0"), "4.0"),
        (Range("mpich", "4.0", fixed="unknown"), "4.0 to unknown"),
        (Range("mpich", "unknown", fixed="unknown"), "unknown"),
    ],
)
def test_text_of_a_range(affected: Range, text: str) -> None:
    assert str(affected) == text


DRIVERS = versions("nvidia-driver")


def driver(text: str) -> Version:
    version = parse("nvidia-driver", text)
    assert version is not None
    return version


PAIRS = st.tuples(DRIVERS, DRIVERS).map(lambda two: tuple(sorted(two, key=driver)))


@given(PAIRS, PAIRS)
def test_range_with_both_bounds_has_definite_verdicts(
    bounds: tuple[str, str], others: tuple[str, str]
) -> None:
    (a, b), (x, y) = bounds, others
    first, fixed, low, high = map(driver, (a, b, x, y))
    assume(first < fixed)
    affected = Range("nvidia-driver", a, fixed=b)
    assert affected.judge(a) is BAD
    assert affected.judge(b) is FINE
    if affected.judge(x) is affected.judge(y) is BAD:
        assert first <= low <= high < fixed
    if affected.judge(x) is BAD and affected.judge(y) is FINE:
        assert high >= fixed


@given(st.lists(DRIVERS, min_size=1), st.lists(DRIVERS), DRIVERS)
def test_range_without_bounds_has_verdicts_for_tried_versions_only(
    bad: list[str], good: list[str], version: str
) -> None:
    affected = Range("nvidia-driver", "unknown", "unknown", "", tuple(bad), tuple(good))
    tried = [parsed for text in bad if (parsed := parse("nvidia-driver", text))]
    parsed = parse("nvidia-driver", version)
    assert parsed is not None
    assert {affected.judge(text) for text in bad} == {BAD}
    if affected.judge(version) is FINE:
        assert good
    elif not min(tried) <= parsed <= max(tried):
        assert affected.judge(version) is UNKNOWN or parsed.release[:2] in {v.release for v in tried}


@pytest.mark.parametrize(
    ("affected", "told"),
    [
        (REOPEN, []),
        (FOREVER, []),
        (Range("mpich", "4.2.0", fixed="4.2.0"), ["no version is in this range: 4.2.0 to before 4.2.0"]),
        (Range("mpich", "4.3.0", fixed="4.2.0"), ["no version is in this range: 4.3.0 to before 4.2.0"]),
        (Range("mpich", "4.3.0", last_affected="4.2.9"), ["no version is in this range: 4.3.0 to 4.2.9"]),
        (Range("mpich", "4.3.1", last_affected="4.3"), []),
        (Range("mpich", "R4", fixed="unknown"), ["'R4' cannot be ordered as a version of mpich"]),
        (Range("mpich", "4.0", fixed="4.2.0", known_bad=("4.2.1",)),
         ["'known_bad' 4.2.1 is outside of the range 4.0 to before 4.2.0"]),
    ],
)  # fmt: skip
def test_contradictions_of_a_range_are_reported(affected: Range, told: list[str]) -> None:
    assert affected.contradictions() == told


def test_verdicts_combine_by_three_valued_logic() -> None:
    assert [any_of(v) for v in ([], [FINE], [FINE, UNKNOWN], [UNKNOWN, BAD])] == [FINE, FINE, UNKNOWN, BAD]
    assert [all_of(v) for v in ([], [BAD], [BAD, UNKNOWN], [UNKNOWN, FINE])] == [BAD, BAD, UNKNOWN, FINE]
