"""Record the driver calls of a run, and make them a plan for `visits_floor.c`.

A run is recorded on a simulated node, whose ``libcuda.so.1`` is replaced by a recorder in front of it: a
function for each row of the simulator's ``calls.table``, which makes the call and writes a line. From the
lines of all processes follow the order in which they must make their calls: each waits for what others had
done when it began, if it shares memory with them.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from gpuipc_doctor.files import python
from gpuipc_doctor.simulator.build import SOURCES, Row, build, read_table

RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct ipc_handle { uint64_t word[8]; };
struct vmm_request { char bytes[32]; };
struct pool_request { char bytes[88]; };
struct vmm_access { char bytes[12]; };
struct vmm_location { char bytes[8]; };

static char text[1 << 16];
static size_t length;
static int file = -1;
static pid_t process;
static double *alive;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *driver(const char *name)
{
    static void *library;
    if (!library) {
        Dl_info here;
        char path[4096];
        dladdr((void *)now, &here);
        snprintf(path, sizeof path, "%.*s/recorded.so", (int)(strrchr(here.dli_fname, '/') - here.dli_fname),
                 here.dli_fname);
        if (!(library = dlopen(path, RTLD_NOW)))
            abort();
    }
    return dlsym(library, name);
}

static void say(const char *format, uint64_t value)
{
    length += (size_t)snprintf(text + length, sizeof text - length, format, value);
}

static void say_bytes(const void *bytes, size_t count)
{
    say(" x", 0);
    for (size_t n = 0; bytes && n < count; n++)
        say("%02lx", ((const unsigned char *)bytes)[n]);
}

static void say_range(uint64_t address)
{
    int (*ask)(uint64_t *, size_t *, uint64_t) = driver("cuMemGetAddressRange_v2");
    uint64_t base = address;
    size_t bytes = 0;
    if (ask(&base, &bytes, address) || base != address)
        abort();
    say(" %lu", address);
    say("/%lu", bytes);
}

static void say_file(int descriptor)
{
    struct stat status = {0};
    fstat(descriptor, &status);
    say(" f%lx", status.st_dev);
    say(":%lx", status.st_ino);
    say(":%lx", (uint64_t)lseek(descriptor, 0, SEEK_CUR)); /* of one file: `export_new` in state.c */
}

static void *beat(void *nothing)
{
    for (;; usleep(1000))
        *alive = now();
    return nothing;
}

static double begin(void)
{
    pthread_mutex_lock(&lock);
    if (process != getpid()) {
        char path[4096];
        pthread_t heart;
        process = getpid();
        snprintf(path, sizeof path, "%s/%d.alive", getenv("VISITS_RECORD"), process);
        int page = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (page < 0 || ftruncate(page, sizeof *alive))
            abort();
        alive = mmap(NULL, sizeof *alive, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
        close(page);
        snprintf(path, sizeof path, "%s/%d.calls", getenv("VISITS_RECORD"), process);
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        length = 0;
        for (char **each = environ; *each; each++)
            if (!strncmp(*each, "CUDA_", 5)) {
                length += (size_t)snprintf(text + length, sizeof text - length, "env %s\n", *each);
            }
        length = (size_t)write(file, text, length) * 0;
        *alive = now();
        pthread_create(&heart, NULL, beat, NULL);
        pthread_detach(heart);
    }
    pthread_mutex_unlock(&lock);
    return now();
}

static void start_line(const char *name, int code, double began)
{
    pthread_mutex_lock(&lock);
    length = (size_t)snprintf(text, sizeof text, "%s %d %.9f %.9f", name, code, began, now());
}

static void end_line(void)
{
    text[length++] = '\n';
    if (write(file, text, length) != (ssize_t)length)
        abort();
    pthread_mutex_unlock(&lock);
}
"""
"""The recorder's beginning. A process is alive until the last time in its file NUMBER.alive."""

