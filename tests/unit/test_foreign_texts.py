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
    # NCCL's RAS; py-spy, gdb and eu-stack; perf; Lmod and Environment Modules; logs of JSON, Flight Recorder;
    # pages of PyTorch's debug server, a rank's own dump
    "ras_counts.py": PARSED,
    "ras.py": PARSED,
    "python_stacks.py": PARSED,
    "stopping.py": PARSED,
    "environment_modules.py": PARSED,
    "records.py": PARSED,
    "debug_dumps.py": PARSED,
    "recorder_dumps.py": PARSED,
    # Programs of Slurm and Flux, rpm, dpkg and ofed_info use files/foreign.run; others read the end of a file
    "foreign.py": RUN,
    "sampling.py": RUN,
    "evidence.py": RUN,
    "fabric.py": RUN,
    "dcgm.py": RUN,
    "check.py": OWN,  # the report of `fleet collectives`, which it starts
    "reading.py": LIMITED,
    "process_leaks.py": KERNEL,
    "sleeping.py": KERNEL,
    "holders.py": KERNEL,
    "memory_sysfs.py": KERNEL,
    "node_name.py": KERNEL,
    "tree.py": KERNEL,
    "hip.py": KERNEL,
    "nvml.py": KERNEL,
    "fork_server.py": KERNEL,
    "schema.py": PACKAGE,
    "tables.py": PACKAGE,
    "c_program.py": PACKAGE,
    "mpi_program.py": PACKAGE,
    "mistakes.py": PACKAGE,
    "parse.py": PACKAGE,
    "hooks.py": PACKAGE,
    "finding_keys.py": PACKAGE,
    "build.py": PACKAGE,
    "profile.py": PACKAGE,
    "vocabulary.py": PACKAGE,
    "config_mistakes.py": PACKAGE,
    "hosts.py": PACKAGE,
    "kernel_sources.py": PACKAGE,
    "python.py": OWN,
    "guard.py": OWN,
    "state.py": OWN,
    "job_counters.py": OWN,
    "gpu_loads.py": OWN,
    "check_files.py": OWN,
    "node_state.py": OWN,
    "assignment.py": OWN,
    "journal.py": OWN,
    "rank.py": OWN,
    "scratch.py": OWN,
    "start.py": OWN,
    "fork_servers.py": OWN,
    "children.py": OWN,
    "node_socket.py": OWN,
    "peer.py": OWN,
    "across.py": OWN,
    "collective_node.py": OWN,
    "ssh_gateways.py": OWN,
    "secret_line.py": OWN,  # bounded, and signed with the run's secret
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
        file.name: file.read_text("utf-8")
        for file in sorted(package.rglob("*.py"))
        if any(map(reads_a_text, ast.walk(ast.parse(file.read_text("utf-8")))))
    }
    assert set(found) == set(PLACES)
    called = {"ras_counts.py", "debug_dumps.py"}
    parsers = {name for name, bound in PLACES.items() if bound == PARSED} - called
    assert {name for name in parsers if "foreign.parsed(" not in found[name]} == set()
