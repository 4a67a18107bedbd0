"""Which processes are ranks, helpers of ranks, or launchers."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from gpuipc_doctor.job.document import Cause, Process, Snapshot
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.job.processes import is_launch, read_process
from gpuipc_doctor.job.roles import BY_GPU, IN_ORDER, kind_of_helper, roles, workers
from gpuipc_doctor.stacks.thread import Thread

CUDA = "/usr/lib/libcuda.so.1"
TORCH = "/venv/torch/lib/libtorch_cpu.so"
WORKS = ("cuda-EvtHandlr", "pt_nccl_watchdg")
JOIN = ("wait (connection.py:930)", "ProcessContext.join (spawn.py:117)", "start_processes (spawn.py:198)")
WRAP = ("step (train.py:7)", "_wrap (spawn.py:69)")
LOADS = ("fetch (data.py:5)", "_worker_loop (worker.py:308)", "step (train.py:7)")


def process(
    pid: int,
    parent: int = 1,
    rank: int | None = None,
    libraries: tuple[str, ...] = (CUDA, TORCH),
    threads: tuple[str, ...] = (),
    python: tuple[str, ...] = (),
) -> Process:
    names = ("python3", *threads)
    return Process(
        pid=pid,
        parent=parent,
        uid=0,
        program="python3",
        rank=rank,
        started=pid,
        threads=tuple(Thread(tid=pid + n, name=name, state="S") for n, name in enumerate(names)),
        python=python,
        libraries=libraries,
    )


def found(*processes: Process) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Rank → pid, and rank → pids of its helpers."""
    here = roles(Snapshot(at=0.0, host="n1", processes=processes))
    ranks = {rank: process.pid for rank, process in here.ranks.items()}
    return ranks, {rank: [process.pid for process in own] for rank, own in here.helpers.items()}


@pytest.mark.parametrize(
    "frame",
    [
        "next_rendezvous (dynamic_rendezvous.py:1145)",
        "_rendezvous (api.py:540)",
        "_monitor_workers (local_elastic_agent.py:307)",
        "torch.distributed.next_rendezvous (static_tcp_rendezvous.py:55)",
    ],
)
def test_agent_of_torchrun_is_no_rank(frame: str) -> None:
    agent = replace(process(7), program="torchrun", python=(frame, "main (run.py:9)"), nodes="2")
    snapshot = Snapshot(at=0.0, host="n1", processes=(agent,))
    report = examine([snapshot] * 3, {})
    assert (report.ranks, report.verdict.cause) == ((), Cause.UNKNOWN)
    assert "torchrun (7), which starts ranks on 2 nodes" in report.verdict.reasons[0]


def test_child_with_its_parents_rank_is_a_helper() -> None:
    """A DataLoader's worker is a fork, with the environment and libraries, and may load more of them."""
    rank = process(100, rank=0, threads=WORKS)
    worker = process(101, 100, rank=0, libraries=(CUDA, TORCH, "/usr/lib/libjpeg.so"), python=LOADS)
    assert found(rank, worker) == ({0: 100}, {0: [101]})
    assert [each.pid for each in workers([rank, worker])] == [100]


def test_shell_around_a_rank_is_no_rank() -> None:
    shell = process(100, rank=0, libraries=("/usr/lib/libc.so.6",))
    assert found(shell, process(101, 100, rank=0, threads=WORKS)) == ({0: 101}, {})


def test_spawned_children_are_ranks_and_their_parent_none() -> None:
    parent = process(100, python=JOIN)
    children = [process(101 + n, 100, python=WRAP) for n in range(3)]
    assert found(parent, *children) == ({0: 101, 1: 102, 2: 103}, {})
    here = roles(Snapshot(at=0.0, host="n1", processes=(parent, *children)))
    assert here.numbered == {0, 1, 2}
    assert "no variable" in IN_ORDER


