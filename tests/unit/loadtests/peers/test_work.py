from dataclasses import replace
from pathlib import Path
from statistics import correlation

import pytest
import torch

from dragoman_export.model.config import PRESETS, ModelConfig
from dragoman_export.model.transformer import Transformer
from loadtests.benchmarks import work
from loadtests.benchmarks.models import end_by_itself, made_up_vocabulary
from loadtests.benchmarks.pytorch_system import beam_search
from loadtests.benchmarks.systems import SearchOptions
from tests.unit.loadtests.benchmarks.tiny_files import write_test_set

_SOURCES = work.random_sources(100, vocabulary_size=500, eos_id=2)
_CONFIG = replace(PRESETS["base"], vocabulary_size=500, num_encoder_layers=2, num_decoder_layers=2, norm="post")
_LENGTHS = (6, 12, 18, 24)


def test_random_sources_are_the_same_in_every_run_and_limit_their_targets() -> None:
    search, fixed = SearchOptions(extra_target_tokens=50, max_target_tokens=256), work.fixed_length(32)

    assert work.random_sources(100, vocabulary_size=500, eos_id=2) == _SOURCES
    assert all(len(source) == 24 and source[-1] == 2 and min(source[:-1]) > 3 for source in _SOURCES)
    assert [search.longest_target([(1,) * length, (1,)]) for length in (10, 300)] == [60, 256]
    assert fixed.min_target_tokens == fixed.longest_target([(1,) * 5]) == 32


def test_lone_sentences_come_one_a_call_and_the_short_mode_has_fewer_cases() -> None:
    lone, everything = work.shipped_cases("set", _SOURCES, references=("r",) * 100, mode="short")

    assert (lone.call_size, everything.call_size, lone.references) == (1, 100, ())
    assert set(lone.sources) <= set(_SOURCES)
    assert {case.name for case in work.base_cases("short")} < {case.name for case in work.base_cases("full")}


def test_test_sets_are_sampled_evenly_or_built_in_ones_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_test_set(tmp_path, ((f"s{number}", f"t{number}") for number in range(10)))
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)

    assert work.sentence_sets(tmp_path, size=3) == [("tatoeba", ("s0", "s3", "s6"), ("t0", "t3", "t6"))]
    assert work.sample(range(2), 3) == [0, 1]
    ((name, texts, references),) = work.sentence_sets(None, size=20)
    assert (name, len(texts), references) == ("built-in", 20, ())


def test_targets_end_by_themselves_and_are_about_as_long_as_their_sources() -> None:
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(1)
        end_by_itself(model := Transformer(_CONFIG).eval(), ratio=1.1)
        sources = [source[-length:] for source, length in zip(_SOURCES, _LENGTHS, strict=False)]
        outputs = beam_search(model, sources, SearchOptions(beam_size=2, max_target_tokens=100))

    found = [len(output.token_ids) for output in outputs]
    assert all(output.token_ids[-1] == 2 for output in outputs)
    assert correlation(_LENGTHS, found) > 0.7  # what random weights say moves the end a little
    assert sum(found) / sum(_LENGTHS) == pytest.approx(1.1, abs=0.6)


@pytest.mark.parametrize("config", [replace(_CONFIG, d_model=32), replace(_CONFIG, norm="pre")])
def test_another_shape_is_refused(config: ModelConfig) -> None:
    with pytest.raises(ValueError, match="expected post-norm of 512"):
        end_by_itself(Transformer(config))


def test_equal_places_are_counted_and_a_made_up_vocabulary_has_the_size_asked_for() -> None:
    assert work.share_of_equal([(1,), (2, 3), (4,), (5,)], [(1,), (2,), (4,), (5,)]) == 0.75
    assert len(made_up_vocabulary(500)) == 500
