"""Run one role of a probe, or of the visits of a tour, in this process.

The process may hang, crash or be killed at any moment; all that its supervisor needs is already in files (see
`assignment` and `journal`).
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpuipc_doctor.api import loader
from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.probe_types import Ending
from gpuipc_doctor.supervise.assignment import Assignment, RoleFiles, RoleResult
from gpuipc_doctor.supervise.journal import CANNOT_WRITE, PROCESS_EXIT, Journal
from gpuipc_doctor.worker.peer import PeerLost
from gpuipc_doctor.worker.process import exit_as_programs_do
from gpuipc_doctor.worker.services import Drivers, Unfit, Worker
from gpuipc_doctor.worker.stack_timer import StackTimer


def run(directory: Path, role: str, peer_fds: Sequence[int]) -> NoReturn:
    """Run a role's assignment and those that follow it, and exit.

    ``peer_fds``: sockets to other roles, see `api.Worker.peers`. At later visits of a tour the roles meet
    anew.
    """
    files, drivers = RoleFiles(directory, role), Drivers()
    assignment = Assignment.read(files.assignment)
    while True:
        journal = Journal(files.journal)
        stacks = os.open(files.python_stack, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.enable(stacks)
        timer = StackTimer(stacks, assignment.deadline_s)
        worker = Worker(files, assignment, peer_fds, journal, timer, drivers)
        result = _call(worker, assignment)
        try:
            result.write(files.result)
        except OSError:
            os._exit(CANNOT_WRITE)
        if result.ending is not Ending.COMPLETED:
            os._exit(1)  # a driver that has just failed may hang on exit, and the failed call is known
        worker.hang_up()
        if not assignment.then:
            # Left armed: failures of the driver's exit handlers after this line are attributed to it.
            worker.armed(PROCESS_EXIT).__enter__()
            exit_as_programs_do()
        timer.rest()
        journal.leave()
        os.close(stacks)
        at, role = assignment.then
        files, peer_fds = RoleFiles(Path(at), role), ()
        assignment = Assignment.read(files.assignment)
        _print_into(files.log)


def _print_into(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    os.close(file)


def _call(worker: Worker, assignment: Assignment) -> RoleResult:
    try:
        function = loader.role(Path(assignment.check_file), assignment.function)
        worker.prepare()
        worker.rendezvous()
        worker.begin()
        function(worker)
        worker.finish()
    except DriverError as error:
        if error.is_out_of_memory or error.may_be_out_of_memory:
            worker.record_holders()
        worker.record_refusals(error)
        return RoleResult(Ending.DRIVER_ERROR, error.fault, occurrence=error.occurrence)
    except PeerLost:
        return RoleResult(Ending.PEER_LOST)
    except Unfit as unfit:
        return RoleResult(Ending.UNFIT, exception=str(unfit))
    except BackendUnavailable as error:
        if isinstance(error.__cause__, DriverError):  # the device was found before, so its driver is at fault
            return RoleResult(
                Ending.DRIVER_ERROR, error.__cause__.fault, occurrence=error.__cause__.occurrence
            )
        return RoleResult(Ending.UNAVAILABLE, exception=f"{error.reason}\n{error.remedy}")
    except Exception as error:
        summary = f"{type(error).__name__}: {error}"
        import traceback

        return RoleResult(Ending.EXCEPTION, exception=f"{summary}\n{traceback.format_exc()}")
    return RoleResult(Ending.COMPLETED)