def test_children_that_use_gpus_are_the_ranks_of_a_parent_that_uses_none() -> None:
    """vLLM: a server starts an engine, which starts a worker for each GPU; none has a rank variable."""
    server, engine = process(100), process(101, 100)
    gpu_workers = [process(102 + n, 101, threads=WORKS) for n in range(2)]
    assert found(server, engine, *gpu_workers) == ({0: 102, 1: 103}, {})


def test_forks_of_a_process_without_a_rank_are_its_helpers() -> None:
    rank = process(100, threads=WORKS)
    assert found(rank, process(101, 100, python=LOADS), process(102, 100)) == ({0: 100}, {0: [101, 102]})


def test_parent_and_child_that_both_use_gpus_are_two_ranks() -> None:
    assert found(process(100, threads=WORKS), process(101, 100, threads=WORKS)) == ({0: 100, 1: 101}, {})


def on_gpu(number: int, of: Process) -> Process:
    return replace(of, gpu=f"cuda:{number}")


def test_ranks_of_ray_are_numbered_by_their_gpus() -> None:
    """By imitation: a raylet starts its workers in any order; each sets its rank and GPU after its start."""
    raylet = process(100, libraries=())
    started = [on_gpu(gpu, process(101 + n, 100, threads=WORKS)) for n, gpu in enumerate((2, 10, 0, 1))]
    here = roles(Snapshot(at=0.0, host="n1", processes=(raylet, *started)))
    assert {rank: process.pid for rank, process in here.ranks.items()} == {0: 103, 1: 104, 2: 101, 3: 102}
    assert (here.numbered, here.order) == ({0, 1, 2, 3}, BY_GPU)


