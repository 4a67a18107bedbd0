"""Read logs and conclude: finite ones one after the other, then possibly endless ones in parallel."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuipc_doctor.diagnose.decompress import Unreadable
from gpuipc_doctor.diagnose.diagnosis import Diagnosis, LogRead, Recognised
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.flight_recorder import Dump
from gpuipc_doctor.diagnose.sources import Log, Pieces, expanded
from gpuipc_doctor.model import Fact

_PAUSE_S = 0.1
"""Seconds between reads of logs without new data."""
_PATIENCE_S = 1.0
"""Seconds after which lines held back are examined and new issues are reported."""

Say = Callable[[str], None]


def diagnose(
    paths: Iterable[str],
    examination: Examination,
    *,
    known: Sequence[Fact] = (),
    follow: bool = False,
    say: Say = lambda text: None,
    news: Callable[[Recognised], None] = lambda one: None,
) -> Diagnosis:
    """Read until all logs end or the user interrupts; either way, return a diagnosis.

    ``say`` is called with a line for each log that cannot be read, as soon as that is known; ``news`` with
    each known issue recognised in logs that may never end.
    """
    directories: list[LogRead] = []
    """Directories that were not read completely."""

    def unread(name: str, trouble: str) -> None:
        say(f"{name}: {trouble}")
        directories.append(LogRead(name, 0, 0, trouble))

    readers = [_Reader(path, examination, follow, say) for path in dict.fromkeys(expanded(paths, unread))]
    interrupted = False
    with _one_interrupt():
        try:
            for reader in readers:
                if not reader.endless:
                    reader.read_all()
            _read_endless([reader for reader in readers if reader.endless], examination, known, news)
        except KeyboardInterrupt:
            interrupted = True
        for reader in readers:
            reader.finish()
        dumps = [dump for reader in readers for dump in reader.dumps]
        logs = [*directories, *(reader.result() for reader in readers)]
        return examination.conclude(logs, known, interrupted, dumps)


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the first SIGINT and ignore later ones, since timeout(1) sends two."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read_endless(
    readers: Sequence[_Reader],
    examination: Examination,
    known: Sequence[Fact],
    news: Callable[[Recognised], None],
) -> None:
    told: set[str] = set()
    looked = time.monotonic()
    while any(not reader.ended for reader in readers):
        if not [reader for reader in readers if reader.read_some()]:
            time.sleep(_PAUSE_S)
        if time.monotonic() - looked >= _PATIENCE_S:
            looked = time.monotonic()
            for reader in readers:
                reader.flush()
            for found in examination.conclude((), known).found:
                if found.issue.id not in told:
                    told.add(found.issue.id)
                    news(found)


class _Reader:
    def __init__(self, path: str, examination: Examination, follow: bool, say: Say) -> None:
        self._examination = examination
        self._say = say
        self._bytes = 0
        self._lines = 0
        """Lines read before the current file: before the log was replaced, or in earlier files of an
        archive."""
        self._trouble = ""
        self._name = path or '""'
        self._log: Log | None = None
        self._blocks: Pieces = iter(())
        try:
            self._log = Log(path, follow=follow)
        except Unreadable as trouble:
            self._fail(trouble)
        else:
            self._name = self._log.name
            self._blocks = self._log.blocks()
        self._reading = examination.log(self._name)
        self.ended = self._log is None
        self.endless = self._log is not None and self._log.endless

    def read_all(self) -> None:
        while not self.ended:
            self.read_some()

    def read_some(self) -> bool:
        """Read a block; returns whether there was new data."""
        try:
            block = next(self._blocks)
        except StopIteration:
            self.ended = True
            return False
        except Unreadable as trouble:
            self._fail(trouble)
            self.ended = True
            return False
        if block is None or isinstance(block, str):
            self.flush()
            self._lines += self._reading.lines
            self._reading = self._examination.log(f"{self._name}:{block}" if block else self._name)
            return True
        self._bytes += len(block)
        self._reading.feed(block)
        return bool(block)

    def flush(self) -> None:
        self._reading.flush()

    def finish(self) -> None:
        self.flush()
        for note in (*self._log.unread, *self._log.notes) if self._log else ():
            self._say(f"{self._name}: {note}")
        if self._log:
            self._log.close()

    def result(self) -> LogRead:
        unread, notes = (self._log.unread, tuple(self._log.notes)) if self._log else ([], ())
        trouble = "; ".join(filter(None, (*unread, self._trouble)))
        return LogRead(self._name, self._lines + self._reading.lines, self._bytes, trouble, notes)

    @property
    def dumps(self) -> list[Dump]:
        return self._log.dumps if self._log else []

    def _fail(self, trouble: Unreadable) -> None:
        self._trouble = str(trouble)
        self._say(f"{self._name}: {trouble}")
