"""Text for terminals: control sequences, wrapping and folding."""

import unicodedata
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.present.text import columns, counted, fold_devices, fold_pairs, sanitise, shorten, wrap
from tests.sample_reports import LABELS, TEXT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31;1mred\x1b[0m text", "red text"),
        ("\x1b]0;your title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1;2|dcs\x1b\\after", "after"),
        ("\x1b]0;no end", "0;no end"),
        ("\x9b2Jgone", "gone"),
        ("\x1b(Bcharset", "charset"),
        ("\x1bcreset", "reset"),
        ("10 %\r20 %\tdone\n", "10 % 20 % done"),
        ("nul\x00bell\x07del\x7f", "nul\\x00bell\\x07del\\x7f"),
        ("lone escape \x1b", "lone escape \\x1b"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("bad byte \udcff", "bad byte \\udcff"),
        ("4 × GH200, 1.9 µs, 字幕", "4 × GH200, 1.9 µs, 字幕"),
    ],
)
def test_sanitised_text(text: str, shown: str) -> None:
    assert sanitise(text) == shown


@given(st.text() | TEXT)
def test_sanitised_text_moves_no_cursor_and_can_be_encoded(text: str) -> None:
    line = sanitise(text)
    assert not {unicodedata.category(c) for c in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    line.encode("utf-8")
    assert sanitise(line) == line


def test_wrapped_lines_are_indented_and_words_stay_whole() -> None:
    text = "native stack: cuIpcOpenMemHandle_v2 in /usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert wrap(text, 40, "  ", "    ") == [
        "  native stack: cuIpcOpenMemHandle_v2 in",
        "    /usr/lib/x86_64-linux-gnu/",
        "    libcuda.so.1",
    ]


@given(st.text() | TEXT, st.integers(20, 60), st.integers(0, 10))
def test_wrapping_keeps_every_character_and_the_width(text: str, width: int, hang: int) -> None:
    line = sanitise(text)
    lines = wrap(line, width, "", " " * hang)
    assert all(columns(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == line.replace(" ", "")


@given(st.text(min_size=1).map(sanitise), st.integers(3, 30))
def test_shortened_text_fits_and_says_so(text: str, width: int) -> None:
    short = shorten(text, width)
    assert columns(short) <= width
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@pytest.mark.parametrize(
    ("labels", "folded"),
    [
        (["cuda:0"], "cuda:0"),
        (["cuda:0", "cuda:1"], "cuda:0-1"),
        (["cuda:3", "cuda:0", "cuda:2", "cuda:0"], "cuda:0,2-3"),
        ([f"cuda:{i}" for i in range(12)], "cuda:0-11"),
        (["hip:1", "cuda:0", "hip:0"], "cuda:0, hip:0-1"),
        ([], ""),
    ],
)
def test_folded_devices(labels: list[str], folded: str) -> None:
    assert fold_devices(labels) == folded


CUDA = [f"cuda:{i}" for i in range(12)]


@pytest.mark.parametrize(
    ("pairs", "folded"),
    [
        ([("cuda:0", "cuda:1")], "cuda:0 > cuda:1"),
        (permutations(CUDA[:4], 2), "every pair of cuda:0-3"),
        (zip(CUDA[:4], (*CUDA[1:4], CUDA[0]), strict=True), "from each of cuda:0-3 to the next"),
        (pairwise(CUDA[:4]), "cuda:0 > cuda:1; cuda:1 > cuda:2; cuda:2 > cuda:3"),
        (
            [pair for pair in permutations(CUDA, 2) if "cuda:3" in pair],
            "cuda:0-2,4-11 > cuda:3; cuda:3 > cuda:0-2,4-11",
        ),
        ([("cuda:10", "cuda:2"), ("cuda:9", "cuda:1")], "cuda:9 > cuda:1; cuda:10 > cuda:2"),
    ],
)
def test_folded_pairs(pairs: list[tuple[str, str]], folded: str) -> None:
    assert fold_pairs(pairs) == folded


@given(st.lists(st.sampled_from(LABELS), unique=True))
def test_folding_loses_no_device(labels: list[str]) -> None:
    unfolded = set()
    backend = ""
    for part in fold_devices(labels).replace(", ", ",").split(",") if labels else []:
        name, colon, numbers = part.rpartition(":")
        backend = name if colon else backend
        low, _, high = numbers.partition("-")
        unfolded |= {f"{backend}:{i}" for i in range(int(low), int(high or low) + 1)}
    assert unfolded == set(labels)


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_singular_and_plural(number: int, text: str) -> None:
    assert counted(number, "node") == text
