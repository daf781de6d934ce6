"""Names and examples of the migration page."""

import re
from pathlib import Path

import pytest

from dragoman.client import errors
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import RESPONSE
from tests.unit.proto.scripted_server import ScriptedService, answers

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "migrating.md").read_text()
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "dragoman" in code]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`options\.(\w+)`", PAGE))))
def test_options_on_the_page_exist(path: str) -> None:
    assert path in pb.DecodingOptions.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(\w+Error)`", PAGE))))
def test_errors_on_the_page_exist(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.DragomanError)


@pytest.mark.parametrize("example", EXAMPLES, ids=["google", "deepl"])
def test_examples_run(target: str, service: ScriptedService, capsys: pytest.CaptureFixture[str], example: str) -> None:
    service.script.append(answers(RESPONSE))
    program = example.replace("dragoman.example:50051", target).replace(", tls=TlsOptions()", "")

    exec(program, {"KEY": "key"})  # noqa: S102 - a page of this repository

    assert capsys.readouterr().out == "Hallo.\n"
    assert service.calls[0].metadata["authorization"] == "Bearer key"
