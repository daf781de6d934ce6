"""The corpus, and a few new inputs of each target; `python -m tests.fuzz` looks for longer."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.fuzz.target import Target, corpus, no_hang, written
from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
OFFLINE = [target for target in TARGETS if target.share == 1 and target.name != "http"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_inputs_that_were_found_are_answered_as_documented(target: Target) -> None:
    entries = corpus(target.name)

    assert entries
    with target.opened() as check:
        for entry in entries:
            with no_hang():
                check(entry.content)


@pytest.mark.parametrize("target", OFFLINE, ids=lambda target: target.name)
def test_new_inputs_are_answered_as_documented(target: Target) -> None:
    with target.opened() as check:

        @settings(max_examples=25, database=None)
        @given(target.inputs)
        def run(content: bytes) -> None:
            check(content)

        run()


def test_every_input_of_the_corpus_belongs_to_a_target_and_says_what_it_found() -> None:
    assert {path.name for path in (HERE / "corpus").iterdir()} == {target.name for target in TARGETS}
    for path in (HERE / "corpus").glob("*/*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert kept.keys() == {"found", "input"}, path
        assert kept["found"], path


def test_a_finding_is_written_as_an_input_of_the_corpus_is_read(tmp_path: Path) -> None:
    content = bytes(range(256))

    kept = json.loads(written("everything", content))

    assert "".join(kept["input"]).encode("latin-1") == content
