"""The GPU of each rank, from the drivers' lists of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpuipc_doctor.job import gpu_holders, here, job_content
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.model import Finding, Node
from gpuipc_doctor.node import memory_watching
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse, Sample
from gpuipc_doctor.node.memory_watching import End
from tests.unit.job.test_job_content import rank, report

LATE = report(rank(0, Kind.COLLECTIVE, ("main (app)",)), rank(1, Kind.SLEEPS, ("main (app)",)), size=2)


def driver_says(monkeypatch: pytest.MonkeyPatch, *gpus: GpuUse, trouble: Finding | None = None) -> None:
    def watch(
        node: Node,
        backends: Sequence[str],
        interval_s: float,
        listener: Callable[[Sample], None],
        **more: float,
    ) -> End:
        if gpus:
            listener(Sample(1.0, gpus))
        return End(trouble, () if gpus else ("NVIDIA: no libnvidia-ml.so.1",))

    monkeypatch.setattr(memory_watching, "watch", watch)


def used(label: str, *pids: int) -> GpuUse:
    return GpuUse(label, "", "H200", processes=tuple(ProcessUse(pid, "app", 1 << 20) for pid in pids))


def test_late_rank_is_shown_with_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_says(monkeypatch, used("cuda:0", 4000, 77), used("cuda:3", 4001), used("cuda:4", 4001))
    held = gpu_holders.holders(gpu_holders.now(Node()))
    found = replace(LATE, ranks=tuple(replace(rank, gpus=held[rank.pid]) for rank in LATE.ranks))
    assert [each.gpus for each in found.ranks] == [("cuda:0",), ("cuda:3", "cuda:4")]
    assert "rank 1: n1, pid 4001 (app), cuda:3, cuda:4" in job_content.screen(found, width=80, color=False)


def test_driver_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_says(monkeypatch, trouble=Finding.fail("hung", "sampler: nvmlInit hung (10 s)"))
    cuda = Process(pid=4001, parent=1, uid=0, program="app", libraries=("/usr/lib/libcuda.so.1",))
    unable: dict[str, str] = {}
    assert here.gpus_of({0: cuda}, Node(), unable) == ()
    assert unable == {"GPUs of the ranks": "cannot list GPUs: sampler: nvmlInit hung (10 s)"}


def test_gpu_whose_processes_are_not_listed_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_says(monkeypatch, GpuUse("cuda:0", "", "H200", processes=None))
    assert gpu_holders.holders(gpu_holders.now(Node())) == {}
    driver_says(monkeypatch)
    with pytest.raises(NoSuchJob, match=r"no libnvidia-ml\.so\.1"):
        gpu_holders.now(Node())


def test_gpu_of_a_rank_is_found_by_its_pid_else_by_its_number_on_the_node() -> None:
    gpus = [replace(used(f"cuda:{n}", 500 + n), busy=100, watts=170.0 + n) for n in range(4)]

    def ranks(first: int, visible: str = "") -> dict[int, Process]:
        settings = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
        return {
            n: Process(pid=first + n, parent=1, uid=0, program="python3", local=n, settings=settings)
            for n in range(2)
        }

    def found(ranks: dict[int, Process]) -> list[str]:
        return [gpu.label for gpu in gpu_holders.of_ranks(gpus, ranks).values()]

    assert found(ranks(502)) == ["cuda:2", "cuda:3"]
    assert found(ranks(40)) == ["cuda:0", "cuda:1"]  # pids of a container
    assert found(ranks(40, "3,1")) == ["cuda:3", "cuda:1"]
    assert found(ranks(40, "3")) == []  # two ranks on one GPU: whose load it is cannot be told
    assert found(ranks(40, "GPU-8f2c")) == []


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({}, ["hip:0", "hip:1"]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ["hip:3", "hip:1"]),
        ({"HIP_VISIBLE_DEVICES": "1,0", "ROCR_VISIBLE_DEVICES": "2,3"}, []),  # counts among 2 and 3
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, []),  # which HIP reads also, unless HIP's own is set
    ],
)
def test_amd_gpu_of_a_rank_is_found_unless_two_lists_choose(
    settings: dict[str, str], labels: list[str]
) -> None:
    gpus = [used(f"hip:{n}", 500 + n) for n in range(4)]
    ranks = {
        n: Process(pid=40 + n, parent=1, uid=0, program="python3", local=n, settings=settings)
        for n in range(2)
    }
    assert [gpu.label for gpu in gpu_holders.of_ranks(gpus, ranks).values()] == labels
