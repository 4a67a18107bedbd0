"""The main loop of a memory history's process: it performs the operations that it receives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.worker import Child
from gpuipc_doctor.histories.contents import Part
from gpuipc_doctor.histories.memory_operations import TYPES
from gpuipc_doctor.histories.operations import Operation
from gpuipc_doctor.histories.performer import Performer, WrongAnswer, WrongData


class Order(NamedTuple):
    """An operation as its process receives it, with the size of its object and the expected stamp."""

    operation: Operation
    handle: bytes = b""
    """The IPC handle to open, or the pool pointer to import."""
    parts: tuple[Part, ...] = ()
    """What a read must show, where it is known."""
    exports: bool = False
    """Whether to export the object for the operation, which another process performs."""


class Answer(NamedTuple):
    """The result of a batch of orders: the number performed, and the failure of the next one."""

    done: int
    made: dict[int, Any]
    """See `Performer.made`."""
    compared: int
    """Bytes read and compared."""
    what: str = ""
    name: str = ""
    says: str = ""
    call: str = ""
    """The driver call that returned an error."""


def serve(child: Child) -> None:
    """Receive orders, perform them, answer."""
    device, primary = child.recv()
    performer = Performer(child.gpus[device], primary=primary, gpus=child.gpus)
    child.send(None)
    while True:
        orders = child.recv()
        answer = perform(performer, orders, child.descriptors, child.progress)
        child.send(answer, performer.descriptors)
        for descriptor in (*performer.descriptors, *child.descriptors):
            os.close(descriptor)


def perform(
    p: Performer, orders: Sequence[Order], received: Sequence[int], progress: Callable[[int], None]
) -> Answer:
    """Perform the orders. ``received`` is the descriptor sent with an import."""
    p.made, p.compared, p.received, p.descriptors = {}, 0, received, []

    def answer(done: int, what: str = "", name: str = "", says: str = "", call: str = "") -> Answer:
        return Answer(done, p.made, p.compared, what, name, says, call)

    for number, order in enumerate(orders):
        progress(number)
        operation = TYPES[order.operation.do]
        p.handle, p.parts = order.handle, order.parts
        try:
            (operation.export if order.exports else operation.perform)(p, order.operation)
        except DriverError as error:
            reason = p.gpu.refuses_by_design(error)
            says = f"{error}: {p.gpu.device.label} {reason}" if reason else str(error)
            return answer(number, "lacks" if reason else "error", error.fault.name, says, error.fault.call)
        except WrongData as wrong:
            return answer(number, "data", says=str(wrong))
        except WrongAnswer as wrong:
            return answer(number, "answer", says=str(wrong), call=wrong.call)
    return answer(len(orders))
