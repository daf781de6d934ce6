import pytest

from loadtests.peers.__main__ import main


@pytest.mark.parametrize(("command", "said"), [("load", "goodput>99%"), ("serve", "UNIMPLEMENTED")])
def test_the_commands_explain_themselves(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])

    assert caught.value.code == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ["--loads", "0"],
        ["--loads", "60,1000"],
        ["--repetitions", "0"],
        ["--against", "ctranslate2,marian"],
        ["--slo", "p95"],
        ["--settings", "2x1"],
        ["--model", "big"],
    ],
)
def test_a_flag_out_of_range_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["load", *flags])

    assert caught.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err
