"""The sweep: which GPUs look stuck, when a job is examined, what is kept, what cannot be told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.files import private
from gpuipc_doctor.job import sweep, sweep_state
from gpuipc_doctor.job.document import Cause, JobReport, Verdict
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.job.sweep import MPS, Sweep
from gpuipc_doctor.job.sweep_state import FILE, KEPT, Unusable, Watch
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.model import Exit
from gpuipc_doctor.node import gpu_loads
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse
from gpuipc_doctor.site.policy import SweepConfig
from tests.unit.job.test_second_look import WAITS, WORKS, report

MINUTE = 60.0
LIMIT_W = 700.0
Load = tuple[int | None, float | None]
TRAINS: Load = (97, 610.0)
SPINS: Load = (100, 178.0)
INFERS: Load = (98, 315.0)
"""Inference that is bound by memory: 98 % use and 45 % of the power."""
IDLES: Load = (0, 118.0)


def gpu(number: int, load: Load, *pids: int, limit: float | None = LIMIT_W, name: str = "python") -> GpuUse:
    processes = tuple(ProcessUse(pid, name, 1 << 30) for pid in pids)
    return GpuUse(f"cuda:{number}", f"0000:{number:02x}:00.0", "H200", 1, 2, processes, "", *load, limit)


def stuck(*pids: int) -> JobReport:
    return _report(Cause.HOST_LATE, *pids)


def runs(*pids: int) -> JobReport:
    return _report(Cause.RUNS, *pids)


def _report(cause: Cause, *pids: int) -> JobReport:
    ranks = [replace(WAITS if n else WORKS, rank=1 - n, pid=pid, started=0) for n, pid in enumerate(pids[:2])]
    found = report(0.0, cause=cause)
    blamed = () if cause is Cause.RUNS else (1,)
    return replace(found, ranks=tuple(ranks), verdict=replace(found.verdict, blamed=blamed))


class Node:
    """A node whose timer calls the sweep every five minutes."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus: list[GpuUse] = []
        self.now = 1000.0
        self.says: Callable[[tuple[int, ...]], list[JobReport]] = lambda pids: [runs(*pids)]
        self.examined: list[tuple[int, ...]] = []
        self.config = SweepConfig(state_dir=str(place / "state"))
        monkeypatch.setattr(gpu_loads, "read", lambda: tuple(self.gpus))
        monkeypatch.setattr(sweep, "read_line", self._stat)
        self.starts: dict[int, int] = {}

    def _stat(self, pid: int | str, name: str) -> str:
        return f"{pid} (python) S" + 18 * " 0" + f" {self.starts.get(int(pid), 0)}"

    def call(self, minutes: float = 5.0) -> tuple[Exit, str]:
        self.now += minutes * MINUTE

        def examine(pids: tuple[int, ...]) -> list[JobReport]:
            self.examined.append(pids)
            return self.says(pids)

        return Sweep(self.config, 30 * MINUTE, examine, lambda: self.now).run()

    def calls(self, number: int) -> list[Exit]:
        return [self.call()[0] for _ in range(number)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


# -- when a job is examined -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "limit"),
    [
        (TRAINS, TRAINS, LIMIT_W),
        (SPINS, (90, 178.0), LIMIT_W),
        (IDLES, IDLES, LIMIT_W),  # never used
        (TRAINS, (2, 118.0), LIMIT_W),
        (SPINS, SPINS, 290.0),  # the site has lowered the limit
        (SPINS, SPINS, None),  # no limit is known, and it never drew more
    ],
)
def test_gpu_that_does_not_look_stuck_costs_no_examination(
    node: Node, first: Load, then: Load, limit: float | None
) -> None:
    node.gpus = [gpu(0, first, 10, limit=limit)]
    assert node.call()[0] == Exit.OK
    node.gpus = [gpu(0, then, 10, limit=limit)]
    assert node.calls(20) == [Exit.OK] * 20
    assert node.examined == []


