from dataclasses import replace
from statistics import correlation

import pytest
import torch

from export.model.config import PRESETS, ModelConfig
from export.model.transformer import Transformer
from loadtests.peers.models import end_by_itself, made_up_vocabulary
from loadtests.peers.pytorch_system import beam_search
from loadtests.peers.systems import SearchOptions
from loadtests.peers.work import random_sources

_CONFIG = replace(PRESETS["base"], vocabulary_size=500, num_encoder_layers=2, num_decoder_layers=2, norm="post")
_LENGTHS = (6, 12, 18, 24)


def test_targets_end_by_themselves_and_are_about_as_long_as_their_sources() -> None:
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(1)
        model = Transformer(_CONFIG).eval()
        end_by_itself(model, ratio=1.1)
        whole = random_sources(len(_LENGTHS), vocabulary_size=500, eos_id=2)
        sources = [source[-length:] for source, length in zip(whole, _LENGTHS, strict=True)]
        outputs = beam_search(model, sources, SearchOptions(beam_size=2, max_target_tokens=100))

    found = [len(output.token_ids) for output in outputs]
    assert all(output.token_ids[-1] == 2 for output in outputs)
    assert correlation(_LENGTHS, found) > 0.7  # what random weights say moves the end a little
    assert sum(found) / sum(_LENGTHS) == pytest.approx(1.1, abs=0.6)


@pytest.mark.parametrize("config", [replace(_CONFIG, d_model=32), replace(_CONFIG, norm="pre")])
def test_another_shape_is_refused(config: ModelConfig) -> None:
    with pytest.raises(ValueError, match="expected post-norm of 512"):
        end_by_itself(Transformer(config))


def test_a_made_up_vocabulary_has_the_size_asked_for() -> None:
    assert len(made_up_vocabulary(500)) == 500
