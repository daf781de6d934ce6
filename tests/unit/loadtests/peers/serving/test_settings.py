import pytest

from loadtests.peers.serving.settings import BatchingSettings


@pytest.mark.parametrize("name", ["2x1,b32,w0", "1x2,b8,w5", "4x4,b64,w2.5"])
def test_a_name_says_all_that_is_tried(name: str) -> None:
    assert BatchingSettings.parse(name).name == name


@pytest.mark.parametrize("name", ["", "2x1", "0x1,b32,w0", "2x1,b0,w5", "2x1,b32,w-1", "2x1,b32,w5,c"])
def test_what_is_no_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ValueError, match="such as 2x1,b32,w5"):
        BatchingSettings.parse(name)


def test_streams_and_threads_are_those_of_the_system() -> None:
    system = BatchingSettings.parse("2x3,b16,w0").of_system("ctranslate2")

    assert (system.setup, system.name) == ("int8@2x3,b16", "ctranslate2-int8")