@pytest.mark.parametrize(
    ("first", "then", "limit"),
    [(SPINS, SPINS, LIMIT_W), (TRAINS, SPINS, LIMIT_W), (TRAINS, SPINS, None), (TRAINS, IDLES, LIMIT_W)],
)
def test_stuck_job_is_examined_once_and_reported_until_it_ends(
    node: Node, first: Load, then: Load, limit: float | None
) -> None:
    node.says = lambda pids: [stuck(*pids, 11)]
    node.gpus = [gpu(0, first, 10, limit=limit)]
    node.call()
    node.gpus = [gpu(0, then, 10, limit=limit)]
    begun = 2 if first is then else 3
    assert node.calls(begun - 1) == [Exit.OK] * (begun - 1)
    code, line = node.call()
    assert (code, node.examined) == (Exit.FAIL, [(10,)])
    assert line.startswith("FAIL rank 1 computes in svd (linalg.py:7); rank 0 waits for it in ")
    assert f"(pid 10); cuda:0: {then[0]} %, {then[1]:.0f} W" in line
    assert "for 10 min; see " in line
    assert Path(line.rpartition("see ")[2]).is_file()
    assert node.calls(11) == [Exit.FAIL] * 11
    assert len(node.examined) == 1
    node.gpus = [gpu(0, then, 12, limit=limit)]
    assert node.call()[0] == Exit.OK


def test_a_stuck_gpu_that_goes_on_is_no_longer_reported(node: Node) -> None:
    node.says = lambda pids: [stuck(*pids)]
    node.gpus = [gpu(0, SPINS, 10)]
    assert node.calls(3)[-1] == Exit.FAIL
    node.gpus = [gpu(0, TRAINS, 10)]
    assert node.call()[0] == Exit.OK


def test_stuck_job_that_is_found_healthy_after_an_hour_is_no_longer_reported(node: Node) -> None:
    node.says = lambda pids: [stuck(*pids)]
    node.gpus = [gpu(0, SPINS, 10)]
    assert node.calls(3)[-1] == Exit.FAIL
    node.says = lambda pids: [runs(*pids)]
    assert node.calls(12) == [Exit.FAIL] * 11 + [Exit.OK]


def test_inference_bound_by_memory_is_examined_once_an_hour(node: Node) -> None:
    node.gpus = [gpu(n, INFERS if n == 3 else TRAINS, 10 + n) for n in range(8)]
    assert node.calls(14) == [Exit.OK] * 14
    assert node.examined == [(13,)], "in 65 minutes"
    node.calls(4)
    assert node.examined == [(13,)] * 2


def test_healthy_job_that_hangs_later_is_examined_before_the_hour_is_over(node: Node) -> None:
    node.gpus = [gpu(0, INFERS, 10)]
    node.calls(4)
    node.says = lambda pids: [stuck(*pids)]
    node.gpus = [gpu(0, SPINS, 10)]
    assert node.calls(3) == [Exit.OK, Exit.OK, Exit.FAIL]
    assert len(node.examined) == 2


@pytest.mark.parametrize("cause", [Cause.HOST_LATE, Cause.UNKNOWN, Cause.RUNS])
def test_job_on_eight_gpus_is_examined_once(node: Node, cause: Cause) -> None:
    node.gpus = [gpu(n, SPINS, 10 + n) for n in range(8)]
    ranks = tuple(replace(WAITS, rank=n, pid=10 + n, started=0) for n in range(8))
    node.says = lambda pids: [replace(_report(cause, 10, 11), ranks=ranks)]
    node.calls(5)
    assert node.examined == [(10,)]
    assert "(and " not in node.call()[1]


def test_two_stuck_jobs_are_examined_in_one_call_unless_it_takes_long(node: Node) -> None:
    def slow(pids: tuple[int, ...]) -> list[JobReport]:
        node.now += 12.0
        return [stuck(*pids)]

    node.gpus = [gpu(n, SPINS, 10 * n + 1, 10 * n + 2) for n in range(3)]
    node.says = slow
    node.calls(2)
    assert "(and 1 more)" in node.call()[1]
    assert node.examined == [(1, 2), (11, 12)]
    assert "(and 2 more)" in node.call()[1]


@pytest.mark.parametrize("seconds", [1.0, 200.0])
def test_two_calls_or_ten_short_ones_are_not_enough(node: Node, seconds: float) -> None:
    node.gpus = [gpu(0, SPINS, 10)]
    for _ in range(2 if seconds > 100 else 10):
        node.call(seconds / MINUTE * (3 if seconds > 100 else 1))
    assert node.examined == []


def test_another_process_with_the_same_pid_begins_anew(node: Node) -> None:
    node.gpus = [gpu(0, SPINS, 10)]
    node.calls(2)
    node.starts = {10: 77}
    node.calls(2)
    assert node.examined == []


