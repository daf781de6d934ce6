"""Messages that fill every kind of field, and the values that the client makes of them."""

from google.protobuf import duration_pb2

from dragoman.client.message_mapping import from_message
from dragoman.client.models import Model
from dragoman.client.results import TranslationResult
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
                    alignment=[pb.AlignmentLink(source=pb.Span(end=5), target=pb.Span(end=6), weight=0.75)],
                )
            ],
            sentences=[pb.Sentence(source=pb.Span(end=6), target=pb.Span(end=6), num_source_tokens=3, score=0.5)],
            warnings=[
                pb.TranslationWarning(
                    kind=pb.WARNING_KIND_TRUNCATED,
                    message="3 tokens",
                    sentence_index=0,
                    source=pb.Span(start=1, end=4),
                )
            ],
        )
    ],
    model_name="tiny",
    model_version="3",
    timings=pb.StageTimings(queue=duration_pb2.Duration(nanos=1_000_000), decode=duration_pb2.Duration(seconds=1)),
    num_source_tokens=3,
    num_target_tokens=3,
    request_id="r-1",
    detected_language=pb.DetectedLanguage(language="en", confidence=0.75, is_served=True),
)
RESULT = from_message(TranslationResult, RESPONSE)

MODEL_MESSAGE = pb.Model(
    name="tiny",
    versions=[
        pb.ModelVersion(
            version="3",
            state=pb.MODEL_STATE_READY,
            is_default=True,
            language_groups=[pb.LanguageGroup(source_languages=["en"], target_languages=["de"], is_default=True)],
            precision=pb.PRECISION_INT8,
            limits=pb.ModelLimits(max_source_tokens=256, max_target_tokens=512, max_texts=128),
            labels=["canary", "stable"],
        )
    ],
)
MODEL = from_message(Model, MODEL_MESSAGE)
