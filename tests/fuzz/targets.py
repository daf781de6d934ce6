"""All fuzz targets."""

from typing import Final

from tests.fuzz.calls import CALLS
from tests.fuzz.files import FILES
from tests.fuzz.native_step import NATIVE
from tests.fuzz.protected import PROTECTED
from tests.fuzz.wire import WIRE

TARGETS: Final = (*FILES, *CALLS, *PROTECTED, *NATIVE, *WIRE)
