import pytest

from dragoman_export.__main__ import COMMANDS, main


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])

    printed = capsys.readouterr().out
    assert caught.value.code == 0
    assert printed.startswith("usage: dragoman export")
    assert {
        line.split()[0] for line in printed.splitlines() if line[:4].isspace() and line[4:5].strip()
    } >= COMMANDS.keys()


def test_unknown_command_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["exprot"])

    assert caught.value.code == 2
    assert "invalid choice: 'exprot'" in capsys.readouterr().err
