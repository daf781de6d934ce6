"""The model that was imported, run by its own library, for proofs that nothing changed."""

import importlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor

from export.corpus.reader import Pair
from export.errors import ImportFormatError
from export.graph.arithmetic import FloatArray
from export.graph.translation import TextModel
from export.graph.verify import LOG_PROB_TOLERANCE, Check, score_exported
from export.importers.ctranslate2 import SpecialTokens, read_vocabularies
from export.importers.files import read_json
from service.bundle.files import Bundle
from service.datatypes import SearchConfig, Segment
from service.decoding.running_batch import RunningBatch
from service.decoding.step_model import StepModel
from service.text.pipeline import EXTRA_TARGET_TOKENS
from service.text.tokenizer import SentencePieceTokenizer

_MOST_OTHER_TARGETS: Final = 0.02
"""Share of sentences for which the two may find other targets: where two hypotheses score the same but for rounding."""

_PATIENCE: Final = 8
"""Times the beam, how many targets end before CTranslate2 ends a search, whether or not a better one is alive."""


class Original(Protocol):
    """A model by its own library, which searches by our rules where the two differ."""

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, by our numbers."""

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T, V] of every step of a given target, or [T] of its tokens alone."""

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; of the search only sizes and limits are obeyed."""


def open_original(directory: Path, bundle: Bundle, tokenizer: SentencePieceTokenizer) -> Original:
    """Return what a directory holds; ImportFormatError if its library is missing, or cannot load it."""
    if not (directory / "model.bin").is_file():
        return HuggingFaceOriginal(directory, tokenizer)
    manifest = bundle.manifest
    return CTranslate2Original(
        directory, tokenizer, bundle.directory / (manifest.tokenization.source_model or manifest.tokenizer)
    )


class CTranslate2Original:
    """A model directory of CTranslate2 on the CPU, in float32 whatever its weights are stored in, or in int8.

    It has no tokenizer; its own vocabularies say which pieces it knows. Its search has no length penalty here, and
    never chooses padding, unknown tokens or what decoding begins with.
    """

    def __init__(
        self, directory: Path, tokenizer: SentencePieceTokenizer, source_model: Path, *, compute_type: str = "float32"
    ) -> None:
        """Load the model; ImportFormatError if the library is missing, or cannot."""
        try:
            library = importlib.import_module("ctranslate2")
        except ImportError as error:
            raise _missing("ctranslate2") from error
        self._tokenizer = tokenizer
        self._tokens = SpecialTokens.read(directory)
        self._known, self._known_targets = map(frozenset, read_vocabularies(directory, self._tokens.unk))
        self._processor = SentencePieceProcessor(model_file=str(source_model))
        self._source_pieces = tokenizer.source_pieces(range(tokenizer.source_vocabulary_size))
        self._target_pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
        try:
            self._translator = library.Translator(str(directory), device="cpu", compute_type=compute_type)
        except (RuntimeError, ValueError) as error:
            raise ImportFormatError(f"ctranslate2 cannot load {directory}: {error}") from error

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, by our numbers."""
        tokenizer = self._tokenizer
        pieces = [str(piece) if piece in self._known else self._tokens.unk for piece in self._split(source)]
        ids = [self._source_pieces.index(piece) for piece in pieces]
        return [*tokenizer.source_prefix, *ids, *tokenizer.source_suffix]

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T] of the tokens of a given target, EOS last."""
        targets = [self._target_pieces[token_id] for token_id in target_ids[:-1]]
        (scored,) = self._translator.score_batch([self._source(source_ids)], [targets], max_input_length=0)
        return np.asarray(scored.log_probs, dtype=np.float32)

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; of the search only sizes and limits are obeyed."""
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

    def _split(self, source: str) -> list[str]:
        return [str(piece) for piece in self._processor.EncodeAsPieces(source)]

    def _source(self, source_ids: Sequence[int]) -> list[str]:
        """Return the tokens of a source, without those that CTranslate2 adds."""
        end = len(source_ids) - self._tokens.adds_eos
        return [self._source_pieces[token_id] for token_id in source_ids[int(self._tokens.adds_bos) : end]]


