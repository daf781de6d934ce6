import json
from pathlib import Path

import pytest

from loadtests.load.__main__ import main
from loadtests.load.run import as_json
from tests.unit.loadtests.load.fake_runs import run_of


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rate", "0"], "no arrivals at 0.0 calls/s"),
        (["--arrivals", "sometimes"], "expected one of poisson"),
        (["--slo", "p95<400"], "'p95<400' is no bound"),
        (["--profile", "novel"], "--profile novel: expected chat"),
        (["--duration", "0"], "expected up to 86400"),
        (["--processes", "0"], "0 processes"),
        (["--arrivals", "closed", "--users", "1", "--processes", "2"], "1 users: expected at least one for each"),
        (["--max-regression", "ten"], "--max-regression"),
        (["--baseline", "missing.json"], "missing.json: no run of a load test"),
    ],
)
def test_called_wrongly_it_says_so_before_anything_is_started(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*flags, "--output", str(tmp_path / "output")])

    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


def test_a_baseline_of_another_load_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(as_json(run_of())), encoding="utf-8")

    with pytest.raises(SystemExit) as caught:
        main(["--rate", "2", "--baseline", str(tmp_path / "run.json")])

    assert caught.value.code == 2
    assert "rate_per_s 1.0, now 2.0" in capsys.readouterr().err
