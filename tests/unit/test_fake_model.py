"""The fake model of `serve --fake` without a server."""

import threading
from pathlib import Path

import pytest

from dragoman_service.bundle.files import open_bundle
from dragoman_service.config import load_settings
from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.errors import (
    ConfigError,
    DeadlineExceededError,
    DrainingError,
    InvalidFieldError,
    OverloadedError,
)
from dragoman_service.fake_model import FakeScheduler, FakeTokenizer, with_fake_model, write_fake_bundle
from dragoman_service.request import RequestContext
from tests.fakes import ManualClock

TOKENIZER = FakeTokenizer().for_pair("en", "de")
WAIT_S = 30.0  # only reached by a test that would otherwise hang


def make_segment(text: str, **search: object) -> Segment:
    source_ids = (*TOKENIZER.source_prefix, *TOKENIZER.encode(text), *TOKENIZER.source_suffix)
    return Segment(source_ids=source_ids, search=SearchConfig(**search), wants_attention=True)  # type: ignore[arg-type]


def answer(text: str, **search: object) -> list[str]:
    (future,) = FakeScheduler().submit([make_segment(text, **search)], RequestContext())
    return [TOKENIZER.decode(hypothesis.token_ids) for hypothesis in future.result(0).hypotheses]


@pytest.mark.parametrize("text", ["", "a", "Hello,  wonderful world!", " 日本語のテキスト \n", "\0 \U0001f600"])
def test_tokens_and_their_offsets_restore_the_text(text: str) -> None:
    token_ids = TOKENIZER.encode(text)

    assert TOKENIZER.decode([*token_ids, TOKENIZER.eos_id]) == text
    assert "".join(text[begin:end] for begin, end in TOKENIZER.offsets(text)) == text
    assert TOKENIZER.decode_with_offsets(token_ids) == (text, TOKENIZER.offsets(text))
    assert "".join(TOKENIZER.pieces(token_ids)) == text


def test_segment_is_answered_at_once_with_its_text_and_target_language() -> None:
    assert answer("Hello world.") == ["[de] Hello world."]
    assert answer("Hello.", beam_size=2, num_hypotheses=2) == ["[de] Hello.", "[de 2] Hello."]
    assert answer("Hello.", target_prefix=tuple(TOKENIZER.encode("Na"))) == ["Na [de] Hello."]


def test_target_ends_at_the_limit() -> None:
    (future,) = FakeScheduler().submit([make_segment("a b c d", max_target_tokens=3)], RequestContext())

    (hypothesis,) = future.result(0).hypotheses
    assert not hypothesis.is_finished
    assert TOKENIZER.decode(hypothesis.token_ids) == "[de] a b"


def test_words_attend_to_themselves() -> None:
    (future,) = FakeScheduler().submit([make_segment("a b")], RequestContext())

    (hypothesis,) = future.result(0).hypotheses
    assert hypothesis.attention is not None
    assert hypothesis.attention.argmax(axis=3).tolist() == [[[3, 1, 2, 3]]]  # [de], a, b, EOS -> EOS, a, b, EOS


def test_failure_of_one_segment_rejects_the_request() -> None:
    with pytest.raises(OverloadedError) as caught:
        FakeScheduler().submit([make_segment("Hello."), make_segment("fake:overloaded 2")], RequestContext())
    assert caught.value.retry_after_s == 2.0

    with pytest.raises(InvalidFieldError):
        FakeScheduler().submit([make_segment("fake:unknown")], RequestContext())


def test_slow_answer_ends_with_the_deadline() -> None:
    clock = ManualClock()
    context = RequestContext(deadline_s=clock.now_s + 0.01)

    (late,) = FakeScheduler(clock).submit([make_segment("fake:slow 60")], context)
    (intime,) = FakeScheduler(clock).submit([make_segment("fake:slow 0.005")], context)

    assert isinstance(late.exception(WAIT_S), DeadlineExceededError)
    assert len(intime.result(WAIT_S).hypotheses) == 1


def test_drain_waits_for_slow_answers_and_rejects_new_segments() -> None:
    scheduler = FakeScheduler()
    (slow,) = scheduler.submit([make_segment("fake:slow 0.05")], RequestContext())

    assert scheduler.drain(WAIT_S)
    assert slow.done()
    with pytest.raises(DrainingError):
        scheduler.submit([make_segment("Hello.")], RequestContext())


def test_stop_fails_slow_answers_after_a_drain_that_timed_out() -> None:
    scheduler = FakeScheduler()
    slow, cancelled = scheduler.submit([make_segment("fake:slow 60")] * 2, RequestContext())
    cancelled.cancel()

    assert not scheduler.drain(0.0)
    scheduler.stop()

    assert isinstance(slow.exception(0), DrainingError)
    assert not [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, threading.Timer) and thread.finished.is_set() is False
    ]


def test_bundle_serves_every_pair_of_languages(tmp_path: Path) -> None:
    write_fake_bundle(tmp_path / "fake" / "1")

    languages = open_bundle(tmp_path / "fake" / "1").manifest.languages()
    assert languages.find("ja", "sw") == ("ja", "sw")
    assert languages.find("de", "de") is None


def test_fake_excludes_a_model_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        with_fake_model(load_settings(flags={"models.directory": str(tmp_path)}), tmp_path / "new")

    assert caught.value.setting == "models.directory"
    assert not (tmp_path / "new").exists()
