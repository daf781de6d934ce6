"""Ensembles average the probabilities of several networks."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dragoman_export.__main__ import main
from dragoman_export.errors import ExportError, SettingError
from dragoman_export.evaluation.ensemble import Ensemble, open_text_model
from dragoman_export.training.checkpoint import save_checkpoint
from dragoman_service.bundle.files import open_bundle
from dragoman_service.decoding.step_model import StepBatch
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import SENTENCES, build_tiny_bundle, tiny_model, tiny_vocabulary

ROUNDING = 1e-5  # Float32 sums of two probabilities in another order, in nats.


@pytest.fixture(scope="module")
def members(fp32_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two bundles of different depth and a run folder with a third network, all of one vocabulary."""
    folder = tmp_path_factory.mktemp("ensemble")
    build_tiny_bundle(folder / "two", precisions=("fp32", "int8"), seed=2, num_decoder_layers=1)
    model, vocabulary = tiny_model(len(tiny_vocabulary()), seed=3), tiny_vocabulary()
    (folder / "three").mkdir()
    content = {"model": model.state_dict(), "model_config": model.config.to_dict()}
    save_checkpoint(folder / "three" / "average.pt", content)
    (folder / "three" / "vocabulary.model").write_bytes(vocabulary.model)
    return [fp32_bundle, folder / "two", folder / "three"]


def test_step_returns_the_best_mean_probabilities(members: list[Path]) -> None:
    with open_text_model(members, RuntimeSettings()) as (model, precisions):
        ensemble = model.graph
        assert isinstance(ensemble, Ensemble)
        size, singles = ensemble.limits.vocabulary.size, ensemble._members
        sources = [model.tokenizer.encode_pair(text, "")[0] for text in SENTENCES[:3]]
        batches: list[StepBatch] = [each.new_batch() for each in (ensemble, *singles)]
        for each, batch in zip((ensemble, *singles), batches, strict=True):
            batch.start(each.encode(sources))
        tokens, parents = np.full((3, 2), ensemble.limits.vocabulary.bos_id), np.zeros((3, 2), np.int64)
        for step in range(3):  # segment 1 leaves, rows change places
            counts = [5] + [size] * len(singles)
            mean, *outputs = (b.step(tokens, parents, num_candidates=c) for b, c in zip(batches, counts, strict=True))
            probabilities = np.zeros((*tokens.shape, size))
            for output in outputs:
                shares = np.zeros_like(probabilities)
                np.put_along_axis(shares, output.token_ids, np.exp(output.log_probs.astype(np.float64)), axis=-1)
                probabilities += shares / len(singles)
            expected = np.sort(probabilities, axis=-1)[..., ::-1][..., :5]
            np.testing.assert_allclose(mean.log_probs, np.log(expected), atol=ROUNDING)
            found = np.take_along_axis(probabilities, mean.token_ids, axis=-1)
            np.testing.assert_allclose(found, expected, rtol=ROUNDING)
            tokens, parents = mean.token_ids[:, 0, :2].copy(), np.tile([1, 0] if step else [0, 0], (len(tokens), 1))
            if step == 1:
                for batch in batches:
                    batch.drop([0, 2])
                tokens, parents = tokens[[0, 2]], parents[[0, 2]]
        assert [batch.num_segments for batch in batches] == [2] * len(batches)
        weights = batches[0].cross_attention(1, [7, 2])
        np.testing.assert_array_equal(weights, batches[1].cross_attention(1, [7, 2]))
    assert precisions == "fp32+int8"


def test_evaluate_scores_an_ensemble(members: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test.tsv").write_text("A man.\tEin Mann.\n", encoding="utf-8")

    status = main(["evaluate", "--bundle", *map(str, members), "--data", str(tmp_path / "test.tsv"), "--beam", "2"])

    assert status == 0
    assert "fp32+int8, beam 2" in capsys.readouterr().out


def test_different_vocabularies_are_rejected(members: list[Path], tmp_path: Path) -> None:
    bundle = open_bundle(members[0])
    graph = OnnxStepModel(bundle, RuntimeSettings())
    other = OnnxStepModel(bundle, RuntimeSettings())
    vocabulary = dataclasses.replace(graph.limits.vocabulary, bos_id=0)
    other.limits = dataclasses.replace(graph.limits, vocabulary=vocabulary)
    with pytest.raises(ExportError, match="different vocabularies"):
        Ensemble([graph, other])

    with pytest.raises(SettingError, match="--shortlist"), open_text_model(members, RuntimeSettings(shortlist=True)):
        pass
