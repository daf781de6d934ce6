import json
from pathlib import Path

import pytest

from loadtests.load.__main__ import main
from loadtests.load.run import as_json
from tests.unit.loadtests.load.fake_runs import run_of


def test_a_baseline_of_another_load_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(as_json(run_of())), encoding="utf-8")

    with pytest.raises(SystemExit) as caught:
        main(["--rate", "2", "--baseline", str(tmp_path / "run.json")])

    assert caught.value.code == 2
    assert "rate_per_s 1.0, now 2.0" in capsys.readouterr().err
