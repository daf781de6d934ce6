"""Messages that fill every field that matters, and what the client makes of them."""

from google.protobuf import duration_pb2

from dragoman.enums import ModelState, Precision, WarningKind
from dragoman.models import EvaluationScore, LanguageGroup, LanguagePair, Model, ModelLimits, ModelVersion
from dragoman.results import (
    AlignmentLink,
    CrossAttention,
    DetectedLanguage,
    Hypothesis,
    Pivot,
    Sentence,
    Span,
    StageTimings,
    Translation,
    TranslationResult,
    TranslationWarning,
)
from dragoman.v1 import translation_pb2 as pb

RESPONSE = pb.TranslateResponse(
    translations=[
        pb.Translation(
            hypotheses=[
                pb.Hypothesis(
                    text="Hallo.",
                    score=-0.5,
                    tokens=["▁Hallo", ".", "</s>"],
                    token_log_probs=[-0.25, -0.125, -0.5],
                    alignment=[pb.AlignmentLink(source=pb.Span(end=5), target=pb.Span(end=5), weight=0.75)],
                    attention=[
                        pb.CrossAttention(
                            source_pieces=["▁Hello", "</s>"],
                            target_pieces=["▁Hallo", "</s>"],
                            num_heads=1,
                            layer=4,
                            weights=[0.75, 0.25, 0.5, 0.5],
                        )
                    ],
                )
            ],
            sentences=[
                pb.Sentence(
                    source=pb.Span(end=6),
                    target=pb.Span(end=6),
                    num_source_tokens=3,
                    num_target_tokens=3,
                    is_truncated=True,
                    score=-0.5,
                )
            ],
            warnings=[
                pb.TranslationWarning(kind=pb.WARNING_KIND_TRUNCATED, message="limit of 3 tokens", sentence_index=0)
            ],
        )
    ],
    model_name="tiny",
    model_version="3",
    timings=pb.StageTimings(
        queue=duration_pb2.Duration(nanos=1_000_000),
        encode=duration_pb2.Duration(nanos=2_000_000),
        decode=duration_pb2.Duration(seconds=1),
        text=duration_pb2.Duration(nanos=500_000),
    ),
    num_source_tokens=3,
    num_target_tokens=3,
    request_id="r-1",
    detected_language=pb.DetectedLanguage(language="en", confidence=0.75, is_served=True),
    pivot=pb.Pivot(language="fr", model_name="en-fr", model_version="2"),
)

RESULT = TranslationResult(
    translations=(
        Translation(
            hypotheses=(
                Hypothesis(
                    text="Hallo.",
                    score=-0.5,
                    tokens=("▁Hallo", ".", "</s>"),
                    token_log_probs=(-0.25, -0.125, -0.5),
                    alignment=(AlignmentLink(source=Span(start=0, end=5), target=Span(start=0, end=5), weight=0.75),),
                    attention=(
                        CrossAttention(
                            source_pieces=("▁Hello", "</s>"),
                            target_pieces=("▁Hallo", "</s>"),
                            num_heads=1,
                            layer=4,
                            weights=(0.75, 0.25, 0.5, 0.5),
                        ),
                    ),
                ),
            ),
            sentences=(
                Sentence(
                    source=Span(start=0, end=6),
                    target=Span(start=0, end=6),
                    num_source_tokens=3,
                    num_target_tokens=3,
                    is_truncated=True,
                    is_split=False,
                    score=-0.5,
                ),
            ),
            warnings=(TranslationWarning(kind=WarningKind.TRUNCATED, message="limit of 3 tokens", sentence_index=0),),
        ),
    ),
    model_name="tiny",
    model_version="3",
    timings=StageTimings(queue_s=0.001, encode_s=0.002, decode_s=1.0, text_s=0.0005),
    num_source_tokens=3,
    num_target_tokens=3,
    request_id="r-1",
    detected_language=DetectedLanguage(language="en", confidence=0.75, is_served=True),
    pivot=Pivot(language="fr", model_name="en-fr", model_version="2"),
)

MODEL_MESSAGE = pb.Model(
    name="tiny",
    versions=[
        pb.ModelVersion(
            version="3",
            state=pb.MODEL_STATE_READY,
            is_default=True,
            language_pairs=[pb.LanguagePair(source_language="en", target_language="de", is_default=True)],
            precision=pb.PRECISION_INT8,
            limits=pb.ModelLimits(
                max_source_tokens=256,
                max_target_tokens=512,
                max_texts=128,
                max_text_characters=10_000,
                max_document_characters=1_000_000,
            ),
            evaluation_scores=[
                pb.EvaluationScore(
                    metric="BLEU",
                    test_set="newstest2020",
                    source_language="en",
                    target_language="de",
                    value=30.5,
                    signature="nrefs:1|case:mixed",
                )
            ],
            unsupported_fields=["options.sampling"],
            labels=["canary", "stable"],
            language_groups=[
                pb.LanguageGroup(source_languages=["en"], target_languages=["de"], is_default=True),
            ],
        )
    ],
)

MODEL = Model(
    name="tiny",
    versions=(
        ModelVersion(
            version="3",
            state=ModelState.READY,
            state_message="",
            is_default=True,
            language_pairs=(LanguagePair(source_language="en", target_language="de", is_default=True),),
            precision=Precision.INT8,
            limits=ModelLimits(
                max_source_tokens=256,
                max_target_tokens=512,
                max_texts=128,
                max_text_characters=10_000,
                max_document_characters=1_000_000,
            ),
            evaluation_scores=(
                EvaluationScore(
                    metric="BLEU",
                    test_set="newstest2020",
                    source_language="en",
                    target_language="de",
                    value=30.5,
                    signature="nrefs:1|case:mixed",
                ),
            ),
            unsupported_fields=("options.sampling",),
            labels=("canary", "stable"),
            language_groups=(LanguageGroup(source_languages=("en",), target_languages=("de",), is_default=True),),
        ),
    ),
)
