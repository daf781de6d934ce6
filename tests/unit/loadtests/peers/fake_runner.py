"""Stands for the workers: takes as long as a script says, without running anything."""

from collections.abc import Callable

from loadtests.peers.systems import Output, SystemSettings
from loadtests.peers.workers import Task, TaskResult


class FakeRunner:
    """Answers each source with its own token ids and remembers who was asked."""

    def __init__(self, duration_s: Callable[[SystemSettings], float]) -> None:
        self.asked: list[SystemSettings] = []
        self._duration_s = duration_s

    def run(self, task: Task) -> TaskResult:
        self.asked.append(task.settings)
        calls = task.calls()
        elapsed_s = self._duration_s(task.settings)
        outputs = tuple(Output(token_ids=source, score=0.0) for source in task.sources)
        return TaskResult(elapsed_s=elapsed_s, latencies_s=(elapsed_s / len(calls),) * len(calls), outputs=outputs)
