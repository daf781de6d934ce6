"""Hypothesis measures no time: a busy machine must not fail a property."""

from hypothesis import HealthCheck, settings

settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dragoman")
