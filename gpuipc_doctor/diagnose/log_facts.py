"""Versions and variables that logs tell by the way: facts of the nodes that wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuipc_doctor.knownissues.conditions import ENV
from gpuipc_doctor.model import Fact

MOST_VALUES = 16
"""Different values of one name that are kept: logs of a cluster's many nodes may be mixed."""

_V = r"(\d+(?:\.\d+)+[\w.-]*)"

# Who prints it: nvidia-smi, the libraries' own banners, `module list`, paths in stacks and in ldd's output.
_VERSIONS = (
    ("nvidia-driver", rf"\bDriver Version: {_V}"),
    ("nvidia-driver", rf"NVIDIA UNIX \S.{{0,60}}Kernel Module(?: for \S+)?  ?{_V}"),
    ("cuda-driver", rf"\bCUDA Version: {_V}"),
    ("cray-mpich", rf"CRAY MPICH version {_V}"),
    ("cray-mpich", rf"\bcray-mpich/{_V}"),
    ("cray-mpich", rf"/opt/cray/pe/mpich/{_V}"),
    ("mpich", rf"\bMPICH Version: *\t?{_V}"),
    ("openmpi", rf"\bOpen MPI v{_V}"),
    ("openmpi", rf"\(Open MPI\) {_V}"),
    ("intel-mpi", r"Intel\(R\) MPI Library,? (?:Version )?(20\d\d(?: Update \d+|\.\d+)?)"),
    ("mvapich", rf"\bMVAPICH2? Version\s*:\s*{_V}"),
    ("ucx", rf"UCX +INFO +Version {_V}"),
    ("ucx", rf"# Library version: {_V}"),
    ("libfabric", rf"\blibfabric: {_V}\s+libfabric api:"),
    ("libfabric", rf"NET/OFI Using Libfabric version {_V}"),
    ("shs-libfabric", rf"/opt/cray/libfabric/{_V}"),
    ("nccl", rf"\bNCCL version {_V}"),
    ("rccl", rf"\bRCCL version *:? *{_V}"),
    ("rocm", rf"/opt/rocm-{_V}"),
    ("rocm", rf"\bROCm version *:? *{_V}"),
    ("kernel", rf"\bLinux version {_V}"),
    ("slurm", rf"\bslurm(?:d|ctld) version {_V} started"),
    ("pytorch", rf"\bPyTorch version *:? *{_V}"),
    ("vllm", rf"\bvLLM (?:API server )?version {_V}"),
)


def patterns(facts_asked_for: Iterable[str]) -> list[tuple[str, re.Pattern[str]]]:
    """(name of a fact, expression whose first group is its value); variables only if they are asked for."""
    return [
        *((name, re.compile(text)) for name, text in _VERSIONS),
        *((name, _variable(name.removeprefix(ENV))) for name in facts_asked_for if name.startswith(ENV)),
    ]


def _variable(name: str) -> re.Pattern[str]:
    """As a shell, Cray MPICH (``MPICH_ENV_DISPLAY``) and NCCL tell that a variable is set; prose is not."""
    before = r"(?:.{0,60}(?:\$|\+|>|export|setenv|-x|PE \d+:) +)?(?:[A-Za-z_]\w*=\S* +)*"
    return re.compile(
        rf"(?:^{before}|(?<= )(?=\w+ set by )){re.escape(name)}"
        r"(?: *= *| set by (?:environment|user) to )[\"']?([^\s\"';,`]+)"
    )


class Facts:
    """What logs have told, each value with the line that told it first."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, Fact]] = {}

    def add(self, name: str, value: str, source: str) -> None:
        values = self._facts.setdefault(name, {})
        value = value.rstrip(".-")
        if value not in values and len(values) < MOST_VALUES:
            values[value] = Fact(name, value, source)

    def all(self) -> tuple[Fact, ...]:
        return tuple(fact for values in self._facts.values() for fact in values.values())
