"""Tests of check mpi-histories: planned probes, and findings from recorded results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.api import Finding, Json, Tier
from gpuipc_doctor.histories import message_search as searching
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.message_search import Search
from gpuipc_doctor.histories.operations import MPI, Disagreement, History, Operation, ProcessPlan
from gpuipc_doctor.model import Ending, ProbeOutcome, Reached, RoleOutcome, Status
from gpuipc_doctor.report import sentences
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
SEARCH = Search(WRONG, EXPLORED, (SHORT,), "confirm", shortest=SHORT, base=SHORT, at=3)

WELL = {
    "rank 0": {"operations": 2530, "messages": 400, "seed": 6, "elapsed_s": 1.0, "done": {"send": 80}},
    "rank 1": {"messages": 410, "compared": 10**6},
}


def concluded(search: Search, *, again: bool) -> list[Finding]:
    wrong = {"trying": 0, "at": 3, "do": "recv", "call": "MPI_Recv", "says": WRONG.says}
    records: dict[str, dict[str, Json]] = {"rank 0": {}, "rank 1": {"wrong": wrong if again else None}}
    return conclude("mpi-histories", records, search=searching.to_json(search))


def test_pass_says_operations_and_messages() -> None:
    (finding,) = conclude("mpi-histories", WELL, search=None, operations=2500, lacks=[])
    assert finding.status is Status.PASS
    assert (finding.values["operations"], finding.values["messages"]) == (2530, 810)
    assert len(finding.evidence) == 2


def test_shortfall_of_time_and_omitted_operations_are_reported() -> None:
    (finding,) = conclude("mpi-histories", WELL, search=None, operations=9000, lacks=["derived types"])
    assert "2530 of 9000 operations" in sentences.summary(finding)
    assert sentences.summary(finding).endswith("; without derived types")
    assert "did not occur: " in sentences.evidence(finding)[1]
    assert "issend" in sentences.evidence(finding)[1]
    assert "derived types" in sentences.evidence(finding)[2]


def test_history_that_fails_again_is_a_failure_with_its_steps() -> None:
    (finding,) = concluded(SEARCH, again=True)
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
    search = replace(SEARCH, first=replace(WRONG, at=at), shortest=history, base=history)
    (finding,) = concluded(search, again=False)
    assert finding.values["steps"] == steps


def test_rank_that_ended_is_told_if_the_last_launch_shows_it() -> None:
    search = replace(SEARCH, first=replace(WRONG, what="crash"))
    tried = Reached(0, 3, "recv")
    crashed = RoleOutcome("rank 1", Ending.CRASHED, operation="MPI_Recv", signal="SIGSEGV", reached=tried)
    roles = {"rank 0": RoleOutcome("rank 0", Ending.STOPPED, reached=tried), "rank 1": crashed}
    ended = ProbeOutcome("", ONE, {"search": searching.to_json(search)}, roles, "rank 1", 1.0)
    (finding,) = check("mpi-histories").judge(ended)
    assert (finding.key, finding.values["role"]) == ("crash", "rank 1")
    (finding,) = concluded(search, again=False)
    assert "role" not in finding.values


def test_another_disagreement_in_the_last_launch_confirms_nothing() -> None:
    (finding,) = concluded(replace(SEARCH, first=replace(WRONG, what="hang"), base=None), again=True)
    assert (finding.status, finding.key) == (Status.WARN, "seen-once")


def test_search_that_the_budget_ended_says_that_nothing_was_replayed() -> None:
    search = searching.to_json(Search(WRONG, EXPLORED, (SHORT,)))
    ended = outcome({"rank 0": {}, "rank 1": {"wrong": None}}, ONE, "", search=search)
    says = {}
    for stopped in ("", "budget"):
        (finding,) = check("mpi-histories").judge(replace(ended, stopped=stopped))
        says[stopped] = sentences.summary(finding)
    assert says[""].endswith("; not reproduced in fresh ranks")
    assert says["budget"].endswith("; not replayed")


def test_shortest_history_that_does_not_fail_alone_is_replaced_by_the_failing_one() -> None:
    (finding,) = concluded(SEARCH, again=False)
    assert finding.status is Status.FAIL


PRINTED = replace(WRONG, printed=("Error: failure in cuIpcOpenMemHandle 1",))
"""A disagreement whose rank said why; the last launch's ranks said nothing."""


