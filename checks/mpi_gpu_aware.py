"""See which MPI this is and whether it takes device pointers, before anybody hands it one.

The library is loaded, never initialised: an MPI that is told to use a GPU it cannot use ends its process in
`MPI_Init`, and one that is not GPU-aware ends it by SIGSEGV in the first send. What is asked instead is what
the library was built with, what its control variables and the environment tell it, and what the UCX or the
GPU transport library that it would use can do here.

Options: ``library`` (path; without it, what mpi4py finds), ``chosen_by`` (who chose it, in words), ``named``
(whether a person did: then one that cannot be loaded is an error, and one that takes no device pointers a
failure), ``environment`` (what ranks have beside the tool's) and ``simulated`` (whether device memory is the
host's, which any takes).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    BackendUnavailable,
    Check,
    Context,
    Evidence,
    Finding,
    Probe,
    ProbeOutcome,
    Worker,
)


class MpiGpuAware(Check):
    id = "mpi-gpu-aware"
    title = "the MPI library takes device pointers"

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        backends = list(dict.fromkeys(device.backend for device in ctx.devices))
        if not backends:
            yield Finding.skip("no-device", "no GPU to test an MPI with")
            return
        params = {
            "backends": backends,
            "library": ctx.options.get("library"),
            "chosen_by": ctx.options.get("chosen_by", "mpi4py's own search"),
            "named": ctx.options.get("named", False),
            "simulated": ctx.options.get("simulated", False),
        }
        # Loading a library and all that it links with from a cold network file system takes long.
        env = ctx.options.get("environment", {})
        yield Probe("", {"mpi": look}, params=params, deadline_s=30.0, env=env)

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
            if not aware["able"] and done.params["simulated"]:
                says = "{mpi} accepts simulated {backend} memory (host memory); on a real GPU: {why_not}"
                yield Finding.ok("takes-simulated", says, *evidence, why_not=aware["why_not"], **which)
            elif not aware["able"]:
                conclude = Finding.fail if named else Finding.warn
                yield conclude(
                    "not-aware",
                    "{mpi} takes no {backend} device pointers: {why_not}",
                    *evidence,
                    remedy=aware["remedy"],
                    why_not=aware["why_not"],
                    **which,
                )
            elif aware["via"] == "ucx":
                says = "{mpi} takes {backend} device pointers, through UCX {ucx}"
                yield Finding.ok("aware", says, *evidence, ucx=facts["ucx"]["version"], **which)
            else:
                says = "{mpi} takes {backend} device pointers, by itself"
                yield Finding.ok("aware", says, *evidence, **which)


def look(w: Worker) -> None:
    try:
        w.record(**w.mpi_facts(w.params["library"], w.params["backends"]))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy)


CHECK = MpiGpuAware()
