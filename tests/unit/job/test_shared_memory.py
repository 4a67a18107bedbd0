"""Changes of memory shared by ranks, read from outside, on real mappings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.job import shared_memory
from gpuipc_doctor.job.document import Contents, Process

MAPS = """\
import mmap, os, sys
path, size = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, size)
memory = mmap.mmap(fd, size)
print(flush=True)
for line in sys.stdin:
    if line.startswith("remove"):
        os.unlink(path)
    else:
        memory[int(line)] ^= 255
    print(flush=True)
"""

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="map_files needs CAP_CHECKPOINT_RESTORE")


class Mapper:
    """A process that has mapped a file."""

    def __init__(self, path: Path, size: int) -> None:
        words = [sys.executable, "-c", MAPS, str(path), str(size)]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout
        self._child.stdout.readline()

    def tell(self, word: str) -> None:
        assert self._child.stdin
        assert self._child.stdout
        print(word, file=self._child.stdin, flush=True)
        self._child.stdout.readline()

    @property
    def process(self) -> Process:
        return Process(pid=self._child.pid, parent=1, uid=0, program="app")

    def end(self) -> None:
        self._child.communicate()


@contextmanager
def mapping(*sizes: int, name: str = "both") -> Iterator[list[Mapper]]:
    """A process for each size; they share a file in memory."""
    path = Path(f"/dev/shm/gpuipc-doctor-test-{os.getpid()}-{name}")
    with ExitStack() as stack:
        stack.callback(path.unlink, missing_ok=True)
        mappers = [Mapper(path, size) for size in sizes]
        for mapper in mappers:
            stack.callback(mapper.end)
        yield mappers


def seen(mappers: list[Mapper]) -> Contents | None:
    return shared_memory.contents({number: mapper.process for number, mapper in enumerate(mappers)})


@pytest.mark.parametrize("removed", [False, pytest.param(True, marks=ROOT)])
def test_message_changes_shared_memory(removed: bool) -> None:
    with mapping(1 << 30, 1 << 30) as mappers:
        mappers[0].tell("5")
        if removed:
            mappers[0].tell("remove")
        earlier, same = seen(mappers), seen(mappers)
        mappers[1].tell(str(900 << 20))  # beyond a hole
        later = seen(mappers)
    assert earlier
    assert earlier.whole
    assert shared_memory.moved(earlier, same) is False
    assert shared_memory.moved(earlier, later) is True


def test_memory_of_one_rank_is_not_shared() -> None:
    with mapping(1 << 20) as mappers:
        assert seen(mappers) is None


def test_memory_beyond_the_read_limit_cannot_show_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MOST_BYTES", 1)
    with mapping(1 << 20, 1 << 20) as mappers:
        for place in (0, 300_000, 600_000):
            mappers[0].tell(str(place))
        earlier = seen(mappers)
        mappers[0].tell("900000")
        later = seen(mappers)
    assert earlier
    assert not earlier.whole
    assert shared_memory.moved(earlier, later) is None
    assert shared_memory.moved(None, later) is None


def test_process_that_has_ended_shares_nothing() -> None:
    gone = Process(pid=4194303, parent=1, uid=0, program="app")
    assert shared_memory.contents({0: gone, 1: gone}) is None
