"""All operations of message histories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuipc_doctor.histories.message_operation import MessageOperation
from gpuipc_doctor.histories.message_rank import Rank
from gpuipc_doctor.histories.message_state import (
    WHERE,
    WORLD,
    Buffer,
    Expected,
    Message,
    Receive,
    Request,
    State,
    case_of,
)
from gpuipc_doctor.histories.operations import Operation

MOST_COMMUNICATORS = 4

_SENDS = "{nbytes} B (contents {stamp}){kind} from buffer {on} to {peer}, {tag}{within}"
_RECEIVES = "{nbytes} B{kind} into buffer {on} from {source}, {tag}{within}"


class Allocate(MessageOperation):
    do, says = "allocate", "{by} allocates buffer {makes} ({nbytes} B, {where})"
    c = "allocate({makes}, {nbytes}, {on_device});"

    def refuse(self, m: State, op: Operation) -> str:
        valid = op.kind in WHERE and op.nbytes >= 1 and op.makes
        return "" if valid else "a buffer needs a size and a kind: device or host"

    def apply(self, m: State, op: Operation) -> None:
        m.buffers[op.makes] = Buffer(op.by, op.nbytes, op.kind)

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.allocate(op.makes, op.nbytes, on_device=op.kind == WHERE[0])


class Free(MessageOperation):
    do, says, c = "free", "{by} frees buffer {on}", "release({on});"

    def refuse(self, m: State, op: Operation) -> str:
        buffer = m.buffers.get(op.on)
        if buffer is None or buffer.by != op.by:
            return f"process {op.by} has no buffer {op.on}"
        kept = any(request.again and op.on == request.again.on for request in m.requests.values())
        return "the buffer is in use" if kept or op.on in m.in_use else ""

    def apply(self, m: State, op: Operation) -> None:
        del m.buffers[op.on]

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.free(op.on)


# -- messages ------------------------------------------------------------------------------------------------


class Send(MessageOperation):
    do, says = "send", f"{{by}} sends {_SENDS}"
    c = "{fill} try(MPI_Send({out})); {looks}"

    def refuse(self, m: State, op: Operation) -> str:
        return m.refuse_send(op)

    def apply(self, m: State, op: Operation) -> Expected:
        return m.block(op.by, m.offer(op))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.send(op)
        r.look(expected.parts[0])


class Ssend(Send):
    do, says, simpler = "ssend", f"{Send.says}, synchronously", "send"
    c = Send.c.replace("Send", "Ssend")


class Isend(Send):
    do, says, simpler = "isend", f"{{by}} starts sending {_SENDS}: request {{makes}}", "send"
    c, new = "{fill} try(MPI_Isend({out}, &request[{makes}]));", "request"

    def apply(self, m: State, op: Operation) -> Expected:
        return m.begin(op, m.offer(op))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.begin(op.makes, r.send(op), expected)


class Issend(Isend):
    do, says = "issend", f"{{by}} starts sending {_SENDS}, synchronously: request {{makes}}"
    c = Isend.c.replace("Isend", "Issend")


class Recv(MessageOperation):
    do, says = "recv", f"{{by}} receives {_RECEIVES}"
    c = "clear({on}); {checked}(MPI_Recv({out}, &status)); {looks}"

    def refuse(self, m: State, op: Operation) -> str:
        return m.refuse_receive(op)

    def apply(self, m: State, op: Operation) -> Expected:
        return m.block(op.by, m.post(op))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        arguments = r.prepare_receive(op, op.on), *r.source(op)
        r.complete("MPI_Recv", r.communicators[op.within].Recv, arguments, expected)


class Irecv(Recv):
    do, says, simpler = "irecv", f"{{by}} starts receiving {_RECEIVES}: request {{makes}}", "recv"
    c, new = "clear({on}); try(MPI_Irecv({out}, &request[{makes}]));", "request"

    def apply(self, m: State, op: Operation) -> Expected:
        return m.begin(op, m.post(op))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        buffer = r.prepare_receive(op, op.on)
        receive = r.communicators[op.within].Irecv
        r.begin(op.makes, r.call("MPI_Irecv", receive, buffer, *r.source(op)), expected)


class Sendrecv(MessageOperation):
    do = "sendrecv"
    says = f"{{by}} sends {_SENDS} and receives as many bytes from the same rank into buffer {{of}}"
    c = (
        "{fill} clear({of}); {checked}(MPI_Sendrecv({message}, {into}, comm[{communicator}], &status));"
        " {looks}"
    )

    def refuse(self, m: State, op: Operation) -> str:
        if not op.stamp or op.of == op.on:
            return "needs different buffers to send and to receive"
        return m.refuse_offer(op) or m.may_reach(op) or m.refuse_use(op, op.of, op.nbytes)

    def apply(self, m: State, op: Operation) -> Expected:
        receive = m.post(replace(op, on=op.of, of=0, stamp=0))
        return m.block(op.by, m.offer(op), receive)

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        buffer, peer, tag = r.prepare_send(op, op.on, op.stamp)
        arguments = buffer, peer, tag, r.prepare_receive(op, op.of), peer, tag
        r.complete("MPI_Sendrecv", r.communicators[op.within].Sendrecv, arguments, expected)


# -- requests ------------------------------------------------------------------------------------------------


class MakeSend(MessageOperation):
    do = "make-send"
    says = "{by} makes persistent request {makes}: {nbytes} B{kind} from buffer {on} to {peer}, {tag}{within}"
    c, new = "try(MPI_Send_init({out}, &request[{makes}]));", "request"

    def refuse(self, m: State, op: Operation) -> str:
        return m.refuse_offer(op)

    def apply(self, m: State, op: Operation) -> None:
        m.requests[op.makes] = Request(op.by, again=op)

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        arguments = r.prepare_send(op, op.on, op.makes)
        make = r.communicators[op.within].Send_init
        r.requests[op.makes] = r.call("MPI_Send_init", make, *arguments)


class MakeReceive(MakeSend):
    do, says = "make-receive", f"{{by}} makes persistent request {{makes}}: {_RECEIVES}"
    c = "try(MPI_Recv_init({out}, &request[{makes}]));"

    def refuse(self, m: State, op: Operation) -> str:
        if op.peer not in m.ranks:
            return "the receive has no source"
        return m.refuse_use(op, op.on, op.nbytes)

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        buffer = r.prepare_receive(op, op.on)
        make = r.communicators[op.within].Recv_init
        r.requests[op.makes] = r.call("MPI_Recv_init", make, buffer, *r.source(op))


class Start(MessageOperation):
    do, says = "start", "{by} starts persistent request {on}{contents}"
    c = "{prepared} try(MPI_Start(&request[{on}]));"

    def _begun(self, op: Operation, again: Operation) -> Operation:
        """The operation that a persistent request begins."""
        sends = again.do == "make-send"
        return replace(again, do="isend", stamp=op.stamp) if sends else replace(again, do="irecv")

    def refuse(self, m: State, op: Operation) -> str:
        if (request := m.inactive(op)) is None or request.again is None:
            return f"process {op.by} has no inactive persistent request {op.on}"
        begun = self._begun(op, request.again)
        return m.refuse_send(begun) if begun.do == "isend" else m.refuse_receive(begun)

    def apply(self, m: State, op: Operation) -> Expected:
        request = m.requests[op.on]
        assert request.again is not None
        begun = self._begun(op, request.again)
        request.parts = (m.offer(begun) if begun.do == "isend" else m.post(begun),)
        return Expected(request.parts)

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        (part,) = expected.parts
        if isinstance(part, Message):
            r.fill(part.sent, part.sent.on, part.sent.stamp)
        else:
            r.clear(part.posted, part.posted.on)
        r.call("MPI_Start", r.requests[op.on].Start)
        r.parts[op.on] = expected.parts


class FreeRequest(MessageOperation):
    do, says = "free-request", "{by} frees persistent request {on}"
    c = "try(MPI_Request_free(&request[{on}]));"

    def refuse(self, m: State, op: Operation) -> str:
        return "" if m.inactive(op) else f"process {op.by} has no inactive persistent request {op.on}"

    def apply(self, m: State, op: Operation) -> None:
        del m.requests[op.on]

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.call("MPI_Request_free", r.requests.pop(op.on).Free)


class Wait(MessageOperation):
    do, says = "wait", "{by} waits for request {on}"
    c = "{checked}(MPI_Wait(&request[{on}], &status)); {looks}"

    def refuse(self, m: State, op: Operation) -> str:
        request = m.requests.get(op.on)
        active = request is not None and request.by == op.by and request.parts
        return "" if active else f"process {op.by} has no active request {op.on}"

    def apply(self, m: State, op: Operation) -> Expected:
        return m.block(op.by, *m.end(op.on))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.complete_request("MPI_Wait", r.requests[op.on].Wait, op.on, expected)


class Test(Wait):
    do, says, simpler = "test", "{by} tests request {on} until it has completed", "wait"
    c = "for (flag = 0; !flag;) try(MPI_Test(&request[{on}], &flag, &status)); {looks}"

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        test = r.requests[op.on].Test
        r.complete_request("MPI_Test", lambda status: r.try_until(lambda: test(status)), op.on, expected)


class WaitAll(MessageOperation):
    do, says = "wait-all", "{by} waits for all its requests that can complete"
    c = (
        "MPI_Request all[] = {{ {requests} }}; MPI_Status seen[{count}];"
        " try(MPI_Waitall({count}, all, seen)); {all_seen}"
    )

    def refuse(self, m: State, op: Operation) -> str:
        parts = [part for number in m.ready(op.by) for part in m.requests[number].parts]
        if any(isinstance(part, Receive) and part.truncates for part in parts):
            return "a message is longer than its receive buffer"
        return "" if parts else f"process {op.by} has nothing to wait for"

    def apply(self, m: State, op: Operation) -> Expected:
        return m.block(op.by, *(part for number in m.ready(op.by) for part in m.end(number)))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        numbers = [
            number for number, parts in r.parts.items() if any(part in expected.parts for part in parts)
        ]
        requests = [r.requests[number] for number in numbers]
        statuses = [r.status() for _ in requests]
        r.call("MPI_Waitall", r.api.Request.Waitall, requests, statuses)
        for number, request, status in zip(numbers, requests, statuses, strict=True):
            for part in r.parts.pop(number):
                r.look(part, status)
            r.requests[number] = request
            r.forget(number)


# -- probes --------------------------------------------------------------------------------------------------


class Probe(MessageOperation):
    do, says = "probe", "{by} probes for a message from {source}, {tag}{within}"
    c = "try(MPI_Probe({from_}, &status));"

    def refuse(self, m: State, op: Operation) -> str:
        if op.peer not in m.ranks or op.within not in m.communicators:
            return "a probe needs a source"
        return "" if m.candidates(op) else "no such message"

    def apply(self, m: State, op: Operation) -> Expected:
        return Expected((m.candidates(op)[0],))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.probe("MPI_Probe", r.communicators[op.within].Probe, op, expected)


class Iprobe(Probe):
    do, says = "iprobe", "{by} probes until there is a message from {source}, {tag}{within}"
    c = "for (flag = 0; !flag;) try(MPI_Iprobe({from_}, &flag, &status));"

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        probe = r.communicators[op.within].Iprobe
        r.probe("MPI_Iprobe", lambda *asked: r.try_until(lambda: probe(*asked)), op, expected)


class MatchedProbe(Probe):
    do, says = "matched-probe", "{by} matches a message from {source}, {tag}{within}: matched message {makes}"
    c, new = "try(MPI_Mprobe({from_}, &message[{makes}], &status));", "message"

    def apply(self, m: State, op: Operation) -> Expected:
        message = m.candidates(op)[0]
        message.taken = True
        m.unexpected.remove(message)
        m.matched[op.makes] = message
        return Expected((message,))

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        probe = r.communicators[op.within].Mprobe
        r.messages[op.makes] = r.probe("MPI_Mprobe", probe, op, expected)


class ReceiveMatched(MessageOperation):
    do, says = "receive-matched", "{by} receives matched message {of} ({nbytes} B{kind}) into buffer {on}"
    c = "clear({on}); {checked}(MPI_Mrecv(buffer({on}, {layout}), {typed}, &message[{of}], &status)); {looks}"

    def refuse(self, m: State, op: Operation) -> str:
        message = m.matched.get(op.of)
        if message is None or message.sent.peer != op.by:
            return f"process {op.by} has no matched message {op.of}"
        if message.within != op.within:
            return "the message belongs to another communicator"
        return m.refuse_use(op, op.on, op.nbytes)

    def apply(self, m: State, op: Operation) -> Expected:
        receive = Receive(m.at, op, op.within)
        m.match(m.matched.pop(op.of), receive)
        return m.block(op.by, receive)

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        receive = r.messages.pop(op.of).Recv
        r.complete("MPI_Mrecv", receive, (r.prepare_receive(op, op.on),), expected)


# -- all ranks -----------------------------------------------------------------------------------------------


class Barrier(MessageOperation):
    do, says, of_all = "barrier", "all ranks meet at a barrier", True
    c = "try(MPI_Barrier(MPI_COMM_WORLD));"

    def apply(self, m: State, op: Operation) -> None:
        m.wild = [receive for receive in m.wild if not receive.completed]

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.mpi.barrier()


class Duplicate(MessageOperation):
    do, says, of_all = "duplicate", "all ranks duplicate MPI_COMM_WORLD: communicator {makes}", True
    c = "try(MPI_Comm_dup(MPI_COMM_WORLD, &comm[{makes}])); turned[{makes}] = 0;"
    is_reversed, new = False, "communicator"

    def refuse(self, m: State, op: Operation) -> str:
        return "" if len(m.communicators) < MOST_COMMUNICATORS else "there are four communicators"

    def apply(self, m: State, op: Operation) -> None:
        m.communicators[op.makes] = self.is_reversed

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        made = r.call("MPI_Comm_dup", r.communicators[WORLD].Dup)
        r.communicators[op.makes], r.reversed[op.makes] = made, False


class Reverse(Duplicate):
    do, is_reversed = "reverse", True
    says = "all ranks create communicator {makes}, with the ranks of MPI_COMM_WORLD in reverse order"
    c = "try(MPI_Comm_split(MPI_COMM_WORLD, 0, RANKS - me, &comm[{makes}])); turned[{makes}] = 1;"

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        made = r.call("MPI_Comm_split", r.communicators[WORLD].Split, 0, r.mpi.size - r.me)
        r.communicators[op.makes], r.reversed[op.makes] = made, True


class FreeCommunicator(MessageOperation):
    do, says, of_all = "free-communicator", "all ranks free communicator {on}", True
    c = "try(MPI_Comm_free(&comm[{on}]));"

    def refuse(self, m: State, op: Operation) -> str:
        if op.on == WORLD or op.on not in m.communicators:
            return f"no communicator {op.on}"
        active = (part for request in m.requests.values() for part in request.parts)
        used = any(part.within == op.on for part in (*active, *m.unexpected, *m.matched.values()))
        kept = any(request.again and request.again.within == op.on for request in m.requests.values())
        return "the communicator is in use" if used or kept else ""

    def apply(self, m: State, op: Operation) -> None:
        del m.communicators[op.on]

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        r.call("MPI_Comm_free", r.communicators.pop(op.on).Free)


class Collective(MessageOperation):
    """A call of all ranks on buffers of its own (`group_calls.Case`), which depends on no other operation."""

    do, says, of_all = "collective", "all ranks call {case} (contents {stamp})", True
    c = "is_partial = 1;"

    def refuse(self, m: State, op: Operation) -> str:
        return "" if op.stamp and op.nbytes and case_of(op) else "needs a call and a stamp"

    def perform(self, r: Rank, op: Operation, expected: Expected) -> None:
        case = case_of(op)
        assert case is not None
        r.perform_case(case)


class OneSided(Collective):
    do, says = "one-sided", "all ranks make a window and call {case} (contents {stamp})"


_ALL: tuple[type[MessageOperation], ...] = (
    *(Allocate, Free, Send, Ssend, Isend, Issend, Recv, Irecv, Sendrecv),
    *(MakeSend, MakeReceive, Start, FreeRequest, Wait, Test, WaitAll),
    *(Probe, Iprobe, MatchedProbe, ReceiveMatched),
    *(Barrier, Duplicate, Reverse, FreeCommunicator, Collective, OneSided),
)

TYPES: Mapping[str, MessageOperation] = {operation.do: operation() for operation in _ALL}
"""Name → operation."""

OF_ALL = frozenset(do for do, operation in TYPES.items() if operation.of_all)
"""Operations that all ranks perform together."""

GROUP_CALLS = frozenset({Collective.do, OneSided.do})

SIMPLER = {do: operation.simpler for do, operation in TYPES.items() if operation.simpler}
"""Operation → a simpler one with the same effect."""
