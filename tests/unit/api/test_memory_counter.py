"""Changes of a counter of used memory that this run does not cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuipc_doctor.api.memory_counter import IdleCounter, Window, window_of

MIB = 1 << 20


def window(of: Callable[[float], float], seconds: float = 2.0, since: float = 0.0) -> Window:
    return window_of([(at := since + number * 0.02, of(at)) for number in range(int(seconds / 0.02) + 1)])


def test_start_of_another_process_is_no_movement_by_itself() -> None:
    """It allocates a few times within a moment."""
    assert not IdleCounter([window(lambda at: 500 * MIB * (at > 0.5) + 2 * MIB * (at > 0.6))]).moves


@pytest.mark.parametrize("rate", [2, 20, -20])
@pytest.mark.parametrize("seconds", [0.5, 2.0, 9.0])
def test_drift_is_expected_for_any_time(rate: int, seconds: float) -> None:
    idle = IdleCounter([window(lambda at: rate * MIB * at)])
    expected, doubt = idle.change_within(seconds)
    assert expected == pytest.approx(rate * MIB * seconds, rel=0.05)
    assert doubt < 0.1 * abs(expected)
    assert idle.without([1, 2], []) == [1, 2]
    at = [0.0, seconds / 3, seconds]
    assert idle.without([rate * MIB * each for each in at], at) == pytest.approx(
        [0, 0, 0], abs=0.05 * abs(expected)
    )


def test_change_up_and_down_leaves_doubt() -> None:
    idle = IdleCounter([window(lambda at: 60 * MIB * (int(at / 0.7) % 2), 3.0)])
    expected, doubt = idle.change_within(2.0)
    assert abs(expected) < doubt >= 60 * MIB
    assert idle.seen == (60 * MIB, pytest.approx(3.0))


def test_short_idle_time_shows_that_the_counter_turns() -> None:
    """It fell for 6 s, and rose in another 2 s: in 8 s it may do either."""
    idle = IdleCounter([window(lambda at: -25 * MIB * at, 6.0), window(lambda at: 25 * MIB * at, 2.0, 9.0)])
    expected, doubt = idle.change_within(8.0)
    assert expected - doubt <= -200 * MIB
    assert expected + doubt >= 200 * MIB
    assert idle.seen == (pytest.approx(150 * MIB), pytest.approx(6.0))


def test_process_that_ends_in_a_short_idle_time_does_not_count() -> None:
    """A context of 500 MiB was freed in it, beside a drift of 2 MiB/s."""
    ends = window(lambda at: 2 * MIB * at - 500 * MIB * (at > 10.0), 2.0, 9.0)
    _, doubt = IdleCounter([window(lambda at: 2 * MIB * at, 6.0), ends]).change_within(8.0)
    assert doubt < 4 * MIB
