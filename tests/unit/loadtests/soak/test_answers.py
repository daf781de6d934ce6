import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb
from google.rpc import status_pb2

from loadtests.soak.answers import document_faults, meaning, stream_answers, unary_faults

TEXT = "One two. Three.  Four!"
SPANS = ((0, 8), (9, 15), (17, 22))


def response(request_id: str = "r", *texts: str) -> pb.TranslateResponse:
    translations = [pb.Translation(hypotheses=[pb.Hypothesis(text=text)]) for text in texts]
    return pb.TranslateResponse(request_id=request_id, translations=translations)


def request(*texts: str, request_id: str = "") -> pb.TranslateRequest:
    return pb.TranslateRequest(texts=texts, request_id=request_id)


def document() -> list[pb.TranslatedSentence]:
    """Three sentences, each translated by itself, as they come."""
    return [
        pb.TranslatedSentence(
            index=index,
            text=TEXT[(SPANS[index - 1][1] if index else 0) : end],
            hypotheses=[pb.Hypothesis(text=TEXT[start:end])],
            sentence=pb.Sentence(source=pb.Span(start=start, end=end), target=pb.Span(start=start, end=end)),
            model_name="m",
            model_version="1",
            request_id="r",
        )
        for index, (start, end) in enumerate(SPANS)
    ]


def faults(messages: list[pb.TranslatedSentence], *, is_whole: bool = True) -> list[str]:
    asked = pb.TranslateDocumentRequest(text=TEXT)
    return document_faults(asked, messages, request_id="r", is_whole=is_whole)


def test_a_whole_answer_has_no_fault() -> None:
    assert unary_faults(request("A", " "), response("r", "B", " "), request_id="r") == []


@pytest.mark.parametrize(
    ("asked", "got", "fault"),
    [
        (request("A"), response("other", "B"), "r got the answer to 'other'"),
        (request("A", "B"), response("r", "C"), "asked for 2 translations and got 1"),
        (request("A"), response("r", "B").FromString(b"\n\x00\x3a\x01r"), "r got 0 hypotheses of text 0"),
        (request(" "), response("r", ""), "did not get it back"),
    ],
)
def test_an_answer_that_is_foreign_or_not_whole_has_one(
    asked: pb.TranslateRequest, got: pb.TranslateResponse, fault: str
) -> None:
    (found,) = unary_faults(asked, got, request_id="r")

    assert fault in found


def test_more_hypotheses_than_were_asked_for_are_a_fault() -> None:
    asked = pb.TranslateRequest(texts=["A"], options=pb.DecodingOptions(num_hypotheses=2))
    got = pb.TranslateResponse(request_id="r", translations=[pb.Translation(hypotheses=[pb.Hypothesis()] * 3)])

    assert unary_faults(asked, got, request_id="r") == ["r got 3 hypotheses of text 0, not 1 to 2"]


def test_a_document_in_order_has_no_fault_nor_has_its_beginning() -> None:
    assert faults(document()) == []
    assert faults(document()[:2], is_whole=False) == []
    assert faults([], is_whole=False) == []


def test_a_document_that_ends_early_is_not_whole() -> None:
    assert faults(document()[:2]) == ["r: characters 15 to 22 were left out"]
    assert "r got no sentence at all" in faults([])


def test_sentences_out_of_order_are_a_fault() -> None:
    first, second, third = document()

    assert faults([second, first, third]) == ["r got its sentences as [1, 0, 2]"]
    assert faults([first, first, second]) == ["r got its sentences as [0, 0, 1]"]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"request_id": "other"}, "r got sentences of other"),
        ({"model_version": "2"}, "r was answered by more than one version"),
        ({"sentence": pb.Sentence(source=pb.Span(start=4, end=8))}, "r: characters 4 to 8 were translated twice"),
        ({"sentence": pb.Sentence(source=pb.Span(start=12, end=15))}, "r: characters 8 to 12 were left out"),
        ({"text": "moved"}, "r: sentence 1 is not where it says in the translation"),
    ],
)
def test_a_sentence_that_does_not_belong_is_a_fault(changed: dict[str, object], fault: str) -> None:
    messages = document()
    messages[1].MergeFrom(pb.TranslatedSentence(**changed))  # type: ignore[arg-type]

    assert fault in faults(messages)


def test_answers_of_a_stream_are_paired_by_their_ids() -> None:
    refused = pb.TranslateResponse(request_id="b", error=status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0]))
    sent = [request("A", request_id="a"), request("B", request_id="b"), request("C", request_id="c")]

    found = stream_answers(sent, [refused, response("a", "X")])

    assert found.statuses == {"a": "OK", "b": "NOT_FOUND"}
    assert (found.twice, found.faults) == ([], [])


def test_an_answer_that_comes_twice_or_to_nobody_is_told() -> None:
    found = stream_answers([request("A", request_id="a")], [response("a", "X"), response("a", "X"), response("z", "X")])

    assert found.twice == ["a was answered 2 times"]
    assert found.faults == ["'z' was answered over a stream that never asked it"]


def test_the_meaning_of_an_answer_is_all_but_version_id_and_times() -> None:
    first, again = response("a", "X"), response("b", "X")
    first.model_version, again.model_version = "1", "2"
    first.timings.decode.nanos = 5

    assert meaning(first.SerializeToString()) == meaning(again.SerializeToString())
    again.translations[0].hypotheses[0].score = -1e-9
    assert meaning(first.SerializeToString()) != meaning(again.SerializeToString())
