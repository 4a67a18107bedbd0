"""Use the handles of exports that the driver should have refused, as an application would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuipc_doctor.api import (
    Buffer,
    DriverError,
    Finding,
    ProbeOutcome,
    Worker,
    exchange_as_exporter,
    exchange_as_importer,
    unless_refused,
)

EXPORT_TWICE = "export-twice"
"""A case that no vendor documents: a driver may give a new handle each time, if all open the memory."""

Answers = dict[str, tuple[str, str]]
"""Case → (observed, documented) behaviour."""


def export_vmm(w: Worker) -> None:
    useless: list[str] = []
    with w.gpu.alloc_unexportable("vmm") as memory:
        # No device has access to the memory: the handle is only opened.
        answers = export_unexportable(w, "vmm", memory, 0, useless)
    w.peer.send(None)
    w.record(answers=answers, useless=useless)


def export_unexportable(w: Worker, kind: str, memory: Buffer, nbytes: int, useless: list[str]) -> Answers:
    """Try to export this kind of memory. If the driver should refuse but does not, let the importer use
    it."""
    with w.step(f"export {kind} memory"):
        handle = unless_refused(memory.ipc_handle)
    if isinstance(handle, DriverError):
        return answer(w, f"export-{kind}", "refused")
    if w.gpu.expects(f"export-{kind}") == "refused":
        useless += share_stray(w, f"{kind} memory", memory, handle, nbytes)
    return answer(w, f"export-{kind}", "succeeds")


def share_stray(w: Worker, what: str, memory: Buffer, handle: bytes, nbytes: int) -> list[str]:
    """Have the importer use a handle whose export should have failed; returns its errors and wrong data."""
    w.peer.send((what, handle, nbytes))
    if w.peer.recv() == "refused":
        return []
    useless = exchange_as_exporter(w, memory, nbytes, what)
    w.peer.recv()  # the importer has closed it
    return useless


def use_strays(w: Worker) -> None:
    """Use each handle of `share_stray`; record the errors and wrong data."""
    useless: list[str] = []
    while stray := w.peer.recv():
        useless += use_stray(w, *stray)
    w.record(useless=useless)


def use_stray(w: Worker, what: str, handle: bytes, nbytes: int) -> list[str]:
    with w.step(f"open {what}"):
        mapping = unless_refused(lambda: w.gpu.open_ipc(handle))
        if isinstance(mapping, DriverError):
            w.peer.send("refused")
            return [f"{what}: {mapping}"]
        with mapping:
            w.peer.send("opened")
            useless = exchange_as_importer(w, mapping, nbytes, what)
        w.peer.send("closed")
    return useless


def answer(w: Worker, case: str, seen: str) -> Answers:
    return {case: (seen, w.gpu.expects(case))}


def judge_vmm(done: ProbeOutcome) -> Iterable[Finding]:
    exporter, importer = done.records["exporter"], done.records["importer"]
    bad = list(judge_answers(exporter["answers"], importer["useless"] + exporter["useless"]))
    says = "exporting VMM memory by IPC handle is refused, as documented"
    yield from bad or [Finding.ok("vmm-refused", says)]


def judge_answers(answers: Answers, useless: Sequence[str]) -> Iterable[Finding]:
    """Compare each case with the documented behaviour, and judge how a difference affects users."""
    if useless:
        says = "an export that is documented to fail succeeded; its handle cannot be used"
        yield Finding.fail("useless-handle", says, *useless)
    surprises = [
        f"{case}: {seen}; documented: {expected}"
        for case, (seen, expected) in answers.items()
        if expected not in ("unspecified", seen) and case != EXPORT_TWICE
    ]
    if surprises:
        says = "IPC handles do not behave as this vendor documents"
        yield Finding.warn("undocumented", says, *surprises)
