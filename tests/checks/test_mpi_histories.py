"""Tests of check mpi-histories: planned probes, and findings from recorded results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor.api import Finding, Json, Tier
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.message_search import Search
from gpuipc_doctor.histories.operations import MPI, Disagreement, History, Operation, ProcessPlan
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import Ending, ProbeOutcome, Reached, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.conclusions import found_by
from tests.checks.judging import ONE, TWO, Kept, check, conclude, outcome, plan

SHORT = History(
    "cuda",
    {1: ProcessPlan(), 2: ProcessPlan()},
    (
        Operation("allocate", 1, makes=1, nbytes=1024, kind="device"),
        Operation("allocate", 2, makes=2, nbytes=1024, kind="host"),
        Operation("send", 1, on=1, nbytes=1024, stamp=1, peer=2, tag=3),
        Operation("recv", 2, on=2, nbytes=1024, peer=0, tag=-1),
    ),
    check=MPI,
)
WRONG = Disagreement(3, "data", "recv", "", "MPI_Recv", "the message is wrong from byte 512 on")
EXPLORED = {"operations": 700, "wanted": 2500, "messages": 150, "compared": 99, "seed": 6, "ranks": 3}


def search(
    first: Disagreement = WRONG, shortest: History | None = SHORT, base: History | None = SHORT
) -> Search:
    """A search in its last launch. ``base``, ``shortest``: None if no history failed again."""
    made = Search(first, EXPLORED, (SHORT,))
    made.base, made.shortest, made.tries = base, shortest, (shortest or SHORT,)
    return made


NOT_AGAIN: dict[str, None] = {"shortest": None, "base": None}


WELL = {
    "rank 0": {"operations": 2530, "messages": 400, "seed": 6, "elapsed_s": 1.0, "done": {"send": 80}},
    "rank 1": {"messages": 410, "compared": 10**6},
}


def of_check(made: Search) -> Any:
    """The check, with this search as its first one."""
    loaded = check("mpi-histories")
    vars(loaded)["_searches"][:] = [made]
    return loaded


def concluded(made: Search, *, again: bool, stopped: str = "") -> list[Finding]:
    wrong = {"trying": 0, "at": 3, "do": "recv", "call": "MPI_Recv", "says": WRONG.says}
    records: dict[str, dict[str, Json]] = {"rank 0": {}, "rank 1": {"wrong": wrong if again else None}}
    ended = replace(outcome(records, ONE, "", search=0), stopped=stopped)
    return found_by(of_check(made), ended)


def test_pass_says_operations_and_messages() -> None:
    (finding,) = conclude("mpi-histories", WELL, search=None, operations=2500, lacks=[])
    assert finding.status is Status.PASS
    assert (finding.values["operations"], finding.values["messages"]) == (2530, 810)
    assert len(finding.evidence) == 2


def test_shortfall_of_time_and_omitted_operations_are_reported() -> None:
    (finding,) = conclude("mpi-histories", WELL, search=None, operations=9000, lacks=["derived types"])
    assert "2530 of 9000 random operations" in sentences.summary(finding)
    assert sentences.summary(finding).endswith("; without derived types")
    assert "did not occur: " in sentences.evidence(finding)[1]
    assert "issend" in sentences.evidence(finding)[1]
    assert "derived types" in sentences.evidence(finding)[2]


def test_history_that_fails_again_is_a_failure_with_its_steps() -> None:
    (finding,) = concluded(search(), again=True)
    assert (finding.status, finding.key) == (Status.FAIL, "data")
    steps = [item.says for item in finding.evidence]
    assert "3. rank 0 sends 1024 B (contents 1) from buffer 1 to rank 1, tag 3" in steps
    assert "4. rank 1 receives 1024 B into buffer 2 from any source, any tag" in steps
    assert results.history_from_json(finding.values["history"]) == replace(SHORT, labels=("cuda:0",))


@pytest.mark.parametrize(
    ("at", "times", "steps"),
    [(1, 1, 2), (3, 1, 4), (9, 1, 4), (1, 24, 4)],
    ids=["early", "last", "end", "repeated"],
)
def test_steps_are_counted_up_to_the_one_that_failed(at: int, times: int, steps: int) -> None:
    history = replace(SHORT, times=times)
    (finding,) = concluded(search(replace(WRONG, at=at), history, history), again=False)
    assert finding.values["steps"] == steps


def test_rank_that_ended_is_told_if_the_last_launch_shows_it() -> None:
    made = search(replace(WRONG, what="crash"))
    tried = Reached(0, 3, "recv")
    crashed = RoleOutcome("rank 1", Ending.CRASHED, operation="MPI_Recv", signal="SIGSEGV", reached=tried)
    roles = {"rank 0": RoleOutcome("rank 0", Ending.STOPPED, reached=tried), "rank 1": crashed}
    (finding,) = of_check(made).judge(ProbeOutcome("", ONE, {"search": 0}, roles, "rank 1", 1.0))
    assert (finding.key, finding.values["role"]) == ("crash", "rank 1")
    (finding,) = concluded(made, again=False)
    assert "role" not in finding.values


def test_another_disagreement_in_the_last_launch_confirms_nothing() -> None:
    (finding,) = concluded(search(replace(WRONG, what="hang"), base=None), again=True)
    assert (finding.status, finding.key) == (Status.WARN, "seen-once")


@pytest.mark.parametrize(
    ("stopped", "says"), [("", "; not reproduced in fresh ranks"), ("budget", "; not replayed")]
)
def test_history_that_does_not_fail_again_is_a_warning(stopped: str, says: str) -> None:
    (finding,) = concluded(search(**NOT_AGAIN), again=False, stopped=stopped)
    assert (finding.status, finding.key) == (Status.WARN, "seen-once")
    assert sentences.summary(finding).endswith(says)
    assert results.history_from_json(finding.values["history"]) == SHORT


PRINTED = replace(WRONG, printed=("Error: failure in cuIpcOpenMemHandle 1",))
"""A disagreement whose rank said why; the last launch's ranks said nothing."""


