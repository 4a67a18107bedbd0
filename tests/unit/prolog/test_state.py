"""Stored passes: valid for the same node only; a damaged file is ignored."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.prolog import node_identity, state
from gpuipc_doctor.prolog.state import ALL, NOTHING, State, Unusable
from gpuipc_doctor.site import layers
from gpuipc_doctor.site.config import load

NODE = {"boot": "b", "driver": "d", "GPUs": "g", "config": "c"}

FRESH_S = 600.0

TIMES = st.floats(allow_nan=False, allow_infinity=False)
REMEMBERED = st.builds(
    State,
    st.dictionaries(st.text(), st.text()),
    st.dictionaries(st.text(), TIMES),
    st.lists(st.text()).map(tuple),
)


@given(REMEMBERED)
def test_written_state_is_read_back(remembered: State) -> None:
    assert state.loads(state.dumps(remembered)) == remembered


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["format", *State._fields, "x"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_other_content_is_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        state.loads(data)


@given(REMEMBERED, st.integers(0, 400))
def test_truncated_file_is_refused(remembered: State, at: int) -> None:
    data = state.dumps(remembered)
    if at < len(data):
        with pytest.raises(ValueError):  # noqa: PT011 - the text depends on the place of the damage
            state.loads(data[:at])


def after(*passes: tuple[str, float]) -> State:
    """The state of `NODE` after these GPUs have passed at these times."""
    state = NOTHING.of(NODE)
    for gpus, at in passes:
        state = state.passed(gpus.split(","), at)
    return state


def age(remembered: State, gpus: str = "", now: float = 1000.0, node: dict[str, str] = NODE) -> float | str:
    return remembered.age(node, gpus, now, FRESH_S)


def test_pass_counts_while_it_is_fresh() -> None:
    passed = after((ALL, 900.0))
    assert [age(passed, now=now) for now in (900.0, 1499.9)] == [0.0, pytest.approx(599.9)]
    assert age(passed, now=1500.0) == "no pass of these GPUs in the last 600 s"
    assert (
        age(passed, now=899.0) == "no pass of these GPUs in the last 600 s"
    )  # of the future: not of this clock


@pytest.mark.parametrize(
    ("passed", "asked", "answer"),
    [
        (["0,1"], "1,0", 100.0),
        (["0,1", "2"], "1,2", 100.0),
        (["0,1"], "1,2", None),
        (["0,1"], "", None),
        ([f"{ALL},0,1"], "1", 100.0),
        ([f"{ALL},0,1"], "3", None),  # a GPU that is missing
        ([], "0", None),
    ],
)
def test_only_gpus_that_passed_count(passed: list[str], asked: str, answer: float | None) -> None:
    remembered = after(*((gpus, 900.0) for gpus in passed))
    assert age(remembered, asked) == (answer or "no pass of these GPUs in the last 600 s")


def test_oldest_pass_of_the_gpus_counts() -> None:
    assert age(after(("0,1", 900.0), ("0", 950.0)), "0,1") == 100.0


def test_empty_state_is_reported() -> None:
    assert age(NOTHING) == "no earlier pass is stored"


def test_started_test_is_unfinished_until_one_of_its_gpus_finishes() -> None:
    begun = after().begun([ALL, "0", "1"])
    assert [begun.is_unfinished(gpus) for gpus in ("", "0", "1,2", "2")] == [True, True, True, False]
    ended = begun.finished(["0"])
    assert [ended.is_unfinished(gpus) for gpus in ("", "0", "1,2", "2")] == [True, False, True, False]


# -- the file -------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state"


def write(place: Path, content: State) -> None:
    state.update(place, lambda before: content)


def test_file_is_private_and_complete(place: Path) -> None:
    write(place, after(("0", 1.0)))
    assert state.read(place) == after(("0", 1.0))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    (file,) = place.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_change_starts_from_the_stored_state(place: Path) -> None:
    write(place, after(("0", 1.0)))
    state.update(place, lambda before: before.begun(["1"]))
    assert state.read(place) == after(("0", 1.0)).begun(["1"])
    (place / "state.json").write_text("{")
    state.update(place, lambda before: before.of(NODE).begun(["2"]))
    assert state.read(place) == after().begun(["2"])


def test_hard_link_is_refused(place: Path, tmp_path: Path) -> None:
    write(place, NOTHING)
    os.link(place / "state.json", tmp_path / "another")
    with pytest.raises(Unusable, match=r"state.json has a second hard link"):
        state.read(place)


def test_directory_that_is_a_link_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unusable, match="is a symbolic link"):
        state.read(place)
    with pytest.raises(Unusable, match="is a symbolic link"):
        write(place, NOTHING)


def test_writer_gives_way_to_another_writer(place: Path) -> None:
    import fcntl

    write(place, NOTHING)
    fd = os.open(place, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(Unusable, match="another prolog is writing"):
            write(place, NOTHING)
    finally:
        os.close(fd)


# -- look-up -----------------------------------------------------------------------------------------------

CONFIG = "prolog:\n  fresh_for_s: 600\n  state_dir: state\n"

WHOLE = CONFIG + "  on_fail: drain\n  on_error: log\n  on_budget: log\n  on_unkillable: drain\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "site.yaml"
    file.write_text(CONFIG)
    return file


def remember(config: Path) -> None:
    """Store a pass, as the prolog does after a passed test."""
    found = state.look_up(config, "")
    state.update(
        Path(found.policy.state_dir),
        lambda before: before.of(found.identity).passed([ALL], node_identity.now()),
    )


@pytest.mark.parametrize("word", ["config", "gpuipc-doctor", "boot"])
def test_state_of_another_config_or_tool_is_ignored(config: Path, tmp_path: Path, word: str) -> None:
    found = state.look_up(config, "")
    write(
        tmp_path / "state", NOTHING.of({**found.identity, word: "another"}).passed([ALL], node_identity.now())
    )
    assert state.look_up(config, "").why_not == f"not used: changed since the last pass: {word}"


def test_look_up_uses_the_bytes_that_were_read(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the config is edited during the look-up, the identity and the tests use the bytes that were read."""
    as_read = node_identity.identity
    config.write_text(WHOLE)

    def edited(contents: dict[str, bytes]) -> dict[str, str]:
        config.write_text(WHOLE.replace("600", "604800"))
        return as_read(contents)

    monkeypatch.setattr(node_identity, "identity", edited)
    found = state.look_up(config, "")
    assert found.policy.fresh_for_s == 600
    assert load(config, known=found.documents).prolog.fresh_for_s == 600
    assert found.identity["config"] == node_identity.of_config({str(config): WHOLE.encode()})
    config.write_text("prolog: {fresh_for_s: no number}")
    assert load(config, known=found.documents).prolog.fresh_for_s == 600


