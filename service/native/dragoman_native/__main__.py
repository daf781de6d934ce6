"""Prints the instruction sets of this CPU, the fastest in the self-test first; exit code 1 if there is none."""

import ctypes
import sys

from dragoman_native import LIBRARY

library = ctypes.CDLL(str(LIBRARY))
library.dragoman_instruction_sets.restype = ctypes.c_char_p
names = library.dragoman_instruction_sets().decode()
print(names)
sys.exit(not names)
