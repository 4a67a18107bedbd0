"""Start two ranks, initialise MPI and list the GPUs that the launcher shows each rank.

It runs before all checks that send messages, so that an MPI which cannot be initialised is reported once. On
real systems the launcher binds GPUs to ranks, for example one to each rank on Frontier (``srun
--gpus-per-task=1 --gpu-bind=closest``). The other MPI checks are then planned with each rank's own GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Finding, ProbeOutcome, SurveyCheck


class MpiStart(SurveyCheck):
    id = "mpi-start"
    title = "two ranks start, and each rank sees GPUs"
    subject = None
    needs_mpi = True

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        all_labels = [label for label, _ in done.params["gpus"]]
        shown = {rank: record["shown"] for rank, record in done.records.items()}
        evidence = [f"{rank}: {', '.join(labels) or 'no GPU'}" for rank, labels in shown.items()]
        if blind := [rank for rank, labels in shown.items() if not labels]:
            yield Finding.error(
                "shows-no-gpu",
                "the launcher gives {ranks} none of the GPUs to be tested",
                *evidence,
                *(f"{rank}: {why}" for rank in blind for why in done.records[rank]["unavailable"]),
                remedy="set an mpi.launcher in the site config that gives each rank a GPU "
                "(srun --gpus-per-task=1), or all GPUs (srun --gpu-bind=none)",
                ranks=" and ".join(blind),
            )
        elif any(labels != all_labels for labels in shown.values()):
            yield Finding.ok("bound", "two ranks started; the launcher binds GPUs to them", *evidence)
        else:
            yield Finding.ok("started", "two ranks started, each sees {labels}", labels=all_labels)


CHECK = MpiStart()