@pytest.mark.parametrize("again", [{}, NOT_AGAIN], ids=["FAIL", "WARN"])
def test_what_a_rank_printed_in_an_earlier_launch_is_evidence(again: dict[str, None]) -> None:
    (finding,) = concluded(search(PRINTED, **again), again=False)
    assert finding.evidence[-1].values == {"line": "Error: failure in cuIpcOpenMemHandle 1"}


@pytest.mark.parametrize(("again", "status"), [(True, Status.FAIL), (False, Status.PASS)])
def test_requested_replay(again: bool, status: Status) -> None:
    (finding,) = concluded(Search(None, {}, (SHORT,)), again=again)
    assert finding.status is status


def test_each_launch_of_a_search_continues_the_last_one() -> None:
    (probe,) = plan("mpi-histories", *ONE, edges=(8192,))
    assert list(probe.roles) == ["rank 0", "rank 1", "rank 2"]
    roles = {
        name: RoleOutcome(
            name,
            Ending.CRASHED if name == "rank 1" else Ending.STOPPED,
            operation="MPI_Recv",
            signal="SIGSEGV",
            records={"seed": 6},
            reached=Reached(0, 300, "recv"),
        )
        for name in probe.roles
    }
    ended = ProbeOutcome("", ONE, probe.params, roles, "rank 1", 1.0, 10.0, launch=probe.launch)
    loaded = check("mpi-histories")
    (following,) = loaded.again(ended)
    assert len(following.params["tries"]) == 1
    last = Reached(0, len(following.params["tries"][0]["operations"]) - 1, "recv")
    roles = {name: replace(role, reached=last) for name, role in roles.items()}
    (shorter,) = loaded.again(replace(ended, params=following.params, roles=roles))
    assert shorter.params["search"] == following.params["search"]
    assert len(shorter.params["tries"][0]["operations"]) < len(following.params["tries"][0]["operations"])


def test_hang_is_judged_by_the_operations_until_the_latest_ranks() -> None:
    (probe,) = plan("mpi-histories", *ONE, edges=(8192,))
    roles = {
        name: RoleOutcome(
            name,
            Ending.HUNG,
            operation="MPI_Recv",
            records={"seed": 6},
            reached=Reached(0, at, "recv"),
        )
        for name, at in zip(probe.roles, (20, 300, 300), strict=True)
    }
    ended = ProbeOutcome("", ONE, probe.params, roles, "rank 1", 1.0, 10.0, launch=probe.launch)
    (following,) = check("mpi-histories").again(ended)
    assert len(following.params["tries"]) == 1


