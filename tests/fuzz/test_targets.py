"""The corpus, and some new inputs of each target; `python -m tests.fuzz` searches longer."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.fuzz.target import Target, as_entry, corpus, no_hang
from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
OFFLINE = [target for target in TARGETS if target.share == 1 and target.name != "http"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_corpus_is_processed_as_documented(target: Target) -> None:
    entries = corpus(target.name)

    assert entries
    with target.opened() as check:
        for entry in entries:
            with no_hang():
                check(entry.content)


@pytest.mark.parametrize("target", OFFLINE, ids=lambda target: target.name)
def test_new_inputs_are_processed_as_documented(target: Target) -> None:
    with target.opened() as check:

        @settings(max_examples=25, database=None)
        @given(target.inputs)
        def run(content: bytes) -> None:
            check(content)

        run()


def test_corpus_entries_have_a_target_and_a_description() -> None:
    assert {path.name for path in (HERE / "corpus").iterdir()} == {target.name for target in TARGETS}
    for path in (HERE / "corpus").glob("*/*.json"):
        entry = json.loads(path.read_text(encoding="utf-8"))
        assert entry.keys() == {"found", "input"}, path
        assert entry["found"], path


def test_finding_is_as_entry_as_a_corpus_entry(tmp_path: Path) -> None:
    content = bytes(range(256))

    entry = json.loads(as_entry("everything", content))

    assert "".join(entry["input"]).encode("latin-1") == content
