"""Fixtures and Hypothesis settings for all tests."""

from __future__ import annotations

import random
import secrets
import signal

import pytest
from hypothesis import HealthCheck, settings
from scrapy.utils.reactor import install_reactor

# Machines that run several suites at once are slow now and then; time is measured in benchmarks, not here.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# Up to Scrapy 2.13 get_crawler() asks which reactor is installed; a crawl would install this one, too.
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")

# A shell that starts the tests in the background has SIGINT ignored, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def fixed_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the seeds of new chains from the test's name, so that a false positive fails a test always or never.

    Chains are the only users of randbits(). Many tests add thousands of fingerprints and expect each to be new, which a
    chance of one in fifty to meet a false positive makes fail now and then. The children in ``support/`` do likewise,
    and crawls that a test starts draw theirs.
    """
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)
