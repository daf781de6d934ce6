import shlex
from pathlib import Path

import pytest

from loadtests.__main__ import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("arguments", "exit_code"), [([], 2), (["sing"], 2), (["--help"], 0)])
def test_without_a_verb_all_verbs_are_listed(arguments: list[str], exit_code: int, capsys: Capture) -> None:
    assert main(arguments) == exit_code

    told = capsys.readouterr().out
    assert all(f"  {verb} " in told for verb in ("load", "capacity", "overload", "transports", "stress", "peers"))


@pytest.mark.parametrize("verb", ["load", "capacity", "overload"])
def test_all_verbs_of_an_operator_take_the_same_flags(verb: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])

    told = capsys.readouterr().out
    assert caught.value.code == 0
    assert f"python -m loadtests {verb}" in told
    for flag in ("target", "metrics-url", "api-key-file", "ca-file", "profile", "methods", "mode", "slo"):
        assert f"  --{flag} " in told


@pytest.mark.parametrize(
    ("command", "message"),
    [
        *((f"load --rate {rate}", "no arrivals at") for rate in ("0", "-1", "nan", "inf", "1e6")),
        ("load --arrivals uniform", "expected one of poisson, constant, burst, ramp, trace"),
        ("load --arrivals poisson:rate=1", "is no setting; known: none"),
        *((f"load --arrivals {text}", "expected a finite number") for text in ("burst:size=many", "ramp:to=inf")),
        ("load --arrivals burst:every=1,size=11", "11 a second, more than the rate of 10"),
        ("load --arrivals burst:size=1.5", "a whole number of calls"),
        ("load --arrivals ramp:from=-1,to=2", "expected rates of 0 or more"),
        ("load --arrivals ramp:from=0,to=0", "one above 0"),
        ("load --arrivals trace:", "expected trace:FILE"),
        ("load --arrivals trace:missing.txt", "cannot be read"),
        *((f"load --slo {slo}", "'' is no bound; expected bounds with commas") for slo in ("''", "p95<400ms,")),
        *((f"load --slo p9{slo}", "is no bound") for slo in ("5<400", "6<400ms", "5=400ms", "5<-1ms", "5<nanms")),
        ("load --slo p95<1%", "p95 is measured in ms or s, not %"),
        ("load --slo errors<1ms", "errors is measured in %, not ms"),
        ("load --slo goodput>1s", "goodput is measured in % or /s, not s"),
        *((f"{verb} --profile novel", "--profile novel: expected chat, sentence") for verb in ("load", "capacity")),
        *((f"load {flag}", "need each other") for flag in ("--profile lines", "--lines texts")),
        ("capacity --data .", "expected tatoeba-en-de"),
        ("load --methods Sing=1", "--methods Sing=1: expected Translate, "),
        ("load --methods LoadModel", "need the name/version"),
        ("load --methods GetModel", "GetModel needs the name"),
        ("load --beams 17", "--beams 17: 17: expected 1 to 16"),
        ("load --beams x", "--beams x: "),
        ("load --priorities low", "--priorities low: low: expected interactive or bulk"),
        *((f"load --priorities bulk{share}", "--priorities bulk") for share in ("=0", "=-1", "=x", "=nan", ",,")),
        ("load --leaving 1.5", "leaving 1.5: expected a share"),
        ("load --leave-within=-1", "leave_within -1"),
        *((f"load --options '{options}'", "no DecodingOptions as JSON") for options in ("{", '{"beam": 1}', "1")),
        ("load --duration 0", "argument --duration: 0: expected 0.001 to 86400"),
        ("load --processes 0", "argument --processes: 0: expected 1 to 64"),
        ("load --arrivals closed --users 1 --processes 2", "1 users: expected at least one for each"),
        *((f"load --max-regression={share}", "argument --max-reg") for share in ("''", "ten", "-1%", "nan", "inf")),
        ("load --baseline missing.json", "missing.json: no run of a load test"),
        ("capacity --point 0", "argument --point: 0: expected 0.001 to 3600"),
        ("overload --duration 0", "argument --duration: 0: expected 0.001 to 3600"),
        ("overload --factor nan", "argument --factor: nan: expected 0.001 to 3600"),
        *((f"overload --texts-per-call {n}", f"texts_per_call {n}: expected 1 to 128") for n in (0, 129)),
        *((f"overload --deadline {s}", "expected seconds above 0, up to 86400") for s in ("0", "nan", "1e9")),
        *((f"stress soak --{flag}", f"argument --{flag.split()[0]}") for flag in ("duration 1", "load 0", "mode long")),
        *(
            (f"stress cancellations --{flag}", f"argument --{flag.split()[0]}")
            for flag in ("calls 0", "methods Translate,Guess", "warm-up 10000000")
        ),
        ("stress chaos --only sigstpo", "argument --only: there is no 'sigstpo'; did you mean sigstop?"),
        ("stress bad-inputs --only nul,nonsense", "argument --only: there is no 'nonsense'"),
        ("stress bad-inputs --count 0", "argument --count"),
        ("stress bad-inputs --count 5", "--count 5: expected at least"),
        ("stress bad-inputs --count 2 --only nul,bidi,emoji", "--count 2: expected at least 3, one input of each kind"),
        ("stress bad-inputs --index 3", "--index needs --only with one kind"),
        ("stress bad-inputs --only nul --index -1", "argument --index"),
        ("stress bad-inputs --timeout nan", "argument --timeout"),
    ],
)
def test_a_wrong_flag_is_rejected_before_any_start(command: str, message: str, capsys: Capture, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*shlex.split(command), "--output", str(tmp_path / "output")])

    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "output").exists()
