"""The JSON document of a job."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator

from gpuipc_doctor.job import document
from gpuipc_doctor.job.document import Cause, JobReport, Rank, Verdict
from tests import schemas


def test_document_fits_the_shipped_schema() -> None:
    rank = Rank(
        rank=0, host="n1", pid=7, program="a\udcff.out", doing="mpi", operation="MPI_Recv", path=("main",)
    )
    verdict = Verdict(cause=Cause.HOST_LATE, blamed=(1,), waiting=(0,))
    report = JobReport(taken=1.5, seconds=5.0, looks=5, size=None, ranks=(rank,), verdict=verdict)
    schemas.check(document, "job")
    written = json.loads(document.dumps(report))
    Draft202012Validator(schemas.of(document)).validate(written)
    assert (written["schema"], written["ranks"][0]["program"]) == (document.SCHEMA, "a?.out")
