import logging

import pytest

from dragoman_service.grpc_api.workarounds import is_worth_logging

ExecuteBatchError = type("ExecuteBatchError", (Exception,), {})


def record_of(error: Exception | None) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error else None
    return logging.LogRecord("grpc", logging.ERROR, "", 0, "failed", None, exc_info)


@pytest.mark.parametrize(("error", "expected"), [(ExecuteBatchError(), False), (ValueError(), True), (None, True)])
def test_errors_of_disconnected_callers_are_not_logged(error: Exception | None, *, expected: bool) -> None:
    assert is_worth_logging(record_of(error)) is expected
