import json
from pathlib import Path

import pytest

from loadtests.stress.server import add_version, complaints, only_bundle, remove_version
from loadtests.stress.verdict import Promise, Summary, at_most, require


def test_versions_come_with_files_and_a_manifest_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    bundle, models = tmp_path / "shipped" / "m" / "1", tmp_path / "models"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text(json.dumps({"name": "m", "version": "1", "licence": "CC0"}))
    (bundle / "weights.bin").write_bytes(b"weights")

    added = add_version(bundle, models, 7)

    assert added == only_bundle(models) == models / "m" / "7"
    assert json.loads((added / "manifest.json").read_text()) == {"name": "m", "version": "7", "licence": "CC0"}
    assert (added / "weights.bin").read_bytes() == b"weights"
    broken = add_version(bundle, models, 8, is_broken=True)
    assert (broken / "weights.bin").read_bytes() == b"weight"
    with pytest.raises(ValueError, match="expected one bundle MODEL/VERSION, found 2"):
        only_bundle(models)
    for path in (added, broken):
        remove_version(path)
    assert list((models / "m").iterdir()) == []
    assert json.loads((bundle / "manifest.json").read_text())["version"] == "1"
    assert (bundle / "weights.bin").read_bytes() == b"weights"


def test_errors_and_what_is_no_record_are_complaints() -> None:
    lines = ['{"event": "request", "level": "info"}', '{"event": "sentence splitter failed", "level": "warning"}', ""]
    complaining = ['{"event": "request failed", "level": "error"}', "Traceback (most recent call last):", "7"]

    assert complaints(f"{line}\n" for line in lines + complaining) == complaining


def test_one_broken_promise_is_enough_to_fail_and_all_of_it_is_in_the_json() -> None:
    kept, broken = Promise(name="answers"), Promise(name="memory", broken=list("abcdefg"))
    found, well = (Summary(scenario="soak", figures={"calls": 5}, promises=made) for made in ([kept, broken], [kept]))

    assert (well.line, well.exit_status) == ("soak calls=5 verdict=held", 0)
    assert (found.line, found.exit_status) == ("soak calls=5 verdict=broken", 1)
    assert [promise.sentence for promise in found.broken] == ["memory: a; b; c; d; e; and 2 more"]
    assert found.as_json()["promises"][1] == {"name": "memory", "held": False, "broken": list("abcdefg"), "figures": {}}


def test_a_figure_is_held_to_its_limit_and_what_is_required_must_hold() -> None:
    assert at_most("memory", 32.0, 32.0).broken == []
    assert at_most("memory", 90.0, 32.0, unit="MB").sentence == "memory: 90 MB, more than 32"
    assert not require("at rest", True, "work is left").broken
    assert require("at rest", False, "work is left").sentence == "at rest: work is left"
