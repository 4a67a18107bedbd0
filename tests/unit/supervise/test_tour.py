"""Tours: each visit is as separate as a probe, and the tour ends at the first that does not complete."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Device, Node
from gpuipc_doctor.probe_types import Baseline, Ending, Probe, ProbeOutcome
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.assignment import Order, RoleFiles, RoleResult, StartSignal
from gpuipc_doctor.supervise.fork_servers import ForkServer
from gpuipc_doctor.supervise.journal import Journal, Progress
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.start import Starter, Visit, _keeps
from gpuipc_doctor.supervise.tour import Tour, VisitingRole
from tests.checks.judging import gpu
from tests.unit.supervise.test_supervision import FILE, LIMITS
from tests.waiting import until


@pytest.fixture(scope="module")
def roles() -> ModuleType:
    return loader.module(FILE)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(Node(), LIMITS) as opened:
        yield opened
    assert [p for p in tree.descendants(os.getpid()) if "python" in p.name] == []


def tour(
    session: Session, roles: ModuleType, *visits: tuple[str, ...], limit_s: float = 60.0
) -> list[ProbeOutcome]:
    """The outcomes of visits, each given by the functions of its roles ``a``, ``b``, …"""
    outcomes: list[ProbeOutcome] = []
    probes = [
        Probe(
            f"visit {number}",
            {role: getattr(roles, name) for role, name in zip("abc", names, strict=False)},
            params={"number": number},
            deadline_s=1.5,
        )
        for number, names in enumerate(visits)
    ]

    def goes_on(outcome: ProbeOutcome) -> bool:
        outcomes.append(outcome)
        return True

    visits = [("misbehaving", FILE, probe) for probe in probes]
    last = session.tour(visits, until=time.monotonic() + limit_s, goes_on=goes_on)
    return [*outcomes, last]


def test_visits_share_processes_and_nothing_else(session: Session, roles: ModuleType) -> None:
    outcomes = tour(session, roles, *[("tell_visit", "hear_visit")] * 3)
    assert [outcome.completed for outcome in outcomes] == [True] * 3
    assert [outcome.probe for outcome in outcomes] == ["visit 0", "visit 1", "visit 2"]
    assert [outcome.records["b"]["heard"] for outcome in outcomes] == [0, 1, 2]
    assert [list(outcome.records["a"]) for outcome in outcomes] == [["number"]] * 3
    assert len({outcome.roles["a"].pid for outcome in outcomes}) == 1
    assert [call.count for outcome in outcomes for call in outcome.roles["a"].calls] == [1] * 3
    assert session.processes == 2
    for number, outcome in enumerate(outcomes):
        assert Path(outcome.logs, "a.log").read_text() == f"visit {number}\n"


def test_message_that_was_not_read_does_not_reach_the_next_visit(session: Session, roles: ModuleType) -> None:
    first, second = tour(session, roles, ("say_too_much", "hear_once"), ("tell_visit", "hear_visit"))
    assert first.completed
    assert second.records["b"]["heard"] == 1


@pytest.mark.parametrize(
    ("names", "ending"),
    [
        (("segfault", "wait_for_partner"), Ending.CRASHED),
        (("wait_for_partner", "segfault"), Ending.CRASHED),
        (("hang_in_c", "wait_for_partner"), Ending.HUNG),
        (("hang_ignoring_term", "wait_for_partner"), Ending.HUNG),
        (("raise_error", "wait_for_partner"), Ending.EXCEPTION),
    ],
)
def test_tour_ends_at_the_visit_that_fails_and_keeps_those_before(
    session: Session, roles: ModuleType, names: tuple[str, ...], ending: Ending
) -> None:
    first, second = tour(session, roles, ("tell_visit", "hear_visit"), names, ("tell_visit", "hear_visit"))
    assert first.completed
    blamed = "ab"[names.index("wait_for_partner") - 1]
    assert (second.blamed, second.roles[blamed].ending) == (blamed, ending)
    assert second.probe == "visit 1"


def test_visit_whose_role_ends_its_process_completes_and_is_the_last(
    session: Session, roles: ModuleType
) -> None:
    outcomes = tour(session, roles, ("completes",), ("die_as_planned",), ("completes",))
    assert [outcome.completed for outcome in outcomes] == [True, True]


def test_visit_left_by_a_process_that_has_since_ended_is_completed(tmp_path: Path) -> None:
    """On a busy node a process may end, after later visits, before its supervisor reads its journal."""
    files = RoleFiles(tmp_path, "a")
    RoleResult(Ending.COMPLETED).write(files.result)

    class Ended:
        pid = returncode = 0
        is_elsewhere = False

        def poll(self) -> bool:
            Journal(files.journal).leave()
            return True

    role = VisitingRole(Ended(), files, Progress(files.journal), 0.0)  # type: ignore[arg-type]
    role.poll(1.0)
    assert role.ending is Ending.COMPLETED


def test_role_that_ends_its_process_has_a_new_one_at_each_visit_and_the_others_keep_theirs(
    session: Session, roles: ModuleType
) -> None:
    def probe(function: str, *ends: str) -> Probe:
        functions = {"a": roles.tell_visit, "b": getattr(roles, function), "c": roles.completes}
        return Probe(function, functions, params={"number": 7}, deadline_s=1.5, ends=frozenset(ends))

    probes = [
        probe("hear_visit"),
        probe("hear_and_die", "b"),
        probe("hear_and_die", "b"),
        probe("hear_visit"),
    ]
    outcomes: list[ProbeOutcome] = []
    last = session.tour(
        [("misbehaving", FILE, each) for each in probes],
        until=time.monotonic() + 60,
        goes_on=lambda outcome: not outcomes.append(outcome),
    )
    outcomes.append(last)
    assert [outcome.completed for outcome in outcomes] == [True] * 4
    assert [outcome.records["b"]["heard"] for outcome in outcomes] == [7] * 4
    pids = {role: [outcome.roles[role].pid for outcome in outcomes] for role in "abc"}
    assert [len(set(pids[role])) for role in "abc"] == [1, 4, 1]
    assert session.processes == 6


@pytest.mark.parametrize("ends_early", [False, True])
def test_process_of_the_next_library_starts_before_its_first_visit(
    session: Session, roles: ModuleType, ends_early: bool
) -> None:
    def probe(library: str) -> Probe:
        functions = {"a": roles.tell_visit, "b": roles.hear_visit}
        return Probe(library, functions, params={"number": 7}, deadline_s=1.5, library=library)

    outcomes: list[ProbeOutcome] = []

    def goes_on(outcome: ProbeOutcome) -> bool:
        outcomes.append(outcome)
        if len(outcomes) == 1:
            until("it has started", lambda: bool([*session._directory.glob("*PyTorch/a.journal")]))
        return not ends_early

    visits = [("misbehaving", FILE, probe(library)) for library in ("CuPy", "CuPy", "PyTorch", "PyTorch")]
    outcomes.append(
        session.tour(visits, until=time.monotonic() + 60, goes_on=goes_on, turn=StartSignal(baselines=[]))
    )
    assert [outcome.completed for outcome in outcomes] == [True] * (2 if ends_early else 4)
    assert session.processes == 3
    pids = {role: [outcome.roles[role].pid for outcome in outcomes] for role in "ab"}
    if not ends_early:
        assert [outcome.records["b"]["heard"] for outcome in outcomes] == [7] * 4
        assert pids["a"][:1] + pids["a"][2:3] == [*dict.fromkeys(pids["a"])]
        assert len(set(pids["b"])) == 1


@pytest.mark.parametrize("ahead", ["ready", "stuck"])
def test_no_process_starts_beside_the_first_visit(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    """The driver's start in the next library's process fell into the first visit's measurement. A start that
    does not end is waited for only as long as an operation may take."""
    functions = {"a": roles.tell_visit, "b": roles.hear_visit}
    first = Probe("first", functions, params={"number": 7}, deadline_s=99.0 if ahead == "ready" else 1.5)
    visits = [("misbehaving", FILE, probe) for probe in (first, replace(first, name="next", library="CuPy"))]
    waited: list[bool] = []
    announced, fork = Tour._announce, ForkServer.fork

    def announce(tour: Tour, baselines: Sequence[Baseline]) -> None:
        journals = session._directory.glob("*next/a.journal")
        waited.append(any("waiting" in journal.read_text() for journal in journals))
        announced(tour, baselines)

    def fork_one(server: ForkServer, order: Order, *more: Any) -> int | None:
        pid = fork(server, order, *more)
        if pid and order.directory.endswith("next") and ahead == "stuck":
            os.kill(pid, signal.SIGSTOP)
        return pid

    monkeypatch.setattr(Tour, "_announce", announce)
    monkeypatch.setattr(ForkServer, "fork", fork_one)
    outcomes: list[ProbeOutcome] = []
    session.tour(
        visits,
        until=time.monotonic() + 60,
        goes_on=lambda outcome: outcomes.append(outcome) or False,  # type: ignore[func-returns-value]
        turn=StartSignal(baselines=[]),
    )
    assert [outcome.completed for outcome in outcomes] == [True]
    assert waited == [True] or ahead == "stuck"


@pytest.mark.parametrize("stops", [False, True])
def test_library_that_is_still_being_imported_holds_no_visit_up(
    roles: ModuleType, tmp_path: Path, stops: bool
) -> None:
    """The first visit was not watched meanwhile, and the import was ended after the limit of a start."""
    functions = {"a": roles.tell_visit, "b": roles.hear_visit}
    first = Probe("first", functions, params={"number": 7}, deadline_s=1.5)
    imports = () if stops else ("hangs_when_imported",)
    later = [replace(first, name=name, library=name, imports=imports) for name in ("CuPy", "PyTorch")]
    node = Node(env={"PYTHONPATH": str(FILE.parent / "imports")})
    with Session(node, replace(LIMITS, start_up_s=4.0), keep_logs=tmp_path) as session:
        if stops:
            session.stop()
        ended = session.tour(
            [("misbehaving", FILE, probe) for probe in (first, *later)],
            until=time.monotonic() + 60,
            goes_on=lambda _: False,
            turn=StartSignal(baselines=[]),
        )
        assert (ended.completed, ended.stopped) == ((False, "interrupted") if stops else (True, ""))
        assert session.processes == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is left
def test_unkillable_process_ends_the_tour_and_is_known(
    session: Session, roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "signal_all", lambda targets, number: None)
    probes = [Probe(name, {"a": getattr(roles, name)}, deadline_s=1.5) for name in ("completes", "hang_in_c")]
    visits = [("misbehaving", FILE, probe) for probe in (*probes, probes[0])]
    outcomes: list[ProbeOutcome] = []
    last = session.tour(visits, until=time.monotonic() + 60, goes_on=lambda each: not outcomes.append(each))
    monkeypatch.undo()
    assert [outcome.completed for outcome in outcomes] == [True]
    assert last.roles["a"].ending is Ending.UNKILLABLE
    assert f"pid {last.roles['a'].pid}" in session.unkillable


def test_budget_ends_a_tour_and_keeps_the_visits_made(session: Session, roles: ModuleType) -> None:
    first, second = tour(session, roles, ("completes",), ("wait_for_the_end",), ("completes",), limit_s=8.0)
    assert first.completed
    assert second.stopped == "budget"


def test_tour_that_is_not_to_go_on_ends_with_that_visit(session: Session, roles: ModuleType) -> None:
    probes = [Probe(name, {"a": roles.completes}) for name in ("first", "second", "third")]
    visits = [("misbehaving", FILE, probe) for probe in probes]
    last = session.tour(visits, until=time.monotonic() + 60, goes_on=lambda outcome: outcome.probe == "first")
    assert (last.probe, last.completed) == ("second", True)


@pytest.mark.parametrize(
    ("later", "kept"),
    [
        ([], set()),
        ([((0,), "")], {"cuda:0"}),
        ([((0, 1), ""), ((2,), "")], {"cuda:0", "cuda:1", "cuda:2"}),
        ([((0,), "context"), ((0, 1), "")], {"cuda:1"}),
        ([((0,), "library"), ((0, 1), "")], {"cuda:1"}),
    ],
)
def test_context_is_kept_until_the_last_visit_or_one_that_needs_a_fresh_one_or_an_idle_device(
    tmp_path: Path, later: list[tuple[tuple[int, ...], str]], kept: set[str]
) -> None:
    how = {"": {}, "context": {"fresh": "context"}, "library": {"library": "PyTorch"}}
    visits = [Visit(Probe("", {}, devices(*on), **how[name]), FILE, tmp_path) for on, name in later]
    assert set(_keeps(Probe("", {}), visits)) == kept


def test_process_makes_the_visits_with_its_library_and_partners_make_all(tmp_path: Path) -> None:
    def visit(library: str, *ends: str) -> Visit:
        roles = {"program": len, "onlooker": len}
        return Visit(Probe(library, roles, library=library, ends=frozenset(ends)), FILE, tmp_path)  # type: ignore[arg-type]

    first, *later = [visit("CuPy"), visit("CuPy"), visit("PyTorch"), visit("PyTorch", "onlooker")]
    starter = Starter(first.probe, FILE, tmp_path, Node(), "marker", lambda *_: None, later=tuple(later))
    made = {role: [each.probe.name for each, _ in starter._stops_of(role)] for role in first.probe.roles}
    assert made == {"program": ["CuPy", "CuPy"], "onlooker": ["CuPy", "CuPy", "PyTorch"]}


def devices(*indices: int) -> tuple[Device, ...]:
    return tuple(map(gpu, indices))


@pytest.mark.parametrize(("backend", "seen"), [("hip", "0,1"), ("cuda", "GPU-cuda-1")])
def test_new_process_sees_its_visits_gpus_and_on_hip_those_of_the_tour(
    tmp_path: Path, backend: str, seen: str
) -> None:
    """HIP's IPC handles name a GPU by its number among those that a process sees."""
    both = tuple(replace(each, backend=backend) for each in devices(0, 1))
    probe = Probe("", {"a": len, "b": len}, both[1:], ends=frozenset({"b"}))  # type: ignore[dict-item]
    starter = Starter(probe, FILE, tmp_path, Node(), "marker", lambda *_: None, tour=both)
    assert seen in starter._own({}, "b").values()
