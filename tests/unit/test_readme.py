import re
from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli.reference import metrics_table, settings_table

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(("topic", "table"), [("settings", settings_table), ("metrics", metrics_table)])
def test_the_readme_lists_every_setting_and_metric_as_declared(topic: str, table: Callable[[], str]) -> None:
    match = re.search(rf"<!-- {topic}: .*? -->\n(.*?)<!-- end of {topic} -->", README.read_text(), re.DOTALL)

    assert match is not None
    assert match[1].strip() == table()
