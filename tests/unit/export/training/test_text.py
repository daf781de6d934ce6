import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dragoman_export.data.augmentation import AugmentationConfig
from dragoman_export.data.batches import CorpusPart, EncodedCorpus
from dragoman_export.data.reader import Pair, PairFiles, ParallelFiles
from dragoman_export.errors import CorpusError
from dragoman_export.training.text import encode_pairs, read_translations, write_translations
from tests.unit.export.tiny_training import make_text, tiny_vocabulary, write_tsv

PAIRS = tuple(
    Pair(source=source, target=target, location=f"a.tsv:{line}")
    for line, source, target in ((1, "red " * 9, "RED"), (2, "red", "RED"), (3, "red", "RED " * 9))
)


def all_ids(corpus: EncodedCorpus) -> list[list[int]]:
    """Return the token ids of all sources, then of all targets."""
    return [side[index].tolist() for side in (corpus.sources, corpus.targets) for index in range(len(corpus))]


def test_long_pairs_are_skipped_and_reported() -> None:
    reports: list[str] = []

    encoded = encode_pairs(PAIRS, tiny_vocabulary(), max_tokens=5, report=reports.append)

    assert encoded.pairs == (PAIRS[1],)
    assert encoded.num_too_long == 2
    assert [report.split()[0] for report in reports] == ["a.tsv:1:", "a.tsv:3:"]


def test_corpus_has_the_token_ids_of_both_sides() -> None:
    corpus = encode_pairs(PAIRS, tiny_vocabulary(), max_tokens=99, report=print).corpus

    texts = [*(pair.source for pair in PAIRS), *(pair.target for pair in PAIRS)]
    assert all_ids(corpus) == tiny_vocabulary().encode(texts)


def test_text_without_short_pairs_is_rejected() -> None:
    with pytest.raises(CorpusError, match="every pair has more than 1 tokens"):
        encode_pairs(PAIRS, tiny_vocabulary(), max_tokens=1, report=lambda _: None)


def test_sampled_pieces_change_with_the_epoch() -> None:
    text = make_text()

    first, again, next_epoch = (text.drawn(alpha=0.01, max_tokens=99, seed=1, epoch=epoch) for epoch in (1, 1, 2))

    assert all_ids(first) == all_ids(again) != all_ids(next_epoch)
    assert text.vocabulary.decode(all_ids(first)) == text.vocabulary.decode(all_ids(text.train))


def _lengths(corpus: EncodedCorpus) -> np.ndarray:
    return np.maximum(corpus.sources.lengths, corpus.targets.lengths)


def test_long_sampled_pair_keeps_its_segmentation() -> None:
    text = make_text()

    sampled = text.drawn(alpha=0.01, max_tokens=14, seed=1, epoch=1)

    for index in np.flatnonzero(_lengths(sampled) > 14).tolist():
        assert sampled.sources[index].tolist() == text.train.sources[index].tolist()
    assert all_ids(sampled) != all_ids(text.train)


def test_augmentation_changes_with_the_epoch() -> None:
    text, augmentation = make_text(), AugmentationConfig(capitals=0.5)

    first, again, next_epoch = (
        text.drawn(alpha=0, max_tokens=20, seed=1, epoch=epoch, augmentation=augmentation) for epoch in (1, 1, 2)
    )

    assert all_ids(first) == all_ids(again) != all_ids(next_epoch)
    decoded = text.vocabulary.decode(all_ids(first)[: len(first)])
    changed = {new: pair.source for new, pair in zip(decoded, text.train_pairs, strict=True) if new != pair.source}
    assert 10 < len(changed) < 60
    assert [new.lower() for new in changed] == list(changed.values())
    too_long = np.flatnonzero(_lengths(first) > 20).tolist()
    assert too_long  # original pairs
    for index in too_long:
        assert first.sources[index].tolist() == text.train.sources[index].tolist()


