"""Find stuck jobs by their GPUs, in short calls of a timer: only a GPU that looks stuck costs an examination.

A GPU looks stuck if it is busy and draws little power, as while a collective's kernel waits for another rank,
or if it is idle after its processes used it. So may the GPU of a healthy job: the examination decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.files.node_files import Tree, gpus_on_bus
from gpuipc_doctor.job.sweep_state import MAX_USERS, Store, Unusable, Watch, opened
from gpuipc_doctor.model import Exit
from gpuipc_doctor.node import gpu_loads
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.stacks.process_list import read_line
from gpuipc_doctor.vendors import SUPPORTED

if TYPE_CHECKING:
    from gpuipc_doctor.job.document import JobReport
    from gpuipc_doctor.node.memory_usage import GpuUse
    from gpuipc_doctor.site.policy import SweepConfig

FEWEST_CALLS = 3
"""Number of calls in a row in which a GPU must look stuck."""

EXAMINE_S = 20.0
"""Seconds of a call after which it begins no further examination; one takes 5 to 20 s, and Slurm ends a
HealthCheckProgram after 60 s."""

MPS = "nvidia-cuda-mps"
"""Name of MPS's daemon and server, which are of no job, as the kernel cuts it."""


FOR_EVENTS = frozenset({"do_epoll_wait", "ep_poll", "do_sys_poll", "do_poll", "do_select"})
"""The kernel's functions in which event loops sleep."""