@pytest.mark.parametrize(
    "search", [replace(SEARCH, first=PRINTED), Search(PRINTED, EXPLORED, (SHORT,))], ids=["FAIL", "WARN"]
)
def test_what_a_rank_printed_in_an_earlier_launch_is_evidence(search: Search) -> None:
    (finding,) = concluded(search, again=False)
    assert finding.evidence[-1].values == {"line": "Error: failure in cuIpcOpenMemHandle 1"}


def test_history_that_does_not_fail_again_is_a_warning() -> None:
    (finding,) = concluded(Search(WRONG, EXPLORED, (SHORT,)), again=False)
    assert (finding.status, finding.key) == (Status.WARN, "seen-once")
    assert results.history_from_json(finding.values["history"]) == SHORT


@pytest.mark.parametrize(("again", "status"), [(True, Status.FAIL), (False, Status.PASS)])
def test_requested_replay(again: bool, status: Status) -> None:
    (finding,) = concluded(Search(None, {}, (), "replay", shortest=SHORT), again=again)
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
    (following,) = check("mpi-histories").again(ended)
    assert following.params["search"]["stage"] == "again"
    assert len(following.params["tries"]) == 1
    last = Reached(0, len(following.params["tries"][0]["operations"]) - 1, "recv")
    roles = {name: replace(role, reached=last) for name, role in roles.items()}
    (shorter,) = check("mpi-histories").again(replace(ended, params=following.params, roles=roles))
    assert shorter.params["search"]["stage"] == "shrink"


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
    assert following.params["search"]["stage"] == "again"


def unbegun(search: Search) -> ProbeOutcome:
    """A launch of a search whose ranks ended before they performed an operation."""
    roles = {name: RoleOutcome(name, Ending.HUNG) for name in ("rank 0", "rank 1")}
    return ProbeOutcome("", ONE, {"search": searching.to_json(search)}, roles, "rank 0", 1.0, 10.0)


@pytest.mark.parametrize(("what", "deadline_s"), [("data", 10.0), ("hang", 2.5)])
def test_launch_that_never_began_is_repeated_and_a_hang_is_waited_for_shortly(
    what: str, deadline_s: float
) -> None:
    (repeated,) = check("mpi-histories").again(unbegun(replace(SEARCH, first=replace(WRONG, what=what))))
    assert repeated.deadline_s == deadline_s


def test_replay_that_never_began_is_not_repeated() -> None:
    replay = Search(None, {}, (), "replay", shortest=SHORT)
    assert not [*check("mpi-histories").again(unbegun(replay))]


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


def test_epoch_that_leaves_descriptors_is_repeated_and_judged() -> None:
    """Only fresh ranks show with certainty what repeated messages leave."""
    records = {rank: {**had, "usage": {"descriptors": RISING}} for rank, had in WELL.items()}
    (planned,) = plan("mpi-histories", *ONE)
    roles = {rank: RoleOutcome(rank, Ending.COMPLETED, records=had) for rank, had in records.items()}
    done = ProbeOutcome("", ONE, {**planned.params, "operations": 2500}, roles, None, 1.0)
    (again,) = check("mpi-histories").again(done)
    assert again.params["tries"][0]["times"] == 24
    repeated = {**again.params, "tries": []}
    (lost,) = conclude("mpi-histories", {"rank 0": {}, "rank 1": LEFT}, **repeated)
    assert (lost.status, lost.key) == (Status.FAIL, "descriptors-left")
    assert lost.values["history"]["times"] == 24
    (passed,) = conclude("mpi-histories", {"rank 0": {}, "rank 1": {}}, **repeated)
    assert (passed.status, passed.values["operations"]) == (Status.PASS, 2530)
    flat = {rank: {**had, "usage": {"descriptors": [34] * 24}} for rank, had in WELL.items()}
    roles = {rank: RoleOutcome(rank, Ending.COMPLETED, records=had) for rank, had in flat.items()}
    assert not [*check("mpi-histories").again(replace(done, roles=roles))]
