"""CI must not skip unseen: the hooks of tests/conftest.py, tried on small suites of their own."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

MARKERS = """
    [pytest]
    markers =
        cuda: needs cuda-bindings
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


def test_a_skip_is_a_skip_where_nothing_is_required(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUIPC_REQUIRE", raising=False)
    suite.makepyfile(SKIPS)
    suite.runpytest_subprocess().assert_outcomes(passed=1, skipped=2, xfailed=1)


def test_a_skip_fails_where_all_is_required(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUIPC_REQUIRE", "all")
    suite.makepyfile(SKIPS)
    result = suite.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*allows no skip*no gdb here*"])


def test_a_module_that_skips_itself_fails_where_all_is_required(
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