PROC_ADDRESS = r"""
static int find(const char *symbol, void **function, int version)
{
    int best = -1;
    for (size_t n = 0; n < sizeof symbols / sizeof *symbols; n++)
        if (!strcmp(symbols[n].name, symbol) && symbols[n].version <= version && symbols[n].version > best) {
            best = symbols[n].version;
            *function = symbols[n].function;
        }
    return best >= 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    int (*real)(const char *, void **, int, uint64_t, int *) = driver("cuGetProcAddress_v2");
    int code = real(symbol, function, version, flags, status);
    if (!code)
        find(symbol, function, version);
    return code;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
"""

ADDRESSES = ("address", "to", "from")
"""Parameters of type ``uint64_t`` that are addresses which a process has."""

HOST = ("to", "from", "data", "value")
"""Parameters of type ``void *`` that are host memory."""

COPIES = ("cuMemcpyHtoD", "cuMemcpyDtoH")

FREES = ("mem-free", "vmm-free", "pool-free", "host-free")
"""Calls after which an address means nothing."""

HANDLE_BYTES = 64

OPENS = ("ipc-open", "pool-import-pointer")
"""Calls that return an address without the size of its memory, which the recorder asks for."""

QUIET = ("error-name", "error-string", "get-proc-address", "unsupported")
"""Calls that are not recorded."""

KERNEL_PARAMETERS = 7
"""Parameters of each kernel: an address, a number of rounds, an address, four numbers (`kernels.ptx`)."""

WAITING = "gpuipc_wait"
"""The kernel that waits for another process; the floor does not make it wait."""


# -- the recorder -----------------------------------------------------------------------------------------


def recorder_source(rows: Sequence[Row]) -> str:
    """C source of the recorder."""
    functions, entries = [], []
    for row in rows:
        for symbol in row.symbols:
            if not symbol.name.startswith("cu") or symbol.per_thread or not row.function:
                continue
            if row.call == "get-proc-address":
                continue
            arguments = ", ".join(row.arguments)
            told = "" if row.call in QUIET else _told(row)
            functions.append(
                f"int {symbol.name}({row.parameters})\n{{\n    double began = begin();\n"
                f'    int (*real)({row.parameters}) = driver("{symbol.name}");\n'
                f"    int code = real({arguments});\n"
                + (
                    f'    start_line("{symbol.name}", code, began);\n{told}    end_line();\n'
                    if told
                    else "    (void)began;\n"
                )
                + "    return code;\n}\n"
            )
            base = re.sub(r"_v\d+$", "", symbol.name)
            entries.append(f'    {{"{base}", {symbol.version}, (void *){symbol.name}}},\n')
    table = "static const struct { const char *name; int version; void *function; } symbols[] = {\n"
    return "".join([RECORDER, *functions, table, *entries, "};\n", PROC_ADDRESS])


def _told(row: Row) -> str:
    return "".join(f"    {_tell(row, *each)}\n" for each in _typed(row)) or "    ;\n"


def _typed(row: Row) -> list[tuple[str, str]]:
    """(Type, name) of each parameter."""
    if row.parameters == "void":
        return []
    parts = [re.fullmatch(r"\s*(.*?)\s*(\w+)", part) for part in row.parameters.split(",")]
    return [(part[1].strip(), part[2]) for part in parts if part]


ROWS = {
    symbol.name: row for row in read_table((SOURCES / "calls.table").read_text()) for symbol in row.symbols
}

PARAMETERS = {symbol: _typed(row) for symbol, row in ROWS.items()}
"""Symbol → (type, name) of each parameter."""


