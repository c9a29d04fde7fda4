"""The delays between attempts: the formula, its bounds, and what is refused."""

import math
from decimal import Context, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buquet import RetryPolicy
from buquet.errors import PoisonRecord

MONTH_MS = 30 * 24 * 3600 * 1000


def test_the_defaults_are_the_published_ones() -> None:
    assert RetryPolicy() == RetryPolicy(
        initial_interval_ms=1000, max_interval_ms=60_000, multiplier=2.0, jitter_percent=0.25
    )


@pytest.mark.parametrize(
    ("retry_count", "chance", "delay_ms"),
    [
        (0, 0.5, 1000),
        (1, 0.5, 2000),
        (5, 0.5, 32_000),
        (6, 0.5, 60_000),
        (0, 0.0, 750),
        (0, 0.75, 1125),
        (6, 0.0, 45_000),
        (6, 0.99, 60_000),
        (10**6, 0.5, 60_000),
    ],
)
def test_the_delay_grows_to_the_cap(retry_count: int, chance: float, delay_ms: int) -> None:
    assert RetryPolicy().delay_ms(retry_count, chance) == delay_ms


def test_a_cap_below_the_first_interval_wins() -> None:
    assert (
        RetryPolicy(initial_interval_ms=5000, max_interval_ms=100, jitter_percent=0).delay_ms(0, 0.5) == 100
    )


def test_slow_growth_goes_on_to_the_cap() -> None:
    policy = RetryPolicy(multiplier=1.05, jitter_percent=0)
    assert [policy.delay_ms(count, 0.5) for count in (64, 83, 84)] == [22_704, 57_373, 60_000]


policies = st.builds(
    RetryPolicy,
    initial_interval_ms=st.integers(0, MONTH_MS),
    max_interval_ms=st.integers(0, MONTH_MS),
    multiplier=st.floats(1, 1000),
    jitter_percent=st.floats(0, 1),
)


@given(
    policy=policies,
    retry_count=st.integers(0, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_no_delay_is_outside_its_bounds(policy: RetryPolicy, retry_count: int, chance: float) -> None:
    delay_ms = policy.delay_ms(retry_count, chance)
    assert isinstance(delay_ms, int)
    assert 0 <= delay_ms <= policy.max_interval_ms
    with localcontext(Context(prec=50, Emax=999_999)):
        grown = Decimal(policy.initial_interval_ms) * Decimal(policy.multiplier) ** retry_count
    base = float(min(grown, policy.max_interval_ms))
    assert base * (1 - policy.jitter_percent) * (1 - 1e-9) - 1 <= delay_ms
    assert delay_ms <= base * (1 + policy.jitter_percent) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial_interval_ms", -1),
        ("initial_interval_ms", MONTH_MS + 1),
        ("max_interval_ms", -1),
        ("max_interval_ms", math.inf),
        pytest.param("max_interval_ms", 10**400, id="no float"),
        ("multiplier", 0.99),
        ("multiplier", 1001),
        ("multiplier", math.nan),
        ("jitter_percent", -0.01),
        ("jitter_percent", 1.01),
        ("jitter_percent", math.nan),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be between"):
        RetryPolicy(**{field: value})


@pytest.mark.parametrize("value", ["1", None, True, b"1", [1]])
def test_what_is_no_number_is_named(value: object) -> None:
    with pytest.raises(TypeError, match=r"^multiplier must be a number"):
        RetryPolicy(multiplier=value)  # type: ignore[arg-type]


@given(policy=policies)
def test_a_record_keeps_the_policy(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_fields(policy.to_fields()) == policy


def test_a_record_may_lack_fields_or_have_newer_ones() -> None:
    assert RetryPolicy.from_fields(None) == RetryPolicy()
    assert RetryPolicy.from_fields({"multiplier": 3, "colour": 1}) == RetryPolicy(multiplier=3)


def test_a_stored_value_out_of_range_is_poison() -> None:
    with pytest.raises(PoisonRecord, match="retry_policy: multiplier"):
        RetryPolicy.from_fields({"multiplier": 0})
