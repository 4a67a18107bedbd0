"""Evidence of a hanging process, least intrusive first.

Reading ``/proc`` disturbs nothing. A debugger stops the process, which can wake the hanging call, so it runs
last, just before the process is killed. Every tool has its own time limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gpuipc_doctor.files import foreign
from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.log_lines import most_telling
from gpuipc_doctor.stacks.debuggers import GDB, find_program
from gpuipc_doctor.stacks.process_list import PROC, descendants, processes

NATIVE_LIMIT_S = 8.0
"""Seconds for one tool on one process. Debuggers read the symbols of every library first."""

MAX_FRAMES = 40


def kernel_view(pid: int) -> tuple[str, ...]:
    """One line for ``pid`` and each descendant: state, kernel function, system call."""
    lines = []
    itself = [process for process in processes().values() if process.pid == pid]
    for process in (*itself, *descendants(pid)):
        here = PROC / str(process.pid)
        where = quietly(here / "wchan") or "?"
        call = quietly(here / "syscall").split(" ")[0] or "?"
        stack = [line.split("] ")[-1].split("+")[0] for line in quietly(here / "stack").splitlines()]
        seen = f", kernel stack {' < '.join(stack[:8])}" if stack else ""
        who = f"pid {process.pid} {process.name}: state {process.state}"
        lines.append(f"{who}, wchan {where}, syscall {call}{seen}")
    return tuple(lines)


def python_stack(file: Path) -> tuple[str, ...]:
    """The main thread's frames, innermost first, from the last dump that `faulthandler` wrote to ``file``."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return ()
    threads = re.split(r"^(?:Current t|T)hread .*$", text, flags=re.MULTILINE)
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', threads[-1], flags=re.MULTILINE)
    return tuple(f"{name} ({Path(path).name}:{line})" for path, line, name in frames)[:MAX_FRAMES]


def crashed_in_librarys_thread(file: Path) -> bool:
    """Whether `faulthandler` reported a fatal signal in a thread that no Python code had started.

    `faulthandler` marks the crashed thread as current if Python code started it, and lists the main thread
    last (``_Py_DumpTracebackThreads`` in CPython's Python/traceback.c). A dump at a deadline is never such a
    report.
    """
    try:
        before, is_fatal, dump = file.read_text(errors="replace").rpartition("Fatal Python error: ")
    except FileNotFoundError:
        return False
    is_complete = "_run_module_as_main" in dump
    is_ours = "Timeout (" in before or re.search("^Current thread 0x", dump, flags=re.MULTILINE)
    return bool(is_fatal and is_complete and not is_ours)


def native_stack(pid: int, save_to: Path, until: float) -> tuple[str, ...]:
    """The main thread's native frames, innermost first, from the first installed tool that succeeds.

    ``until``: `time.monotonic()` seconds at which the search ends. ``save_to``
    receives the tool's whole output, and a line for each tool that failed.
    """
    with save_to.open("w") as record:
        for name, arguments, parse in TOOLS:
            program = find_program(name)
            if program is None:
                record.write(f"{name}: not installed\n")
                continue
            limit_s = min(NATIVE_LIMIT_S, until - time.monotonic())
            text = _output([program, *arguments(pid)], limit_s) if limit_s > 0 else "no time left"
            record.write(f"{name}:\n{text}\n")
            frames = parse(text)
            if frames:
                return tuple(frames[:MAX_FRAMES])
    return ()


def _output(command: Sequence[str], limit_s: float) -> str:
    try:
        ended = foreign.run(command, limit_s=limit_s)
        return ended.stdout + ended.stderr
    except OSError as error:
        return f"could not be run: {error.strerror}"
    except subprocess.TimeoutExpired as expired:
        return f"{expired.output or ''}\ndid not answer within {limit_s:.1f} s"


def _frames_of_py_spy(text: str) -> list[str]:
    blocks = re.split(r"^Thread ", text, flags=re.MULTILINE)
    main = next((block for block in blocks if '"MainThread"' in block.partition("\n")[0]), "")
    return [line.strip() for line in main.splitlines()[1:] if line.startswith("    ")]


