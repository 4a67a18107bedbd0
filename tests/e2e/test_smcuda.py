"""Open MPI 4.1.4 with its own CUDA code, btl/smcuda, which keeps each freed buffer mapped.

`make test-all` builds it in half an hour, too long for CI; without the library, these tests do not exist.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Relation
from tests.e2e.conftest import SMALL_SHARE
from tests.e2e.test_faults import check

LIBRARY = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere"), "openmpi-smcuda", "lib", "libmpi.so.40")

pytestmark = [
    pytest.mark.full,
    pytest.mark.mpi,
    pytest.mark.cuda,
]


if LIBRARY.exists():

    def test_growth_without_a_bound_is_a_failure_with_its_workaround() -> None:
        report, _ = check(
            *("mpi-cache-growth", "--simulate", "healthy-cuda", "--mpi-lib", str(LIBRARY)),
            *("--config", SMALL_SHARE),
        )
        found = {r.probe: r.finding for r in report.results if r.check == "mpi-cache-growth"}
        assert {name: finding.status for name, finding in found.items()} == {
            "growing": Status.FAIL,
            "one size": Status.PASS,
            "IPC off": Status.PASS,
        }
        lines = sentences.evidence(found["growing"])
        assert any(line.startswith("the receiver's process holds ") for line in lines)
        assert any(line.startswith("Tried OMPI_MCA_btl_smcuda_use_cuda_ipc=0: helps") for line in lines)
        confirmed = [join.issue for join in report.joins if join.relation is Relation.CONFIRMED]
        assert confirmed == ["ompi-rgpusm-leak"]
