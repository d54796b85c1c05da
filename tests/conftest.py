import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from scrapy.utils.reactor import install_reactor

from tests.fleet.servers import RedisServer

# Processes that tests start import the package that is tested, and the tests, wherever they run.
root = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))

# Machines that run several suites at once are slow now and then; time is measured in benchmarks, not here. A run draws
# the examples of the run before it, so that what turns red is due to a change. "explore" draws others each time.
settings.register_profile("explore", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", settings.get_profile("explore"), derandomize=True)
settings.load_profile("default")

# Up to Scrapy 2.13 get_crawler() asks which reactor is installed; a crawl would install this one, too.
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")

# A shell that starts the tests in the background has SIGINT ignored, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = {"fleet", "zoo"}
ROOM = 4 * 1024**3
"""Bytes that the files of tests may need at once; the least that a file system in memory has free."""


def pytest_configure(config: pytest.Config) -> None:
    """Spare processes the compiling of modules and the syncing of disks, which take a fifth of the time of the tests.

    A process that is killed loses nothing that it has written to a file in memory.
    """
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist, which has the environment of the first process
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    memory = "/dev/shm"
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = memory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the rooms whose tests take longest, so that no worker waits long for another at the end."""
    items.sort(key=lambda item: not LONGEST.isdisjoint(item.path.parts), reverse=True)


def pytest_collection_finish() -> None:
    """Spare each collection of garbage the objects of modules: a twentieth of the time of the tests."""
    gc.collect()
    gc.freeze()


SLOW_SET = "The slow tests, 10 minutes on two cores: pytest -m slow"


def pytest_xdist_auto_num_workers() -> int:
    """Return on how many cores this process may run, also in a container with a limit of its own."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = Path("/sys/fs/cgroup/cpu.max")  # "200000 100000": microseconds of CPU in each period; or "max 100000"
    quota, _, period = limit.read_text().partition(" ") if limit.exists() else ("max", "", "")
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say after a run of all fast tests how to run the others. A worker of pytest-xdist has no terminal."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    is_of_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr == "not slow"
    if terminal is not None and is_of_all and not hasattr(config, "workerinput"):
        terminal.write_line(SLOW_SET)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """An empty server, for tests that do not kill it."""
    with shared_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
    return shared_server


@pytest.fixture
def scrapy_leaves_files_open() -> Iterator[None]:
    """Collect the disk queues that Scrapy 2.13's own priority queues leave unclosed; the test ignores the warnings."""
    yield
    gc.collect()
