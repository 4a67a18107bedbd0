"""Operations on contexts and on whole processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuipc_doctor.histories.memory_draft import Draft, Phase
from gpuipc_doctor.histories.memory_operation import MemoryOperation
from gpuipc_doctor.histories.memory_state import FIRST_CONTEXT, POOLED, State
from gpuipc_doctor.histories.operations import Operation
from gpuipc_doctor.histories.performer import Performer

CONTEXTS = ("contexts",)


class EndContext(MemoryOperation):
    do = "end-context"
    says = "process {by} {ends}"
    c = "end({on});"
    weight, needs, anywhere = 1.2, CONTEXTS, True
    rare = "its successor takes as long"

    def refuse(self, m: State, op: Operation) -> str:
        process = m.processes.get(op.by)
        if op.on not in (process.contexts if process else [FIRST_CONTEXT]):
            return f"process {op.by} has no context {op.on}"
        if m.of_process(op.by, *POOLED):
            return "the process has a pool"
        ending = m.in_context(op.by, op.on)
        ends = m.allows("destroy a context ends what lives in it")
        if not ends and ending and process and op.on in process.devices:
            return "memory of the context's device outlives it, and the first context is on another"
        if ends and any(thing.kind == "buffer" and m.others_of(thing) for thing in ending):
            return "memory of this context is open in another process"
        return ""

    def apply(self, m: State, op: Operation) -> None:
        ending, process = m.in_context(op.by, op.on), m.processes[op.by]
        if m.allows("destroy a context ends what lives in it"):
            m.end(ending)
        else:
            for thing in ending:
                thing.context = FIRST_CONTEXT
        if op.on != FIRST_CONTEXT:
            process.contexts.remove(op.on)
            process.devices.pop(op.on, None)
        process.current = FIRST_CONTEXT

    def touches(self, m: State, op: Operation) -> tuple[set[int], set[int]]:
        return set(), {thing.storage.number for thing in m.in_context(op.by, op.on)}

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        by = d.process()
        if process := d.state.processes.get(by):
            yield from d.attempt(self.do, by, on=d.random.choice(process.contexts))

    def perform(self, p: Performer, op: Operation) -> None:
        p.end_context(op.on)


class CreateContext(MemoryOperation):
    do = "create-context"
    says = "process {by} creates context {makes}, which becomes current"
    c = "cuCtxCreate_v2(&context[{makes}], 0, device); current = {makes};"
    weight, needs, alone = 0.4, CONTEXTS, True
    rare = "making a context takes 230 ms on an H200"

    def refuse(self, m: State, op: Operation) -> str:
        if m.of_process(op.by, *POOLED) or not op.makes:
            return "the process has a pool or an event" if op.makes else "no new context"
        device, own = op.device - 1, m.plans[op.by].device
        if op.device and not m.allows("two devices in one process"):
            return "the process has another device"
        if op.device and not {(own, device), (device, own)} <= m.peers:
            return "no peer access between the two devices"
        return ""

    def apply(self, m: State, op: Operation) -> None:
        process = m.processes[op.by]
        process.contexts.append(op.makes)
        if op.device:
            process.devices[op.makes] = op.device - 1
        process.current = op.makes

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        by = d.process()
        process = d.state.processes.get(by)
        if process and process.contexts == [FIRST_CONTEXT]:
            yield from d.attempt(self.do, by, makes=d.number())

    def perform(self, p: Performer, op: Operation) -> None:
        gpu = p.gpus[op.device - 1] if op.device else p.gpu
        p.contexts[op.makes] = gpu.create_context()
        if op.device:
            p.gpu_of[op.makes] = gpu
        p.current = p.entered = op.makes


class UseContext(MemoryOperation):
    do = "use-context"
    says = "process {by} makes {context} current"
    c = "current = {on};"
    weight, needs, anywhere = 0.6, CONTEXTS, True

    def refuse(self, m: State, op: Operation) -> str:
        process = m.processes.get(op.by)
        known = process is not None and op.on in process.contexts and op.on != process.current
        return "" if known else f"process {op.by} has no other context {op.on}"

    def apply(self, m: State, op: Operation) -> None:
        m.processes[op.by].current = op.on

    draw = EndContext.draw

    def perform(self, p: Performer, op: Operation) -> None:
        p.current = op.on


class Kill(MemoryOperation):
    do = "kill"
    says = "process {by} is killed"
    c = "raise(SIGKILL);"
    weight, anywhere, alone, harms = 0.3, True, True, "kills an importer"
    rare = "ending a process takes 70 ms on an H200, and its successor's context 230 ms"

    def refuse(self, m: State, op: Operation) -> str:
        if op.by not in m.processes:
            return f"process {op.by} has not started"
        own = m.of_process(op.by)
        if any(thing.storage.under_way for thing in own):
            return "a copy is under way"
        events = [thing for thing in own if thing.kind == "event" and m.others_of(thing)]
        if events and not m.allows("end a process whose event is open elsewhere"):
            return "an event of the process is open in another process"
        if m.allows("end a process whose memory is open elsewhere"):
            return ""
        shared = any(other.by != op.by for thing in own for other in m.others_of(thing))
        return "memory of the process is open in another process" if shared else ""

    def apply(self, m: State, op: Operation) -> None:
        m.end(m.of_process(op.by))
        del m.processes[op.by]
        m.ended.add(op.by)

    def draw(self, d: Draft, phase: Phase) -> Iterator[Operation]:
        yield from d.attempt(self.do, max(d.processes))  # mostly this process, or none lives long enough


class Fork(MemoryOperation):
    """A child that makes no driver calls, since no vendor allows them."""

    do = "fork"
    says = "process {by} forks a child, which exits at once"
    c = "if (!fork()) _exit(0); wait(0);"
    weight, is_wide, alone = 0.5, True, True

    def refuse(self, m: State, op: Operation) -> str:
        return "" if m.allows("go on after a fork") else "a process must not fork"

    def perform(self, p: Performer, op: Operation) -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)


class Idle(MemoryOperation):
    do = "idle"
    says = "process {by} and all others idle for four seconds"
    c = "sleep(4);"
    weight, is_wide, alone, rare = 0.02, True, True, "takes seconds"


class Rest(MemoryOperation):
    """Read the process's descriptors, threads and memory while nothing is allocated in any process."""

    do = "rest"
    says = "process {by} has released everything"
    anywhere, alone = True, True

    def refuse(self, m: State, op: Operation) -> str:
        return "a process still has objects" if m.things else ""

    def perform(self, p: Performer, op: Operation) -> None:
        p.rest()
