"""See which MPI this is and whether it takes device pointers, before anybody hands it one.

The library is loaded, never initialised: an MPI that is told to use a GPU it cannot use ends its process in
`MPI_Init`, and one that is not GPU-aware ends it by SIGSEGV in the first send. What is asked instead is what
the library was built with, what its control variables and the environment tell it, and what the UCX or the
GPU transport library that it would use can do here.

Options: ``library`` (path; without it, what mpi4py finds), ``chosen_by`` (who chose it, in words) and
``named`` (whether a person did, so that one that is missing or takes no device pointers is a failure).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import BackendUnavailable, Check, Context, Finding, Probe, ProbeOutcome, Worker


class MpiGpuAware(Check):
    id = "mpi-gpu-aware"
    title = "the MPI library takes device pointers"

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        backends = list(dict.fromkeys(device.backend for device in ctx.devices))
        if not backends:
            yield Finding.skip("no device whose pointers an MPI could take")
            return
        params = {
            "backends": backends,
            "library": ctx.options.get("library"),
            "chosen_by": ctx.options.get("chosen_by", "mpi4py's own search"),
            "named": ctx.options.get("named", False),
        }
        # Loading a library and all that it links with from a cold network file system takes long.
        yield Probe("", {"mpi": look}, params=params, deadline_s=30.0)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen, named = done.records["mpi"], done.params["named"]
        if "unavailable" in seen:
            conclude = Finding.error if named else Finding.skip
            yield conclude(seen["unavailable"], remedy=seen["remedy"])
            return
        facts = seen["facts"]
        evidence = (f"{facts['library']} ({done.params['chosen_by']})", *told(facts["environment"]))
        for backend, aware in seen["aware"].items():
            if aware["able"]:
                by = f"through UCX {facts['ucx']['version']}" if aware["via"] == "ucx" else "by itself"
                yield Finding.ok(f"{seen['mpi']} takes {backend} device pointers, {by}", *evidence)
                continue
            conclude = Finding.fail if named else Finding.warn
            yield conclude(
                f"{seen['mpi']} takes no {backend} device pointers: {aware['why_not']}",
                *evidence,
                remedy=aware["remedy"],
            )


def told(environment: dict[str, str]) -> list[str]:
    """What the environment says to the library, in one line, if it says anything."""
    settings = [f"{name}={value}" for name, value in sorted(environment.items())]
    return [f"environment: {' '.join(settings)}"] if settings else []


def look(w: Worker) -> None:
    try:
        w.record(**w.mpi_facts(w.params["library"], w.params["backends"]))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy)


CHECK = MpiGpuAware()
