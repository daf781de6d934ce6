"""Errors of the exporter; the command line prints them in one line and exits with 1."""

from collections.abc import Mapping


class ExportError(Exception):
    """Base class of all errors of the exporter."""


class SettingError(ExportError):
    """A setting has an invalid value."""

    def __init__(self, setting: str, value: object, expected: str) -> None:
        super().__init__(f"{setting} is {value!r}: expected {expected}")
        self.setting = setting
        self.value = value


class CorpusError(ExportError):
    """The training or development text cannot be used."""


class RunFileError(ExportError):
    """A run file cannot be read, or has an invalid key or value."""


class OutOfMemoryError(ExportError):
    """A batch does not fit into the memory of the device."""

    def __init__(self, batch_tokens: int, accumulation: int) -> None:
        smaller = f"--batch-tokens {max(1, batch_tokens // 2)} --accumulation {2 * accumulation}"
        super().__init__(f"out of memory with --batch-tokens {batch_tokens}; the same steps need less with {smaller}")


class RunFolderError(ExportError):
    """The run folder lacks a required file, or contains files that would be overwritten."""


class CheckpointConflictError(ExportError):
    """A flag differs from a fixed property of the checkpoint: the architecture or the optimizer."""

    def __init__(self, conflicts: Mapping[str, tuple[object, object]]) -> None:
        differences = "; ".join(f"{name} is {old!r}, requested {new!r}" for name, (old, new) in conflicts.items())
        super().__init__(f"settings differ from the checkpoint: {differences}")
        self.conflicts = dict(conflicts)


class DivergenceError(ExportError):
    """Training diverged: the gradient is not finite."""

    def __init__(self, step: int, norm: float) -> None:
        super().__init__(f"training diverged: the gradient norm of step {step} is {norm}; try a lower learning rate")
        self.step = step
        self.norm = norm


class ImportFormatError(ExportError):
    """An imported file is missing, damaged or not supported."""


class BundleWriteError(ExportError):
    """A bundle cannot be written as requested."""
