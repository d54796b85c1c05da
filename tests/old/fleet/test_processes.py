from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.old.support.redis_servers import PATIENCE, RedisServer

ADDER = Path(__file__).parents[1] / "support" / "adder.py"
ROOT = str(ADDER.parents[3])


def race(server: RedisServer, engine: str, *, processes: int, urls: int, error_rate: float) -> Counter[int]:
    """Let *processes* add the same *urls* in different orders, and return how often each was called new."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}
    adders = [
        subprocess.Popen(
            [sys.executable, str(ADDER), server.url, engine, str(urls), str(seed), str(error_rate)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for seed in range(processes)
    ]
    with server.client() as client:
        deadline = time.monotonic() + PATIENCE
        while client.llen("ready") < processes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.set("go", 1)
    accepted: Counter[int] = Counter()
    for adder in adders:
        out, _ = adder.communicate(timeout=300)
        assert adder.returncode == 0
        accepted.update(int(one) for one in out.split())
    return accepted


@pytest.mark.parametrize(("engine", "error_rate"), [("bitmap", 1e-6), ("bf", 1e-3)])
def test_processes_at_once_accept_each_url_once(tmp_path: Path, engine: str, error_rate: float) -> None:
    """Four processes that begin one filter together, and grow it together, accept no URL twice and lose none."""
    with RedisServer(tmp_path, bloom=engine == "bf") as server:
        accepted = race(server, engine, processes=4, urls=2000, error_rate=error_rate)
    assert set(accepted.values()) == {1}
    assert len(accepted) >= 2000 - 3 - 5 * (2000 * error_rate) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "error_rate"), [("bitmap", 1e-6), ("bf", 1e-4)])
def test_eight_processes_accept_20_000_urls_once(tmp_path: Path, engine: str, error_rate: float) -> None:
    """Eight processes accept each of 20,000 URLs once, while bitmaps grow to eight layers and RedisBloom's filter to
    three."""
    with RedisServer(tmp_path, bloom=engine == "bf") as server:
        accepted = race(server, engine, processes=8, urls=20_000, error_rate=error_rate)
    assert set(accepted.values()) == {1}
    expected_lost = 20_000 * (error_rate + 1e-7)
    assert len(accepted) >= 20_000 - expected_lost - 5 * expected_lost**0.5 - 1
