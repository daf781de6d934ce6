"""The SentencePiece vocabulary shared by source and target."""

import io
import multiprocessing
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from dragoman_export.errors import CorpusError, SettingError
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# Characters that each have a piece in vocabularies for Latin text: printable ASCII, Latin-1 and Latin Extended-A,
# letters of Romanian and Vietnamese, typographic punctuation, currency signs, arrows and common signs.
LATIN_CHARACTERS = "".join(
    (
        *(chr(code) for first, last in ((0x21, 0x7E), (0xA1, 0xAC), (0xAE, 0x17F)) for code in range(first, last + 1)),
        *("ƠơƯưȘșȚțẞ", "‐‑–—‘’‚“”„†‡•…‰′″‹›⁄", "₤₦₩₪₫€₱₴₹₺₽₿", "←↑→↓↔⇒⇔", "−≈≠≤≥∞√∑∂∆Ωπ", "№✓✔✗✘★☆■□▪●○◆"),
    )
)
_MIN_LATIN_SIZE = 4000  # of a vocabulary with these characters by default
_MIN_LATIN_SHARE = 0.5  # of the letters of its text

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3  # token ids of the special pieces in every trained vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyConfig:
    """Options of `train_vocabulary`."""

    size: int  # pieces, including special pieces and the 256 bytes
    normalization: str = "nmt_nfkc"  # SentencePiece rule stored in the model and applied before tokenization
    # unigram language model (Kudo 2018, arXiv:1804.10959) or BPE (Sennrich et al. 2016, arXiv:1508.07909)
    model_type: Literal["unigram", "bpe"] = "unigram"
    character_coverage: float = 0.9999  # share of characters with a piece; rarer ones are spelled in bytes
    required_characters: str = ""  # each has a piece, unless the normalization changes it
    reserved: tuple[str, ...] = ()  # pieces that are always in the vocabulary and never split
    target_languages: tuple[str, ...] = ()  # of a multilingual model, each with a token that no text contains