class HuggingFaceOriginal:
    """A model of Hugging Face transformers, in float32 on the CPU, for the languages that an imported tokenizer is for.

    It searches by our rules, where the two differ: no length penalty, neither padding nor unknown tokens in targets, no
    second normalisation of what these rules leave, no forced end at the longest target.
    """

    def __init__(self, directory: Path, tokenizer: SentencePieceTokenizer) -> None:
        """Load model and tokenizer; ImportFormatError if the library is missing, or cannot."""
        library = _transformers()
        self._tokenizer = tokenizer
        self._text_prefix, languages = _languages(directory, tokenizer)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of packages that would do what no translation needs
                self._original = library.AutoTokenizer.from_pretrained(directory, local_files_only=True, **languages)
            self._model = library.AutoModelForSeq2SeqLM.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False, dtype=torch.float32
            ).eval()
        except (OSError, ValueError, RuntimeError) as error:
            raise ImportFormatError(f"transformers cannot load {directory}: {error}") from error
        self._new_config = library.GenerationConfig

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, tag and EOS included."""
        ids: list[int] = self._original(self._text_prefix + source).input_ids
        return ids

    def encode_target(self, target: str) -> list[int]:
        """Return all token ids of a target, tag and EOS included."""
        ids: list[int] = self._original(text_target=target).input_ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a target, special tokens left out."""
        return str(self._original.decode(list(token_ids), skip_special_tokens=True))

    @torch.inference_mode()
    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T, V] of every step of a given target, EOS last."""
        inputs = torch.tensor([[self._tokenizer.bos_id, *target_ids[:-1]]])
        logits = self._model(input_ids=torch.tensor([list(source_ids)]), decoder_input_ids=inputs).logits
        log_probs: FloatArray = torch.log_softmax(logits[0].float(), dim=-1).numpy()
        return log_probs

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; of the search only sizes and limits are obeyed."""
        tokenizer = self._tokenizer
        # As that of the model: what is asked for beside it would be filled up with the model's own defaults.
        self._model.generation_config = self._new_config(
            num_beams=search.beam_size,
            min_new_tokens=search.min_target_tokens,
            max_new_tokens=search.max_target_tokens,
            length_penalty=0.0,
            bad_words_ids=[[token_id] for token_id in (tokenizer.pad_id, tokenizer.unk_id)],
            forced_bos_token_id=tokenizer.target_prefix[0] if tokenizer.target_prefix else None,
            pad_token_id=tokenizer.pad_id,
            eos_token_id=tokenizer.eos_id,
            decoder_start_token_id=tokenizer.bos_id,
        )
        ids: list[int] = self._model.generate(torch.tensor([list(source_ids)]))[0, 1:].tolist()
        return ids


def check_original(original: Original, model: TextModel, pairs: Sequence[Pair], *, beam_size: int) -> Iterator[Check]:
    """Compare token ids, log-probabilities at every step, and searches, sentence by sentence.

    Args:
        original: by its own library.
        model: the float32 graphs.
        pairs: real sentences.
        beam_size: of the searches.
    """
    tokenizer, limits = model.tokenizer, (model.max_source_tokens, model.max_target_tokens)
    differing = [pair for pair in pairs if tokenizer.encode_pair(pair.source, "")[0] != original.encode(pair.source)]
    of_all = f"of {len(pairs)} sentences"
    yield Check(claim="token ids = original", measured=len(differing), limit=0, unit="sentences", detail=of_all)
    ids = [tokenizer.encode_pair(pair.source, pair.target) for pair in pairs]
    fitting = [pair for pair in ids if all(len(side) <= limit for side, limit in zip(pair, limits, strict=True))]
    largest = max((_largest_difference(original, model.graph, *pair) for pair in fitting), default=0.0)
    detail = f"largest over {sum(len(target) for _, target in fitting)} target tokens of {len(fitting)} sentences"
    claim = "ONNX fp32 = original"
    yield Check(claim=claim, measured=largest, limit=LOG_PROB_TOLERANCE, unit="nats", detail=detail)
    searches = [(source, _search(model, source, beam_size)) for source, _ in fitting]
    unequal = sum(search_exported(model.graph, *each) != original.search(*each) for each in searches)
    claim, most = f"beam {beam_size} = original", _MOST_OTHER_TARGETS * len(searches)
    yield Check(claim=claim, measured=unequal, limit=most, unit="sentences", detail=f"of {len(searches)} sentences")


def _search(model: TextModel, source_ids: Sequence[int], beam_size: int) -> SearchConfig:
    """Return a search by rules that both obey."""
    return SearchConfig(
        beam_size=beam_size,
        length_penalty=0.0,
        max_target_tokens=min(len(source_ids) + EXTRA_TARGET_TOKENS, model.max_target_tokens),
        target_prefix=model.tokenizer.target_prefix,
    )


def search_exported(graph: StepModel, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
    """Return the best target that our search finds with a graph, EOS last if it ends."""
    batch = RunningBatch(graph)
    batch.start([Segment(source_ids=tuple(source_ids), search=search)])
    while not (ended := batch.step().ended):
        pass
    return list(ended[0].hypotheses[0].token_ids)


def _largest_difference(original: Original, graph: StepModel, source_ids: list[int], target_ids: list[int]) -> float:
    ours = np.concatenate(list(score_exported(graph, [(source_ids, target_ids)])))
    theirs = original.score(source_ids, target_ids)
    if theirs.ndim == 1:
        ours = ours[range(len(target_ids)), target_ids]
    return float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else math.inf


def _languages(directory: Path, tokenizer: SentencePieceTokenizer) -> tuple[str, dict[str, str]]:
    """Return what the original wants before each source, and the names of its languages."""
    source, target = (
        tokenizer.source_pieces(tokenizer.source_prefix),
        tokenizer.pieces(tokenizer.target_prefix),
    )
    if read_json(directory / "config.json").get("model_type") == "marian":
        return "".join(f"{tag} " for tag in source), {}
    return "", {"src_lang": source[0].strip("_"), "tgt_lang": target[0].strip("_")} if source and target else {}


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise _missing("transformers") from error


def _missing(library: str) -> ImportFormatError:
    return ImportFormatError(f"to compare with the original, install what runs it: pip install {library}")
