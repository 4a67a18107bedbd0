"""Export and import before and after either process re-creates its context."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpuipc_doctor.api import Finding, ProbeOutcome, Worker, write_pattern, wrong_pattern

from ._ipc_vmm_sharing import import_and_map, judge_wrong

CASES = ("with both contexts kept", "in the importer's new context", "from the exporter's new context")


def export_anew(w: Worker) -> None:
    context = w.gpu.create_context()
    with w.gpu.create_physical(w.gpu.granule) as memory, memory.map() as mapping:
        write_pattern(mapping, memory.nbytes)
        w.peer.send(memory.nbytes)
        for case in CASES:
            if "exporter's" in case:
                context.destroy()
                context = w.gpu.create_context()
            with w.step(f"export {case}"):
                descriptor = memory.export_descriptor()
            w.peer.send_descriptor(descriptor)
            os.close(descriptor)
        w.peer.recv()  # the importer has read it


def attach_anew(w: Worker) -> None:
    context, nbytes, wrong = w.gpu.create_context(), w.peer.recv(), []
    for case in CASES:
        if "importer's" in case:
            context.destroy()
            context = w.gpu.create_context()
        descriptor = w.peer.recv_descriptor()
        with import_and_map(w, f"import {case}", descriptor, nbytes) as mapping:
            wrong += wrong_pattern(case, mapping, nbytes)
        os.close(descriptor)
    w.record(wrong=wrong)
    w.peer.send("looked")


def judge_contexts(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done.records["importer"]))
    says = "import works again after either end re-created its context"
    yield from bad or [Finding.ok("imports-again", says)]
