import pytest

from dragoman_service.toml import MAX_BYTES, parse_toml


def test_tables_lists_and_numbers_are_read() -> None:
    content = b"[a.b]\nlist = [[1], 2.5]\nleast = -9223372036854775808\n"

    assert parse_toml(content) == {"a": {"b": {"list": [[1], 2.5], "least": -(2**63)}}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = " + b"[" * 3000, "nested too deeply"),
        (b"a = " + b"{a = " * 3000, "nested too deeply"),
        (b"a" + b".a" * 100 + b" = 1", "nested more than 32 deep"),
        (b"[" + b"a." * 5000 + b"a]", "a line with more than 1000 dots"),
        (b"a = 0x" + b"9" * 20_000, "an integer of more than 64 bits"),
        (b"a = [9223372036854775808]", "an integer of more than 64 bits"),
        (b"a = " + b"9" * 5000, "4300 digits"),
        (b"\xff", "can't decode byte"),
        (b"#" * (MAX_BYTES + 1), "bytes"),
        (b"a = ", "Invalid value"),
    ],
)
def test_invalid_toml_and_exceeded_limits_are_rejected(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_toml(content)
