"""`python -m deploy.grafana`: write the dashboards, or check that they are as written here."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.grafana import capacity, decoding, models, overview
from deploy.grafana.dashboard import Dashboard

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
DASHBOARDS: Final = (overview.DASHBOARD, decoding.DASHBOARD, models.DASHBOARD, capacity.DASHBOARD)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana", description="Writes deploy/grafana/dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not as it would be")
    is_check = parser.parse_args(arguments).check
    wanted = {file_of(dashboard): dashboard.to_text() for dashboard in DASHBOARDS}
    wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    strange = sorted(set(FOLDER.glob("*.json")) - set(wanted))
    if not is_check:
        for path in wrong:
            path.write_text(wanted[path], encoding="utf-8")
        for path in strange:
            path.unlink()
    elif wrong or strange:
        names = ", ".join(path.name for path in [*wrong, *strange])
        print(f"dashboards are not as generated: {names}; run `python -m deploy.grafana`", file=sys.stderr)
        return 1
    return 0


def file_of(dashboard: Dashboard) -> Path:
    """Return where a dashboard is kept."""
    return FOLDER / f"{dashboard.name}.json"


if __name__ == "__main__":
    sys.exit(main())
