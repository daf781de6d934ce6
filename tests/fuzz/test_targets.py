"""The corpus, and some new inputs of each target; `python -m tests.fuzz` searches longer."""

import json

import pytest
from hypothesis import given, settings

from tests.fuzz.calls import CALLS
from tests.fuzz.files import FILES
from tests.fuzz.native_step import NATIVE
from tests.fuzz.protected import PROTECTED
from tests.fuzz.target import CORPUS, Target, corpus, no_hang
from tests.fuzz.wire import WIRE

OFFLINE = (*FILES, *CALLS, PROTECTED, *NATIVE)
TARGETS = (*OFFLINE, *WIRE)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_corpus_is_processed_as_documented(target: Target) -> None:
    contents = corpus(target.name)

    assert contents
    with target.opened() as check:
        for content in contents:
            with no_hang():
                check(content)


@pytest.mark.parametrize("target", OFFLINE, ids=lambda target: target.name)
def test_new_inputs_are_processed_as_documented(target: Target) -> None:
    with target.opened() as check:

        @settings(max_examples=25, database=None)
        @given(target.inputs)
        def run(content: bytes) -> None:
            check(content)

        run()


def test_corpus_entries_have_a_target_and_a_description() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {target.name for target in TARGETS}
    for path in CORPUS.glob("*/*.json"):
        entry = json.loads(path.read_text(encoding="utf-8"))
        assert entry.keys() == {"found", "input"}, path
        assert entry["found"], path
