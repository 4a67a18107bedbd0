"""Each fault below AMD's runtime is found, with its call and role, or documented as not found."""

from __future__ import annotations

import json
import os

import pytest

from tests.kfd import emulated
from tests.kfd.faults import FAULTS, TABLE, Fault, Found, results, table

IN_EVERY_RUN = {"import-refused"}
"""Wrong data, page faults and others take three times as long."""

CASES = [
    pytest.param(
        runtime,
        fault,
        id=f"{runtime.name}-{fault.name}",
        marks=[
            pytest.mark.kfd,
            pytest.mark.hip,
            pytest.mark.xdist_group(f"kfd-{runtime.name}"),
            *([] if fault.name in IN_EVERY_RUN else [pytest.mark.full]),
        ],
    )
    for runtime in emulated.chosen_runtimes()
    for fault in FAULTS
    if runtime.generation in fault.settings
]


@pytest.mark.parametrize(("runtime", "fault"), CASES)
def test_fault_below_the_runtime_is_found(runtime: emulated.Runtime, fault: Fault) -> None:
    found = results(runtime, fault)
    expected = fault.expected[runtime.generation]
    said = [
        (result["finding"]["status"], result["finding"]["key"], result["finding"]["summary"])
        for result in found
    ]
    if isinstance(expected, Found):
        places = [
            place
            for place, (status, key, summary) in enumerate(said)
            if (status, key) == (expected.status, expected.key) and expected.says in summary
        ]
        assert places, said
        assert expected.prints in json.dumps(found[places[0]])
    else:  # and there is no other finding
        assert {status for status, _, _ in said} <= {"PASS"}, said


def test_table_is_drawn_from_the_faults() -> None:
    if os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        TABLE.write_text(table())
    assert TABLE.read_text() == table()