def test_processes_that_come_and_go_do_not_hide_a_stuck_one(node: Node) -> None:
    for n in range(3):
        node.gpus = [gpu(0, SPINS, 10, 100 + n)]
        node.call()
    assert node.examined == [(10, 102)]


def test_server_of_mps_is_of_no_job(node: Node) -> None:
    node.gpus = [
        replace(gpu(0, SPINS, 10, 11), processes=(ProcessUse(9, MPS, 1), ProcessUse(10, "python", 1)))
    ]
    node.calls(3)
    assert node.examined == [(10,)]


def test_worst_of_two_jobs_that_share_a_gpu_counts(node: Node) -> None:
    node.gpus = [gpu(0, SPINS, 10, 20)]
    node.says = lambda pids: [runs(10), stuck(20, 21), runs(30)]
    assert node.calls(3)[-1] == Exit.FAIL
    assert "(pid 20)" in node.call()[1]


@pytest.mark.parametrize(
    ("load", "doing", "code"),
    [
        (IDLES, Kind.SLEEPS, Exit.OK),  # an idle server
        (SPINS, Kind.SLEEPS, Exit.ERROR),
        (IDLES, Kind.UNKNOWN, Exit.ERROR),
        (IDLES, Kind.COLLECTIVE, Exit.ERROR),
    ],
)
def test_idle_gpu_of_ranks_that_wait_for_nobody_is_a_server(
    node: Node, load: Load, doing: Kind, code: Exit
) -> None:
    ranks = (replace(WAITS, doing=Kind.SLEEPS.value), replace(WORKS, doing=doing.value))
    seen = replace(report(0.0), ranks=ranks, verdict=Verdict(cause=Cause.UNKNOWN, waiting=(0, 1)))
    node.says = lambda pids: [seen]
    node.gpus = [gpu(0, TRAINS, 10)]
    node.call()
    node.gpus = [gpu(0, load, 10)]
    assert node.calls(3)[-1] == code


def test_late_rank_in_an_event_loop_may_be_a_server(node: Node) -> None:
    """One of TensorRT-LLM's over MPI, for example: its ranks wait in MPI_Bcast for the next request."""
    node.gpus = [gpu(0, SPINS, 10)]
    loop = replace(WORKS, path=(*WORKS.path, "select (selectors.py:468)", "do_epoll_wait"))
    node.says = lambda pids: [replace(stuck(*pids), ranks=(WAITS, loop))]
    assert node.calls(3)[-1] == Exit.ERROR
    assert "cannot tell: rank 1 computes in svd (linalg.py:7); rank 0 waits for it" in node.call()[1]


# -- the second look --------------------------------------------------------------------------------------


def test_rank_at_work_is_blamed_at_the_second_look(node: Node) -> None:
    """By the time since boot: the reports' clock stands still, and steps back by a day."""
    node.gpus = [gpu(0, SPINS, 10, 20)]
    node.says = lambda pids: [report(1e9 - 86400.0 * len(node.examined))]
    code, line = node.calls(2), node.call()
    assert (code, line[0]) == ([Exit.OK] * 2, Exit.ERROR)
    assert line[1].startswith(
        "ERROR cannot tell: rank 1 is late, and working at svd (linalg.py:7): look again"
    )
    assert node.calls(5) == [Exit.ERROR] * 5
    assert len(node.examined) == 1
    code, text = [node.call()[0], len(node.examined)], node.call()[1]
    assert code == [Exit.FAIL, 2]
    assert text.startswith("FAIL rank 1 computes in svd (linalg.py:7)")


@pytest.mark.parametrize("what", ["mark", "started"])
def test_rank_at_work_whose_group_goes_on_is_not_blamed(node: Node, what: str) -> None:
    """It made another call, or was restarted, between any two looks."""

    def says(pids: tuple[int, ...]) -> list[JobReport]:
        n = len(node.examined)
        return [report(0.0, waits=replace(WAITS, **{what: n if what == "started" else str(n)}))]

    node.gpus, node.says = [gpu(0, SPINS, 10, 20)], says
    assert Exit.FAIL not in node.calls(20)
    assert len(node.examined) > 2


