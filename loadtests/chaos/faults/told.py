"""Whether everybody whose request failed was told so, and nobody else."""

import time
from typing import Final

from loadtests.chaos.fault import Stage

FAILED_REQUESTS: Final = 'mt_requests_total{method="Translate",status="INTERNAL"}'
_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


def require_all_told(stage: Stage, failed_before: float) -> int:
    """Require that as many callers were told INTERNAL as requests have failed, some at least; return how many.

    Args:
        stage: its hits are those of callers meant to be hit.
        failed_before: failed requests before the fault.
    """
    until_s = time.monotonic() + _TIMEOUT_S
    while True:  # a reply may be on its way when it is counted, or counted when it has arrived
        num_failed = round(stage.samples(FAILED_REQUESTS) - failed_before)
        others = [reply for reply in stage.bystanders.translations if reply.status == "INTERNAL"]
        num_told = stage.hits["INTERNAL"] + len(others)
        if num_told == num_failed or time.monotonic() > until_s:
            break
        time.sleep(_POLL_S)
    stage.require(set(stage.hits) <= {"INTERNAL"}, f"callers in a batch that failed were told {dict(stage.hits)}")
    stage.require(num_told > 0, "nobody was told of the failure")
    stage.require(num_told == num_failed, f"{num_told} callers were told INTERNAL, but {num_failed} requests failed")
    return num_failed
