"""CTranslate2 with our weights."""

from collections.abc import Sequence

import ctranslate2

from loadtests.peers.model_files import ModelFiles
from loadtests.peers.systems import Output, SearchOptions, SystemSettings, TokenIds

_COMPUTE_TYPES = {"int8": "int8", "fp32": "float32"}


class CTranslate2System:
    """A translator of CTranslate2: `inter_threads` are our streams, `intra_threads` the threads of each."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        """Load the converted model, which is quantized now if int8 is asked for."""
        self._translator = ctranslate2.Translator(
            str(files.ctranslate2_path),
            device="cpu",
            compute_type=_COMPUTE_TYPES[settings.precision],
            inter_threads=settings.num_streams,
            intra_threads=settings.num_threads,
        )

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order; CTranslate2 sorts by length and cuts into batches."""
        results = self._translator.translate_batch(
            [list(map(str, source_ids)) for source_ids in sources],
            max_batch_size=batch_size,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            min_decoding_length=search.min_target_tokens,
            max_decoding_length=search.longest_target(max(map(len, sources))),
            suppress_sequences=[[str(token_id)] for token_id in search.suppressed_tokens] or None,
            max_input_length=0,
            return_scores=True,
            return_end_token=True,
        )
        return [
            Output(token_ids=tuple(map(int, result.hypotheses[0])), score=float(result.scores[0])) for result in results
        ]

    def close(self) -> None:
        """Unload the model."""
        self._translator.unload_model()
