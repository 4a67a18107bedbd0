"""Open and close segments in a loop, while one more segment stays open and both roles read used memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from gpuipc_doctor.api import Meter, Reading, Worker, differences, pattern, reader_of, watched

SEGMENTS = 4
"""Number of segments in the loop, during which one more segment stays open."""

OPENS = 256
SAMPLED = range(8, OPENS + 1, 8)
"""Rounds of a loop after which used memory is read."""

GLANCE = 4096
"""Bytes read in each round of the loop."""


def watch_loop(w: Worker, meter: Meter) -> None:
    """Read used memory of this role's device during the importer's loop and during its control."""
    opening, control = (sample_rounds(w, meter) for _ in range(2))
    meter.enter_loop("open and close", meter.sampled(SAMPLED), opening, control)
    w.peer.send("watched")
    w.peer.recv()  # the loop is over


def sample_rounds(w: Worker, meter: Meter) -> list[Reading]:
    samples = list[Reading]()
    for number in SAMPLED:
        w.peer.recv()  # that many rounds are over
        if number in meter.sampled(SAMPLED):
            samples.append(meter.sample("open and close", number))
        w.peer.send("go on")
    return samples


def open_and_close(w: Worker, meter: Meter, wrong: list[str], handles: Sequence[bytes]) -> None:
    """The importer's loop, and its control without opens; the last handle's segment stays open in both."""
    *handles, last = handles
    segments = cycle([(n, handle, pattern(GLANCE, n)) for n, handle in enumerate(handles, 1)])
    with w.gpu.open_ipc(last) as stays:
        read_stays = reader_of(w, "the segment that stays open", stays, GLANCE, SEGMENTS + 1)

        def open_next() -> None:
            number, handle, beginning = next(segments)
            with w.gpu.open_ipc(handle) as mapping:
                opened = f"segment {number} of {SEGMENTS}, opened in turn"
                wrong.extend(differences(opened, mapping.read(GLANCE), beginning))

        def look(after: str) -> None:
            wrong.extend(read_stays(after))

        opening = repeat(w, meter, "open and close", open_next, look)
        control = repeat(w, meter, "only ask for the free memory", w.gpu.memory_info, look)
        meter.enter_loop("open and close", meter.sampled(SAMPLED), opening, control)
        w.peer.recv()  # the exporter has watched used memory: to close the segment may change it


def repeat(
    w: Worker, meter: Meter, what: str, call: Callable[[], object], look: Callable[[str], None]
) -> list[Reading]:
    """Run `OPENS` rounds of ``call`` and ``look``; returns used memory in bytes at the `SAMPLED` rounds."""
    samples = list[Reading]()
    for done in watched(w, what, range(1, OPENS + 1)):
        step = f"{what}, round {done} of {OPENS}"
        with w.step(step):
            call()
        look(step)
        if done in SAMPLED:
            w.peer.send(done)  # the exporter reads used memory at the same time
            if done in meter.sampled(SAMPLED):
                samples.append(meter.used())
            w.peer.recv()
    return samples
