import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.bad_inputs.kinds import KINDS


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "nul,nonsense"], "nonsense: no such kind; --list names them"),
        (["--count", "0"], "argument --count"),
        (["--count", "5"], "--count 5: expected at least"),
        (["--index", "3"], "--index needs --only with one kind"),
        (["--only", "nul", "--index", "-1"], "argument --index"),
        (["--timeout", "nan"], "argument --timeout"),
    ],
)
def test_a_wrong_flag_is_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bad-inputs", *flags])

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_list_says_what_each_kind_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bad-inputs", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(len(line.split()) > 3 for line in lines)
