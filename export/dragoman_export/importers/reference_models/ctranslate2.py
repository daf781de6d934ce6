"""CTranslate2 models, run by CTranslate2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from sentencepiece import SentencePieceProcessor

from dragoman_export.importers.ctranslate2.text import SpecialTokens, read_vocabularies
from dragoman_export.importers.reference_models.original import load_modules, loading
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.datatypes import SearchConfig
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_PATIENCE: Final = 8  # finished hypotheses, in multiples of the beam, before CTranslate2 ends a search


class CTranslate2Original:
    """A CTranslate2 model on the CPU, in float32 or int8.

    CTranslate2 has no tokenizer; its vocabularies define the known pieces. The search has no length penalty and never
    generates padding, unknown tokens or the start token.
    """

    narrows_beam = False

    def __init__(
        self, directory: Path, tokenizer: SentencePieceTokenizer, source_model: Path, *, compute_type: str = "float32"
    ) -> None:
        (library,) = load_modules("ctranslate2", install="ctranslate2")
        self._tokenizer = tokenizer
        self._tokens = SpecialTokens.read(directory)
        self._known, self._known_targets = map(frozenset, read_vocabularies(directory, self._tokens.unk))
        self._processor = SentencePieceProcessor(model_file=str(source_model))
        self._source_pieces = tokenizer.source_pieces(range(tokenizer.source_vocabulary_size))
        self._target_pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
        with loading("ctranslate2", directory):
            self._translator = library.Translator(str(directory), device="cpu", compute_type=compute_type)

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, as the bundle numbers them."""
        tokenizer = self._tokenizer
        pieces = map(str, self._processor.EncodeAsPieces(source))
        ids = [self._source_pieces.index(piece if piece in self._known else self._tokens.unk) for piece in pieces]
        return [*tokenizer.source_prefix, *ids, *tokenizer.source_suffix]

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T] of the tokens of a target, EOS last."""
        targets = [self._target_pieces[token_id] for token_id in target_ids[:-1]]
        (scored,) = self._translator.score_batch([self._source(source_ids)], [targets], max_input_length=0)
        return np.asarray(scored.log_probs, dtype=np.float32)

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; only sizes and limits of `search` apply."""
        tokenizer = self._tokenizer
        never = {self._target_pieces[token_id] for token_id in (tokenizer.pad_id, tokenizer.bos_id)}
        never -= {self._tokens.eos}
        (result,) = self._translator.translate_batch(
            [self._source(source_ids)],
            [[self._target_pieces[token_id] for token_id in tokenizer.target_prefix]],
            beam_size=search.beam_size,
            patience=_PATIENCE if search.beam_size > 1 else 1,
            length_penalty=0.0,
            disable_unk=True,
            suppress_sequences=[[piece] for piece in sorted(never & self._known_targets)],
            min_decoding_length=search.min_target_tokens,
            max_decoding_length=search.max_target_tokens,
            max_input_length=0,
            return_end_token=True,
        )
        return [self._target_pieces.index(piece) for piece in result.hypotheses[0]]

    def _source(self, source_ids: Sequence[int]) -> list[str]:
        # Tokens of a source, except those that CTranslate2 adds.
        end = len(source_ids) - self._tokens.adds_eos
        return [self._source_pieces[token_id] for token_id in source_ids[int(self._tokens.adds_bos) : end]]
