"""Training beside other systems: plain PyTorch has the same network and loss."""

import numpy as np
import pytest
import torch

from dragoman_export.data.batches import Batch, make_batch
from dragoman_export.model.transformer import Transformer
from loadtests.peers.__main__ import main
from loadtests.peers.training import Dragoman, PlainPyTorch, padded_labels
from tests.unit.export.data.tiny_text import write_tsv
from tests.unit.export.model.tiny_models import tiny_config


def batch() -> Batch:
    sources, targets = [[5, 6, 7, 2], [5, 2]], [[9, 8, 2], [9, 2]]
    return make_batch(*([np.array(ids, dtype=np.int32) for ids in side] for side in (sources, targets)))


def test_labels_are_padded_as_they_were() -> None:
    assert padded_labels(batch()).tolist() == [[9, 8, 2], [9, 2, 0]]


def test_plain_pytorch_computes_the_same_loss() -> None:
    config = tiny_config(norm="pre", dropout=0.0)
    ours, theirs = Dragoman(config), PlainPyTorch(config)
    theirs.model.load_state_dict(as_plain(ours.network))

    torch.testing.assert_close(ours.loss(batch()), theirs.loss(batch()))


def as_plain(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the weights by the names of `torch.nn.Transformer`."""
    weights = {}
    blocks = ["self_attention", "cross_attention", "feed_forward"]
    norms = {"encoder": blocks[::2], "decoder": blocks}
    parts = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    for name, weight in model.state_dict().items():
        stack, _, rest = name.partition(".")
        if stack == "embedding":
            weights[name] = weight
            continue
        if not rest.startswith("layers."):
            weights[f"transformer.{name}"] = weight
            continue
        _, layer, block, *place = rest.split(".")
        prefix, kind = f"transformer.{stack}.layers.{layer}", place[-1]
        if block.endswith("_norm"):
            number = norms[stack].index(block.removesuffix("_norm")) + 1
            weights[f"{prefix}.norm{number}.{kind}"] = weight
        elif block == "feed_forward":
            weights[f"{prefix}.linear{1 if place[0] == 'inner' else 2}.{kind}"] = weight
        elif place[0] == "output":
            weights[f"{prefix}.{parts[block]}.out_proj.{kind}"] = weight
        else:  # query, key and value come in this order
            path = f"{prefix}.{parts[block]}.in_proj_{kind}"
            weights[path] = torch.cat([weights[path], weight]) if path in weights else weight
    return weights


@pytest.mark.slow
def test_speeds_are_told(tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_tsv(tmp_path_factory.mktemp("speed") / "train.tsv", 300)
    flags = ["--preset", "tiny", "--vocabulary-size", "320", "--batch-tokens", "128", "--turns", "1"]

    assert main(["train", "--data", str(text), *flags]) == 0

    rows = capsys.readouterr().out.splitlines()[3:]
    names = [f"{name}, {kind}" for name in ("dragoman", "torch.nn.Transformer") for kind in ("fp32", "bf16")]
    assert [row.split(" | ")[0].strip("| ") for row in rows if row][: len(names)] == names
