from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from scrapy.utils.reactor import install_reactor

if TYPE_CHECKING:
    from collections.abc import Iterator

# Processes that tests start import the package that is tested, and the tests, wherever they run.
root = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))

# Machines that run several suites at once are slow now and then; time is measured in benchmarks, not here.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# Up to Scrapy 2.13 get_crawler() asks which reactor is installed; a crawl would install this one, too.
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")

# A shell that starts the tests in the background has SIGINT ignored, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Return how many tests run at a time: they wait for processes and servers half of their time."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture
def scrapy_leaves_files_open() -> Iterator[None]:
    """Collect the disk queues that Scrapy 2.13's own priority queues leave unclosed; the test ignores the warnings."""
    yield
    gc.collect()
