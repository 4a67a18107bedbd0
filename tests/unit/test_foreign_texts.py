"""Every place that parses a text of another process, and what bounds it."""

from __future__ import annotations

import ast
from pathlib import Path

import gpuipc_doctor

PARSED = "by files/foreign.parsed, in a process with limits"
RUN = "the output of a program that is started here, read with a limit"
OWN = "written by a process of ours, in a private directory or pipe"
PACKAGE = "a file of the package, or of a check of the site"
KERNEL = "written by the kernel, and bounded by it"
LIMITED = "a file, read with files/reading's limits of size and depth"

PLACES = {
    # NCCL's RAS; py-spy, gdb and eu-stack; perf; Lmod and Environment Modules; logs of JSON, Flight Recorder
    "collective/ras_counts.py": PARSED,
    "job/ras.py": PARSED,
    "job/python_stacks.py": PARSED,
    "job/stopping.py": PARSED,
    "node/environment_modules.py": PARSED,
    "diagnose/records.py": PARSED,
    # Programs of Slurm and Flux, rpm, dpkg and ofed_info use files/foreign.run; others read the end of a file
    "files/foreign.py": RUN,
    "job/sampling.py": RUN,
    "supervise/evidence.py": RUN,
    "worker/fabric.py": RUN,
    "files/reading.py": LIMITED,
    "api/process_ledger.py": KERNEL,
    "job/sleeping.py": KERNEL,
    "node/memory_sysfs.py": KERNEL,
    "node_name.py": KERNEL,
    "supervise/tree.py": KERNEL,
    "worker/backends/hip.py": KERNEL,
    "worker/backends/nvml.py": KERNEL,
    "worker/stem.py": KERNEL,
    "cli/schema.py": PACKAGE,
    "files/tables.py": PACKAGE,
    "histories/c_program.py": PACKAGE,
    "knownissues/mistakes.py": PACKAGE,
    "knownissues/parse.py": PACKAGE,
    "prolog/hooks.py": PACKAGE,
    "run/finding_keys.py": PACKAGE,
    "simulator/build.py": PACKAGE,
    "simulator/profile.py": PACKAGE,
    "simulator/vocabulary.py": PACKAGE,
    "site/config.py": PACKAGE,
    "site/hosts.py": PACKAGE,
    "worker/backends/kernel_sources.py": PACKAGE,
    "files/python.py": OWN,
    "prolog/guard.py": OWN,
    "prolog/state.py": OWN,
    "run/check_files.py": OWN,
    "run/preflight.py": OWN,
    "supervise/assignment.py": OWN,
    "supervise/journal.py": OWN,
    "supervise/rank.py": OWN,
    "supervise/scratch.py": OWN,
    "supervise/start.py": OWN,
    "supervise/stems.py": OWN,
    "worker/children.py": OWN,
    "worker/node_socket.py": OWN,
    "worker/peer.py": OWN,
}

_CALLS = {
    "subprocess": {"run", "Popen", "check_output", "call"},
    "json": {"loads", "load"},
    "pickle": {"loads", "load"},
    "ast": {"parse", "literal_eval"},
    "gzip": {"decompress", "open"},
}
_METHODS = {"read_text", "read_bytes", "raw_decode"}


def reads_a_text(call: ast.AST) -> bool:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    module = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    return call.func.attr in _METHODS or call.func.attr in _CALLS.get(module, ())


def test_every_text_is_bounded() -> None:
    """A new place is listed here with its bound, or uses `foreign.run` and `foreign.parsed`."""
    package = Path(gpuipc_doctor.__path__[0])
    found = {
        str(file.relative_to(package)): file.read_text("utf-8")
        for file in sorted(package.rglob("*.py"))
        if any(map(reads_a_text, ast.walk(ast.parse(file.read_text("utf-8")))))
    }
    assert set(found) == set(PLACES)
    parsers = {name for name, bound in PLACES.items() if bound == PARSED} - {"collective/ras_counts.py"}
    assert {name for name in parsers if "foreign.parsed(" not in found[name]} == set()
