"""Informative lines of a log, and the message of an MPI library that aborts."""

from __future__ import annotations

import pytest

from gpuipc_doctor.log_lines import how_telling, most_telling, reason_of_abort, signal_named

WARNINGS = [
    f"libfabric:{n}:core:mr:ze_hmem_dl_init():372<warn> Failed to dlopen libze_loader.so.1" for n in (1, 2)
]
NEWS = "error checking    : enabled"
INFO = "libfabric:4711:cxi:mr:cxip_do_map():90<info> node01: cxil_map() failed: -22"
ERROR = "Error: failure in cuEventRecord 190"

ABORT = """\
libfabric:27578:1795345531::core:core:fi_getinfo_():1493<warn> Can't find provider with the highest priority
Abort(9422) on node 0 (rank 0 in comm 0): Fatal error in internal_Init_thread: Other MPI error, error stack:
internal_Init_thread(43417)..: MPI_Init_thread(argc=(nil), argv=(nil), required=3) failed
MPII_Init_thread(118)........:\x20
open_fabric(2824)............:\x20
find_provider(3004)..........: OFI fi_getinfo() failed (ofi_init.c:3004:find_provider:No data available)
""".splitlines()


def test_errors_precede_warnings_and_settings_are_ignored() -> None:
    lines = (ERROR, INFO, WARNINGS[0], ABORT[0], NEWS, "all is well")
    assert [how_telling(line) for line in lines] == [2, 2, 1, 1, 0, 0]


def test_most_informative_lines_keep_their_order() -> None:
    assert most_telling([*WARNINGS, NEWS, ERROR], 2) == [WARNINGS[0], ERROR]


def test_reason_of_an_abort_is_the_innermost() -> None:
    said = "OFI fi_getinfo() failed (ofi_init.c:3004:find_provider:No data available)"
    assert reason_of_abort(ABORT) == said
    assert reason_of_abort([*ABORT, "gone(1): not of the stack any more"]) != said
    assert reason_of_abort([*ABORT, "", "later(1): not of the stack any more"]) == said
    assert reason_of_abort(["Fatal error in internal_Recv: Message truncated"]) == "Message truncated"
    assert reason_of_abort(["all is well"]) == ""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Fatal Python error: Segmentation fault", "SIGSEGV"),
        ("Fatal Python error: Aborted", "SIGABRT"),
        ("[node01:4711] Signal: Bus error (7)", "SIGBUS"),
        ("process rank 1 with PID 4711 on node node01 exited on signal 11 (Segmentation fault).", "SIGSEGV"),
        ("=   KILLED BY SIGNAL: 9 (Killed)", "SIGKILL"),
        ("Signal: sent (99)", ""),
        ("no signal at all", ""),
    ],
)
def test_signal_is_found_in_the_words_of_python_and_of_launchers(line: str, name: str) -> None:
    assert signal_named(["MPI_Finalize", line, ""]) == name
