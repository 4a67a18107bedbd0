"""CI fails on unexpected skips, and runs the tests marked full in turns: the hooks of tests/conftest.py."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = ROOT / "tests/conftest.py"

MARKERS = """
    [pytest]
    markers =
        cuda: needs cuda-bindings
        full: one of the many crosses
        gpu: needs a real GPU
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(MARKERS)
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


SKIPS = """
    import pytest

    def test_runs():
        pass

    def test_lacks_something():
        pytest.skip("no gdb here")

    @pytest.mark.gpu
    def test_lacks_a_second_gpu():
        pytest.skip("one GPU")

    @pytest.mark.xfail(reason="known to fail", strict=True)
    def test_fails_as_expected():
        assert False
"""


def test_skip_is_allowed_if_nothing_is_required(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUIPC_REQUIRE", raising=False)
    suite.makepyfile(SKIPS)
    suite.runpytest_subprocess().assert_outcomes(passed=1, skipped=2, xfailed=1)


def test_skip_fails_if_all_is_required(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUIPC_REQUIRE", "all")
    suite.makepyfile(SKIPS)
    result = suite.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*allows no skip*no gdb here*"])


def test_module_that_skips_itself_fails_if_all_is_required(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUIPC_REQUIRE", "all")
    suite.makepyfile("import pytest; pytest.importorskip('no_such_module')")
    result = suite.runpytest_subprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*allows no skip*no_such_module*"])


def test_a_mark_skips_with_the_reason(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUIPC_REQUIRE", raising=False)
    suite.makepyfile(
        conftest=CONFTEST.read_text().replace("cuda.bindings.driver", "no_such_package.driver"),
        test_marked="""
            import pytest

            @pytest.mark.cuda
            def test_needs_cuda():
                raise AssertionError("ran")
        """,
    )
    result = suite.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs cuda-bindings"])


TURNS = """
    import pytest

    def test_runs_always():
        pass

    @pytest.mark.full
    @pytest.mark.parametrize("number", range(70))
    def test_takes_turns(number):
        pass

    class TestMore:
        pytestmark = pytest.mark.full

        def test_takes_turns_too(self):
            pass
"""


def names(suite: pytest.Pytester, *arguments: str) -> list[str]:
    listed = suite.runpytest("--collect-only", "-q", *arguments)
    return [line for line in listed.outlines if "::" in line]


def test_each_full_test_has_one_turn_of_seven_and_keeps_it(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile(TURNS)
    turns = []
    for turn in range(7):
        monkeypatch.setenv("GPUIPC_FULL_TURN", f"{turn}/7")
        turns.append(names(suite, "-m", ""))
    always = [name for name in turns[0] if name.endswith("runs_always")]
    assert all(always[0] in turn for turn in turns)
    taken = [name for turn in turns for name in turn if name not in always]
    assert (len(taken), len(set(taken))) == (71, 71)
    assert all(len(turn) > 3 for turn in turns)
    suite.makepyfile(TURNS.replace("test_runs_always", "test_runs_more").replace("range(70)", "range(7, 70)"))
    monkeypatch.setenv("GPUIPC_FULL_TURN", "3/7")
    assert {name for name in names(suite, "-m", "") if "[" in name} < set(turns[3])
    monkeypatch.delenv("GPUIPC_FULL_TURN")
    assert len(names(suite, "-m", "")) == 65
    assert len(names(suite, "-m", "not full")) == 1


def number_of(clone: Path) -> int:
    """The number by which ``.ci/run`` chooses there."""
    program = (ROOT / ".ci/run").read_text()
    assert "GPUIPC_FULL_TURN=$(($(number) % 7))/7\n" in program
    function = re.search(r"^number\(\) \{\n.*?^\}\n", program, re.MULTILINE | re.DOTALL)
    assert function
    return int(subprocess.check_output(["bash", "-c", f"{function[0]}number"], cwd=clone, text=True))


def test_ci_takes_the_next_turn_with_each_commit_and_any_in_a_shallow_clone(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(origin)]
    subprocess.check_call(["git", "init", "-q", str(origin)])
    seen = []
    for number in range(8):
        subprocess.check_call([*git, "commit", "-q", "--allow-empty", "-m", str(number)])
        seen.append(number_of(origin))
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]
    shallow = tmp_path / "shallow"
    subprocess.check_call(["git", "clone", "-q", "--depth=1", origin.as_uri(), str(shallow)])
    head = subprocess.check_output(["git", "-C", str(origin), "rev-parse", "--short=7", "HEAD"], text=True)
    assert number_of(shallow) == int(head, 16)
