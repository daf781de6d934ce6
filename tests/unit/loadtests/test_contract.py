from collections.abc import Callable

import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb
from google.rpc import status_pb2

from loadtests.contract import document_faults, meaning, stream_answers, translate_faults

Change = Callable[[pb.TranslateResponse], object]

TEXT = "- A man.\n\tTwo  men."


def sentence(source: tuple[int, int], target: tuple[int, int], **fields: object) -> pb.Sentence:
    return pb.Sentence(
        source=pb.Span(start=source[0], end=source[1]),
        target=pb.Span(start=target[0], end=target[1]),
        num_source_tokens=3,
        num_target_tokens=4,
        **fields,  # type: ignore[arg-type]
    )


def request(**fields: object) -> pb.TranslateRequest:
    options = pb.DecodingOptions(max_target_tokens=4)
    return pb.TranslateRequest(**{"texts": [TEXT, " \n"], "options": options, **fields})  # type: ignore[arg-type]


def response() -> pb.TranslateResponse:
    translated = pb.Translation(
        hypotheses=[
            pb.Hypothesis(
                text="- Ein Mann.\n\tZwei.",
                score=-1.0,
                tokens=["a", "b"],
                token_log_probs=[-1.0, -2.0],
                alignment=[
                    pb.AlignmentLink(source=pb.Span(start=2, end=3), target=pb.Span(start=2, end=5), weight=0.5),
                    pb.AlignmentLink(source=pb.Span(start=4, end=8), target=pb.Span(start=6, end=11), weight=1.0),
                ],
                attention=[
                    pb.CrossAttention(source_pieces=["a"], target_pieces=["b"], num_heads=1, weights=[1.0]),
                ],
            )
        ],
        sentences=[sentence((2, 8), (2, 11)), sentence((10, 19), (13, 18), is_truncated=True)],
        warnings=[pb.TranslationWarning(kind=pb.WARNING_KIND_TRUNCATED, message="cut off", sentence_index=1)],
    )
    copied = pb.Translation(hypotheses=[pb.Hypothesis(text=" \n", score=0.0)])
    return pb.TranslateResponse(
        translations=[translated, copied],
        model_name="tiny",
        model_version="1",
        request_id="r1",
        num_source_tokens=6,
        num_target_tokens=8,
    )


def first(answer: pb.TranslateResponse) -> pb.Translation:
    return answer.translations[0]


def best(answer: pb.TranslateResponse) -> pb.Hypothesis:
    return answer.translations[0].hypotheses[0]


def test_a_good_answer_has_no_fault() -> None:
    assert list(translate_faults(request(), response())) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda answer: answer.translations.pop(), "2 texts have 1 translations"),
        (lambda answer: answer.ClearField("model_name"), "lacks the names"),
        (lambda answer: setattr(answer, "num_source_tokens", 7), "source tokens of the sentences do not add up"),
        (lambda answer: setattr(answer, "num_target_tokens", 7), "target tokens of the sentences do not add up"),
        (lambda answer: first(answer).ClearField("hypotheses"), "no hypothesis"),
        (lambda answer: setattr(best(answer), "text", "- Ein Mann.\n Zwei."), "at 10 is not copied"),
        (lambda answer: setattr(best(answer), "text", best(answer).text + "\n"), "last sentence is not copied"),
        (lambda answer: setattr(first(answer).sentences[1].source, "end", 20), "out of order or range: 10..20"),
        (lambda answer: setattr(first(answer).sentences[1].source, "start", 7), "out of order or range: 7..19"),
        (lambda answer: setattr(first(answer).sentences[1].target, "end", 99), "out of order or range: 13..99"),
        (lambda answer: setattr(answer.translations[1].hypotheses[0], "text", "\n"), "texts[1]: a text without"),
        (lambda answer: setattr(best(answer), "text", "- Ein\0Mann.\n\tZwei."), "a NUL that was not sent"),
        (lambda answer: setattr(best(answer), "score", float("nan")), "the score is nan"),
        (lambda answer: setattr(best(answer), "score", 0.5), "the score is 0.5"),
        (lambda answer: best(answer).token_log_probs.__setitem__(0, float("-inf")), "no number of 0 or less"),
        (lambda answer: best(answer).tokens.pop(), "differ in number"),
        (lambda answer: first(answer).hypotheses.append(best(answer)), "2 hypotheses, 0 were asked for"),
        (lambda answer: setattr(best(answer).alignment[1].source, "end", 20), "a link is out of range: 4..20 to 6..11"),
        (lambda answer: setattr(best(answer).alignment[1].target, "end", 19), "a link is out of range: 4..8 to 6..19"),
        (lambda answer: setattr(best(answer).alignment[1], "weight", 1.5), "the weight of a link is 1.5"),
        (lambda answer: setattr(best(answer).alignment[1].target, "start", 4), "the links are not in order"),
        (lambda answer: best(answer).attention[0].weights.pop(), "not one number for each head"),
        (lambda answer: best(answer).attention[0].weights.__setitem__(0, 2.0), "share of the attention is none"),
        (lambda answer: first(answer).warnings.pop(), "truncated and warnings of it differ"),
        (lambda answer: setattr(first(answer).sentences[0], "is_split", True), "split and warnings of it differ"),
        (lambda answer: setattr(first(answer).warnings[0], "message", ""), "a warning is empty"),
        (lambda answer: setattr(first(answer).warnings[0], "kind", 99), "a warning of kind 99"),
        (lambda answer: setattr(first(answer).warnings[0], "sentence_index", 2), "about sentence 2 of 2"),
    ],
)
def test_each_fault_is_seen(change: Change, fault: str) -> None:
    answer = response()
    change(answer)

    assert any(fault in found for found in translate_faults(request(), answer))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"request_id": "r2"}, "another request id: 'r1'"),
        ({"options": pb.DecodingOptions(max_target_tokens=3)}, "4 target tokens, over the limit of 3"),
        ({"texts": [TEXT.replace("Two  men", "........"), " \n"]}, "without a letter or digit was translated"),
        ({"texts": [TEXT, "a man"]}, "a text with a word in it was not translated"),
    ],
)
def test_an_answer_to_another_request_is_seen(fields: dict[str, object], fault: str) -> None:
    assert any(fault in found for found in translate_faults(request(**fields), response()))


