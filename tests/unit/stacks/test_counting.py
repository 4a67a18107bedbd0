"""Detection of numbers that keep rising or falling, in registers and on a stack."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from gpuipc_doctor.stacks.counting import any_counts, counts, goes_on, outer_stack
from gpuipc_doctor.stacks.sampling import counting_threads
from tests.waiting import until

CHANCE = Random(28)


@pytest.mark.parametrize(
    ("values", "does"),
    [
        (range(0, 400, 7), True),
        (range(400, 0, -7), True),
        ([n % 100 for n in range(0, 900, 7)], True),
        ([5, 1, 4, 90, 80, 71, 62, 50, 41, 33, 22, 5, 9, 5, 9], True),
        ([5, 5, 6, 6, 6, 7, 8], True),
        ([5, 5, 6, 6, 7], False),
        ([3, 9, 1] * 20, False),
        ([CHANCE.randrange(1 << 32) for _ in range(60)], False),
        ([7] * 60, False),
        ([], False),
    ],
    ids=["up", "down", "rounds", "once", "slowly", "two-steps", "turns", "random", "constant", "none"],
)
def test_values_count(values: Sequence[int], does: bool) -> None:
    assert counts(values) is does
    assert any_counts([(1, value) for value in values]) is does


@pytest.mark.parametrize(
    ("values", "does"),
    [
        ([str(n) for n in range(20)], True),
        ([f"'line {n}'" for n in range(8)], True),
        ([f"'line {n % 9}'" for n in range(16)], True),  # some twice
        (["'idle'", "'busy'"] * 8, False),
        (["'a'"] * 16, False),
        ([str(n * 7919 % 101) for n in range(16)], False),
        ([f"{n}.5" for n in range(16)], False),  # a clock
        ([f"-{n}.5" for n in range(16)], False),
        ([f"{n * 7919 % 101}.5" for n in range(16)], True),
        ([f"{n % 4}.5" for n in range(16)], False),
        ([f"<Event at 0x7f{n:02}>" for n in range(16)], False),  # each a new one
        ([*[str(n) for n in range(9)], "<unknown>", *[str(n) for n in range(9, 16)]], True),
        ([], False),
    ],
)
def test_variable_of_a_loop_that_ends_counts_or_has_many_texts(values: Sequence[str], does: bool) -> None:
    assert goes_on(values) is does


SAMPLE = """\
 {thread}
\t            1062 main (/tmp/app)
 ABI:2    AX:{number:#x}    SP:0x7ffe2c36{stack:04x}    IP:0x564e44dd8062
"""


def test_threads_with_counting_registers_are_found_in_perfs_output() -> None:
    """The stack pointer and the instruction pointer are not the program's numbers."""
    text = "".join(
        SAMPLE.format(thread=1, number=8 * n, stack=0) + SAMPLE.format(thread=2, number=3, stack=n)
        for n in range(30)
    )
    assert counting_threads(text) == {1}


PROGRAM = r"""
#include <stdio.h>
#include <string.h>
static volatile int flag;
__attribute__((noinline)) static void kernel(void) { for (int n = 0; n < 1000000 && !flag; n++); }
int main(int count, char **words) {
    volatile int step = 0;
    puts("ready");
    fflush(stdout);
    if (!strcmp(words[1], "works"))
        for (;;) { kernel(); step++; }
    while (!flag);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("program") / "program.c"
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", "-o", source.with_suffix(""), source], check=True)
    return source.with_suffix("")


@pytest.mark.parametrize("how", ["works", "spins"])
def test_outer_stack_of_a_running_program_shows_whether_it_counts(program: Path, how: str) -> None:
    seen = list[Sequence[int]]()

    def it_counts() -> bool:
        seen.append(outer_stack(running.pid))
        return any_counts(seen)

    with subprocess.Popen([program, how], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout
            running.stdout.readline()
            if how == "works":
                until("it counts", it_counts)
            else:
                for _ in range(40):
                    time.sleep(0.002)
                    assert not it_counts()
        finally:
            running.kill()
