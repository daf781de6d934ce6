"""The networks whose training speed is compared are the same size and learn."""

import json
from pathlib import Path

import pytest
import torch

from dragoman_export.model.config import PRESETS
from dragoman_export.model.transformer import Transformer
from loadtests.benchmarks import train
from loadtests.benchmarks.__main__ import main

CONFIG = PRESETS["tiny"]


def test_networks_have_the_same_layers() -> None:
    own = Transformer(CONFIG)

    for other in (train.marian(CONFIG), train.PlainTransformer(CONFIG)):
        layers = [weight.numel() for name, weight in other.named_parameters() if ".layers." in name]
        assert sum(layers) == sum(weight.numel() for name, weight in own.named_parameters() if ".layers." in name)


def test_a_step_of_each_system_changes_the_weights() -> None:
    torch.manual_seed(1)
    (batch,) = train.make_batches(CONFIG, 200, 1)
    network = train.PlainTransformer(CONFIG)
    before = network.embedding.weight.detach().clone()

    train.other_step(network)(batch)
    train.own_step(CONFIG)(batch)

    assert not torch.equal(network.embedding.weight, before)


def test_speeds_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--preset", "tiny", "--batch-tokens", "200", "--batches", "2", "--repetitions", "1"]

    assert main(["train", *flags, "--output", str(tmp_path)]) == 0

    record = json.loads((tmp_path / train.NAME).read_text())
    assert record["systems"].keys() == {"dragoman", "transformers", "torch.nn.Transformer"}
    speeds = {name: one["tokens_per_s"] for name, one in record["systems"].items()}
    assert record["ratio"] == speeds["dragoman"] / max(speeds["transformers"], speeds["torch.nn.Transformer"])
    assert capsys.readouterr().out.count("tokens_per_s=") == 3
