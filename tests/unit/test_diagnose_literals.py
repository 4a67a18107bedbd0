"""The fixed text of a pattern: in everything that the pattern matches, whatever its spacing and case."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.finder import HyperscanFinder, ReFinder, finder
from gpuipc_doctor.diagnose.literals import fixed_text, squeeze

SIGNATURES = [text for issue in knownissues.load() for one in issue.signatures for text in one.patterns]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"cxil_map\(\) failed: -22", {b"cxil_map()failed:-22"}),
        (r"Failed\s+to\s+map", {b"failedtomap"}),
        (r"\b[Ss]egmentation fault\b", {b"segmentationfault"}),
        (r"(?:srun|slurmd): error:", {b"srun:error:", b"slurmd:error:"}),
        (r"foo(?:bar)?\d+bazaar", {b"bazaar"}),
        (r"(?i:Hello) World", {b"helloworld"}),
        (r"(?P<x>cuda|hip)Ipc.*Open", {b"cudaipc", b"hipipc"}),
        (r"line=\"?5", {b"line=5", b'line="5'}),
        (r"lines?:", {b"line:", b"lines:"}),
        (r"Xid.*119|GSP_LOCKDOWN", {b"xid", b"gsp_lockdown"}),
        (r"(?<!not )(?=f)found", {b"found"}),
        (r"error \d+ in cuIpcOpenMemHandle", {b"incuipcopenmemhandle"}),
        (r"mapping (?:lost){2}", {b"mapping"}),
        ("é: gr\u00fcn-weiss", {b"n-weiss"}),
        (r"\d+|abcdef", set()),
        (r"x*y?", set()),
        ("ab", set()),
    ],
)
def test_the_best_fixed_text_is_found(pattern: str, texts: set[bytes]) -> None:
    assert fixed_text(pattern) == texts


def test_everyday_words_are_a_last_resort() -> None:
    assert fixed_text(r"MPI \d+ error") == {b"mpi"}
    assert fixed_text(r"error \d+") == {b"error"}


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_signature_matches_has_its_fixed_text(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(SIGNATURES))
    matched = data.draw(st.from_regex(re.compile(pattern, re.ASCII)))
    assert any(text in squeeze(matched.encode()) for text in fixed_text(pattern)), pattern


TEXTS = st.lists(
    st.binary(min_size=1, max_size=4).map(lambda b: bytes(97 + c % 3 for c in b)), min_size=1, unique=True
)


@given(TEXTS, st.binary(max_size=60).map(lambda b: bytes(97 + c % 3 for c in b)))
@settings(max_examples=300, deadline=None)
def test_both_engines_find_every_place(texts: list[bytes], block: bytes) -> None:
    expected = {
        (number, at + len(text))
        for number, text in enumerate(texts)
        for at in range(len(block))
        if block.startswith(text, at)
    }
    found = ReFinder(texts).find(block)
    assert sorted(found) == sorted(expected)
    if finder(texts).name == "hyperscan":
        assert set(HyperscanFinder(texts).find(block)) == expected
