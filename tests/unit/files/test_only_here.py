"""Files are opened and written, and programs started, in `gpuipc_doctor.files`; here are the exceptions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

FILES = re.compile(
    r"open|(read|write)_(text|bytes)|touch|extract|extractall|fdopen|mkfifo|mknod|mkstemp|run_path|"
    r"(Named|Spooled)?TemporaryFile"
)
PROGRAMS = re.compile(
    r"Popen|check_call|check_output|getoutput|getstatusoutput|popen|system|posix_spawnp?|"
    r"(create_)?subprocess_(exec|shell)|(exec|spawn)[lv]p?e?"
)
OF_MODULES = re.compile(r"subprocess\.run|shutil\.(copy2?|copyfile|move)")

SECURE = {
    "files/private.py",
    "files/python.py",
    "files/reading.py",
    "files/trust.py",
    "files/writing.py",
}
"""The ways themselves. The other modules of `files` are users of them."""

EXCEPTIONS: dict[str, dict[str, str]] = {
    "the kernel's own files: below /proc and /sys, and drivers' devices": {
        "api/process_leaks.py": "read_bytes",
        "worker/backends/absence.py": "os.open",
        "worker/backends/hip.py": "read_text",
        "worker/backends/nvml.py": "read_bytes",
        "worker/fabric.py": "read_text",
        "stacks/callers.py": "open",
        "stacks/code.py": "open",
        "stacks/holders.py": "read_text",
        "stacks/counting.py": "open",
        "node/kernel_log.py": "os.open",
        "stacks/proc_files.py": "open",
        "stacks/sleeping.py": "open read_text",
        "stacks/stopping.py": "read_text",
        "node/memory_sysfs.py": "read_bytes",
        "node/loaded.py": "open",
        "node_name.py": "read_text",
        "prolog/guard.py": "open os.open",
        "prolog/node_identity.py": "open",
        "supervise/keeper.py": "open",
        "supervise/role.py": "open",
        "supervise/tree.py": "read_bytes write_text",
        "stacks/process_list.py": "os.open",
        "worker/fork_server.py": "read_bytes",
    },
    "the package's own files, and checks that are imported anyway": {
        "worker/backends/kernel_sources.py": "read_text",
        "cli/schema.py": "read_text",
        "histories/c_program.py": "read_text",
        "histories/mpi_program.py": "read_text",
        "knownissues/mistakes.py": "read_text",
        "knownissues/parse.py": "read_text",
        "prolog/hooks.py": "read_text",
        "run/finding_keys.py": "read_text",
        "simulator/profile.py": "read_text",
        "simulator/vocabulary.py": "read_text",
        "site/config_mistakes.py": "read_text",
        "site/hosts.py": "read_text",
        "files/tables.py": "open read_bytes",
    },
    "in the run's own directory, made by `supervise.scratch` for this user only": {
        "cli/fleet_collectives.py": "touch write_bytes",  # a secret, in a directory for this user only
        "collective/across.py": "read_bytes write_bytes",
        "fleet/collective_node.py": "open read_bytes write_bytes",
        "fleet/ssh_gateways.py": "read_bytes",
        "simulator/fabric_programs.py": "write_text",
        "simulator/node.py": "shutil.copyfile touch write_text",
        "supervise/assignment.py": "os.mkfifo os.open read_text write_text",
        "supervise/evidence.py": "open read_text",
        "supervise/journal.py": "open os.open",
        "supervise/rank.py": "os.open read_text write_text",
        "supervise/start.py": "open write_text",
        "supervise/fork_servers.py": "open",
        "worker/node_socket.py": "os.open read_text write_text",
        "worker/running.py": "os.open",
        "worker/services.py": "open",
    },
    "in a cache that `simulator.build` refuses if another user can write it": {
        "simulator/build.py": "read_bytes read_text write_text",
    },
    "descriptors that `files` has opened, standard streams, members of an archive, files without a name": {
        "cli/memory.py": "os.fdopen",
        "cli/stdio.py": "os.fdopen os.open",
        "diagnose/archives.py": "open",
        "diagnose/sources.py": "os.fdopen os.open",  # os.open: a log or pipe that the user names; `_open`
        "worker/dcgm.py": "TemporaryFile",
        "worker/fabric.py": "TemporaryFile open",
        "fleet/node_blocks.py": "open",  # the run's secret, for a step's standard input
        "fleet/ask.py": "open",  # the tool to send, or /dev/null
        "job/recorder_dumps.py": "os.fdopen",
        "job/shared_memory.py": "os.fdopen",
        "worker/nccl.py": "open",
        "files/node_files.py": "open",
        "files/tables.py": "open",
        "ticket/bundle.py": "open",
    },
    "no file: an operation of a history": {"histories/composed_cases.py": "open"},
    "in an expendable process with a second for each source": {
        "run/causes/node_sources.py": "open",
    },
    "Python, with the command line of `files.python`": {
        "cli/check.py": "subprocess.Popen",
        "run/check_files.py": "subprocess.Popen",
        "run/causes/node_state.py": "subprocess.Popen",  # a file of ours that needs the standard library only
        "supervise/scratch.py": "subprocess.Popen",
        "supervise/start.py": "subprocess.Popen",  # and a launcher, in the run's own directory
        "supervise/fork_servers.py": "subprocess.Popen",
        "supervise/rank.py": "subprocess.Popen",  # the worker's command line, from the plan
    },
    "programs of the system or the site, never through a shell": {
        "worker/dcgm.py": "subprocess.Popen",
        "worker/fabric.py": "subprocess.Popen subprocess.run",
        "fleet/ask.py": "subprocess_exec",
        "stacks/sampling.py": "subprocess.Popen",
        "simulator/build.py": "subprocess.Popen subprocess.run",
        "files/foreign.py": "open subprocess.Popen",  # with limits, for all that read foreign texts
    },
    "before the package is there: unpacking, in a directory just made for this user only": {
        "ship/__main__.py": "extractall os.open subprocess.run",
    },
    "a developer's machine, where packages are built": {
        "ship/build.py": "extractall read_bytes shutil.copy subprocess.run write_bytes",
        "ship/pictures.py": "read_text write_text",
        "ship/recipes.py": "write_text",
        "ship/packages.py": "read_bytes subprocess.run write_bytes write_text",
    },
}
"""Reason → file → calls. Files are below gpuipc_doctor/, or of ship/."""


def uses(source: str) -> Iterator[str]:
    """Each call that opens or writes a file or starts a program."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and (node.func.id == "open" or PROGRAMS.fullmatch(node.func.id)):
            yield node.func.id
        elif isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            name, full = node.func.attr, f"{owner}.{node.func.attr}"
            if FILES.fullmatch(name) or PROGRAMS.fullmatch(name) or OF_MODULES.fullmatch(full):
                yield full if owner in ("os", "shutil", "subprocess") else name


