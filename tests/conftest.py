"""What holds for all tests: Hypothesis measures no time, and PyTorch computes in one thread for each worker."""

import os

from hypothesis import HealthCheck, settings

# Read when PyTorch is imported. Each worker of pytest-xdist would have a thread for every core, and they wait for each
# other by spinning: tests of training took four times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not fail a property.
settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dragoman")
