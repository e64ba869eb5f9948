"""Made-up examples are the same in every run, and may take their time."""

from hypothesis import HealthCheck, settings

# Chance would fail the tests of somebody who has changed nothing; a slow machine is no mistake.
settings.register_profile(
    "same every time", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same every time")