def other_uses() -> dict[str, set[str]]:
    """File → calls, outside `gpuipc_doctor.files`."""
    found = {}
    for root in ("gpuipc_doctor", "checks", "ship"):
        for file in (REPOSITORY / root).rglob("*.py"):
            name = file.relative_to(REPOSITORY).as_posix().removeprefix("gpuipc_doctor/")
            if name not in SECURE and (calls := set(uses(file.read_text()))):
                found[name] = calls
    return found


def test_any_other_way_to_a_file_or_a_program_has_a_reason() -> None:
    excepted: dict[str, set[str]] = {}
    for files in EXCEPTIONS.values():
        for name, calls in files.items():
            excepted.setdefault(name, set()).update(calls.split())
    assert other_uses() == excepted


def test_ways_are_recognised() -> None:
    source = """
import os, subprocess, shutil
from subprocess import Popen
open("x"); p.open(); p.read_text(); p.write_bytes(b""); os.open("x", 0); os.execv("x", []); Popen([])
subprocess.run([]); subprocess.check_output([]); shutil.copyfile("a", "b"); os.system("x"); os.popen("x")
loop.subprocess_exec(f); asyncio.create_subprocess_shell("x"); archive.extractall(); tempfile.mkstemp()
report.run(); stream.copy(); reading.read("x"); writing.write("x", b"")
"""
    expected = (
        "open open read_text write_bytes os.open os.execv Popen subprocess.run subprocess.check_output "
    )
    expected += (
        "shutil.copyfile os.system os.popen subprocess_exec create_subprocess_shell extractall mkstemp"
    )
    assert " ".join(uses(source)) == expected
