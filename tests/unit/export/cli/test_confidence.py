from pathlib import Path

import numpy as np
import pytest

from dragoman_export.__main__ import main
from dragoman_export.cli.confidence import (
    area_under_curve,
    calibration_error,
    domain_weights,
    fit_confidence,
    fit_logistic,
    read_domains,
    reliability,
)
from dragoman_export.errors import CorpusError
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.translation import translate_texts
from dragoman_service.bundle.files import load_manifest, open_bundle
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.confidence import FEATURES
from tests.tiny_bundle import SENTENCES


def test_logistic_regression_recovers_the_weights() -> None:
    random = np.random.default_rng(1)
    features = random.normal(size=(20_000, 2)) * (1.0, 10.0) + (0.0, 5.0)
    good = random.random(20_000) < 1 / (1 + np.exp(-(features @ (1.5, -0.2) + 0.5)))

    weights, bias = fit_logistic(features, good, np.ones(20_000))

    assert weights == pytest.approx([1.5, -0.2], rel=0.1)
    assert bias == pytest.approx(0.5, abs=0.15)


def test_weight_two_equals_two_examples() -> None:
    random = np.random.default_rng(2)
    features, good = random.normal(size=(500, 2)), random.random(500) < 0.4
    counts = np.where(np.arange(500) < 100, 2.0, 1.0)
    again = np.r_[:500, :100]

    weights, bias = fit_logistic(features, good, counts)

    expected, expected_bias = fit_logistic(features[again], good[again], np.ones(600))
    assert weights == pytest.approx(expected, rel=0.02)  # the penalty is of standardized features
    assert bias == pytest.approx(expected_bias, rel=0.02)


def test_meaningless_sentences_rank_lower_without_bias() -> None:
    random = np.random.default_rng(3)
    features = random.normal(size=(4_000, len(FEATURES)))
    good = random.random(4_000) < 1 / (1 + np.exp(-features[:, 0]))
    planted = random.normal(size=(400, len(FEATURES)))
    planted[:, FEATURES.index("fragmentation")] += 2.0

    (plain, bias), (weights, own_bias) = (fit_confidence(features, good, some) for some in (planted[:0], planted))

    before, after = (np.mean(planted @ each + offset) for each, offset in ((plain, bias), (weights, own_bias)))
    assert after < before - 0.3
    assert np.mean(1 / (1 + np.exp(-(features @ weights + own_bias)))) == pytest.approx(good.mean(), abs=1e-3)


def test_area_under_curve() -> None:
    scores, good = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])

    assert area_under_curve(scores, good) == 3.5 / 4
    assert np.isnan(area_under_curve(scores, scores > 0))


def test_reliability_bins() -> None:
    bins = reliability(np.array([0.11, 0.19, 1.0]), np.array([True, False, True]))

    assert bins == [(pytest.approx(0.15), 0.5, 2), (1.0, 1.0, 1)]


def test_calibration_error() -> None:
    scores, good = np.array([0.15, 0.15, 1.0, 1.0]), np.array([True, False, True, True])

    assert calibration_error(scores, good) == pytest.approx(0.35 / 2)


@pytest.mark.parametrize("seed", range(10))
def test_violations_never_raise_the_confidence(seed: int) -> None:
    """By chance, translations with a rare violation may be good."""
    random = np.random.default_rng(seed)
    features = np.abs(random.normal(size=(1_000, len(FEATURES))))
    at = FEATURES.index("soft_violations")
    features[:, at] = random.random(1_000) < 0.02
    good = (random.random(1_000) < 0.6) | (features[:, at] > 0)

    weights, _ = fit_confidence(features, good, features[:0])

    assert weights[at] == 0


@pytest.mark.parametrize("sizes", [[1, 4], [100, 25, 0], [7], [10, 10, 10], [900, 1, 1]])
def test_weight_of_a_domain_is_the_root_of_its_size(sizes: list[int]) -> None:
    weights = domain_weights(sizes)

    ends = np.cumsum(sizes)
    totals = [weights[end - size : end].sum() for end, size in zip(ends, sizes, strict=True) if size]
    assert weights.mean() == pytest.approx(1)
    roots = [total / size**0.5 for total, size in zip(totals, filter(None, sizes), strict=True)]
    assert roots == pytest.approx([roots[0]] * len(roots))


def test_domains_are_read_from_the_third_column(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("a\tb\tmail\nc\td\tnews\ne\tf\tmail\n", encoding="utf-8")
    (tmp_path / "plain.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")

    domains, plain = read_domains(tmp_path / "dev.tsv", None), read_domains(tmp_path / "plain.tsv", 1)

    assert {name: [(pair.source, pair.target) for pair in pairs] for name, pairs in domains.items()} == {
        "mail": [("a", "b"), ("e", "f")],
        "news": [("c", "d")],
    }
    assert [len(pairs) for pairs in plain.values()] == [1]
    assert list(plain) == [""]
    assert list(read_domains(tmp_path / "dev.tsv", 1)) == ["mail"]


@pytest.mark.parametrize(
    "second", [b"c\td", b"c\td\te\tf", b"c\td\t", b"c\t\tnews", b"\td\tnews", b"\xff\td\tnews", b""]
)
def test_malformed_line_with_a_domain_names_its_line(tmp_path: Path, second: bytes) -> None:
    (tmp_path / "dev.tsv").write_bytes(b"a\tb\tmail\n" + second + b"\n")

    with pytest.raises(CorpusError, match=r"dev\.tsv:2"):
        read_domains(tmp_path / "dev.tsv", None)


@pytest.mark.slow
def test_copy_has_a_confidence_and_is_otherwise_unchanged(
    fp32_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the references are translations of the model, so that some translations are good."""
    words = sorted({word for sentence in SENTENCES for word in sentence.rstrip(".").split()})
    sources = [f"{first} {second}." for first in words[:20] for second in words[:11]]
    with open_text_model([fp32_bundle], RuntimeSettings()) as (model, _):
        own = translate_texts(model, sources, beam_size=1, batch_size=64, shows_progress=False).texts
    references = [text if number % 3 else "Nein." for number, text in enumerate(own)]
    lines = [f"{source}\t{' '.join(text.split()) or '-'}\n" for source, text in zip(sources, references, strict=True)]
    with_domains = [f"{line.rstrip()}\t{'ab'[number % 2]}\n" for number, line in enumerate(lines)]
    (tmp_path / "dev.tsv").write_text("".join(with_domains), encoding="utf-8")
    command = ["confidence", "--bundle", str(fp32_bundle), "--data", str(tmp_path / "dev.tsv"), "--beam", "1"]

    assert main([*command, "--output", str(tmp_path / "new"), "--diagram", str(tmp_path / "diagram.png")]) == 0

    output = capsys.readouterr().out
    assert "with a confidence fitted on" in output
    assert "words of other lines" in output
    assert "dev.tsv b " in output
    before, after = load_manifest(fp32_bundle), open_bundle(tmp_path / "new").manifest
    assert after.confidence is not None
    assert after == before.model_copy(update={"confidence": after.confidence})
    assert after.confidence.weights.mean_log_prob >= 0
    assert (tmp_path / "diagram.png").stat().st_size
    assert main([*command, "--output", str(tmp_path / "none"), "--good-chrf", "99.99", "--limit", "40"]) == 1
    assert not (tmp_path / "none").exists()
