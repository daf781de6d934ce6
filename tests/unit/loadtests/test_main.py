from pathlib import Path

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
    ("command", "message"),
    [
        ("load --rate 0", "no arrivals at 0.0 calls/s"),
        ("load --arrivals sometimes", "expected one of poisson"),
        ("load --slo p95<400", "'p95<400' is no bound"),
        ("load --profile novel", "--profile novel: expected chat"),
        ("load --duration 0", "argument --duration: 0: expected 0.001 to 86400"),
        ("load --processes 0", "argument --processes: 0: expected 1 to 64"),
        ("load --arrivals closed --users 1 --processes 2", "1 users: expected at least one for each"),
        ("load --max-regression ten", "--max-regression"),
        ("load --baseline missing.json", "missing.json: no run of a load test"),
        ("capacity --point 0", "argument --point: 0: expected 0.001 to 3600"),
        ("capacity --profile novel", "--profile novel: expected chat"),
        ("overload --duration 0", "argument --duration: 0: expected 0.001 to 3600"),
        ("overload --factor nan", "argument --factor: nan: expected 0.001 to 3600"),
        ("overload --texts-per-call 129", "texts_per_call 129: expected 1 to 128"),
        ("overload --deadline 1e9", "deadline 1e+09: expected seconds above 0, up to 86400"),
        ("stress soak --duration 1", "argument --duration"),
        ("stress soak --load 0", "argument --load"),
        ("stress soak --mode long", "argument --mode"),
        ("stress cancellations --calls 0", "argument --calls"),
        ("stress cancellations --methods Translate,Guess", "argument --methods"),
        ("stress cancellations --warm-up 10000000", "argument --warm-up"),
        ("stress chaos --only sigstpo", "argument --only: there is no fault 'sigstpo'; did you mean sigstop?"),
        ("stress bad-inputs --only nul,nonsense", "nonsense: no such kind; --list names them"),
        ("stress bad-inputs --count 0", "argument --count"),
        ("stress bad-inputs --count 5", "--count 5: expected at least"),
        ("stress bad-inputs --index 3", "--index needs --only with one kind"),
        ("stress bad-inputs --only nul --index -1", "argument --index"),
        ("stress bad-inputs --timeout nan", "argument --timeout"),
    ],
)
def test_a_wrong_flag_is_rejected_before_anything_is_started(
    command: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--output", str(tmp_path / "output")])

    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "output").exists()
