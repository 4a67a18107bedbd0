"""The answer from memory: the config need not be read as YAML for it, and little is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuipc_doctor.prolog import identity, memory, recall
from gpuipc_doctor.prolog.order import Order

WRITTEN = {
    "block": "prolog:\n  fresh_for_s: 600\n  state_dir: {state}\n",
    "flow": "prolog: {{state_dir: {state}, fresh_for_s: 600}}\n",
    "json": '{{"prolog": {{"fresh_for_s": 600, "state_dir": "{state}"}}}}\n',
    "quoted": "prolog:\n  fresh_for_s: 600\n  state_dir: '{state}'  # ours\n",
    "relative": "prolog:\n  fresh_for_s: 600\n  state_dir: state\n",
    "below an example": "prolog:\n  # state_dir: /elsewhere\n  fresh_for_s: 600\n  state_dir: {state}\n",
}

GUESSED_WRONG = {
    "another key's text": "nodes: 'state_dir: /nowhere'\nprolog: {{fresh_for_s: 600, state_dir: {state}}}\n",
    "on a line of its own": "prolog:\n  fresh_for_s: 600\n  state_dir:\n    {state}\n",
    "escaped": 'prolog: {{fresh_for_s: 600, "state\\x5fdir": {state}}}\n',
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "site.yaml"


@pytest.fixture
def write(config: Path, tmp_path: Path) -> Callable[[str], Order]:
    def write(text: str) -> Order:
        config.write_text(text.format(state=tmp_path / "state"))
        return Order(0.0, config)

    return write


@pytest.fixture
def no_yaml(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, a config that is read as YAML says nothing."""
    return lambda: monkeypatch.setattr(recall, "_written_settings", lambda config, content: {})


def passes(order: Order) -> None:
    """What the prolog does after a test that passed."""
    found = recall.recall(order)
    passed = found.memory.with_pass(found.identity, order.gpus, identity.now(), found.settings)
    memory.remember(Path(found.policy.state_dir), passed)


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_config_that_has_passed_is_not_read_as_yaml(
    write: Callable[[str], Order], no_yaml: Callable[[], None], text: str
) -> None:
    order = write(text)
    passes(order)
    as_written = recall.recall(order)
    no_yaml()
    assert recall.recall(order)._replace(age_s=as_written.age_s) == as_written
    assert as_written.why_not == ""


@pytest.mark.parametrize("text", GUESSED_WRONG.values(), ids=GUESSED_WRONG)
def test_where_the_guess_is_wrong_the_answer_is_the_same(write: Callable[[str], Order], text: str) -> None:
    order = write(text)
    passes(order)
    assert recall.recall(order).why_not == ""


@pytest.mark.parametrize("word", ["config", "gpuipc-doctor", "boot"])
def test_what_another_config_or_tool_has_left_there_is_not_believed(
    write: Callable[[str], Order], tmp_path: Path, word: str
) -> None:
    order = write(WRITTEN["block"])
    found = recall.recall(order)
    lie = {"prolog": {**found.settings["prolog"], "fresh_for_s": 1e9}}
    left = memory.NOTHING.with_pass({**found.identity, word: "another"}, "", identity.now(), lie)
    memory.remember(tmp_path / "state", left)
    found = recall.recall(order)
    assert (found.policy.fresh_for_s, found.why_not) == (600, f"not used: since the last pass another {word}")


def test_what_is_kept_of_a_config_is_what_its_bytes_said(
    write: Callable[[str], Order], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody edits it between two looks at it."""
    order = write(WRITTEN["block"])
    as_read = identity.identity

    def edited(content: bytes, path: str) -> dict[str, str]:
        write(WRITTEN["block"].replace("600", "604800"))
        return as_read(content, path)

    monkeypatch.setattr(identity, "identity", edited)
    found = recall.recall(order)
    assert found.policy.fresh_for_s == 600
    assert not found.is_of(order)
    write(WRITTEN["block"])
    assert found.is_of(order)
    config.unlink()
    assert not found.is_of(order)


def test_a_place_that_others_can_write_is_not_believed(write: Callable[[str], Order], tmp_path: Path) -> None:
    order = write(WRITTEN["block"])
    passes(order)
    (tmp_path / "state").chmod(0o777)
    found = recall.recall(order)
    assert "so it is not ours alone" in found.complaint
    assert found.policy.fresh_for_s == 600


def test_the_sites_own_checks_count_without_yaml_too(
    write: Callable[[str], Order], no_yaml: Callable[[], None], tmp_path: Path
) -> None:
    (tmp_path / "ours").mkdir()
    order = write("checks_dirs: [ours]\n" + WRITTEN["block"])
    passes(order)
    no_yaml()
    assert recall.recall(order).why_not == ""
    (tmp_path / "ours" / "check.py").touch()
    assert recall.recall(order).why_not == "not used: since the last pass another check or known issue"


def test_a_config_that_says_too_much_to_keep_is_read_each_time(write: Callable[[str], Order]) -> None:
    order = write(f"checks_dirs: [{', '.join(['x' * 100] * 1000)}]\n{WRITTEN['block']}")
    passes(order)
    found = recall.recall(order)
    assert (found.why_not, found.memory.settings) == ("", {})


HEAVY = (
    "click", "dataclasses", "difflib", "inspect", "jsonschema", "logging", "rich", "socket", "subprocess",
    "yaml", "gpuipc_doctor.cli", "gpuipc_doctor.config", "gpuipc_doctor.engine", "gpuipc_doctor.model",
    "gpuipc_doctor.prolog.breaker", "gpuipc_doctor.prolog.testing", "gpuipc_doctor.yamlfile",
)  # fmt: skip
"""Each takes milliseconds or brings in what does."""

ANSWER = """
import sys
from pathlib import Path
sys.argv = ["gpuipc-doctor", "prolog", "--config", sys.argv[1]]
from gpuipc_doctor import __main__, isolation, streams
from gpuipc_doctor.prolog import duty, front
from gpuipc_doctor.prolog.order import Order

class Tell:
    def answer(self, code, line): print(line, file=sys.stderr)
    def __getattr__(self, name): return lambda *_: None

duty.do(Order(0.0, Path(sys.argv[3])), Tell())
print(*sys.modules)
"""
"""What the guard's child does, in a process of which the modules can be seen."""


def test_the_answer_imports_nothing_that_takes_long(
    write: Callable[[str], Order], config: Path, tmp_path: Path
) -> None:
    order = write(WRITTEN["block"] + "  log: log.jsonl\n")
    passes(order)
    command = [sys.executable, "-I", "-c", ANSWER, str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "PASS" in ended.stderr
    assert (tmp_path / "log.jsonl").exists()
    assert set(ended.stdout.split()) & set(HEAVY) == set()
