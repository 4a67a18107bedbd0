"""Patterns are found across block edges, wrapped lines, escape sequences, and in endless lines."""

import random
import re

import pytest

from gpuipc_doctor.knownissues.lines import BLOCK, LONGEST
from gpuipc_doctor.knownissues.patterns import Pattern, Patterns
from gpuipc_doctor.knownissues.scanner import Scanner

NEEDLES = ("cxil_map() failed: -22", "Failed to map recv buffer: -22")
PATTERNS = Patterns([Pattern(re.escape(needle).replace(r"\ ", r"\s+"), wrapped=True) for needle in NEEDLES])


def find(text: bytes | str, size: int = BLOCK, patterns: Patterns = PATTERNS) -> list[tuple[int, int]]:
    """(line, pattern) of each hit, in a log read in blocks of ``size`` bytes."""
    data = text.encode() if isinstance(text, str) else text
    scanner = Scanner(patterns)
    hits = []
    for at in range(0, len(data), size):
        hits += scanner.feed(data[at : at + size])
    hits += scanner.flush()
    assert scanner.lines == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    return sorted(
        (line, number) for hit in hits for line in (hit.number, *hit.numbers) for number, _ in hit.matches
    )


def noise(lines: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [
        f"libfabric:{n}::core:mr:search():{rng.randrange(999)}<debug> " + "x" * rng.randrange(60)
        for n in range(lines)
    ]


def test_lines_are_counted_from_one() -> None:
    assert find(f"{NEEDLES[0]}\nnothing\n{NEEDLES[1]}") == [(1, 0), (3, 1)]


@pytest.mark.parametrize("size", [1, 7, 64, 4096, BLOCK])
def test_blocks_make_no_difference(size: int) -> None:
    lines = noise(400)
    for at in (0, 3, 17, 18, 211, 399):
        lines[at] += NEEDLES[at % 2]
    assert find("\n".join(lines), size) == [(at + 1, at % 2) for at in (0, 3, 17, 18, 211, 399)]


@pytest.mark.parametrize("width", [60, 72, 80, 97, 132])
def test_line_wrapped_by_a_terminal_is_found(width: int) -> None:
    for before in range(width - len(NEEDLES[1]) - 2, width + 2):
        log = [
            *noise(20),
            "y" * before + NEEDLES[1] + " and what came after it, until the line was full again" * 3,
            *noise(5),
        ]
        wrapped = [line[at : at + width] for line in log for at in range(0, len(line), width)]
        (hit,) = find("\n".join(wrapped))
        assert hit[1] == 1


@pytest.mark.parametrize(
    "typeset",
    [
        "it couldn\u2019t reach \u201cn1\u201d \u2013 gave up",
        "it couldn\u2018t reach \u201en1\u201f \u2014 gave up",
    ],
)
def test_typeset_quotation_marks_and_dashes_are_read_as_plain_ones(typeset: str) -> None:
    patterns = Patterns([Pattern('it couldn\'t reach "n1" - gave up')])
    assert find(f"first\n{typeset}\nlast\n", patterns=patterns) == [(2, 0)]


def test_line_wrapped_between_words_is_found() -> None:
    log = "The second node said, again and again, that it had Failed to map\nrecv buffer: -22, and hung.\n"
    assert [pattern for _, pattern in find(log)] == [1]


@pytest.mark.parametrize("drawn", ["-" * 76, "=" * 90, "  " + "*" * 100])
def test_line_wrapped_between_words_is_found_in_a_drawn_box(drawn: str) -> None:
    message = "The second node said, again and again, that it had Failed to map\nrecv buffer: -22, and hung."
    assert [pattern for _, pattern in find(f"{drawn}\n{message}\n{drawn}\n")] == [1]


def test_indented_line_continues_the_previous_one() -> None:
    assert [pattern for _, pattern in find("warn: Failed to map\n    recv buffer: -22\n")] == [1]


def test_lines_that_differ_only_in_figures_are_distinguished() -> None:
    """Lines that are equal without their figures are searched together, in blocks of any size."""
    status = [-22 if n % 7 == 0 else -14 for n in range(500)]
    log = "\n".join(f"{n} cxil_map() failed:\t{one}" for n, one in enumerate(status))
    assert find(log) == [(n + 1, 0) for n, one in enumerate(status) if one == -22]
    assert find(log.replace("-22", "-14")) == []
    assert len(find(log.replace("-14", "-22"))) == len(status)


@pytest.mark.parametrize("letters", ["x", "xy", "ghijklmnopqrstuvwxyz"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_many_patterns_find_the_lines_that_match_them(letters: str, wrapped: bool) -> None:
    """Whether few lines are alike or many, and however many patterns have the same text."""
    regexes = [rf"Cuda\s+failure\s+{code}\b|cudaErrorNumber{code}\b" for code in range(1, 12)]
    regexes += [r"Xid.{0,40}: (?:13|31|48), .*(?:reset|lost)", r"GPU (?:7|8) lost"]
    rng = random.Random(1)
    lines = []
    for _ in range(6000):
        code, word = rng.randrange(50), "".join(rng.choices(letters, k=5))
        lines.append(
            rng.choice(
                (
                    f"[{rng.randrange(9999)}] NCCL WARN Cuda failure {code} '{word}'",
                    f"NVRM: Xid (PCI:{rng.randrange(99)}): {code}, pid={code}, {word} GPU {code} lost",
                    f"step {rng.randrange(9999)} {word} {code}",
                )
            )
        )
    expected = [
        (at, number)
        for at, line in enumerate(lines, 1)
        for number, regex in enumerate(regexes)
        if re.search(regex, line)
    ]
    patterns = Patterns([Pattern(regex, wrapped=wrapped) for regex in regexes])
    assert find("\n".join(lines), 20_000, patterns) == expected


def test_successive_lines_are_not_joined() -> None:
    patterns = Patterns([Pattern(r"cuIpcOpenMemHandle.*INVALID_HANDLE", wrapped=True)])
    log = (
        "cuIpcOpenMemHandle: fine\ncuCtxDestroy: INVALID_HANDLE\n"
        + "a much longer line than those two are\n" * 3
    )
    assert find(log, patterns=patterns) == []
    assert find(log.replace("fine\ncuCtxDestroy", "ERROR"), patterns=patterns) == [(1, 0)]


def test_colours_inside_a_message_do_not_hide_it() -> None:
    assert find("\x1b[1;31mcxil_map()\x1b[0m failed\x1b]0;title\x07: -22\n") == [(1, 0)]


def test_carriage_returns_do_not_count_as_lines() -> None:
    assert find("one\r\n10%\r20%\rcxil_map() failed: -22\rdone\r\ncxil_map() failed: -22\r\n") == [
        (2, 0),
        (3, 0),
    ]


def test_very_long_line_is_searched_in_overlapping_parts() -> None:
    for at in range(LONGEST - len(NEEDLES[0]), LONGEST):
        assert find("z" * at + NEEDLES[0] + "z" * 9000 + "\nlast\n") == [(1, 0)]


@pytest.mark.parametrize("size", [1000, BLOCK])
def test_endless_line_is_read_in_bounded_memory(size: int) -> None:
    scanner = Scanner(PATTERNS)
    found = []
    for _ in range(40 * BLOCK // size):
        found += scanner.feed(b"q" * size)
        assert len(scanner._blocks._waiting) <= 2 * BLOCK
    found += scanner.feed(NEEDLES[0].encode())
    found += scanner.flush()
    assert [(hit.number, len(hit.matches)) for hit in found] == [(1, 1)]


def test_bytes_that_are_not_text_are_skipped() -> None:
    assert find(b"\xff\xfe\x80 \0\0 cxil_map() failed: -22 \xc3\n") == [(1, 0)]


def test_paused_pattern_is_not_searched_until_resumed() -> None:
    scanner = Scanner(PATTERNS)
    scanner.pause(0)
    log = (NEEDLES[0] + "\n").encode() * 20_000
    assert list(scanner.feed(log)) == []
    scanner.resume([0])
    assert list(scanner.feed(log)) != []


@pytest.mark.parametrize("wasted", [0, 10**9])
def test_search_without_the_paused_patterns_finds_the_others(
    monkeypatch: pytest.MonkeyPatch, wasted: int
) -> None:
    monkeypatch.setattr("gpuipc_doctor.knownissues.candidates._WASTED", wasted)
    scanner = Scanner(PATTERNS)
    scanner.pause(0)
    log = f"{NEEDLES[0]}\n{NEEDLES[1]}\n" * 3  # after the first block, the search is narrower
    for _ in range(2):
        found = [*scanner.feed(log.encode()), *scanner.flush()]
        assert {number for hit in found for number, _ in hit.matches} == {1}
    scanner.pause(1)
    scanner.resume([0])
    found = [*scanner.feed(log.encode()), *scanner.flush()]
    assert {number for hit in found for number, _ in hit.matches} == {0}


def test_pattern_without_fixed_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no fixed text"):
        Patterns([Pattern(r"\d+")])