class Sweep(NamedTuple):
    """``examine``: the reports of the jobs of these processes; raises `NoSuchJob`. ``late_after_s``: see
    `progress.with_second_look`."""

    config: SweepConfig
    late_after_s: float
    examine: Callable[[tuple[int, ...]], list[JobReport]]
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)

    def run(self) -> tuple[Exit, str]:
        """Compare the GPUs with the earlier calls and examine jobs that look stuck: exit code and line."""
        try:
            with opened(Path(self.config.state_dir)) as store:
                return self._run(store)
        except (Unusable, gpu_loads.NotRead, OSError) as reason:  # OSError: no process, no file can be made
            return Exit.ERROR, f"ERROR cannot tell: {'; '.join([str(reason), *_unread()])}"

    def _run(self, store: Store) -> tuple[Exit, str]:
        boot, now = Tree.of_machine().line("/proc/sys/kernel/random/boot_id"), self.clock()
        troubles, before = list(_unread()), dict[str, Watch]()
        try:
            before = store.read(boot)
        except Unusable as reason:
            troubles.append(f"{reason}; begun anew")
        seen = gpu_loads.read()
        troubles += [f"{gpu.label}: {gpu.trouble}" for gpu in seen if gpu.trouble]
        gpus = {gpu.pci: gpu for gpu in seen if not gpu.trouble}
        watches = {pci: self._watch(gpu, before.get(pci, Watch()), now) for pci, gpu in gpus.items()}
        for pci in before.keys() - gpus.keys():
            if len(gpus) < len(seen):  # it may be one that cannot be read now
                watches[pci] = before[pci]
            else:
                troubles.append(f"GPU {pci} was listed in the last call and is not now: see dmesg")
        store.write(boot, watches)
        tried = set[str]()
        while due := [pci for pci in gpus if pci not in tried and self._is_due(watches[pci], now)]:
            if self.clock() - now > EXAMINE_S:
                break
            tried.add(pci := due[0])
            watches[pci] = replace(watches[pci], again=now + self.config.over_s, healthy_watts=0.0)
            store.write(boot, watches)  # first: should this be killed, the next call is not as long
            found = self._examined(gpus[pci], watches[pci], store, now)
            for other, gpu in gpus.items():
                watch = watches[other]
                if other != pci and {*found.users}.isdisjoint(watch.users):
                    continue  # it is another job's
                watches[other] = watch = replace(
                    watch, again=found.again, healthy_watts=0.0, code=found.code, line=found.line,
                    report=found.report, examined=now,
                )  # fmt: skip
                if found.code is Exit.OK:  # it has to look stuck anew
                    watts = gpu.watts or 0.0 if gpu.busy else 0.0
                    watches[other] = replace(watch, kind="", healthy_watts=watts)
            with suppress(Unusable):  # what was found is reported
                store.write(boot, watches)
        return self._answer(gpus.values(), watches, troubles, now)

    def _watch(self, gpu: GpuUse, watch: Watch, now: float) -> Watch:
        """What was seen of a GPU, with this call. One with other processes begins anew."""
        users = tuple(_users(gpu))
        if watch.since > now or (watch.users != users and {*watch.users}.isdisjoint(users)):
            watch = Watch()
        is_at_work = gpu.busy is not None and gpu.busy > self.config.idle_percent
        watts = gpu.watts or 0.0 if is_at_work else 0.0
        watch = replace(
            watch, users=users, worked=watch.worked or is_at_work, most_watts=max(watch.most_watts, watts)
        )
        kind = self._kind(gpu, watch, now)
        if not kind or kind != watch.kind:
            watch = replace(watch, kind=kind, since=now, calls=0, code=Exit.OK, line="", report="")
        return replace(watch, calls=watch.calls + 1)

    def _kind(self, gpu: GpuUse, watch: Watch, now: float) -> str:
        """How a GPU looks stuck; see `Watch`. Usual power is what it drew while its job was healthy, else the
        driver's limit, else the most that it drew for these processes."""
        if gpu.busy is None:
            return "blind" if watch.users else ""
        if gpu.busy <= self.config.idle_percent:
            return "idle" if watch.worked and watch.users else ""
        if gpu.busy < self.config.busy_percent:
            return ""
        if gpu.watts is None:
            return "blind"
        usual = (watch.healthy_watts if now < watch.again else 0.0) or gpu.limit or watch.most_watts
        return "busy" if gpu.watts < self.config.power_share * usual else ""

    def _is_long(self, watch: Watch, now: float) -> bool:
        """Whether a GPU has looked stuck for long enough, and in enough calls."""
        is_over = now - watch.since >= self.config.over_s
        return bool(watch.kind) and watch.calls >= FEWEST_CALLS and is_over

    def _is_due(self, watch: Watch, now: float) -> bool:
        """Whether to examine a GPU's job. A healthy one is before its time if it draws much less."""
        is_changed = watch.kind == "busy" and watch.healthy_watts > 0
        can_tell = bool(watch.users) and watch.kind != "blind"
        return can_tell and self._is_long(watch, now) and (now >= watch.again or is_changed)

    def _examined(self, gpu: GpuUse, watch: Watch, store: Store, now: float) -> Watch:
        """The result for the job, or with MPS the jobs, of a GPU: processes, when to look again, code,
        line and report."""
        from gpuipc_doctor.job.job_content import sentence
        from gpuipc_doctor.job.progress import with_second_look
        from gpuipc_doctor.job.selection import NoSuchJob

        found = Watch(again=now + self.config.again_s)
        try:
            reports = self.examine(tuple(int(user.partition(".")[0]) for user in watch.users))
        except NoSuchJob as reason:
            if {*watch.users}.isdisjoint(_users(gpu)):  # they have ended meanwhile
                return found
            again = now + self.late_after_s
            return replace(found, again=again, code=Exit.ERROR, line=f"{_shown(gpu)}; {reason}")
        ranks = [rank for report in reports for rank in report.ranks]
        found = replace(found, users=tuple(f"{rank.pid}.{rank.started}" for rank in ranks))
        for report in reports:
            if len(reports) == 1 and watch.report and (earlier := store.earlier(watch.report)):
                taken = report.taken - (now - watch.examined)  # the clock may have been set
                report = with_second_look(replace(earlier, taken=taken), report, self.late_after_s)
            if (code := _code(report, watch.kind)) <= found.code:
                continue
            blamed = [str(rank.pid) for rank in report.ranks if rank.rank in report.verdict.blamed]
            pid = (blamed or watch.users)[0].partition(".")[0]
            try:
                kept = store.keep(report)
                evidence = f"see {store.directory / kept}"
            except Unusable as reason:
                kept, evidence = "", str(reason)
            minutes = f"{(now - watch.since) / 60:.0f} min"
            line = f"{sentence(report)} (pid {pid}); {_shown(gpu)} for {minutes}; {evidence}"
            again = now + (self.late_after_s if code is Exit.ERROR else self.config.again_s)
            found = replace(found, again=again, code=code, line=line, report=kept)
        return found

    def _answer(
        self, gpus: Iterable[GpuUse], watches: Mapping[str, Watch], troubles: list[str], now: float
    ) -> tuple[Exit, str]:
        """The exit code, and the first of the worst results with the number of others."""
        lines, in_use = {Exit.FAIL: list[str](), Exit.ERROR: troubles}, 0
        for gpu in gpus:
            watch = watches[gpu.pci]
            in_use += bool(watch.users)
            if watch.code:
                lines.setdefault(watch.code, []).append(watch.line)
            elif self._is_long(watch, now) and watch.kind == "blind":
                lines[Exit.ERROR].append(f"{_shown(gpu)}; the driver reports no more (MIG, vGPU)")
            elif self._is_long(watch, now) and not watch.users:
                lines[Exit.ERROR].append(f"{_shown(gpu)}; its processes are not listed; run this on the host")
        for code, word in ((Exit.FAIL, "FAIL "), (Exit.ERROR, "ERROR cannot tell: ")):
            if found := list(dict.fromkeys(lines[code])):
                more = f" (and {len(found) - 1} more)" if found[1:] else ""
                return code, f"{word}{found[0]}{more}"
        return Exit.OK, f"OK nothing is stuck; {counted(len(watches), 'GPU')}, {in_use} in use"