# -- what cannot be told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (
            gpu(0, (None, None), 10),
            "cuda:0: use unknown, power unknown; the driver reports no",
        ),
        (gpu(0, (99, None), 10), "cuda:0: 99 %, power unknown; the driver reports no more (MIG, vGPU)"),
        (gpu(0, SPINS), "cuda:0: 100 %, 178 W of 700 W; its processes are not listed; run this on the host"),
        (replace(gpu(0, SPINS), processes=None), "its processes are not listed"),
    ],
)
def test_gpu_without_figures_or_processes_cannot_be_told(node: Node, seen: GpuUse, says: str) -> None:
    node.gpus = [gpu(1, TRAINS, 20), seen]
    assert node.calls(2) == [Exit.OK] * 2
    code, line = node.call()
    assert (code, node.examined) == (Exit.ERROR, [])
    assert says in line


def test_unused_gpu_without_figures_is_no_trouble(node: Node) -> None:
    node.gpus = [gpu(0, (None, None))]
    assert node.calls(5) == [Exit.OK] * 5


def test_gpu_that_vanishes_is_reported_once(node: Node) -> None:
    node.gpus = [gpu(0, TRAINS, 10), gpu(1, TRAINS, 11)]
    node.call()
    node.gpus.pop()
    gone = "GPU 0000:01:00.0 was listed in the last call and is not now: see dmesg"
    assert node.call() == (Exit.ERROR, f"ERROR cannot tell: {gone}")
    assert node.call()[0] == Exit.OK


def test_gpu_that_is_lost_does_not_lose_what_was_seen(node: Node) -> None:
    node.says = lambda pids: [stuck(*pids)]
    node.gpus = [gpu(0, SPINS, 10), gpu(1, SPINS, 11)]
    node.calls(2)
    lost = "nvmlDeviceGetName returned GPU is lost (15)"
    node.gpus[1] = GpuUse("cuda:1", "", "", trouble=lost)
    assert node.call()[0] == Exit.FAIL
    assert node.examined == [(10,)]
    node.gpus = [gpu(0, TRAINS, 10), node.gpus[1]]
    assert node.call() == (
        Exit.ERROR,
        "ERROR cannot tell: cuda:1: nvmlDeviceGetName returned GPU is lost (15)",
    )
    node.gpus[1] = gpu(1, SPINS, 11)
    assert node.call()[0] == Exit.FAIL


def test_without_nvml_it_cannot_tell_and_keeps_what_was_seen(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.gpus = [gpu(0, SPINS, 10)]
    node.calls(2)
    with monkeypatch.context() as patched:
        patched.setattr(gpu_loads, "read", lambda: (_ for _ in ()).throw(gpu_loads.NotRead("NVIDIA: none")))
        assert node.call() == (Exit.ERROR, "ERROR cannot tell: NVIDIA: none")
    node.call()
    assert node.examined == [(10,)]


@pytest.mark.parametrize(("has_ended", "code"), [(True, Exit.OK), (False, Exit.ERROR)])
def test_processes_that_end_while_they_are_looked_at(node: Node, has_ended: bool, code: Exit) -> None:
    def absent(pids: tuple[int, ...]) -> list[JobReport]:
        node.starts = {10: 5} if has_ended else {}
        raise NoSuchJob("no process 10 in this pid namespace")

    node.gpus, node.says = [gpu(0, SPINS, 10)], absent
    assert node.calls(3)[-1] == code


# -- the state --------------------------------------------------------------------------------------------


def test_boot_and_a_clock_that_steps_back_begin_anew(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.gpus = [gpu(0, SPINS, 10)]
    node.calls(2)
    node.now = 10.0
    node.calls(2)
    monkeypatch.setattr(sweep.Tree, "line", lambda *_: "another boot")
    node.calls(2)
    assert node.examined == []


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"[" * 100_000, b"{}", b'{"format": 2, "boot": "", "gpus": {}}', b"null"]
)
def test_damaged_state_is_said_once_and_replaced(node: Node, content: bytes) -> None:
    node.gpus = [gpu(0, TRAINS, 10)]
    node.call()
    Path(node.config.state_dir, FILE).write_bytes(content)
    code, line = node.call()
    assert (code, "is damaged or of another version" in line, "begun anew" in line) == (
        Exit.ERROR,
        True,
        True,
    )
    assert node.call()[0] == Exit.OK


