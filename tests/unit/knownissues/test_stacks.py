"""Stacks from every tool are parsed; a signature's functions must occur in one stack, in order."""

import pytest

from gpuipc_doctor.knownissues import Signature
from gpuipc_doctor.knownissues.scanner import Search
from gpuipc_doctor.knownissues.stacks import frame, stacks

CALLS = ("cxip_cq_eq_progress", "ofi_cq_readfrom", "MPIR_Wait_impl", "PMPI_Recv")
FORMS = {
    "gdb": ["#{n}  0x00007fffea53c70{n} in {f} (dst=0x99, len=640) at a.c:{n}" for _ in CALLS],
    "gdb, innermost": ["#{n}  {f} () from /opt/lib/libmpi.so.12"] * 4,
    "eu-stack": ["#{n}  0x00007f2ab4 {f}"] * 4,
    "sanitizer": ["    #{n} 0x4a{n} in {f} /path/a.c:12"] * 4,
    "LLDB": ["  * frame #{n}: 0x00007fff2ab4 libmpi.so`{f} + 10"] * 4,
    "PyTorch": ["[rank3]: frame #{n}: {f}(int, std::optional<long>) + 0x1d{n} (0x7f12 in /x/libtorch.so)"]
    * 4,
    "py-spy": ["    {f} (libmpi.so.12)"] * 4,
    "py-spy, Python": ["    {f} (train.py:{n})"] * 4,
    "faulthandler": ['  File "/x/train.py", line {n} in {f}'] * 4,
    "Open MPI": ["[nid1:123] [ {n}] /usr/lib/libmpi.so.40({f}+0x12)[0x7f00aa]"] * 4,
    "Open MPI, opal": ["[nid1:123] [{n}] func:/usr/lib/libmpi.so.40({f}+0x12) [0x7f00aa]"] * 4,
    "MPICH": ["/opt/lib/libmpi.so.12({f}+0x26) [0x7f33]"] * 4,
    "UCX": [" {n}  /usr/lib/libucs.so.0({f}+0x2e4) [0x7f00]"] * 4,
    "UCX, symbols": ["    {n} 0x000000000001234{n} {f}()  /path/debug.c:656"] * 4,
    "/proc": ["[<0>] {f}+0x60/0x90"] * 4,
    "oops": ["[  12.34{n}]  ? {f}+0x19{n}/0x3e0 [nvidia]"] * 4,
    "syslog": ["Nov 24 01:02:0{n} n1 kernel:  {f}+0x25/0x70"] * 4,
    "perf": ["        7f001122aabb {f}+0x12 (/usr/lib/libucp.so.0)"] * 4,
    "Julia": ["{f} at /buildworker/julia.h:170{n}"] * 4,
    "Julia, no line": ["{f} at /usr/lib/libmpi.so (unknown line)"] * 4,
}


def printed(form: list[str], calls: tuple[str, ...] = CALLS) -> str:
    return "\n".join(line.format(n=n, f=call) for n, (line, call) in enumerate(zip(form, calls, strict=True)))


def found(functions: list[str], text: str) -> bool:
    return bool(Search([Signature(match=(), stack=tuple(functions))]).shown(text))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_stack_of_every_tool_is_parsed(form: list[str]) -> None:
    (stack,) = stacks(printed(form))
    assert tuple(function for _, function in stack.frames) == CALLS
    assert found(["ofi_cq_readfrom|cxip_eq", "PMPI_*"], printed(form))
    assert not found(["PMPI_Recv", "ofi_cq_readfrom"], printed(form))
    assert not found(["ofi_cq_readfrom", "PMPI_Send"], printed(form))
    assert not found(["ofi_cq"], printed(form))


def test_traceback_begins_with_the_outermost_frame() -> None:
    form = ['  File "/x/train.py", line {n}, in {f}\n    call()'] * 4
    assert found(list(CALLS), printed(form, CALLS[::-1]))
    assert not found(list(CALLS), printed(form))


@pytest.mark.parametrize(
    "parts",
    [
        "Thread 2 (Thread 0x7f (LWP 12)):\n{0}\nThread 1 (Thread 0x7f (LWP 11)):\n{1}",
        "{0}\nThread 0x00007f12 (most recent call first):\n{1}",
        "{0}" + "\nstep" * 100 + "\n{1}",
    ],
    ids=["gdb", "faulthandler", "far apart"],
)
@pytest.mark.parametrize("form", ["MPICH", "py-spy"])
def test_functions_of_two_threads_do_not_count_together(form: str, parts: str) -> None:
    halves = printed(FORMS[form][:2], CALLS[:2]), printed(FORMS[form][:2], CALLS[2:])
    assert not found(list(CALLS), parts.format(*halves))


def test_restarted_numbers_begin_a_new_stack() -> None:
    text = "\n".join(printed(FORMS["gdb"][:2], some) for some in (CALLS[:2], CALLS[2:]))
    assert not found(list(CALLS), text)


def test_interleaved_stacks_of_ranks_are_separated() -> None:
    one = printed(FORMS["Open MPI"]).splitlines()
    other = printed(FORMS["Open MPI"], ("a_one", "b_two", "c_three", "d_four")).replace("nid1:123", "nid2:9")
    mixed = "\n".join(line for both in zip(one, other.splitlines(), strict=True) for line in both)
    assert found(list(CALLS), mixed)
    assert not found(["cxip_cq_eq_progress", "b_two"], mixed)


@pytest.mark.parametrize(
    ("line", "function"),
    [
        (
            "[n:1] [ 3] /x/lib.so(_ZN4c10d16ProcessGroupNCCL8WorkNCCL12checkTimeoutESt8optional+0x1d2)[0x7f]",
            "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout",
        ),
        ("#2  0x00007f12ab in progress.constprop.0.isra.1 (x=1) at a.c:1", "progress"),
        (
            "#2  0x00007f12ab in std::vector<int, std::allocator<int> >::push_back (this=0x1)",
            "std::vector::push_back",
        ),
        ("#2  0x00007f12ab in (anonymous namespace)::progress(int) () from libx.so", "progress"),
        ("#2  0x00007f12ab in cuMemAlloc_v2@plt () from libx.so", "cuMemAlloc_v2"),
        ("#0  __GI_raise (sig=6) at raise.c:50", "raise"),
    ],
)
def test_function_name_is_stripped_of_compiler_suffixes(line: str, function: str) -> None:
    seen = frame(line)
    assert seen is not None
    assert seen.function == function
    assert found([function.rpartition(":")[2]], line)


@pytest.mark.parametrize(
    "line",
    [
        "[nid1:123] [ 0] /lib/x86_64-linux-gnu/libpthread.so.0(+0x12980)[0x7f00]",
        "step 12 loss 0.3 (train)",
        "libfabric:1:1::cxi:cq:cxip_cq_eq_progress():77<debug> nid1: event type LINK",
        "MPIDI_CRAY_Common_lmt_import_mem(218).....:",
        "#include <mpi.h>",
        "",
        "#" * 5000,
    ],
)
def test_other_lines_are_no_frames(line: str) -> None:
    assert frame(line) is None
