"""Every conformance test is included when simulated and real AMD runtimes are compared."""

from __future__ import annotations

import pytest

from tests.conformance import diff

OF_VMM = "tests/conformance/test_vmm.py::test_anothers_memory"


@pytest.mark.parametrize(
    ("nodeid", "cell"),
    [
        ("[hip]", ("", "hip", "")),
        ("[hip-on-rocm-5.7]@kfd-rocm-5.7", ("", "hip-on-rocm-5.7", "")),
        ("[hip-as-7-export-vmm-refused]", ("-export-vmm", "hip-as-7", "refused")),
        ("[True-False-hip-on-rocm-6]@kfd-rocm-6", ("-True-False", "hip-on-rocm-6", "")),
        ("[2097152-hip]", ("-2097152", "hip", "")),
        ("[hip-]", ("", "hip", "")),
        ("[cuda]", None),
        ("", None),
    ],
)
def test_cell_of_a_test(nodeid: str, cell: tuple[str, str, str] | None) -> None:
    found = diff.cell(OF_VMM + nodeid)
    assert found == (cell and ("test_vmm.py::test_anothers_memory" + cell[0], *cell[1:]))


def test_rows_are_compared_within_a_generation_only() -> None:
    outcomes = diff.Outcomes()
    outcomes.rows |= {
        "alike": {"hip-as-5": "skipped", "hip": "passed", "hip-on-rocm-6": "passed"},
        "departs": {"hip": "passed", "hip-on-rocm-6": "departs"},
        "absent": {"hip": "passed", "hip-on-rocm-7": "passed"},
        "simulated only": {"hip": "passed"},
    }
    assert list(outcomes.compared) == ["alike", "departs", "absent"]
    assert list(outcomes.differing()) == ["absent", "departs"]
