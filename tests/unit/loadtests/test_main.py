import pytest

from loadtests.__main__ import main


@pytest.mark.parametrize(("arguments", "exit_code"), [([], 2), (["sing"], 2), (["--help"], 0)])
def test_without_a_verb_all_verbs_are_listed(
    arguments: list[str], exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == exit_code

    told = capsys.readouterr().out
    assert all(f"  {verb} " in told for verb in ("load", "capacity", "overload", "stress", "peers"))


@pytest.mark.parametrize("verb", ["load", "capacity", "overload"])
def test_all_verbs_of_an_operator_take_the_same_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])

    told = capsys.readouterr().out
    assert caught.value.code == 0
    assert f"python -m loadtests {verb}" in told
    for flag in (
        "--target",
        "--metrics-url",
        "--api-key-file",
        "--ca-file",
        "--profile",
        "--methods",
        "--mode",
        "--slo",
    ):
        assert f"  {flag} " in told


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("capacity", ["--point", "0"]),
        ("capacity", ["--profile", "novel"]),
        ("overload", ["--duration", "0"]),
        ("overload", ["--factor", "nan"]),
        ("overload", ["--texts-per-call", "129"]),
        ("overload", ["--deadline", "1e9"]),
    ],
)
def test_a_flag_out_of_range_is_refused_before_anything_is_started(
    verb: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, *flags])

    assert caught.value.code == 2
    assert flags[1] in capsys.readouterr().err.replace("1000000000", "1e9").replace("1e+09", "1e9")