def _tell(row: Row, kind: str, name: str) -> str:
    """C statement that writes an argument."""
    if row.call == "kernel-launch" and name == "parameters":
        words = [f"*(uint{64 if n < 3 else 32}_t *)parameters[{n}]" for n in range(KERNEL_PARAMETERS)]
        return 'say(" p%lu", ' + '); say(",%lu", '.join(words) + ");"
    if name == "shared" and kind == "void *":
        return "type == 1 ? say_file((int)(intptr_t)shared) : say_bytes(shared, 64);"
    if name == "out" and kind == "void *":
        return 'code ? say(" -", 0) : type == 1 ? say_file(*(int *)out) : say_bytes(out, 64);'
    if kind == "struct ipc_handle":
        return f"say_bytes(&{name}, sizeof {name});"
    if kind == "struct ipc_handle *":
        return f"say_bytes(code ? NULL : {name}, 64);"
    if kind.startswith("const struct"):
        count = "count * " if kind.endswith("vmm_access *") else ""
        return f"say_bytes({name}, {count}sizeof *{name});"
    if kind == "const void *" and name == "value":
        return f"say_bytes({name}, 8);"
    if kind == "const char *":
        return f'length += (size_t)snprintf(text + length, sizeof text - length, " s%s", {name});'
    if row.call in OPENS and name == "address":
        return f'code ? say(" 0", 0) : say_range(*{name});'
    if kind in ("void **", "uint64_t *") and name != "values":
        return f'say(" %lu", code || !{name} ? 0 : (uint64_t)*{name});'
    if kind.endswith("*") and kind != "void *":
        return 'say(" -", 0);'
    return f'say(" %lu", (uint64_t){name});'


