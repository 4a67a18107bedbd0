"""Run real jobs with planted faults: the fault, the answer of `gpuipc-doctor job`, and its seconds.

``python -m benchmarks.planted_jobs [KIND…] >> benchmarks/planted_jobs.md`` (GPUIPC_TEST_MPI names the MPI
libraries).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuipc_doctor.job import document
from tests.e2e.test_job import PLANTED_JOBS, job


def main() -> None:
    print("| MPI | planted | ranks | said | blamed | right | seconds | processor seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for library, kind, ranks, cause, blamed in PLANTED_JOBS:
        if kind not in (sys.argv[1:] or [kind]):
            continue
        with (
            tempfile.TemporaryDirectory() as place,
            job(library, kind, ranks, Path(place) / "log") as launcher,
        ):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            command = [sys.executable, "-m", "gpuipc_doctor", "job", "--pid", str(launcher), "--json"]
            ended = subprocess.run(command, capture_output=True, check=False, env=os.environ)
            seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = document.loads(ended.stdout).verdict
        right = {(True, True): "yes", (True, False): "kind only"}.get(
            (said.cause is cause, said.blamed == blamed), f"**no**, is {cause.value}"
        )
        who = ",".join(map(str, said.blamed)) or "-"
        cells = (library, kind, ranks, said.cause.value, who, right, f"{seconds:.1f}", f"{used:.1f}")
        print("|", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
