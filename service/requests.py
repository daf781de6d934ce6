"""What a caller asks for: texts, languages and options; all values are frozen."""

import enum
from dataclasses import dataclass, field


class AttentionDetail(enum.Enum):
    """How much of the cross-attention a caller gets."""

    NONE = "none"
    AVERAGED = "averaged"
    """The mean over the heads of one layer."""

    ALL_HEADS = "all_heads"
    """Each head of one layer."""


class LongSentencePolicy(enum.Enum):
    """What is done with a sentence that is longer than the model takes."""

    SPLIT = "split"
    """It is decoded in parts."""

    REFUSE = "refuse"
    """The request is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How a caller wants tokens drawn at random; None means the default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """Of the whole request; None: a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationOptions:
    """What a caller may choose; None means the server's default."""

    beam_size: int | None = None
    num_hypotheses: int | None = None
    length_penalty: float | None = None
    min_target_tokens: int | None = None
    max_target_tokens: int | None = None
    """Cap on target tokens of each sentence, EOS counted; None: tokens of source or prefix + 50, within the model's
    limit."""

    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    coverage_penalty: float | None = None
    early_stopping: bool | None = None
    repetition_guard: bool | None = None
    sampling: SamplingOptions | None = None
    """None: beam search."""

    target_prefix: str = ""
    """What the translation of each text begins with."""

    suppressed_tokens: tuple[str, ...] = ()
    """Pieces of the vocabulary that no translation may hold."""

    split_sentences: bool = True
    """Split each text into sentences that are decoded separately."""

    long_sentences: LongSentencePolicy = LongSentencePolicy.SPLIT
    """What is done with a sentence that is longer than the model takes."""

    return_scores: bool = False
    """Report the log-probability of each token."""

    return_tokens: bool = False
    """Report the subword pieces of each hypothesis."""

    return_alignment: bool = False
    """Report which piece of a hypothesis comes from which piece of the text."""

    return_attention: AttentionDetail = AttentionDetail.NONE
    """Report the cross-attention of each hypothesis."""

    @property
    def wants_attention(self) -> bool:
        """Whether the cross-attention must be computed."""
        return self.return_alignment or self.return_attention is not AttentionDetail.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRequest:
    """One call: texts of one language pair under one set of options."""

    texts: tuple[str, ...]
    source_language: str
    """BCP-47 tag, such as `en`."""

    target_language: str
    model: str = ""
    """`name` or `name/version`; empty: the default of the language pair."""

    options: TranslationOptions = field(default_factory=TranslationOptions)
    target_prefixes: tuple[str, ...] = ()
    """One for each text, in place of `options.target_prefix`; or none."""