def _frames_of_gdb(text: str) -> list[str]:
    main = text.rpartition("\nThread 1 ")[2]
    return [match[1] for match in re.finditer(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\S+) ", main, flags=re.MULTILINE)]


def _frames_of_eu_stack(text: str) -> list[str]:
    first = text.partition("TID ")[2].partition("TID ")[0]
    return [match[1] for match in re.finditer(r"^#\d+ +0x[0-9a-f]+ (\S+)", first, flags=re.MULTILINE)]


Tool = tuple[str, Callable[[int], list[str]], Callable[[str], list[str]]]

TOOLS: tuple[Tool, ...] = (
    ("py-spy", lambda pid: ["dump", "--native", "--pid", str(pid)], _frames_of_py_spy),
    (
        "gdb",
        lambda pid: [*GDB, "-p", str(pid), "-ex", "thread apply all backtrace 40"],
        _frames_of_gdb,
    ),
    ("eu-stack", lambda pid: ["-p", str(pid)], _frames_of_eu_stack),
)


# -- output ------------------------------------------------------------------------------------


def log_tail(*files: Path, lines: int = 10, telling: int = 5, nbytes: int = 65536) -> tuple[str, ...]:
    """The end of the first log that is not empty: the most relevant lines, then the last lines. A library
    prints its reason before its backtrace and after other warnings.

    What the other logs explain between rules of dashes, as Open MPI's launcher does, stands before that.
    """
    texts = [text for file in files if (text := _end(file, nbytes))]
    if not texts:
        return ()
    explained = next(filter(None, (EXPLANATION.search(text) for text in texts[1:])), None)
    first = texts[0].splitlines()
    return (
        *(explained[0].splitlines() if explained else ()),
        *most_telling(first[:-lines], telling),
        *first[-lines:],
    )


EXPLANATION = re.compile(r"^-{20,}\n(?:(?!-{20,}).*\n){1,24}-{20,}$", re.MULTILINE)
"""A text of at most 24 lines between two rules of dashes."""


def _end(file: Path, nbytes: int) -> str:
    """The last bytes of a log; empty if there is none."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - nbytes))
        return log.read().decode(errors="replace")
    return ""


MAX_LOG_BYTES = 64 << 20
"""Size in bytes above which the middle of a log is removed."""

KEPT_LOG_BYTES = 8 << 20
"""Bytes kept at each end of a log whose middle is removed."""

_LOG_EVERY_S = 0.2


@contextmanager
def bounded_logs(directory: Path) -> Iterator[None]:
    """During and after the ``with`` block, keep all logs in the directory below the size limit.

    Workers and launchers may print without end, and the logs may be in memory. Writers must append
    (``O_APPEND``), so that they continue at the new end. For ranks on other nodes the limit is approximate,
    since their file system may learn of the new end late.
    """
    over = threading.Event()

    def watch() -> None:
        last = False
        while not last:
            last = over.wait(_LOG_EVERY_S)
            with contextlib.suppress(OSError):
                for log in directory.glob("*.log"):
                    if log.stat().st_size > MAX_LOG_BYTES:
                        _leave_out_the_middle(log)

    with ThreadPoolExecutor(1) as thread:  # the supervisor's thread gathers evidence
        watching = thread.submit(watch)
        try:
            yield
        finally:
            over.set()
    watching.result()


def _leave_out_the_middle(log: Path) -> None:
    with log.open("rb+", buffering=0) as file:
        file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
        end = b""
        for _ in range(8):  # the log may grow faster than it is read; else the last lines arrive in time
            if not (more := file.read(KEPT_LOG_BYTES)):
                break
            end = (end + more)[-KEPT_LOG_BYTES:]
        file.truncate(KEPT_LOG_BYTES)
    with log.open("ab") as file:
        file.write(b"\ngpuipc-doctor: the middle of this log is left out\n" + end)