def test_workers_of_two_engines_are_kept_together() -> None:
    """By imitation of vLLM with two engines of two workers, whose GPUs are 2, 3 and 0, 1."""
    engines = [process(100), process(200)]
    ranks = [
        on_gpu(gpu, process(pid, pid // 100 * 100, threads=WORKS))
        for pid, gpu in ((101, 3), (102, 2), (201, 0), (202, 1))
    ]
    here = roles(Snapshot(at=0.0, host="n1", processes=(*engines, *ranks)))
    assert [here.ranks[rank].pid for rank in range(4)] == [102, 101, 201, 202]


def test_ranks_with_an_unknown_or_common_gpu_are_numbered_by_start() -> None:
    parent = process(100, python=JOIN)
    for gpus in ((1, None, 0), (1, 1, 0)):
        some = [process(101 + n, 100, python=WRAP) for n in range(3)]
        ranks = [one if gpu is None else on_gpu(gpu, one) for one, gpu in zip(some, gpus, strict=True)]
        here = roles(Snapshot(at=0.0, host="n1", processes=(parent, *ranks)))
        assert ([here.ranks[rank].pid for rank in range(3)], here.order) == ([101, 102, 103], IN_ORDER)


def test_numbered_ranks_keep_their_numbers_beside_others() -> None:
    ranks = [on_gpu(0, process(101, threads=WORKS)), on_gpu(1, process(102, rank=0, threads=WORKS))]
    assert found(*ranks) == ({0: 102, 1: 101}, {})


def test_launcher_of_numbered_ranks_is_no_rank() -> None:
    """torchrun loads PyTorch, too."""
    ranks = [process(101 + n, 100, rank=n, threads=WORKS) for n in range(2)]
    assert found(process(100), *ranks) == ({0: 101, 1: 102}, {})


def test_helpers_frames_end_where_its_parents_begin() -> None:
    assert kind_of_helper(LOADS) == ("DataLoader worker", 1)
    assert kind_of_helper(("main (tool.py:1)",)) == ("child process", 1)


def test_rank_of_torchrun_below_srun_has_the_number_of_torchrun() -> None:
    """Every rank of ``srun torchrun`` has the SLURM_PROCID and PMIX_RANK of its agent."""
    below = {"SLURM_PROCID": "1", "PMIX_RANK": "1", "SLURM_NTASKS": "2"}
    torch = {"RANK": "9", "WORLD_SIZE": "16", "MASTER_PORT": "29500"}
    numbers = []
    for environ in ({**below, **torch}, below, {**below, "RANK": "9"}):
        with subprocess.Popen(["/bin/sleep", "600"], env=environ) as rank:
            read = read_process(rank.pid, lambda tid, used_s: 0.0, frozenset())
            rank.kill()
            assert read
            numbers.append((read.rank, read.size))
    assert numbers == [(9, 16), (1, 2), (1, 2)]


@pytest.mark.parametrize("what", ["its command line", "its frames"])
def test_torchrun_below_srun_is_no_rank(what: str) -> None:
    """It has the PMIX_RANK of srun, and the libraries of a rank."""
    frames = ("_invoke_run (api.py:880)", "run (api.py:711)") if what == "its frames" else ()
    agent = replace(process(100, 1, 0, python=frames), launches=not frames)
    ranks = [process(101 + n, 100, n, threads=WORKS) for n in range(2)]
    assert found(agent, *ranks) == ({0: 101, 1: 102}, {})


@pytest.mark.parametrize(
    ("words", "launches"),
    [
        ("python3 /venv/bin/torchrun --nproc_per_node 8 train.py", True),
        ("python3 -u -m torch.distributed.run train.py", True),
        ("python3 -m torch.distributed.launch train.py", True),
        ("python3 /venv/bin/accelerate launch train.py", True),
        ("python3 -u -m deepspeed.launcher.launch train.py", True),
        ("python3 -u train.py --launcher torchrun", False),
        ("python3 train.py", False),
        ("", False),
    ],
)
def test_launchers_of_pytorch_are_known_by_their_commands(words: str, *, launches: bool) -> None:
    assert is_launch(words.replace(" ", "\0")) is launches


MPI = ("/usr/lib/libmpi.so.40",)


def of_world(pid: int, rank: int, world: str, size: int | None = None, parent: int = 1) -> Process:
    return replace(process(pid, parent, rank, MPI), world=world, size=size)


def test_ranks_of_comm_spawn_are_numbered_after_their_parents() -> None:
    world = [of_world(100 + n, n, "job@1", 3) for n in range(3)]
    children = [of_world(200 + n, n, "job@2", 2) for n in range(2)]
    here = roles(Snapshot(at=0.0, host="n1", processes=(*children, *world)))
    assert {rank: each.pid for rank, each in here.ranks.items()} == {0: 100, 1: 101, 2: 102, 3: 200, 4: 201}
    assert (here.size, here.notes) == (
        5,
        ("ranks 3-4 are ranks 0-1 of a world of their own (MPI_Comm_spawn)",),
    )


@pytest.mark.parametrize("size", [2, None])
def test_two_processes_of_one_rank_number_are_both_ranks(size: int | None) -> None:
    """Two spawned worlds of MPICH, or a mistake in a script that starts ranks."""
    ranks = [of_world(pid, rank, "", size) for pid, rank in ((100, 0), (101, 1), (102, 0))]
    here = roles(Snapshot(at=0.0, host="n1", processes=tuple(ranks)))
    assert ({rank: each.pid for rank, each in here.ranks.items()}, here.size) == ({0: 100, 1: 101, 2: 102}, 3)
    assert here.notes == ("rank 2 is pid 102, which has the rank number of pid 100: 0",)


def test_wrapper_and_its_child_are_one_rank_and_so_is_an_idle_sibling() -> None:
    wrapper, below = of_world(100, 0, ""), of_world(102, 0, "", parent=101)
    between = process(101, 100, libraries=())
    assert len(found(wrapper, between, below)[0]) == 1
    sibling = replace(process(103, 1, 0, ()), program="monitor")
    assert found(wrapper, sibling)[0] == {0: 100}