def test_a_translation_of_more_than_its_tokens_can_hold_is_seen() -> None:
    answer = response()
    longer = best(answer).text[:-1] + "i" * 200 + "."
    best(answer).text = longer
    answer.translations[0].sentences[1].target.end = len(longer)

    assert "texts[0]: 4 target tokens came to 205 characters" in translate_faults(request(), answer)


def test_what_stands_between_the_parts_of_a_sentence_is_no_translation() -> None:
    marks = "\u0301" * 1000
    placed = sentence((0, 1002), (0, 1002), is_split=True)
    warning = pb.TranslationWarning(kind=pb.WARNING_KIND_SOURCE_SPLIT, message="in 2 parts", sentence_index=0)
    answer = pb.TranslateResponse(
        translations=[
            pb.Translation(hypotheses=[pb.Hypothesis(text=f"x{marks}y")], sentences=[placed], warnings=[warning])
        ],
        model_name="tiny",
        model_version="1",
        request_id="r1",
        num_source_tokens=3,
        num_target_tokens=4,
    )

    assert list(translate_faults(pb.TranslateRequest(texts=[f"a{marks}b"]), answer)) == []


def test_a_nul_of_a_prefix_is_its_own() -> None:
    answer = response()
    best(answer).text = "- Ein\0Mann.\n\tZwei."

    assert list(translate_faults(request(target_prefixes=["Ein\0", ""]), answer)) == []


def message(index: int, text: str, placed: pb.Sentence | None = None, *, best: str = "") -> pb.TranslatedSentence:
    hypotheses = [pb.Hypothesis(text=best, score=-1.0)] if placed else []
    return pb.TranslatedSentence(
        index=index,
        text=text,
        sentence=placed,
        hypotheses=hypotheses,
        model_name="m",
        model_version="1",
        request_id="r",
    )


def document() -> list[pb.TranslatedSentence]:
    return [
        message(0, "- Ein Mann.", sentence((2, 8), (2, 11)), best="Ein Mann."),
        message(1, "\n\tZwei.", sentence((10, 19), (13, 18)), best="Zwei."),
    ]


def test_a_good_document_has_no_fault() -> None:
    asked = pb.TranslateDocumentRequest(text=TEXT)

    assert list(document_faults(asked, document(), is_complete=True)) == []
    assert list(document_faults(asked, document()[:1], is_complete=False)) == []
    assert list(document_faults(asked, [], is_complete=False)) == []


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "no message came"),
        (document()[:1], "last sentence is not copied"),
        (document()[::-1], "do not come in order: [1, 0]"),
        ([document()[0], document()[0]], "do not come in order: [0, 0]"),
        ([document()[0], message(1, "\n\tZwei.", sentence((4, 19), (13, 18)))], "a span of the source is out of order"),
        (
            [document()[0], message(1, "\n\tZwei.", sentence((10, 19), (13, 18)), best="Drei")],
            "sentence 1 is not where",
        ),
        ([document()[0], message(1, "\n Zwei.", sentence((10, 19), (13, 18)))], "at 10 is not copied"),
        ([message(0, "- A man.\n")], "a text without a sentence is not copied"),
        ([message(0, TEXT)], "a text with a word in it was not translated"),
    ],
)
def test_each_fault_of_a_document_is_seen(messages: list[pb.TranslatedSentence], fault: str) -> None:
    found = list(document_faults(pb.TranslateDocumentRequest(text=TEXT), messages, is_complete=True))

    assert any(fault in one for one in found)


def test_a_document_keeps_its_names() -> None:
    asked, messages = pb.TranslateDocumentRequest(text=TEXT), document()
    messages[1].model_version = "2"

    assert list(document_faults(asked, messages, is_complete=True)) == [
        "the names of model and request change between messages"
    ]
    assert list(document_faults(asked, document(), is_complete=True, request_id="own")) == [
        "messages have another request id: r"
    ]


def test_answers_of_a_stream_are_paired_by_their_ids() -> None:
    refused = pb.TranslateResponse(request_id="b", error=status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0]))
    sent = [request(request_id="r1"), request(request_id="b"), request(request_id="c")]

    found = stream_answers(sent, [refused, response()])

    assert found.statuses == {"r1": "OK", "b": "NOT_FOUND"}
    assert (found.twice, found.faults) == ([], [])


def test_an_answer_that_comes_twice_or_was_never_asked_for_is_told() -> None:
    foreign = response()
    foreign.request_id = "z"

    found = stream_answers([request(request_id="r1")], [response(), response(), foreign])

    assert found.twice == ["r1 was answered 2 times"]
    assert found.faults == ["'z' was answered over a stream that never asked it"]


def test_the_meaning_of_an_answer_is_all_but_version_id_and_times() -> None:
    first_time, again = response(), response()
    again.model_version, again.request_id = "2", "r2"
    again.timings.decode.nanos = 5

    assert meaning(first_time.SerializeToString()) == meaning(again.SerializeToString())
    again.translations[0].hypotheses[0].score = -1.0 - 1e-6
    assert meaning(first_time.SerializeToString()) != meaning(again.SerializeToString())