def unbegun() -> ProbeOutcome:
    """A launch of a search whose ranks ended before they performed an operation."""
    roles = {name: RoleOutcome(name, Ending.HUNG) for name in ("rank 0", "rank 1")}
    return ProbeOutcome("", ONE, {"search": 0}, roles, "rank 0", 1.0, 10.0)


@pytest.mark.parametrize(("what", "deadline_s"), [("data", 10.0), ("hang", 2.5)])
def test_launch_that_never_began_is_repeated_and_a_hang_is_waited_for_shortly(
    what: str, deadline_s: float
) -> None:
    (repeated,) = of_check(search(replace(WRONG, what=what))).again(unbegun())
    assert repeated.deadline_s == deadline_s


def test_replay_that_never_began_is_not_repeated() -> None:
    assert not [*of_check(Search(None, {}, (SHORT,))).again(unbegun())]


@pytest.mark.parametrize(("processes", "number"), [(1, 2), (2, 2), (4, 4)])
def test_requested_history_has_the_ranks_that_it_needs(processes: int, number: int) -> None:
    needed = replace(SHORT, processes={one + 1: ProcessPlan() for one in range(processes)})
    (probe,) = plan("mpi-histories", *ONE, options={"history": results.history_to_json(needed)})
    assert len(probe.roles) == number


def test_soak_tries_each_number_of_ranks() -> None:
    assert [probe.name for probe in plan("mpi-histories", *ONE)] == [""]
    soak = plan("mpi-histories", *ONE, tier=Tier.SOAK)
    assert [(probe.name, len(probe.roles)) for probe in soak] == [
        ("2 ranks", 2),
        ("3 ranks", 3),
        ("4 ranks", 4),
    ]


def test_ranks_use_one_device_or_a_pair() -> None:
    near = [replace(device, peers=frozenset(device.label for device in TWO)) for device in TWO]
    assert [len(probe.devices) for probe in plan("mpi-histories", *near)] == [2]
    assert [len(probe.roles) for probe in plan("mpi-histories", *ONE, options={"ranks": 4})] == [4]


RISING = [34] * 16 + [35, 37, 38, 40, 40, 41, 44, 45]
LEFT_BY_EACH = {"times": 1, "descriptors": [*range(34, 50)]}
LEFT = {Kept("usage"): {"repetition of a valid history of messages": LEFT_BY_EACH}}


def test_phase_that_leaves_descriptors_is_repeated_and_judged() -> None:
    """Only fresh ranks show with certainty what repeated messages leave."""
    records = {rank: {**had, "usage": {"descriptors": RISING}} for rank, had in WELL.items()}
    (planned,) = plan("mpi-histories", *ONE)
    roles = {rank: RoleOutcome(rank, Ending.COMPLETED, records=had) for rank, had in records.items()}
    done = ProbeOutcome("", ONE, {**planned.params, "operations": 2500}, roles, None, 1.0)
    loaded = check("mpi-histories")
    (again,) = loaded.again(done)
    assert again.params["tries"][0]["times"] == 24
    repeated = {**again.params, "tries": []}
    (lost,) = found_by(loaded, outcome({"rank 0": {}, "rank 1": LEFT}, ONE, "", **repeated))
    assert (lost.status, lost.key) == (Status.FAIL, "descriptors-left")
    assert lost.values["history"]["times"] == 24
    (passed,) = found_by(loaded, outcome({"rank 0": {}, "rank 1": {}}, ONE, "", **repeated))
    assert (passed.status, passed.values["operations"]) == (Status.PASS, 2530)
    flat = {rank: {**had, "usage": {"descriptors": [34] * 24}} for rank, had in WELL.items()}
    roles = {rank: RoleOutcome(rank, Ending.COMPLETED, records=had) for rank, had in flat.items()}
    assert not [*check("mpi-histories").again(replace(done, roles=roles))]