def _code(report: JobReport, kind: str) -> Exit:
    """The exit code for a job. Ranks that all sleep beside idle GPUs, in no call that waits, are an idle
    server or notebook. A late rank that waits for events may be a server's, which awaits a request."""
    from gpuipc_doctor.job.document import Cause
    from gpuipc_doctor.job.waits import Kind

    verdict = report.verdict
    is_asleep = kind == "idle" and {rank.doing for rank in report.ranks} == {Kind.SLEEPS.value}
    if verdict.cause is Cause.RUNS or (verdict.cause.is_open and is_asleep and not verdict.blamed):
        return Exit.OK
    blamed = [rank for rank in report.ranks if rank.rank in verdict.blamed]
    may_serve = verdict.cause is Cause.HOST_LATE and all({*rank.path[-1:]} <= FOR_EVENTS for rank in blamed)
    return Exit.ERROR if verdict.cause.is_open or may_serve else Exit.FAIL


def _users(gpu: GpuUse) -> Iterator[str]:
    """The processes of a GPU, as in `Watch`; 0 is the start of those that cannot be seen here."""
    for process in (gpu.processes or ())[:MAX_USERS]:
        start = "0"
        with suppress(OSError, IndexError):
            start = read_line(process.pid, "stat").rpartition(")")[2].split()[19]
        if process.name != MPS:
            yield f"{process.pid}.{start}"


def _unread() -> Iterator[str]:
    for vendor in SUPPORTED.values():
        if not vendor.manages and gpus_on_bus(Path("/"), vendor.pci):
            yield f"utilisation and power of {vendor.name}'s GPUs are not read"


def _shown(gpu: GpuUse) -> str:
    use = "use unknown" if gpu.busy is None else f"{gpu.busy} %"
    watts = "power unknown" if gpu.watts is None else f"{gpu.watts:.0f} W"
    of = f" of {gpu.limit:.0f} W" if gpu.limit and gpu.watts is not None else ""
    return f"{gpu.label}: {use}, {watts}{of}"