def record(directory: Path, profile: Path, command: Sequence[str]) -> list[Recorded]:
    """The calls of a ``command`` of this package on a simulated node, by process."""
    cache, lines = directory / "cache", Path(tempfile.mkdtemp(dir=directory))
    put_in_front(build(), cache / "gpuipc-doctor")
    with patch.dict(os.environ, XDG_CACHE_HOME=str(cache), VISITS_RECORD=str(lines)):
        done = subprocess.run(
            python.module("gpuipc_doctor", *command, "--simulate", str(profile)),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"the recorded run ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return sorted((Recorded.read(file) for file in lines.glob("*.calls")), key=lambda process: process.began)


def put_in_front(drivers: Path, cache: Path) -> None:
    """Make a copy of the simulated drivers below ``cache``, with a recorder in front of CUDA's."""
    copy = cache / drivers.name
    if copy.exists():
        return
    shutil.copytree(drivers, copy, symlinks=True)
    cache.chmod(0o700)
    library = copy / "libcuda.so.1"
    source = copy / "recorder.c"
    source.write_text(recorder_source(read_table((SOURCES / "calls.table").read_text())))
    library.rename(copy / "recorded.so")
    options = ["-O1", "-w", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-ldl"]
    subprocess.run([shutil.which("cc") or "cc", "-o", library, source, *options], check=True)


# -- the plan ---------------------------------------------------------------------------------------------


@dataclass
class RecordedCall:
    """One driver call: monotonic seconds of its begin and end, and its arguments as words."""

    symbol: str
    code: int
    began: float
    ended: float
    words: list[str]


@dataclass
class Recorded:
    """The calls of one process, its ``CUDA_*`` environment, and when it was last seen alive."""

    env: dict[str, str]
    calls: list[RecordedCall]
    ended: float

    @property
    def began(self) -> float:
        return self.calls[0].began

    @classmethod
    def read(cls, file: Path) -> Recorded:
        env, calls = {}, []
        for line in file.read_text().splitlines():
            name, *words = line.split(" ")
            if name == "env":
                variable, _, value = words[0].partition("=")
                env[variable] = value
            else:
                calls.append(RecordedCall(name, int(words[0]), float(words[1]), float(words[2]), words[3:]))
        (ended,) = struct.unpack("d", file.with_suffix(".alive").read_bytes())
        return cls(env, calls, max([ended, *(call.ended for call in calls)]))

    def count(self, symbol: str) -> int:
        """Number of calls whose name begins with this."""
        return sum(call.symbol.startswith(symbol) for call in self.calls)


@dataclass
class Links:
    """What processes hand to each other: IPC handles by number, and descriptors by id."""

    handles: dict[str, int] = field(default_factory=dict)
    descriptors: int = 0
    takers: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """(Process, call) that exports a descriptor → (process, id) of each import."""
    takes: dict[tuple[int, int], int] = field(default_factory=dict)
    """(Process, call) that imports a descriptor → its id."""
    groups: list[int] = field(default_factory=list)
    """Process → its group, whose processes share memory."""

    def join(self, one: int, other: int) -> None:
        old, new = self.groups[one], self.groups[other]
        self.groups = [new if group == old else group for group in self.groups]


def links_between(processes: Sequence[Recorded]) -> Links:
    """Who opens what whom exported."""
    links = Links(groups=list(range(len(processes))))
    makers: dict[str, tuple[int, int]] = {}
    every = (
        (call.ended, number, place)
        for number, process in enumerate(processes)
        for place, call in enumerate(process.calls)
    )
    for _, number, place in sorted(every):
        call = processes[number].calls[place]
        for (_, name), word in zip(PARAMETERS[call.symbol], call.words, strict=True):
            if _is_handle(word):
                links.handles.setdefault(word, len(links.handles))
                links.join(number, makers.setdefault(word, (number, place))[0])
            elif word.startswith("f") and name == "out":
                makers[word] = number, place
            elif word.startswith("f") and word in makers:
                links.takes[number, place] = links.descriptors
                links.takers.setdefault(makers[word], []).append((number, links.descriptors))
                links.descriptors += 1
                links.join(number, makers[word][0])
    return links


def _is_handle(word: str) -> bool:
    return word.startswith("x") and len(word) == 1 + 2 * HANDLE_BYTES


def plan(processes: Sequence[Recorded], places: Mapping[str, int]) -> str:
    """The text of a plan. ``places``: uuid of a simulated GPU → index of the GPU that takes its place."""
    links = links_between(processes)
    until = max(process.ended for process in processes)
    ends = [[call.ended for call in process.calls] for process in processes]
    lines = [
        f"processes {len(processes)} handles {len(links.handles)} descriptors {links.descriptors}",
    ]
    for number, process in enumerate(processes):
        written = Writer(number, links)
        order = Order(number, ends, links)
        body = [f"wait {n} -1" for n, other in enumerate(processes) if other.ended < process.began]
        body += [f"set {name} {_visible(value, places)}" for name, value in process.env.items()]
        for place, call in enumerate(process.calls):
            body += order.before(call.began)
            body += written.call(place, call)
        body += order.before(process.ended)
        if process.ended == until:  # it kept the driver initialised
            body += [f"wait {n} -1" for n in range(len(processes)) if n != number]
        copies = [int(call.words[2]) for call in process.calls if call.symbol.startswith(COPIES)]
        lines += [f"process {written.slots} {max(copies, default=0)}", *body]
    return "\n".join(lines) + "\n"


class Order:
    """What a process waits for. ``ends``: process → when each of its calls ended."""

    def __init__(self, number: int, ends: Sequence[Sequence[float]], links: Links) -> None:
        group = links.groups[number]
        self.done = {mate: 0 for mate, its in enumerate(links.groups) if its == group and mate != number}
        """Process that shares memory → number of its calls that were waited for."""
        self.ends = ends

    def before(self, moment: float) -> Iterator[str]:
        """Wait for all calls of these processes that ended before this moment."""
        for mate, last in self.done.items():
            if (done := bisect_right(self.ends[mate], moment)) > last:
                self.done[mate] = done
                yield f"wait {mate} {done}"


def _visible(value: str, places: Mapping[str, int]) -> str:
    return ",".join(str(places.get(word, word)) for word in value.split(","))


class Writer:
    """Writes the calls of one process, with slots for what its calls returned."""

    def __init__(self, number: int, links: Links) -> None:
        self.number = number
        self.links = links
        self.slots = 1  # slot 0 is for what nobody uses
        self.objects: dict[int, str] = {}
        self.memory: dict[int, tuple[int, str]] = {}
        """Base → (bytes, slot)."""
        self.waiting: set[str] = set()
        """Slots of the kernel that waits."""

    def call(self, place: int, call: RecordedCall) -> Iterator[str]:
        if call.symbol == "cuModuleLoadDataEx":  # without a log
            yield f"call {call.symbol} {call.code} {self._made(call.words[0], call)} k 0 0 0"
            return
        words, after = [], []
        for (kind, name), word in zip(PARAMETERS[call.symbol], call.words, strict=True):
            if word.startswith("f") and name == "out":
                slot = self._new()
                words.append(f"&{slot}")
                takers = self.links.takers.get((self.number, place), ())
                after += [f"send {slot} {process} {ident}" for process, ident in takers]
                after.append(f"close {slot}")
            elif word.startswith("f") and (self.number, place) in self.links.takes:
                slot = self._new()
                yield f"take {slot} {self.links.takes[self.number, place]}"
                words.append(f"${slot}")
                after.append(f"close {slot}")
            elif word.startswith("f"):
                words.append("-1")
            else:
                words.append(self._word(kind, name, word, call))
        yield f"call {call.symbol} {call.code} {' '.join(words)}"
        yield from after
        if ROWS[call.symbol].call in FREES and not call.code:
            self.memory.pop(int(call.words[0]), None)
        if call.symbol.startswith("cuModuleGetFunction") and f"s{WAITING}" in call.words:
            self.waiting.add("$" + words[0][1:])

    def _word(self, kind: str, name: str, word: str, call: RecordedCall) -> str:
        if _is_handle(word):
            return f"h{self.links.handles[word]}"
        if word.startswith("p"):
            memory, rounds, result, *rest = word[1:].split(",")
            if self.objects.get(int(call.words[0])) in self.waiting:
                rounds = "1"
            addresses = self._address(memory, call), self._address(result, call)
            return "p" + ",".join([addresses[0], rounds, addresses[1], *rest])
        if kind == "const void *" and name == "image":
            return "k"
        if name == "extra":
            return "0"
        if word in ("-", "x") or (kind.endswith("void *") and name in HOST):
            return "b"
        if kind in ("void **", "uint64_t *"):
            return self._made(word, call)
        if kind == "void *":
            return self.objects.get(int(word), word)
        return self._address(word, call) if kind == "uint64_t" and name in ADDRESSES else word

    def _new(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _made(self, word: str, call: RecordedCall) -> str:
        """A slot for what a call returned."""
        kind, first = PARAMETERS[call.symbol][0]
        at, _, size = word.partition("/")
        if not int(at) or (first != "address" and kind != "void **"):
            return "&0"
        slot = self._new()
        if first == "address":
            names = [name for _, name in PARAMETERS[call.symbol]]
            base, nbytes = int(at), int(size or call.words[names.index("bytes")])
            # What was there before is gone, perhaps with its context.
            self.memory = {at: made for at, made in self.memory.items() if not base <= at < base + nbytes}
            self.memory[base] = nbytes, f"${slot}"
        else:
            self.objects[int(at)] = f"${slot}"
        return f"&{slot}"

    def _address(self, word: str, call: RecordedCall) -> str:
        """An address, as an offset in memory that this process has."""
        number = int(word)
        base = max((base for base in self.memory if base <= number), default=None)
        if base is not None and number < base + self.memory[base][0]:
            return self.memory[base][1] + (f"+{number - base}" if number > base else "")
        if number and call.symbol.startswith(("cuMemHost", "cuMemcpy")):
            return "b"  # pageable memory of the host, also where it is registered
        if number and not call.code:
            sys.exit(f"{call.symbol} succeeded with {number:#x}, in no memory that was recorded")
        return word
