"""What the prolog remembers: a pass counts for the same node only, and a bad file never does."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.prolog import identity, memory
from gpuipc_doctor.prolog.memory import NOTHING, Forgotten, Memory

NODE = {"boot": "b", "driver": "d", "GPUs": "g", "config": "c"}

SAYS = {"prolog": {"fresh_for_s": 600, "state_dir": "state"}}

FRESH_S = 600.0

TIMES = st.floats(allow_nan=False, allow_infinity=False)
SETTINGS = st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.lists(st.text()))
MEMORIES = st.builds(
    Memory, st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), TIMES), SETTINGS
)


@given(MEMORIES)
def test_what_is_written_is_read(remembered: Memory) -> None:
    assert memory.loads(memory.dumps(remembered)) == remembered


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["format", *Memory._fields, "x"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_other_content_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        memory.loads(data)


@given(MEMORIES, st.integers(0, 400))
def test_a_cut_file_is_refused(remembered: Memory, at: int) -> None:
    data = memory.dumps(remembered)
    if at < len(data):
        with pytest.raises(ValueError):  # noqa: PT011 - its text is whoever's who finds out
            memory.loads(data[:at])


def age(remembered: Memory, gpus: str = "", now: float = 1000.0, node: dict[str, str] = NODE) -> float | str:
    return remembered.fresh(node, gpus, now, FRESH_S)


def test_a_pass_counts_for_as_long_as_it_is_fresh() -> None:
    passed = NOTHING.with_pass(NODE, "", 900.0, SAYS)
    assert [age(passed, now=now) for now in (900.0, 1499.9)] == [0.0, pytest.approx(599.9)]
    assert age(passed, now=1500.0) == "no pass of these GPUs in the last 600 s"
    assert (
        age(passed, now=899.0) == "no pass of these GPUs in the last 600 s"
    )  # of the future: not of this clock


@pytest.mark.parametrize("what", list(NODE))
def test_a_pass_of_another_node_does_not_count_and_says_what_changed(what: str) -> None:
    changed = {**NODE, what: "another"}
    passed = NOTHING.with_pass(NODE, "", 900.0, SAYS)
    assert age(passed, node=changed) == f"since the last pass another {what}"
    passed = passed.with_pass(changed, "1", 950.0, SAYS)
    assert age(passed, node=changed) == "no pass of these GPUs in the last 600 s"


@pytest.mark.parametrize(
    ("passed", "asked", "answer"),
    [
        (["0,1"], "1,0", 100.0),
        (["0,1", "2"], "1,2", 100.0),
        (["0,1"], "1,2", None),
        (["0,1"], "", None),
        ([""], "3", 100.0),
        (["0", "0,1"], "0", 100.0),
        ([], "0", None),
    ],
)
def test_only_gpus_that_passed_count(passed: list[str], asked: str, answer: float | None) -> None:
    remembered = Memory(NODE, {}, {})
    for gpus in passed:
        remembered = remembered.with_pass(NODE, gpus, 900.0, SAYS)
    assert age(remembered, asked) == (answer or "no pass of these GPUs in the last 600 s")


def test_nothing_remembered_says_so() -> None:
    assert age(NOTHING) == "no pass is remembered"


def test_no_more_is_kept_than_can_be_read_again() -> None:
    long = {"checks_dirs": ["é" * (memory.MAX_SETTINGS_BYTES // 7)]}
    remembered = NOTHING
    for number in range(2000):
        gpus = ",".join(str(number + one) for one in range(16))
        remembered = remembered.with_pass(NODE, gpus, number, long)
    assert remembered.settings == long
    assert len(memory.dumps(remembered)) < memory.MAX_BYTES


# -- the file -------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_it_is_private_and_whole(place: Path) -> None:
    passed = NOTHING.with_pass(NODE, "0", 1.0, SAYS)
    memory.remember(place, passed)
    assert memory.recall(place) == passed
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    (file,) = place.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_directory_nothing_is_remembered_and_none_is_made(place: Path) -> None:
    assert memory.recall(place) == NOTHING
    assert not place.exists()


def test_a_second_name_is_refused(place: Path, tmp_path: Path) -> None:
    memory.remember(place, NOTHING)
    os.link(place / "passes.json", tmp_path / "another")
    with pytest.raises(Forgotten, match=r"passes.json has another name, too"):
        memory.recall(place)


def test_a_directory_that_is_a_link_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Forgotten, match="is a symbolic link"):
        memory.recall(place)
    with pytest.raises(Forgotten, match="is a symbolic link"):
        memory.remember(place, NOTHING)


def test_whoever_finds_another_one_writing_lets_it(place: Path) -> None:
    import fcntl

    memory.remember(place, NOTHING)
    fd = os.open(place, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(Forgotten, match="another prolog is writing"):
            memory.remember(place, NOTHING)
    finally:
        os.close(fd)


# -- identity -------------------------------------------------------------------------------------------


def test_a_node_is_the_same_until_something_changes(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("1")

    def changed(config: bytes = b"x", path: str = "/x.yaml") -> set[str]:
        now = identity.identity(config, path) | identity.of_site([tmp_path])
        return {name for name in now if now[name] != before[name]}

    before = identity.identity(b"x", "/x.yaml") | identity.of_site([tmp_path])
    assert changed() == set()
    assert changed(config=b"y") == {"config"}
    assert changed(path="/y.yaml") == {"config"}
    check.write_text("22")
    assert changed() == {"check or known issue"}
    check.rename(tmp_path / "other.py")
    assert changed() == {"check or known issue"}


def test_gpus_are_others_when_one_is_gone_divided_or_bound_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tops = tmp_path / "gpus", tmp_path / "capabilities"
    monkeypatch.setattr(identity, "GPU_ENTRIES", [str(tops[0])])
    monkeypatch.setattr(identity, "GPU_FILES", [(str(tops[1]), "mig")])
    for bus in ("0000:19:00.0", "0000:3b:00.0"):
        (tops[0] / bus).mkdir(parents=True)
        (tops[0] / bus / "information").write_text("Video BIOS: ??.??.??.??.??")
    (tops[1] / "gpu0" / "mig").mkdir(parents=True)

    def word() -> str:
        return identity.identity(b"x", "/x.yaml")["GPUs"]

    whole = word()
    (tops[0] / "0000:3b:00.0" / "information").write_text("Video BIOS: 96.00.89.00.01")
    assert word() == whole  # the driver is asked for it, and answers as the GPU happens to be in use
    (tops[1] / "gpu0" / "mig" / "gi1").mkdir()
    divided = word()
    assert divided != whole
    (tops[0] / "0000:3b:00.0").rename(tmp_path / "gone")
    assert word() not in (whole, divided)
    (tops[0] / "0000:3b:00.0").mkdir()  # bound to the driver anew: it may have another number
    assert word() not in (whole, divided)