def test_workers_draw_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_export.training.text._PAIRS_OF_A_CHUNK", 16)
    text, augmentation = make_text(), AugmentationConfig(capitals=0.5)

    drawn = [
        text.drawn(alpha=0, max_tokens=20, seed=1, epoch=1, augmentation=augmentation, workers=workers)
        for workers in (0, 1, 2)
    ]

    assert all_ids(drawn[0]) == all_ids(drawn[1]) == all_ids(drawn[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_copies_are_augmented_separately(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr("dragoman_export.training.text._PAIRS_OF_A_CHUNK", 16)
    text, augmentation = make_text(), AugmentationConfig(capitals=0.5)
    parts = (CorpusPart(20, 4.0), CorpusPart(100, 0.25))
    text = dataclasses.replace(text, train=dataclasses.replace(text.train, parts=parts))

    drawn, again, other = (
        text.drawn(alpha=0, max_tokens=99, seed=1, epoch=epoch, augmentation=augmentation, workers=workers)
        for epoch in (1, 1, 2)
    )

    assert [(part.size, part.weight) for part in drawn.parts] == [(80, 1.0), (25, 1.0)]
    assert len(drawn) == 105
    assert all_ids(drawn) == all_ids(again) != all_ids(other)
    sources = text.vocabulary.decode(all_ids(drawn)[:105])
    originals = [pair.source for pair in text.train_pairs]
    copies = [sources[first : first + 4] for first in range(0, 80, 4)]
    assert [{each.lower() for each in group} for group in copies] == [{each} for each in originals[:20]]
    assert any(len(set(group)) > 1 for group in copies)
    assert {each.lower() for each in sources[80:]} <= set(originals[20:])


def test_source_prefix_counts_as_tokens() -> None:
    encoded = encode_pairs(PAIRS[1:2], tiny_vocabulary(), max_tokens=99, report=print)
    longest = max(encoded.corpus.sources.lengths[0], encoded.corpus.targets.lengths[0] - 1)
    reports: list[str] = []

    with pytest.raises(CorpusError, match="every pair"):
        encode_pairs(PAIRS[1:2], tiny_vocabulary(), max_tokens=int(longest), report=reports.append, prefix_size=1)
    assert len(reports) == 1


def test_cancelled_drawing_ends(tmp_path: Path) -> None:
    text = dataclasses.replace(make_text(), directory=tmp_path)

    assert len(text.drawn(alpha=0, max_tokens=20, seed=1, epoch=1, is_cancelled=lambda: True)) == 0


def test_lexicon_survives_a_file(tmp_path: Path) -> None:
    translations = {"rot": frozenset({"red", "ruddy"}), "blau": frozenset({"blue"})}

    write_translations(tmp_path / "lexicon.json", translations)

    assert read_translations(tmp_path / "lexicon.json") == translations


@pytest.mark.parametrize("content", [None, "{", '{"rot": 1}'])
def test_damaged_lexicon_is_rejected(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "lexicon.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(CorpusError, match=r"cannot read lexicon .*lexicon\.json"):
        read_translations(path)


def test_pairs_are_encoded_in_chunks(tmp_path: Path) -> None:
    pairs = [Pair(source=f"red {number}", target=f"RED {number}", location="a.tsv") for number in range(20_000)]
    read: list[int] = []

    def reading() -> Iterator[Pair]:
        for pair in pairs:
            read.append(len(reports))
            yield pair

    reports: list[str] = []
    encoded = encode_pairs(reading(), tiny_vocabulary(), max_tokens=8, report=reports.append, directory=tmp_path)

    ids = tiny_vocabulary().encode([pair.source for pair in pairs])
    expected = [row for row, is_kept in zip(ids, encoded.kept, strict=True) if is_kept]
    assert [encoded.corpus.sources[index].tolist() for index in range(len(expected))] == expected
    assert 0 < encoded.num_too_long == len(reports)
    assert 0 < read[-1] < len(reports)  # the first were encoded before the last were read
    assert list(tmp_path.iterdir()) == []


def test_sampling_from_files_equals_memory(tmp_path: Path) -> None:
    text = make_text()
    write_tsv(tmp_path / "train.tsv", len(text.train))
    files = PairFiles.scan([ParallelFiles(source=tmp_path / "train.tsv")], max_malformed=0.0)
    from_files = dataclasses.replace(text, train_pairs=files, directory=tmp_path)

    drawn = [each.drawn(alpha=0.01, max_tokens=99, seed=1, epoch=1) for each in (text, from_files)]

    assert all_ids(drawn[0]) == all_ids(drawn[1])
