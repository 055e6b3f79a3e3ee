"""hpccoll.units: sizes, times and rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.units import format_bytes, format_time_us, parse_bytes, rate_gb_per_s


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("8", 8),
        ("4K", 4096),
        ("4k", 4096),
        ("4KB", 4096),
        ("4KiB", 4096),
        (" 16 M ", 16 * 2**20),
        ("1.5M", 3 * 2**19),
        ("0.5K", 512),
        ("3GiB", 3 * 2**30),
        ("2T", 2**41),
        ("12b", 12),
        ("9007199254740993", 9007199254740993),  # 2**53 + 1, which no float holds
    ],
)
def test_parse_bytes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1.5", "0.3K", "1e6", "4X", "4 K B", "٤K", "1_000", "0x10", "nan", "1..5K"]
)
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole") as error:
        parse_bytes(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0"),
        (8, "8"),
        (1023, "1023"),
        (1024, "1K"),
        (5000, "5000"),
        (1536, "1536"),
        (2**24, "16M"),
        (2**40, "1T"),
    ],
)
def test_format_bytes(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(min_value=0, max_value=2**63))
def test_format_bytes_is_exact(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == nbytes


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0.00 us"),
        (1.234, "1.23 us"),
        (9.996, "10.0 us"),
        (12.34, "12.3 us"),
        (999.4, "999 us"),
        (999.9, "1.00 ms"),
        (4560, "4.56 ms"),
        (1_234_000, "1.23 s"),
        (123_400_000, "123 s"),
    ],
)
def test_format_time_us(time_us: float, text: str) -> None:
    assert format_time_us(time_us) == text


def test_rate_is_decimal() -> None:
    assert rate_gb_per_s(10**9, 1e6) == pytest.approx(1.0)
    assert rate_gb_per_s(2**30, 1e6) == pytest.approx(1.073741824)
    assert rate_gb_per_s(8, 0.0) == 0.0
