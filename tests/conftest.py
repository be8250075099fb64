"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# The same examples every time: a test that fails fails for everybody. Slow machines are no failure.
settings.register_profile("samepath", derandomize=True, deadline=None)
settings.load_profile("samepath")
