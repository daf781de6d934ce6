"""What a run says about itself outside the training loop, to the person at the terminal and to its log."""

import sys
from typing import Any

from export.training.run_folder import RunFolder


class Report:
    """Tells and records; on all ranks but the main one it is silent."""

    def __init__(self, folder: RunFolder, *, is_silent: bool) -> None:
        """Take the folder whose log is written."""
        self._folder = folder
        self._is_silent = is_silent

    def tell(self, text: str) -> None:
        """Print a line on stderr."""
        if not self._is_silent:
            print(text, file=sys.stderr, flush=True)

    def record(self, event: str, **fields: Any) -> None:
        """Append a record to the log."""
        if not self._is_silent:
            self._folder.append(event, **fields)
