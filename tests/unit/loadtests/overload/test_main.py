import pytest

from loadtests.overload.__main__ import main


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])

    assert caught.value.code == 0
    assert "within 50 ms at p99" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--duration", "0"], ["--factor", "nan"], ["--texts", "129"], ["--deadline", "1e9"]])
def test_a_flag_out_of_range_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)

    assert caught.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err
