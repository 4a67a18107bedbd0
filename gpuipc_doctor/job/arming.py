"""What a job should have set before it hangs, so that it can be asked then: right for the versions found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.job import rights
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Range, Verdict, any_of


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable to set; shells expand what stands in ``value``."""

    name: str
    value: str
    use: str
    """What it gives, and how that is got from a job that hangs."""
    needs: Range | None = None
    """Versions of a component that know it; without it, any."""
    component: str = ""
    """Found on the node; without it the variable is for every job."""
    cost: str = ""


_PLACE = "${TMPDIR:-/tmp}"

VARIABLES = (
    Variable(
        "PYTHONFAULTHANDLER", "1", "the Python stacks of a program that is ended by kill -ABRT PID"
    ),
    # docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html; the pipe's name ends in RANK.pipe
    # (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp). PyTorch 2.9 reads both names of the buffer's size.
    Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "PyTorch's Flight Recorder keeps the last collectives",
             component="nccl", cost="some MB of host memory"),
    Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "the Flight Recorder is dumped when a collective times out",
             component="nccl"),
    Variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{_PLACE}/flight-recorder-",
             f"dumps the Flight Recorder of a running rank: echo 1 > {_PLACE}/flight-recorder-RANK.pipe",
             component="nccl"),
    Variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{_PLACE}/flight-recorder-dump-", "where the dumps go",
             component="nccl"),
    Variable("NCCL_DEBUG", "WARN", "NCCL's warnings in the job's output", component="nccl"),
    Variable("NCCL_RAS_ENABLE", "1", "gpuipc-doctor job asks NCCL which ranks lag",
             Range("nccl", "2.29.2"), "nccl"),
    # docs.nvidia.com/cuda/cuda-gdb, "GPU core dump support"
    Variable("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "1", "a running kernel can be dumped from outside",
             component="libcuda", cost="not measured"),
    Variable("CUDA_COREDUMP_PIPE", f"{_PLACE}/cuda-core.%h.%p",
             f"dumps the GPU's state: echo 1 > {_PLACE}/cuda-core.HOST.PID", component="libcuda"),
    Variable("CUDA_COREDUMP_FILE", f"{_PLACE}/cuda-core-dump.%h.%p", "where the dump goes, for cuda-gdb",
             component="libcuda"),
    Variable("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1", "leaves memory out of the dump", component="libcuda"),
    # Tried with MPICH 5.0.0: a rank that waits longer prints its pending requests and a backtrace.
    Variable("MPIR_CVAR_DEBUG_PROGRESS_TIMEOUT", "600",
             "a rank that waits for 600 s in MPICH prints its pending requests and a backtrace",
             Range("mpich", "5.0.0"), "mpich"),
    # The man page intro_mpi of Cray MPICH
    Variable("MPICH_ABORT_ON_ERROR", "1", "Cray MPICH leaves a core file where it gives up",
             component="cray-mpich"),
)  # fmt: skip


def variables(facts: Iterable[Fact], environ: Iterable[str] = ()) -> Iterator[Variable]:
    """Those that the versions found know, and that are not in ``environ`` already."""
    facts, set_already = tuple(facts), frozenset(environ)
    for variable in VARIABLES:
        versions = [fact.value for fact in facts if fact.name == variable.component and fact.value]
        fits = not variable.component or (
            bool(versions)
            and (
                variable.needs is None
                or any_of(variable.needs.judge(version) for version in versions) is Verdict.BAD
            )
        )
        if fits and variable.name not in set_already:
            yield variable


def script(facts: Iterable[Fact]) -> Iterator[str]:
    """Lines for a job script."""
    for variable in variables(facts):
        yield f"# {_use(variable)}"
        yield f'export {variable.name}="{variable.value}"'
    yield from _hints()


def task_prolog(facts: Iterable[Fact]) -> Iterator[str]:
    """A TaskProlog of Slurm's, which prints what each task gets (slurm.schedmd.com/prolog_epilog.html)."""
    yield "#!/bin/sh"
    for variable in variables(facts):
        yield f"# {_use(variable)}"
        yield f'echo "export {variable.name}={variable.value}"'
    yield from _hints()


def _use(variable: Variable) -> str:
    return variable.use + (f" (cost: {variable.cost})" if variable.cost else "")


def _hints() -> Iterator[str]:
    if scope := rights.yama():
        yield (
            f"# kernel.yama.ptrace_scope is {scope} here: a user cannot read stacks of ranks that sleep; "
            "run gpuipc-doctor job as root, or call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) there"
        )
    if (paranoid := _paranoid()) > 2:
        yield f"# kernel.perf_event_paranoid is {paranoid} here: only root can sample stacks"


def _paranoid() -> int:
    try:
        return int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return 0