def test_directory_that_others_can_write_is_not_trusted(config: Path, tmp_path: Path) -> None:
    remember(config)
    (tmp_path / "state").chmod(0o777)
    assert "so other users can access it" in state.look_up(config, "").complaint


def test_sites_own_checks_are_part_of_the_identity(config: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    config.write_text("checks_dirs: [ours]\n" + CONFIG)
    remember(config)
    assert state.look_up(config, "").why_not == ""
    (tmp_path / "ours" / "check.py").touch()
    assert state.look_up(config, "").why_not == "not used: changed since the last pass: check or known issue"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "prolog: 1", "prolog: {fresh_for_s: [1]}", "a: *b", "prolog: {on_fail: x}"]
)
def test_invalid_config_is_no_answer(config: Path, text: str) -> None:
    config.write_text(text)
    assert "no valid section `prolog`" in state.look_up(config, "").why_not


def test_extended_files_are_part_of_the_identity(config: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("cluster: lake\nhosts: nid[0001-0128]\ngpus: {count: 4}\n" + WHOLE)
    config.write_text("extends: ./base.yaml\ntier: soak\n")
    remember(config)
    found = state.look_up(config, "")
    assert (found.why_not, found.policy.fresh_for_s) == ("", 600)
    base.write_text(base.read_text().replace("4", "8"))
    assert state.look_up(config, "").why_not == "not used: changed since the last pass: config"
    assert load(config, known=found.documents).node.gpus.count == 4
    base.write_text("extends: ./config.yaml\n".replace("config.yaml", config.name))
    assert "no valid section `prolog`" in state.look_up(config, "").why_not


def test_without_a_config_the_sites_own_file_is_used(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SITE_FILE", config)
    remember(config)
    assert state.look_up(None, "").why_not == ""


def test_look_up_does_not_import_clustershell(config: Path) -> None:
    config.write_text("hosts: nid[0001-0128]\n" + CONFIG)
    remember(config)
    code = (
        "import sys; from pathlib import Path; from gpuipc_doctor.prolog import state; "
        f"print(repr(state.look_up(Path({str(config)!r}), '').why_not), "
        "'ClusterShell' in sys.modules, 'jsonschema' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "'' False False\n"


# -- cost of an answer -------------------------------------------------------------------------------------

ROUNDS = 15


@pytest.mark.full
def test_answer_takes_at_most_1_5_times_as_long_as_importing_click_and_yaml(config: Path) -> None:
    """Compares processor time, which load hardly affects: the minimum of many alternating rounds."""
    config.write_text(CONFIG + "  log: log.jsonl\n  syslog: false\n")
    remember(config)
    answer = ("-m", "gpuipc_doctor", "prolog", "--config", str(config))
    bound = ("-c", "import click, yaml")
    least = {answer: float("inf"), bound: float("inf")}
    for _ in range(ROUNDS):
        for arguments in least:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            ended = subprocess.run([sys.executable, "-I", *arguments], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            least[arguments] = min(least[arguments], took)
            assert (b" PASS " in ended.stdout) is (arguments is answer)
    assert len(config.with_name("log.jsonl").read_text().splitlines()) == ROUNDS
    assert least[answer] < 1.5 * least[bound]


# -- identity -------------------------------------------------------------------------------------------


def test_node_is_the_same_until_something_changes(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("1")

    def changed(config: bytes = b"x", path: str = "/x.yaml") -> set[str]:
        now = node_identity.identity({path: config}) | node_identity.of_site([tmp_path])
        return {name for name in now if now[name] != before[name]}

    before = node_identity.identity({"/x.yaml": b"x"}) | node_identity.of_site([tmp_path])
    assert changed() == set()
    assert changed(config=b"y") == {"config"}
    assert changed(path="/y.yaml") == {"config"}
    check.write_text("22")
    assert changed() == {"check or known issue"}
    check.rename(tmp_path / "other.py")
    assert changed() == {"check or known issue"}


def test_identity_changes_if_a_gpu_is_lost_divided_or_rebound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tops = tmp_path / "gpus", tmp_path / "capabilities"
    monkeypatch.setattr(node_identity, "GPU_ENTRIES", [str(tops[0])])
    monkeypatch.setattr(node_identity, "GPU_FILES", [(str(tops[1]), "mig")])
    for bus in ("0000:19:00.0", "0000:3b:00.0"):
        (tops[0] / bus).mkdir(parents=True)
        (tops[0] / bus / "information").write_text("Video BIOS: ??.??.??.??.??")
    (tops[1] / "gpu0" / "mig").mkdir(parents=True)

    def word() -> str:
        return node_identity.identity({"/x.yaml": b"x"})["GPUs"]

    whole = word()
    (tops[0] / "0000:3b:00.0" / "information").write_text("Video BIOS: 96.00.89.00.01")
    assert word() == whole  # the driver's answer depends on whether the GPU is in use
    (tops[1] / "gpu0" / "mig" / "gi1").mkdir()
    divided = word()
    assert divided != whole
    (tops[0] / "0000:3b:00.0").rename(tmp_path / "gone")
    assert word() not in (whole, divided)
    (tops[0] / "0000:3b:00.0").mkdir()  # rebound to the driver: it may have another number
    assert word() not in (whole, divided)
