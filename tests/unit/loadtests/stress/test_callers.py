from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.callers import WRONG_ANSWER, Bystanders, Question, Reply

ANSWER = pb.TranslateResponse(
    translations=[pb.Translation(hypotheses=[pb.Hypothesis(text="Ja.", score=-1.0)])]
).SerializeToString()


def test_a_bystander_that_is_not_answered_notes_why(unused_tcp_port: int) -> None:
    question = Question(request=b"", answer=ANSWER)

    with Bystanders(f"127.0.0.1:{unused_tcp_port}", [question], num_translating=1) as bystanders:
        pass

    assert {reply.status for reply in (*bystanders.translations, *bystanders.looks)} == {"UNAVAILABLE"}
    assert bystanders.translations[0].message
    assert len(bystanders.looks) >= 1


def test_an_answer_that_is_not_the_right_one_is_told_apart() -> None:
    question = Question(request=b"", answer=ANSWER)
    right, wrong = (
        Reply(status="OK", answer=answer, began_s=0.0, ended_s=1.0)
        for answer in (ANSWER, pb.TranslateResponse().SerializeToString())
    )

    assert question.judge(right) == right
    assert question.judge(wrong).status == WRONG_ANSWER
    assert "instead of [('Ja.', -1.0)]" in question.judge(wrong).message