def test_state_that_is_cut_anywhere_is_damaged(node: Node) -> None:
    node.gpus = [gpu(0, TRAINS, 10)]
    node.call()
    file = Path(node.config.state_dir, FILE)
    whole = file.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        file.write_bytes(whole[:length])
        assert node.call()[0] == Exit.ERROR


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.sampled_from([field.name for field in fields(Watch)]), SCALARS | st.lists(SCALARS))
def test_no_field_of_another_type_is_read(name: str, value: Any) -> None:
    with TemporaryDirectory() as place, sweep_state.opened(Path(place, "state")) as store:
        store.write("", {"0000:01:00.0": replace(Watch(), **{name: value})})
        try:
            (read,) = store.read("").values()
        except Unusable:
            return
    assert type(getattr(read, name)) is type(getattr(Watch(), name))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant files of another user")
@pytest.mark.parametrize("plant", ["directory", "link", "file", "hard link"])
def test_what_another_user_planted_is_refused(node: Node, tmp_path: Path, plant: str) -> None:
    node.gpus = [gpu(0, TRAINS, 10)]
    node.call()
    directory, secret = Path(node.config.state_dir), tmp_path / "secret"
    secret.write_text("secret")
    if plant == "directory":
        os.chown(directory, 65534, 65534)
    elif plant == "file":
        os.chown(directory / FILE, 65534, 65534)
    else:
        (directory / FILE).unlink()
        (directory / FILE).symlink_to(secret) if plant == "link" else (directory / FILE).hardlink_to(secret)
    code, line = node.call()
    assert (code, str(directory) in line) == (Exit.ERROR, True)
    assert secret.read_text() == "secret"


def test_full_disk_loses_nothing_and_examines_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.gpus = [gpu(0, SPINS, 10)]
    node.calls(2)
    before = Path(node.config.state_dir, FILE).read_bytes()
    with monkeypatch.context() as full:
        full.setattr(private.os, "write", lambda fd, data: len(data) // 2)
        code, line = node.call()
        assert (code, node.examined) == (Exit.ERROR, [])
        assert "No space left on device" in line
    assert Path(node.config.state_dir, FILE).read_bytes() == before
    assert [path.name for path in Path(node.config.state_dir).iterdir()] == [FILE]


def test_disk_that_fills_up_while_a_job_is_examined(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(pids: tuple[int, ...]) -> list[JobReport]:
        monkeypatch.setattr(private.os, "write", lambda fd, data: 0)
        return [stuck(*pids)]

    node.gpus, node.says = [gpu(0, SPINS, 10)], fill
    node.calls(2)
    code, line = node.call()
    assert code == Exit.FAIL
    assert "job-000001.json: [Errno 28] No space left on device" in line


def test_sweep_that_was_killed_examines_again_after_the_time(node: Node) -> None:
    def killed(pids: tuple[int, ...]) -> list[JobReport]:
        raise KeyboardInterrupt

    node.gpus, node.says = [gpu(0, SPINS, 10)], killed
    node.calls(2)
    with pytest.raises(KeyboardInterrupt):
        node.call()
    node.says = lambda pids: [stuck(*pids)]
    assert node.calls(2) == [Exit.OK, Exit.FAIL]


def test_second_sweep_at_the_same_time_cannot_tell(node: Node) -> None:
    node.gpus = [gpu(0, TRAINS, 10)]
    with sweep_state.opened(Path(node.config.state_dir)):
        assert node.call() == (
            Exit.ERROR,
            "ERROR cannot tell: another sweep has not ended, or its reader hangs in the driver",
        )
    assert node.call()[0] == Exit.OK


def test_directory_that_cannot_be_made_names_the_setting(node: Node) -> None:
    node.config = node.config._replace(state_dir="/nowhere/state")
    cure = "No such file or directory; run as root, or set sweep.state_dir in the site config"
    assert node.call()[1] == f"ERROR cannot tell: cannot use /nowhere/state: {cure}"


def test_the_last_twenty_reports_are_kept(node: Node) -> None:
    with sweep_state.opened(Path(node.config.state_dir)) as store:
        names = [store.keep(stuck(10, 11)) for _ in range(KEPT + 5)]
        assert store.earlier(names[-1]) == stuck(10, 11)
        assert store.earlier(names[0]) is None
    assert sorted(path.name for path in Path(node.config.state_dir).iterdir()) == names[-KEPT:]


def test_node_without_room_for_a_process_cannot_be_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.undo()
    monkeypatch.setattr(gpu_loads.os, "fork", full)
    assert node.call() == (Exit.ERROR, "ERROR cannot tell: [Errno 11] Resource temporarily unavailable")
