"""Which probes share a tour, and what becomes of a visit that does not pass."""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Check, Context, Device, Finding, Probe, ProbeOutcome, loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import DriverFault, Fact, Status, Tier
from gpuipc_doctor.probe_types import Ending, Launch, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run import check_files, conclusions
from gpuipc_doctor.run.conclusions import Doubt, Ended, NotRun
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.results import ResultLog
from gpuipc_doctor.run.schedule import Schedule
from gpuipc_doctor.run.tours import Tour, Tours, can_share
from gpuipc_doctor.supervise.launched_tour import NotTogether
from tests.checks.judging import gpu
from tests.unit.run.test_schedule import Still
from tests.waiting import LIMIT_S

FILE = loader.built_in()["ipc-stale"]
GPUS = [gpu(number) for number in range(4)]
NUMBERS = itertools.count(1)


class Reads(Check):
    id = title = "reads"

    def probes(self, ctx: Context) -> list[Probe]:
        return []

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong = done.records["exporter"].get("wrong")
        yield Finding.fail("wrong-data", "wrong data") if wrong else Finding.ok("right", "read")


class Other(Reads):
    id = title = "other"


def role(w: Any) -> None: ...


def planned(*devices: Device, check: Check | None = None, **probe: Any) -> PlannedProbe:
    roles = probe.pop("roles", {"exporter": role, "importer": role})
    return PlannedProbe(next(NUMBERS), check or Reads(), FILE, Probe("", roles, devices, **probe))


def subjects(tours: Iterable[Tour]) -> list[list[str]]:
    return [[each.probe.subject for each in tour.visits] for tour in tours]


# -- which share one --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "needs",
    [
        {"ends": frozenset({"exporter", "importer"})},
        {"starters": frozenset({"exporter"})},
        {"launch": Launch(("mpiexec",), nodes=2)},
        {"launch": Launch(("mpiexec",), shows=(frozenset({"cuda:0"}), frozenset({"cuda:1"})))},
        {"launch": Launch(("mpiexec",)), "exclusive": True},
        {"launch": Launch(("mpiexec",)), "roles": {"rank 0": role, "rank 1": role, "rank 2": role}},
        {"together": True},
    ],
)
def test_probe_that_needs_processes_of_its_own_runs_alone(needs: dict[str, Any]) -> None:
    assert can_share(planned(GPUS[0]))
    assert not can_share(planned(GPUS[0], **needs))


def test_probes_with_other_roles_queues_environment_or_vendor_do_not_share() -> None:
    other = replace(GPUS[0], backend="hip")
    probes = [
        planned(GPUS[0]),
        planned(GPUS[1]),
        planned(GPUS[0], roles={"exporter": role}),
        planned(GPUS[0], concurrent=frozenset({"importer"})),
        planned(GPUS[0], env={"A": "1"}),
        planned(GPUS[0], exclusive=True),
        planned(other),
    ]
    items = Tours().plan(probes, 4)
    assert subjects(items) == [["cuda:0", "cuda:1"], *[["cuda:0"]] * 4, ["hip:0"]]


def test_pairs_of_ranks_share_a_launch_within_a_check() -> None:
    def ranks(*devices: Device, check: Check | None = None) -> PlannedProbe:
        roles = {"rank 0": role, "rank 1": role}
        return planned(*devices, check=check, roles=roles, launch=Launch(("mpiexec",)))

    devices = [*((device,) for device in GPUS), *itertools.combinations(GPUS, 2)]
    items = Tours(seed=1).plan([*(ranks(*each) for each in devices), ranks(GPUS[0], check=Other())], 4)
    alone, together, other = subjects(items)
    assert (len(alone), len(together), len(other)) == (1, 9, 1)
    assert together[0] == "cuda:1"
    assert ">" in alone[0]  # a pair of two devices, as two ranks alone have them
    assert len(Tours().plan([ranks(GPUS[0]), ranks(GPUS[1])], 4)) == 2  # too few to pay


