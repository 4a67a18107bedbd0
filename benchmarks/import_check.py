"""A check for `worker_cost` that only imports modules; in a forked worker they are already imported."""

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Finding, Probe, Worker


class ImportCheck(Check):
    id = "import"
    title = "a worker that does nothing but import"

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        yield Finding.skip("planned-elsewhere", "planned by the benchmark")


def load(w: Worker) -> None:
    from gpuipc_doctor.worker import stem

    stem.load(w.params["imports"])


CHECK = ImportCheck()
