"""CTranslate2 with our weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ctranslate2

from loadtests.benchmarks.interface import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds

if TYPE_CHECKING:  # needs PyTorch, which a server over CTranslate2 does not
    from dragoman_export.onnx_export.network import Network

_LAYER_NORM_EPSILON: Final = 1e-5


class System:
    """A translator of CTranslate2: `inter_threads` are our streams, `intra_threads` the threads of each."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        self._translator = ctranslate2.Translator(
            str(files.ctranslate2_path),
            device=settings.device,
            compute_type={"int8": "int8", "fp16": "float16", "fp32": "float32"}[settings.precision],
            inter_threads=settings.num_streams,
            intra_threads=settings.num_threads,
        )

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source; CTranslate2 sorts by length and splits into batches."""
        results = self._translator.translate_batch(
            [list(map(str, source_ids)) for source_ids in sources],
            max_batch_size=batch_size,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            min_decoding_length=search.min_target_tokens,
            max_decoding_length=search.longest_target(sources),
            suppress_sequences=[[str(token_id)] for token_id in search.suppressed_tokens] or None,
            max_input_length=0,
            return_scores=True,
            return_end_token=True,
        )
        return [
            Output(token_ids=tuple(map(int, result.hypotheses[0])), score=float(result.scores[0])) for result in results
        ]


def convert(network: "Network", directory: Path) -> None:
    """Write a network for CTranslate2 in fp32, by way of Transformers; the words of its vocabulary are token ids."""
    from ctranslate2.converters import transformers as converters  # noqa: PLC0415 - needs PyTorch

    from loadtests.benchmarks import system_transformers  # noqa: PLC0415 - needs PyTorch

    config, model = network.config, system_transformers.convert(network)
    model.config.normalize_before, model.config.normalize_embedding = config.norm == "pre", False
    loader = converters.M2M100Loader if config.norm == "pre" else converters.BartLoader  # Marian has other padding
    spec = loader().get_model_spec(model)
    for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
        register([str(token_id) for token_id in range(config.vocabulary_size)])
    spec.config.layer_norm_epsilon = _LAYER_NORM_EPSILON
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.bos_token = spec.config.decoder_start_token = str(config.bos_id)
    spec.config.eos_token = str(config.eos_id)
    spec.config.unk_token = str(config.eos_id + 1)
    spec.validate()
    spec.optimize()
    directory.mkdir(parents=True)
    spec.save(str(directory))
