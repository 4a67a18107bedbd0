"""Find out which MPI this is and whether it accepts device pointers, without sending a message.

The library is loaded but not initialised: an MPI configured for a GPU that it cannot use aborts in
`MPI_Init`, and an MPI that is not GPU-aware crashes with SIGSEGV in the first send. Instead the check reads
the build options, the control variables and environment, and the capabilities of the UCX or GPU transport
library that the MPI would use.

If a user named the library, failure to load it is an ERROR, and missing support for device pointers a FAIL.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Context, Evidence, Finding, ProbeOutcome, SurveyCheck


class MpiGpuAware(SurveyCheck):
    id = "mpi-gpu-aware"
    title = "the MPI library accepts device pointers"
    subject = None

    def probes(self, ctx: Context) -> Iterable[Finding]:
        if not ctx.devices:
            yield Finding.skip("no-device", "no GPU to test an MPI with")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen, named = done.records["mpi"], done.params["named"]
        if "unavailable" in seen:
            conclude = Finding.error if named else Finding.skip
            yield conclude("no-mpi", "{reason}", remedy=seen["remedy"], reason=seen["unavailable"])
            return
        facts = seen["facts"]
        chosen_by = done.params["chosen_by"]
        evidence = [Evidence.seen("{library} ({chosen_by})", library=facts["library"], chosen_by=chosen_by)]
        if settings := [f"{name}={value}" for name, value in sorted(facts["environment"].items())]:
            evidence.append(Evidence.seen("environment: {settings}", settings=" ".join(settings)))
        for backend, aware in seen["aware"].items():
            which = {"mpi": seen["mpi"], "backend": backend}
            but = ", but not in {lacks}" if aware["lacks"] else ""
            lacks = " or ".join(aware["lacks"])
            if not aware["able"] and backend in done.params["simulated"]:
                says = "{mpi} accepts simulated {backend} memory (host memory); on a real GPU: {why_not}"
                yield Finding.ok("takes-simulated", says, *evidence, why_not=aware["why_not"], **which)
            elif not aware["able"]:
                conclude = Finding.fail if named else Finding.warn
                yield conclude(
                    "not-aware",
                    "{mpi} accepts no {backend} device pointers: {why_not}",
                    *evidence,
                    remedy=aware["remedy"],
                    why_not=aware["why_not"],
                    **which,
                )
            elif aware["via"] == "ucx":
                says = "{mpi} accepts {backend} device pointers, through UCX {ucx}" + but
                ucx = facts["ucx"]["version"]
                yield Finding.ok("aware", says, *evidence, ucx=ucx, lacks=lacks, **which)
            else:
                says = "{mpi} accepts {backend} device pointers, without UCX" + but
                yield Finding.ok("aware", says, *evidence, lacks=lacks, **which)


CHECK = MpiGpuAware()
