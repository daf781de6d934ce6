from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from dragoman_export.__main__ import main
from dragoman_export.cli.plot import attention_weights, plot_schedule
from dragoman_export.trained_model import open_model
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.bundle.files import open_bundle
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import SENTENCES
from tests.unit.export.tiny_training import save_model, store_settings, tiny_vocabulary

ROUNDING = 1e-5  # Float32 in two libraries; weights are at most 1.


def test_curves_are_plotted_from_the_log(tmp_path: Path) -> None:
    RunFolder(tmp_path).append("evaluation", step=1, loss=2.0, bleu=None)

    assert main(["plot", str(tmp_path)]) == 0
    assert imread(tmp_path / "curves.png").shape == (770, 1210, 4)


def test_plotted_weights_equal_the_graphs(fp32_bundle: Path) -> None:
    model, tokenizer = open_model(fp32_bundle)
    source_ids, target_ids = tokenizer.encode_pair(SENTENCES[0], SENTENCES[4])
    graph = OnnxStepModel(open_bundle(fp32_bundle), RuntimeSettings(precision="fp32"))
    batch = graph.new_batch()
    batch.start(graph.encode([source_ids]))

    weights = attention_weights(model, source_ids, target_ids)

    np.testing.assert_allclose(weights["cross"], batch.cross_attention(0, target_ids), atol=ROUNDING)
    for stack, columns in (("cross", len(source_ids)), ("encoder", len(source_ids)), ("decoder", len(target_ids))):
        assert weights[stack].shape[-1] == columns
        torch.testing.assert_close(weights[stack].sum(dim=-1), torch.ones(weights[stack].shape[:-1]))
    assert not weights["decoder"].triu(1).any()  # later tokens are masked


@pytest.mark.parametrize(
    "flags",
    [
        ["--picture", "attention", "--source", "The $ train $"],  # text between $ is not rendered as a formula
        ["--picture", "attention", "--source", "A ball.", "--target", "Ein Ball.", "--attention", "decoder"],
        ["--picture", "attention", "--source", "A ball.", "--attention", "encoder", "--layers", "2"],
        ["--picture", "positions", "--length", "600"],
    ],
)
def test_model_is_plotted(fp32_bundle: Path, tmp_path: Path, flags: list[str]) -> None:
    assert main(["plot", str(fp32_bundle), "--output", str(tmp_path / "drawn.png"), *flags]) == 0
    assert imread(tmp_path / "drawn.png").std() > 0


def test_checkpoint_is_plotted(tmp_path: Path) -> None:
    save_model(tmp_path / "average.pt")
    (tmp_path / "vocabulary.model").write_bytes(tiny_vocabulary().model)

    assert main(["plot", str(tmp_path), "--picture", "positions"]) == 0
    assert (tmp_path / "positions.png").exists()


def test_schedule_has_the_rates_of_both_optimizers(tmp_path: Path) -> None:
    store_settings(tmp_path)
    config = TrainingConfig(optimizer="muon", warmup_steps=10, max_steps=50, cooldown_steps=5)

    rates = [np.asarray(line.get_xydata()) for line in plot_schedule(config, d_model=64).axes[0].lines]

    assert main(["plot", str(tmp_path), "--picture", "schedule"]) == 0
    assert [each.shape for each in rates] == [(50, 2), (50, 2)]
    assert [each[:, 1].argmax() for each in rates] == [9, 9]
