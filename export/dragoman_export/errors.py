"""The errors of the exporter; `python -m dragoman_export` prints them in one line and exits with 1."""

from collections.abc import Mapping


class ExportError(Exception):
    """Root of the tree."""


class SettingError(ExportError):
    """A setting has a value that is never valid."""

    def __init__(self, setting: str, value: object, expected: str) -> None:
        """Name the setting, the value found and what was expected."""
        super().__init__(f"{setting} is {value!r}: expected {expected}")
        self.setting = setting
        self.value = value


class CorpusError(ExportError):
    """The training or dev text cannot be used."""


class RunFolderError(ExportError):
    """The run folder does not hold what the command needs, or holds what it would overwrite."""


class CheckpointConflictError(ExportError):
    """A flag contradicts what a checkpoint was trained with and cannot be changed: the architecture, the optimizer."""

    def __init__(self, conflicts: Mapping[str, tuple[object, object]]) -> None:
        """Take, for each field, the value in the checkpoint and the value asked for."""
        told = "; ".join(f"{name} is {old!r} there, {new!r} asked for" for name, (old, new) in conflicts.items())
        super().__init__(f"the checkpoint was trained otherwise: {told}")
        self.conflicts = dict(conflicts)


class DivergenceError(ExportError):
    """The gradient is no longer finite, and a step would ruin the weights."""

    def __init__(self, step: int, norm: float) -> None:
        """Name the step that was not taken and the norm of its gradient."""
        super().__init__(f"training diverged: the gradient norm of step {step} is {norm}; a lower rate may help")
        self.step = step
        self.norm = norm


class ImportFormatError(ExportError):
    """A file to be imported is not what its format says."""
