"""The fixed text of a pattern occurs in everything that the pattern matches, in any spacing and case."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues.literals import (
    bare,
    dense,
    dense_keys,
    dense_text,
    dense_ways,
    finder,
    fixed_text,
    has,
    in_order,
    with_re,
)

SIGNATURES = [
    text
    for entry in (*knownissues.load(), *knownissues.load_messages())
    for signature in entry.signatures
    for text in signature.patterns
]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"cxil_map\(\) failed: -22", ["cxil_map()failed:-22"]),
        (r"Failed\s+to\s+map", ["Failedtomap"]),
        (r"\b[Ss]egmentation fault\b", ["Segmentation fault", "segmentation fault"]),
        (r"(?:srun|slurmd): error:", ["srun: error:", "slurmd: error:"]),
        (r"loss(?:y)?\d+pinpoint", ["pinpoint"]),
        (r"(?P<x>cuda|hip)Ipc.*Open", ["cudaIpc", "hipIpc"]),
        (r"line=\"?5;", ["line=;", 'line=";']),
        (r"lines?:", ["line:", "lines:"]),
        (r"Xid.*119|GSP_LOCKDOWN", ["Xid", "GSP_LOCKDOWN"]),
        (r"(?<!not )(?=f)found it", ["found it"]),
        (r"error \d+ in cuIpcOpenMemHandle", ["in cuIpcOpenMemHandle"]),
        (r"mapping (?:lost){2}", ["mapping"]),
        (r"no[^)]*\)[ \t]rows+ gone", ["rows"]),
        (r"x{2,3}[(|)]yyy", ["(yyy", "|yyy", ")yyy"]),
        ("é: gr\u00fcn-weiss", ["é: gr\u00fcn-weiss"]),
        (r"\d+|ghijk", []),
        (r"x*y?", []),
        ("abc", []),
    ],
)
def test_best_fixed_text_is_found(pattern: str, texts: list[str]) -> None:
    assert set(fixed_text(pattern)) == {bare(text.encode()) for text in texts}


def test_all_white_space_is_left_out() -> None:
    white = "".join(c for c in map(chr, range(0x3001)) if re.match(r"\s", c) and c != "\n")
    assert dense(f"no{white}space\n".encode()) == b"nospace\n"
    assert bare(f"no{white}room for 17’\n".encode()) == "noroomor’\n".encode()


def test_common_words_are_a_last_resort() -> None:
    assert set(fixed_text(r"MPI \d+ error")) == {b"MPI"}
    assert set(fixed_text(r"(?:Xid|XID).*(?:event|number)")) == {b"Xi", b"XID"}
    assert set(fixed_text(r"error \d+")) == {bare(b"error")}


def test_rest_of_a_match_depends_on_the_text_that_was_found() -> None:
    assert fixed_text(r"(?:srun|slurmd): error: .*(?:switch|PMIx)|(?:oops)+ .* no") == {
        b"srun:rror:": ((b"PMIx",), (b"swith",)),
        b"slurm:rror:": ((b"PMIx",), (b"swith",)),
        b"oops": ((b"no",),),
    }


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_matches_of_a_signature_have_its_fixed_text(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(SIGNATURES))
    matched = data.draw(st.from_regex(re.compile(pattern, re.ASCII)))
    there = bare(matched.encode()).replace(b"\n", b"")
    assert any(text in there and has(there, rest) for text, rest in fixed_text(pattern).items()), pattern


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"cxil_map\(\) failed:\s+-22", [["cxil_map()failed:-22"]]),
        (
            r"Cuda\s+failure\s+802\b|CUDA_ERROR_SYSTEM_NOT_READY",
            [["Cudafailure802"], ["CUDA_ERROR_SYSTEM_NOT_READY"]],
        ),
        (
            r"Cuda failure 80[1-3]: (?:late|latest|last)",
            [["Cudafailure80", ":late"], ["Cudafailure80", ":last"]],
        ),
        (r"[Tt]runcat[a-z]*\b.{0,80}-265\b", [["Truncat", "-265"], ["truncat", "-265"]]),
        (r"lni: \d+ .{0,200}failure", [["failure", "lni:"]]),
        (r"\d+|\S", [[]]),
    ],
)
def test_a_match_needs_all_texts_of_one_alternative(pattern: str, texts: list[list[str]]) -> None:
    assert sorted(dense_text(pattern)) == sorted(tuple(text.encode() for text in some) for some in texts)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_matches_of_a_signature_have_its_dense_text(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(SIGNATURES))
    matched = data.draw(st.from_regex(re.compile(pattern, re.ASCII)))
    there = dense(matched.encode()).replace(b"\n", b"")
    assert has(there, dense_text(pattern)), pattern
    assert in_order(there, dense_ways(pattern)), pattern
    assert any(text in there and in_order(there, ways) for text, ways in dense_keys(pattern).items()), pattern


@pytest.mark.parametrize(
    ("text", "ways", "expected"),
    [
        (b"Cuda failure 34", [(b"Cuda", b"34")], True),
        (b"34: Cuda failure 3", [(b"Cuda", b"34")], False),
        (b"34: Cuda failure 3", [(b"Cuda", b"34"), (b"34", b"failure")], True),
        (b"abc", [(b"ab", b"bc")], True),
        (b"abc", [(b"bc", b"ab")], False),
        (b"", [()], True),
        (b"abc", [], False),
    ],
)
def test_texts_in_order(text: bytes, ways: list[tuple[bytes, ...]], expected: bool) -> None:
    """The texts of a way may overlap, since ``ab+c`` begins with ``ab`` and ends with ``bc``."""
    assert in_order(text, ways) is expected


TEXTS = st.lists(
    st.binary(min_size=1, max_size=4).map(lambda b: bytes(97 + c % 3 for c in b)), min_size=1, unique=True
)


@given(TEXTS, st.binary(max_size=60).map(lambda b: bytes(97 + c % 3 for c in b)))
def test_both_engines_find_every_place(texts: list[bytes], block: bytes) -> None:
    expected = {
        (number, at + len(text))
        for number, text in enumerate(texts)
        for at in range(len(block))
        if block.startswith(text, at)
    }
    found = with_re(texts)(block)
    assert sorted(found) == sorted(expected)
    assert set(finder(texts)(block)) == expected