def test_pairs_of_two_devices_are_divided_although_one_device_exports() -> None:
    both = [(GPUS[0],), (GPUS[0], GPUS[1]), (GPUS[1],)]
    checks = [Reads(), Reads(), Other(), Other()]
    probes = [planned(*devices, check=check) for check in checks for devices in both]
    last = [planned(*devices, ends=frozenset({"exporter"})) for devices in both]
    shares = subjects(Tours().plan([*probes, *last], 4))
    assert [len(share) for share in shares] == [8, 7]
    assert "cuda:0 > cuda:1" in shares[0]
    assert "cuda:0 > cuda:1" in shares[1]
    for tour in Tours().plan([*probes, *last], 4):
        order = [(bool(visit.probe.ends), visit.check.id) for visit in tour.visits]
        assert order == sorted(order, key=lambda one: (one[0], ["reads", "other"].index(one[1])))
    beyond = [*(planned(GPUS[place // 2]) for place in range(4)), *(planned(*GPUS[1:3]) for _ in range(8))]
    assert [len(share) for share in subjects(Tours().plan(beyond, 4))] == [2, 10]  # cuda:2 exports nothing


@pytest.mark.parametrize(("jobs", "shares"), [(1, [16]), (2, [7, 7, 2]), (4, [3, 3, 3, 3, 1, 1, 1, 1])])
def test_exclusive_tours_of_neighbouring_devices_can_run_beside_each_other(
    jobs: int, shares: list[int]
) -> None:
    gpus = [gpu(number) for number in range(8)]
    ring = [*zip(gpus, [*gpus[1:], gpus[0]], strict=True)]
    probes = [planned(*devices, exclusive=True) for devices in [*((device,) for device in gpus), *ring]]
    tours = Tours().plan(probes, jobs)
    assert list(map(len, subjects(tours))) == shares
    first, second, *_ = [set(tour.probe.devices) for tour in tours] if jobs > 1 else (set(), set())
    assert first.isdisjoint(second)


@pytest.mark.parametrize("exclusive", [True, False])
def test_visits_with_one_array_library_follow_each_other(exclusive: bool) -> None:
    """Exclusive ones share the partner's process, too; others run beside each other."""
    libraries = ("PyTorch", "CuPy", "CuPy")
    probes = [
        planned(GPUS[0], check=check, exclusive=exclusive, library=each)
        for check in (Reads(), Other())
        for each in libraries
    ]
    items = [*Tours().plan([*probes, planned(GPUS[0], exclusive=exclusive)], 4)]
    visits = [
        [(each.probe.library, each.check.id) for each in item.visits]
        for item in items
        if len(item.visits) > 1
    ]
    cupy = [("CuPy", "reads")] * 2 + [("CuPy", "other")] * 2
    torch = [("PyTorch", "reads"), ("PyTorch", "other")]
    assert visits == ([[*cupy, *torch]] if exclusive else [torch, cupy])
    assert list(map(initialisations, items)) == ([3, 2] if exclusive else [2, 2, 2])


def all_checks(count: int) -> list[PlannedProbe]:
    """The plan of all checks for a healthy node with CuPy and PyTorch, without surveys, MPI and NCCL."""
    checks = [
        item
        for item in check_files.load(())
        if isinstance(item, LoadedCheck)
        and item.check.tier <= Tier.ACCEPTANCE
        and item.check.id != surveys.DRIVERS
        and not (item.check.needs_mpi or item.check.uses_fabric or item.check.uses_collectives)
    ]
    capabilities = frozenset(itertools.chain.from_iterable(item.check.requires for item in checks))
    gpus = [replace(gpu(number), capabilities=capabilities) for number in range(count)]
    labels = frozenset(each.label for each in gpus)
    devices = tuple(replace(each, peers=labels - {each.label}) for each in gpus)
    context = Context(devices, tuple(Fact(name, "1", "/") for name in ("cupy", "pytorch")))
    asked = [(item, probe) for item in checks for probe in item.check.probes(context)]
    return [
        PlannedProbe(number, item.check, item.file, probe)
        for number, (item, probe) in enumerate(asked)
        if isinstance(probe, Probe) and probe.devices
    ]


@pytest.mark.parametrize(("count", "most"), [(1, 28), (2, 45), (4, 81), (8, 107)])
def test_initialisations_of_all_checks(count: int, most: int) -> None:
    """Without the 12 processes of ipc-histories. Alone, the probes need 71, 140, 356 and 816."""
    assert sum(map(initialisations, Tours().plan(all_checks(count), 4))) <= most


def initialisations(tour: Tour) -> int:
    """Number of processes that initialise a driver if all visits pass."""
    visits, first = tour.visits, tour.visits[0].probe
    roles = [role for role in first.roles if role not in first.starters and "spare" not in role]
    again = [a.probe.parts_from(b.probe) for a, b in itertools.pairwise(visits)]
    return len(roles) + sum(role in ends for role in roles for ends in again)


def test_isolated_probes_share_nothing() -> None:
    probes = [planned(device) for device in GPUS]
    assert subjects(Tours(isolate=True).plan(probes, 4)) == [[device.label] for device in GPUS]


# -- what becomes of a visit that does not pass -----------------------------------------------------------


def outcome(planned: PlannedProbe, how: str) -> ProbeOutcome:
    """An outcome: ``right``, ``wrong`` data, or the importer ``hung``, ``crashed``, is ``unkillable``, or a
    call ``failed``."""
    probe = planned.probe
    endings = {
        "hung": Ending.HUNG,
        "crashed": Ending.CRASHED,
        "unkillable": Ending.UNKILLABLE,
        "failed": Ending.DRIVER_ERROR,
        "no start": Ending.HUNG,
        "cut": Ending.STOPPED,
    }
    ending = endings.get(how)
    call = "cuInit" if how in ("no start", "cut") else "cuIpcOpenMemHandle"
    roles = {"exporter": RoleOutcome("exporter", Ending.COMPLETED, records={"wrong": how == "wrong"})}
    if ending:
        fault = DriverFault("cuIpcOpenMemHandle", 400, "E") if how == "failed" else None
        roles["importer"] = RoleOutcome("importer", ending, operation=call, signal="SIGSEGV", fault=fault)
    blamed, stopped = "importer" if ending else None, "budget" if how == "cut" else ""
    return ProbeOutcome(probe.name, probe.devices, {}, roles, blamed, 0.0, 1.0, "logs", stopped)


class Node:
    """A session whose probes end as ``ends(planned, before)`` says; ``before`` are the visits before it."""

    def __init__(
        self, probes: Sequence[PlannedProbe], ends: Callable[[PlannedProbe, list[PlannedProbe]], str]
    ) -> None:
        self._planned = {id(each.probe): each for each in probes}
        self._ends = ends
        self.unkillable = ""
        self.ran: list[list[str]] = []

    def expect(self, imports: Iterable[str]) -> None: ...
    def has_imported(self, imports: Iterable[str]) -> bool:
        return True

    def run(self, check: str, file: Path, probe: Probe, **_: Any) -> ProbeOutcome:
        item = self._planned[id(probe)]
        self.ran.append([probe.subject])
        return self._outcome(item, [])

    def tour(
        self, visits: Sequence[tuple[str, Path, Probe]], *, goes_on: Callable[[ProbeOutcome], bool], **_: Any
    ) -> ProbeOutcome:
        made: list[PlannedProbe] = []
        self.ran.append([probe.subject for _, _, probe in visits])
        for _, _, probe in visits:
            item = self._planned[id(probe)]
            ended = self._outcome(item, made)
            made.append(item)
            if not ended.completed or len(made) == len(visits) or not goes_on(ended):
                return ended
        raise AssertionError("a tour has visits")

    def _outcome(self, item: PlannedProbe, before: list[PlannedProbe]) -> ProbeOutcome:
        how = self._ends(item, before)
        if how == "unkillable":
            self.unkillable = "pid 7"
        return outcome(item, how)


def scheduled(node: Any) -> Schedule:
    """A schedule of tours, on devices that are always idle."""
    schedule = Schedule(node, Silent(), time.monotonic() + LIMIT_S, Tours())
    schedule._quiet = Still()  # type: ignore[assignment]
    return schedule


def run(
    ends: Callable[[PlannedProbe, list[PlannedProbe]], str],
    probes: Sequence[PlannedProbe] = (),
    jobs: int = 1,
) -> tuple[dict[str, tuple[Status, tuple[str, ...]]], list[list[str]]]:
    """Subject → (status, evidence) of its finding; and the subjects that ran together."""
    probes = probes or [planned(device) for device in GPUS]
    node: Any = Node(probes, ends)
    found: dict[str, tuple[Status, tuple[str, ...]]] = {}
    schedule = scheduled(node)

    def take(item: PlannedProbe, ended: Ended | Doubt) -> list[PlannedProbe]:
        assert item.probe.subject not in found, "one result for each probe"
        if isinstance(ended, NotRun):
            findings = [ended.finding]
        elif isinstance(ended, Doubt):
            findings = conclusions.of_doubt(item, ended)
        else:
            findings = conclusions.conclude(item, ended)
        found[item.probe.subject] = (findings[0].status, sentences.evidence(findings[0]))
        return []

    schedule.run(probes, jobs, take)
    assert len(found) == len(probes)
    return found, node.ran


@pytest.mark.parametrize("how", ["wrong", "hung", "crashed", "failed"])
def test_visit_that_fails_is_repeated_alone_and_the_others_pass(how: str) -> None:
    """One bad device of four, also for a visit in the middle of a tour."""
    found, ran = run(lambda item, before: how if item.probe.devices == (GPUS[1],) else "right")
    assert {subject: status for subject, (status, _) in found.items()} == {
        "cuda:0": Status.PASS,
        "cuda:1": Status.FAIL,
        "cuda:2": Status.PASS,
        "cuda:3": Status.PASS,
    }
    assert ran == [["cuda:0", "cuda:1", "cuda:2", "cuda:3"], ["cuda:1"], ["cuda:2", "cuda:3"]]
    assert found["cuda:1"][1] == ()


@pytest.mark.parametrize("how", ["wrong", "hung", "failed"])
def test_failure_that_needs_the_visits_before_it_is_a_fail_with_its_history(how: str) -> None:
    found, ran = run(lambda item, before: how if len(before) == 2 else "right")
    status, evidence = found["cuda:2"]
    assert status is Status.FAIL
    assert evidence[-1] == "in the same processes before: reads on cuda:0, reads on cuda:1"
    assert ran.count([device.label for device in GPUS]) == 2  # so the processes see the same GPUs again
    assert [found[f"cuda:{number}"][0] for number in (0, 1, 3)] == [Status.PASS] * 3


def test_failure_that_comes_once_in_company_is_a_warning() -> None:
    failed: list[PlannedProbe] = []

    def ends(item: PlannedProbe, before: list[PlannedProbe]) -> str:
        if len(before) == 2 and not failed:
            failed.append(item)
            return "crashed"
        return "right"

    found, ran = run(ends)
    status, evidence = found["cuda:2"]
    assert status is Status.WARN
    assert "SIGSEGV" in evidence[0]
    assert ran.count([device.label for device in GPUS]) == 2


def test_first_visit_of_a_tour_that_passes_alone_is_repeated_beside_the_same_gpus() -> None:
    """It was a PASS, as if nothing had been seen."""
    failed: list[PlannedProbe] = []

    def ends(item: PlannedProbe, before: list[PlannedProbe]) -> str:
        if item.probe.devices == (GPUS[0],) and not failed:
            failed.append(item)
            return "failed"
        return "right"

    found, ran = run(ends)
    status, evidence = found["cuda:0"]
    assert status is Status.WARN
    assert evidence[-1] == "in processes that see cuda:0, cuda:1, cuda:2, cuda:3"
    assert ran.count(["cuda:0"]) == 1


@pytest.mark.parametrize("how", ["wrong", "hung", "failed"])
def test_first_visit_of_a_tour_of_one_device_counts_as_if_alone(how: str) -> None:
    probes = [planned(GPUS[0], check=Reads()), planned(GPUS[0], check=Other()), planned(GPUS[0])]
    node: Any = Node(probes, lambda item, before: "right" if before else how)
    schedule = scheduled(node)
    taken: list[Ended | Doubt] = []
    schedule.run(probes, 1, lambda item, ended: taken.append(ended) or [])  # type: ignore[func-returns-value]
    assert [len(group) for group in node.ran] == ([3, 2] if how == "hung" else [3, 2, 1])
    assert not any(isinstance(ended, Doubt) for ended in taken)
    if how == "hung":  # twice in one call: the device's last probe is left out, as with --isolate
        assert isinstance(taken[-1], NotRun)


def test_after_two_like_failures_the_rest_runs_alone() -> None:
    _, ran = run(lambda item, before: "failed")
    together = [group for group in ran if len(group) > 1]
    assert [len(group) for group in together] == [4, 3]
    assert [group for group in ran if len(group) == 1] == [[f"cuda:{number}"] for number in range(4)]


def test_no_workaround_is_tried_for_a_failure_in_company() -> None:
    """Alone the probe passes with any workaround, so each would seem to help."""
    log, item = ResultLog(), planned(GPUS[0])
    log.announce(CheckInfo("reads", "reads", Tier.ACCEPTANCE))
    log.keep(item, outcome(item, "failed"), [Finding.fail("bad", "bad")], in_company=True)
    assert log.failures() == []
    assert [result.finding.status for result in log.results()] == [Status.FAIL]


def test_unkillable_process_is_blamed_and_the_passes_before_it_stay() -> None:
    found, ran = run(lambda item, before: "unkillable" if item.probe.devices == (GPUS[2],) else "right")
    statuses = [found[device.label][0] for device in GPUS]
    assert statuses == [Status.PASS, Status.PASS, Status.FAIL, Status.SKIP]
    assert len(ran) == 1


NOT_ALONE = "not confirmed: the probe was not repeated alone: "
NOT_IN_COMPANY = "not confirmed: the probe passes alone; it could not be repeated after the same probes: "


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("given-up", f"{NOT_ALONE}cuCtxCreate already hung 2 times on cuda:2"),
        ("beside-unkillable", f"{NOT_ALONE}a process that cannot be killed is still running: pid 7"),
        ("not-run", f"{NOT_ALONE}the probe could not be run: no process"),
        ("interrupted", f"{NOT_ALONE}interrupted before this probe ran"),
        ("budget", f"{NOT_ALONE}time budget exhausted; run `gpuipc-doctor check reads --budget "),
        ("before", f"{NOT_IN_COMPANY}importer: cuIpcOpenMemHandle #0 ended"),
        ("given-up later", f"{NOT_IN_COMPANY}cuCtxCreate already hung 2 times on cuda:2"),
    ],
)
def test_failure_that_is_not_repeated_says_why(why: str, says: str) -> None:
    """It said that the run had ended, whatever the reason."""
    seen: list[str] = []

    def ends(item: PlannedProbe, before: list[PlannedProbe]) -> str:
        label = item.probe.devices[0].label
        if why == "before" and label == "cuda:1" and before and "alone" in seen:
            return "crashed"
        if label == "cuda:2" and not before:
            seen.append("alone")
            if why == "given-up later":
                schedule._hangs.update({("cuda:2", "cuCtxCreate"): 2})
            if why == "not-run":
                raise OSError(errno.EAGAIN, "no process")
        if label == "cuda:2" and before:
            schedule._hangs.update({("cuda:2", "cuCtxCreate"): 2} if why == "given-up" else {})
            node.unkillable = "pid 7" if why == "beside-unkillable" else ""
            schedule.interrupted = why == "interrupted"
            if why == "budget":
                schedule._reason_not_to_run = lambda item, _: ask(item, 0.0)  # type: ignore[method-assign]
            return "wrong"
        return "right"

    probes = [planned(device) for device in GPUS]
    node: Any = Node(probes, ends)
    schedule = scheduled(node)
    ask = schedule._reason_not_to_run
    taken: dict[int, Ended | Doubt] = {}
    schedule.run(probes, 1, lambda item, ended: taken.update({item.number: ended}) or [])  # type: ignore[func-returns-value]
    doubt = taken[probes[2].number]
    assert isinstance(doubt, Doubt)
    (found,) = conclusions.of_doubt(probes[2], doubt)
    assert (found.status, found.key) == (Status.FAIL, "wrong-data")
    assert sentences.evidence(found)[0].startswith(says)


# -- starts that fail -------------------------------------------------------------------------------------


def start(
    ends: Callable[[list[str], list[list[str]]], str], probes: Sequence[PlannedProbe] = ()
) -> dict[str, Status]:
    """Subject → status, if processes that see these subjects start as ``ends(subjects, ran before)`` says.
    After ``cut`` the budget is over."""
    ran: list[list[str]] = []
    probes = probes or [planned(device) for device in GPUS]

    class Starting(Node):
        def run(self, check: str, file: Path, probe: Probe, **_: Any) -> ProbeOutcome:
            return self._start([probe.subject], probe)

        def tour(self, visits: Sequence[tuple[str, Path, Probe]], **more: Any) -> ProbeOutcome:
            ended = self._start([probe.subject for _, _, probe in visits], visits[0][2])
            return super().tour(visits, **more) if ended.completed else ended

        def _start(self, seen: list[str], probe: Probe) -> ProbeOutcome:
            how = ends(seen, ran)
            ran.append(seen)
            if how == "cut":
                schedule.until, schedule._reason_to_end = 0.0, lambda *_: over  # type: ignore[method-assign]
            return outcome_of(probe, how)

    over = NotRun(Finding.skip("budget", "no time"), "budget")
    found: dict[str, Status] = {}
    node: Any = Starting(probes, lambda item, before: "right")
    schedule = scheduled(node)

    def take(item: PlannedProbe, ended: Ended | Doubt) -> list[PlannedProbe]:
        if isinstance(ended, NotRun):
            found[item.probe.subject] = ended.finding.status
        elif isinstance(ended, Doubt):
            found[item.probe.subject] = conclusions.of_doubt(item, ended)[0].status
        else:
            found[item.probe.subject] = conclusions.worst(item, ended)
        return []

    schedule.run(probes, 4, take)
    return found


def outcome_of(probe: Probe, how: str) -> ProbeOutcome:
    return outcome(PlannedProbe(0, Reads(), FILE, probe), how)


TOGETHER = [device.label for device in GPUS]
PASSES = dict.fromkeys(TOGETHER, Status.PASS)


def test_failed_start_is_charged_to_the_gpu_that_also_fails_alone() -> None:
    found = start(lambda seen, _: "no start" if "cuda:2" in seen else "right")
    assert found == {**PASSES, "cuda:2": Status.FAIL}


@pytest.mark.parametrize(
    ("again", "status"), [("no start", Status.FAIL), ("right", Status.WARN), ("cut", Status.FAIL)]
)
def test_start_that_fails_in_company_only_is_repeated_there(again: str, status: Status) -> None:
    def ends(seen: list[str], ran: list[list[str]]) -> str:
        return ("no start" if not ran else again) if seen == TOGETHER else "right"

    assert start(ends) == dict.fromkeys(TOGETHER, status)


def test_start_that_the_budget_cut_is_no_failure() -> None:
    assert start(lambda seen, ran: "cut") == dict.fromkeys(TOGETHER, Status.ERROR)


def test_gpu_that_waited_behind_another_is_cleared() -> None:
    """At first cuda:1 hangs, too; then it starts just after another GPU has answered."""

    def ends(seen: list[str], ran: list[list[str]]) -> str:
        is_free = len(ran) > len(GPUS) and ran[-1] in (["cuda:2"], ["cuda:3"])
        return "no start" if "cuda:0" in seen or ("cuda:1" in seen and not is_free) else "right"

    assert start(ends) == {**PASSES, "cuda:0": Status.FAIL}


def test_hang_is_not_lost_when_its_repetition_is_stopped() -> None:
    seen: list[str] = []

    def ends(item: PlannedProbe, before: list[PlannedProbe]) -> str:
        if item.probe.devices != (GPUS[1],):
            return "right"
        seen.append("")
        return "hung" if len(seen) == 1 else "cut"

    found, _ = run(ends)
    assert found["cuda:1"][0] is Status.FAIL
    assert found["cuda:1"][1][0].startswith(
        "not confirmed: the probe was not repeated alone: importer: cuInit"
    )


class Skips(Reads):
    id = title = "skips"

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        yield Finding.skip("not-permitted", "no channel")


def test_skip_is_repeated_alone_once_and_then_believed() -> None:
    """Without this, ipc-fabric without IMEX would end a tour and run alone on every GPU."""
    probes = [planned(device, check=check) for check in (Skips(), Reads()) for device in GPUS]
    node: Any = Node(probes, lambda item, before: "right")
    schedule = scheduled(node)
    taken: list[int] = []
    schedule.run(probes, 1, lambda item, ended: taken.append(item.number) or [])  # type: ignore[func-returns-value]
    assert sorted(taken) == [item.number for item in probes]
    assert [len(group) for group in node.ran] == [8, 1]


# -- ranks that do not start together ---------------------------------------------------------------------


class NodeOfRanks(Node):
    """A session whose launches of many ranks fail as often as ``fails`` says, in ``operation``."""

    def __init__(self, probes: Sequence[PlannedProbe], fails: int, operation: str | None) -> None:
        super().__init__(probes, lambda item, before: "right")
        self._fails, self._operation = fails, operation

    def tour(self, visits: Sequence[tuple[str, Path, Probe]], **more: Any) -> ProbeOutcome:
        self._fails -= 1
        if self._fails < 0:
            return super().tour(visits, **more)
        self.ran.append(["not together"])
        ending = Ending.HUNG if self._operation else Ending.NOT_STARTED
        ranks = {f"rank {n}": RoleOutcome(f"rank {n}", ending, operation=self._operation) for n in range(8)}
        launch = Launch(("mpiexec",))
        raise NotTogether(ProbeOutcome("", (), {}, ranks, "rank 2", 0.0, 1.0, "logs", launch=launch))


@pytest.mark.parametrize(
    ("fails", "operation", "launches", "status", "key"),
    [
        pytest.param(0, None, [1, 9, 1, 9], None, "", id="healthy"),
        pytest.param(9, "MPI_Init_thread", [1, 1, *[1] * 20], Status.FAIL, "hung", id="hangs"),
        pytest.param(1, "MPI_Init_thread", [1, 1, 9, 1, 9], Status.WARN, "not-together", id="hangs-once"),
        pytest.param(9, None, [1, *[1] * 20], Status.WARN, "not-together", id="launcher-refuses"),
        pytest.param(9, "cuCtxCreate", [1, *[1] * 20], Status.WARN, "not-together", id="bad-gpu"),
    ],
)
def test_ranks_that_do_not_start_together_are_told_and_their_pairs_are_tested(
    fails: int, operation: str | None, launches: list[int], status: Status | None, key: str
) -> None:
    """Two checks plan ten pairs each; what was learnt of the first launch holds for the second."""
    roles = {"rank 0": role, "rank 1": role}
    devices = [*((device,) for device in GPUS), *itertools.combinations(GPUS, 2)]
    probes = [
        planned(*each, check=check, roles=roles, launch=Launch(("mpiexec",)))
        for check in (Reads(), Other())
        for each in devices
    ]
    node: Any = NodeOfRanks(probes, fails, operation)
    schedule = scheduled(node)
    taken: list[int] = []
    schedule.run(probes, 1, lambda item, ended: taken.append(item.number) or [])  # type: ignore[func-returns-value]
    assert sorted(taken) == [item.number for item in probes]
    assert [len(group) for group in node.ran] == launches
    told = [finding for _, finding in schedule.tours.not_together]
    assert [(finding.status, finding.key) for finding in told] == ([(status, key)] if status else [])
    if operation and status is not None:
        assert operation in " ".join([sentences.summary(told[0]), *sentences.evidence(told[0])])


UNREPEATED = "not confirmed: the launch of 8 ranks was not repeated: "


@pytest.mark.parametrize(
    ("again", "status", "says"),
    [
        ("cut", Status.WARN, "when repeated they did"),
        ("forked", Status.FAIL, f"{UNREPEATED}the probe could not"),
        ("stopped", Status.FAIL, f"{UNREPEATED}time budget"),
    ],
)
def test_second_start_of_a_launch_that_is_not_complete(again: str, status: Status, says: str) -> None:
    """It is ``cut`` short in its first visit, ``stopped`` before, or cannot be ``forked``."""

    class Scripted(NodeOfRanks):
        def tour(self, visits: Sequence[tuple[str, Path, Probe]], **more: Any) -> ProbeOutcome:
            if len(visits) == 1 or not self.ran or self._fails < 0:
                return super().tour(visits, **more)
            if again == "forked":
                raise OSError(errno.EAGAIN, "no process")
            schedule._reason_to_end = lambda *_: NotRun(Finding.skip("budget", "no time"), "budget")  # type: ignore[method-assign]
            stopped = replace(outcome(self._planned[id(visits[0][2])], "right"), roles={}, stopped="budget")
            if again == "stopped":
                raise NotTogether(stopped)
            return stopped

    roles = {"rank 0": role, "rank 1": role}
    probes = [planned(device, roles=roles, launch=Launch(("mpiexec",))) for device in GPUS]
    node: Any = Scripted(probes, 1, "MPI_Init_thread")
    schedule = scheduled(node)
    taken: list[int] = []
    schedule.run(probes, 4, lambda item, ended: taken.append(item.number) or [])  # type: ignore[func-returns-value]
    assert sorted(taken) == [item.number for item in probes]
    ((_, told),) = schedule.tours.not_together
    assert told.status is status
    assert says in " ".join([sentences.summary(told), *sentences.evidence(told)])


def test_confirming_launch_that_does_not_start_ends_the_doubt() -> None:
    """It was planned again and again until the budget ended."""

    class Late(NodeOfRanks):
        """The launch of all starts; a visit fails in it, not alone; then no launch of all starts."""

        def tour(self, visits: Sequence[tuple[str, Path, Probe]], **more: Any) -> ProbeOutcome:
            self._fails = 0 if not self.ran else 9
            return super().tour(visits, **more)

    roles = {"rank 0": role, "rank 1": role}
    probes = [planned(device, roles=roles, launch=Launch(("mpiexec",))) for device in GPUS]
    node: Any = Late(probes, 0, None)
    node._ends = lambda item, before: "wrong" if len(before) == 2 else "right"
    schedule = scheduled(node)
    taken: list[int] = []
    schedule.run(probes, 1, lambda item, ended: taken.append(item.number) or [])  # type: ignore[func-returns-value]
    assert sorted(taken) == [item.number for item in probes]
    assert len(node.ran) < 10
