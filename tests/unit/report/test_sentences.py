"""Sentences are formatted safely from untrusted data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.model import Finding
from gpuipc_doctor.report import sentences
from tests.sample_reports import JSON, PROPERTY

PLACE = st.builds(
    "{{{}{}}}".format,
    st.sampled_from(["n", "call", "0", "", "n.__class__", "n[0]", "n!r", "__init__"]),
    st.sampled_from(["", *(f":{form}" for form in sentences.FORMS), ":>99999999", ":{n}", "!r"]),
)
SAYS = st.lists(st.text(max_size=9) | PLACE, max_size=6).map("".join)
VALUES = st.dictionaries(st.sampled_from(["n", "call", "__init__"]), JSON, max_size=3)


@PROPERTY
@given(SAYS, VALUES, st.sets(st.sampled_from(list(sentences.FORMS))))
def test_any_sentence_is_formatted(says: str, values: dict[str, Any], without: set[str]) -> None:
    assert isinstance(sentences.fill(says, values, without=without), str)


def test_headline_leaves_the_place_of_a_call_to_the_evidence() -> None:
    says = "{role}: {call} #{occurrence}{step:place} hung{why:aside}"
    call = {"call": "cuInit", "occurrence": 8}
    finding = Finding.fail("hung", says, role="importer", step="round 1", why="x", **call)
    assert sentences.headline(finding) == "importer: cuInit #8 hung (x)"
    assert sentences.place(finding) == ("this call: round 1",)
    assert sentences.summary(finding) == "importer: cuInit #8 (round 1) hung (x)"
    assert sentences.summary(finding, brief=True) == "importer: cuInit #8 hung"
    at_once = Finding.fail("hung", says, role="driver", call="cuInit", occurrence=1, step="", why="")
    assert (sentences.headline(at_once), sentences.place(at_once)) == ("driver: cuInit #1 hung", ())


@PROPERTY
@given(SAYS)
def test_sentence_without_values_is_unchanged(says: str) -> None:
    assert sentences.fill(says, {}) == says


@pytest.mark.parametrize(
    "says", ["{n.__class__}", "{n[0]}", "{n!r}", "{n:>9}", "{}", "{0}", "{n", "n}", "{N}", "{__class__}"]
)
def test_sentence_cannot_read_attributes(says: str) -> None:
    assert sentences.fill(says, {"n": Finding, "__class__": Finding}) == says


def test_values_are_not_formatted_again() -> None:
    assert sentences.fill("{call} {n}", {"call": "{n}", "n": "{call}"}) == "{n} {call}"


@pytest.mark.parametrize(
    ("form", "value", "told"),
    [
        ("", 3, "3"),
        ("", 0.5, "0.5"),
        ("", ["a", 2], "a, 2"),
        ("bytes", 16, "16 B"),
        ("bytes", 65536, "64 KiB"),
        ("bytes", 37450, "37 KiB"),
        ("bytes", 2.5 * 2**20, "2.5 MiB"),
        ("mib", 3 << 20, "3 MiB"),
        ("mib", 1.25 * 2**20, "1.2 MiB"),
        ("s", 10.0, "10 s"),
        ("ms", 0.0125, "12.5 ms"),
        ("us", 1.25e-6, "1.2 µs"),
        ("times", 2.04, "2.0"),
        ("round", 2.5, "2"),
        ("env", {"A": "1", "B": "x"}, "A=1 B=x"),
        ("aside", "why", " (why)"),
        ("aside", "", ""),
        ("mib", "unknown", "unknown"),
        ("env", "unknown", "unknown"),
        ("s", None, "None"),
    ],
)
def test_forms(form: str, value: Any, told: str) -> None:
    assert sentences.fill(f"{{n:{form}}}" if form else "{n}", {"n": value}) == told


def test_short_line_leaves_out_parentheses() -> None:
    finding = Finding.fail("hung", "{call}{step:aside} hung", call="cuInit", step="the first")
    assert sentences.summary(finding) == "cuInit (the first) hung"
    assert sentences.summary(finding, brief=True) == "cuInit hung"