class TextCodec(Protocol):
    """Tokenizer interface of the trainer."""

    pad_id: int
    start_id: int  # first input of the decoder
    target_prefix: tuple[int, ...]  # first tokens of every target

    @property
    def reserved(self) -> tuple[str, ...]:
        """Reserved pieces."""

    def __len__(self) -> int:
        """V, the number of target tokens."""

    def language_prefix(self, source_language: str, target_language: str) -> tuple[int, ...]:
        """Return the token that starts the sources of a language pair; CorpusError if there is none."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each source, including prefix and suffix."""

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each target, EOS last."""

    def encode_sampled(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Return randomly sampled segmentations of sources or targets, deterministic per seed."""

    def decode(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of target ids."""


class ImportedCodec:
    """The tokenizer of an imported model, which may have separate sides and its own special tokens."""

    reserved: tuple[str, ...] = ()

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self.pad_id, self.start_id = tokenizer.pad_id, tokenizer.bos_id
        self.target_prefix = tokenizer.target_prefix

    def __len__(self) -> int:
        return self._tokenizer.vocabulary_size

    def language_prefix(self, source_language: str, target_language: str) -> tuple[int, ...]:
        """Return the token that starts the sources of a language pair; CorpusError if pairs have other tokens."""
        try:
            tokenizer = self._tokenizer.for_pair(source_language, target_language)
        except KeyError as error:
            raise CorpusError(f"the tokenizer does not support language {error}") from error
        if len(tokenizer.source_prefix) != 1 or tokenizer.target_prefix:
            pair = f"{source_language} to {target_language}"
            raise CorpusError(f"the tokenizer does not select {pair} with one source token: train one pair at a time")
        return tokenizer.source_prefix

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each source with its prefix and suffix."""
        return [self._tokenizer.encode_pair(text, "")[0] for text in texts]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each target, prefix first and EOS last."""
        return [self._tokenizer.encode_pair("", text)[1] for text in texts]

    def encode_sampled(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Raise SettingError: sampling is not supported for imported tokenizers."""
        del texts, seed
        raise SettingError("subword_sampling", alpha, "0 with an imported tokenizer")

    def decode(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of ids, without special tokens."""
        return [self._tokenizer.decode(ids) for ids in token_ids]


class Vocabulary:
    """A SentencePiece model with the special ids of this exporter."""

    pad_id, start_id = PAD_ID, BOS_ID
    target_prefix: tuple[int, ...] = ()

    def __init__(self, model: bytes) -> None:
        """Load a serialised model; CorpusError if it is invalid or has special ids other than 0 to 3."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise CorpusError(f"the vocabulary is not a SentencePiece model: {error}") from error
        special = tuple(getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk"))
        if special != (PAD_ID, BOS_ID, EOS_ID, UNK_ID):
            raise CorpusError(f"the vocabulary has pad, BOS, EOS, unknown at {special}, expected (0, 1, 2, 3)")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a SentencePiece model file; CorpusError if that fails."""
        try:
            model = path.read_bytes()
        except OSError as error:
            raise CorpusError(f"cannot read vocabulary {path}: {error.strerror}") from error
        return cls(model)

    def __len__(self) -> int:
        return int(self._processor.GetPieceSize())

    def language_prefix(self, source_language: str, target_language: str) -> tuple[int, ...]:
        """Return the token that starts the sources of a language pair; CorpusError if there is none."""
        del source_language
        token_id = self._processor.PieceToId(language_piece(target_language))
        if not self._processor.IsControl(token_id):
            raise CorpusError(f"the vocabulary has no control piece {language_piece(target_language)}")
        return (token_id,)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, EOS last, using all cores, or one in a worker process."""
        num_threads = 1 if multiprocessing.parent_process() else os.cpu_count() or 1
        return self._processor.encode(list(texts), add_eos=True, num_threads=num_threads)  # type: ignore[no-any-return]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the same as `encode`: both sides share one vocabulary."""
        return self.encode(texts)

    def encode_sampled(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Return randomly sampled segmentations, EOS last, deterministic per seed.

        With a unigram vocabulary a segmentation is drawn with its probability to the power of `alpha` (Kudo 2018,
        arXiv:1804.10959); with BPE each merge is skipped with probability `alpha` (Provilkov et al. 2020,
        arXiv:1910.13267). If SentencePiece would split a reserved piece, the text gets its most likely segmentation.
        """
        sentencepiece.set_random_generator_seed(seed)
        drawn = self._processor.encode(
            list(texts),
            add_eos=True,
            enable_sampling=True,
            alpha=alpha,
            nbest_size=-1,
            num_threads=1,  # with several threads the result would depend on their schedule
        )
        reserved_ids = frozenset(map(self._processor.PieceToId, self.reserved))
        with_reserved = [i for i, text in enumerate(texts) if any(piece in text for piece in self.reserved)]
        for i, whole in zip(with_reserved, self.encode([texts[i] for i in with_reserved]), strict=True):
            found, expected = ([token for token in ids if token in reserved_ids] for ids in (drawn[i], whole))
            if found != expected:
                drawn[i] = whole
        return drawn  # type: ignore[no-any-return]

    @cached_property
    def reserved(self) -> tuple[str, ...]:
        """Reserved pieces, in order; see `VocabularyConfig.reserved`."""
        return self._of_types("USER_DEFINED")

    def piece(self, token_id: int) -> str:
        """Return the spelling of a token, `▁` for a space."""
        return str(self._processor.IdToPiece(token_id))

    def spelled_by(self, other: "Vocabulary") -> list[list[int]]:
        """Return the tokens of `other` that spell each piece of this vocabulary; [] if it is reserved or a language."""
        model = other._parsed()
        ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
        for name in ("add_dummy_prefix", "remove_extra_whitespaces"):
            setattr(model.normalizer_spec, name, False)  # pieces within words must stay within words
        plain = sentencepiece.SentencePieceProcessor()
        plain.LoadFromSerializedProto(model.SerializeToString())
        reserved = self._of_types("USER_DEFINED", "CONTROL")
        return [
            [ids[piece]] if piece in ids else [] if piece in reserved else plain.encode(piece.replace("▁", " "))
            for piece in map(self.piece, range(len(self)))
        ]

    def _of_types(self, *names: str) -> tuple[str, ...]:
        pieces = self._parsed().pieces
        return tuple(piece.piece for piece in pieces if piece.type in {getattr(piece, name) for name in names})

    def _parsed(self) -> Any:
        return sentencepiece_model_pb2.ModelProto.FromString(self.model)  # type: ignore[attr-defined]

    def decode(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of ids, without special tokens."""
        return self._processor.decode([list(ids) for ids in token_ids])  # type: ignore[no-any-return]


def default_characters(sentences: Iterable[str], size: int) -> str:
    """Return the characters that a vocabulary of `size` pieces requires by default: `LATIN_CHARACTERS` or none."""
    letters = Counter(char for sentence in sentences for char in sentence if char.isalpha())
    latin = sum(count for char, count in letters.items() if unicodedata.name(char, "").startswith("LATIN "))
    return LATIN_CHARACTERS if size >= _MIN_LATIN_SIZE and latin >= _MIN_LATIN_SHARE * letters.total() else ""


def _kept(characters: str, normalization: str) -> str:
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=normalization)
    return "".join(dict.fromkeys(char for char in characters if normalizer.normalize(char) == f"▁{char}"))


def language_piece(target_language: str) -> str:
    """Return the piece that starts sources of a multilingual model (Johnson et al. 2017, arXiv:1611.04558)."""
    return f"<2{target_language}>"


def train_vocabulary(sentences: Iterator[str], config: VocabularyConfig) -> Vocabulary:
    """Learn a joint vocabulary with byte fallback; CorpusError if there is too little text for the size."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type=config.model_type,
            vocab_size=config.size,
            normalization_rule_name=config.normalization,
            character_coverage=config.character_coverage,
            required_chars=_kept(config.required_characters, config.normalization),
            byte_fallback=True,
            user_defined_symbols=list(config.reserved),
            control_symbols=list(map(language_piece, config.target_languages)),
            split_digits=True,  # numbers are copied digit by digit
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            num_threads=os.cpu_count() or 1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise CorpusError(f"cannot learn a vocabulary of {config.size} pieces: {error}") from error
    return Vocabulary(model.getvalue())
