"""What is said of a server that may lose a queue, or that anyone can write to, tried on real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.fleet.server_check import risks_of
from tests.old.support.redis_servers import RedisServer
from tests.old.support.schedulers import EngineCalls

if TYPE_CHECKING:
    from pathlib import Path


def test_a_server_that_is_set_up_well_gets_no_warning(tmp_path: Path) -> None:
    """A server with appendonly, noeviction and a password gets no warning, also at an address that others can reach."""
    arguments = ("--requirepass", "hunter2", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
    with RedisServer(tmp_path, keeps_data=True, arguments=arguments) as server:
        found = connect(f"redis://:hunter2@0.0.0.0:{server.port}", {})
        assert found.risks == []
        found.close()


def test_each_risk_is_warned_of_at_the_start_with_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No appendonly, an evicting policy, and no password on an address that others can reach give a warning each."""
    with RedisServer(tmp_path, arguments=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")) as server:
        url = f"redis://0.0.0.0:{server.port}"  # leads to this machine, but does not look so
        EngineCalls(
            None,
            "scrapy_bloom.FleetScheduler",
            DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter",
            BLOOM_REDIS_URL=url,
            BLOOM_CAPACITY=1000,
        ).stop()
        warnings = [record.getMessage() for record in caplog.records if "at risk" in record.getMessage()]
        assert [warning.split(" puts the queue at risk: ")[1].split(":")[0] for warning in warnings] == [
            "appendonly is off",
            "maxmemory-policy is allkeys-lru",
            "it is reached at 0.0.0.0 without a password",
        ]
        # The advice is right: after it was taken, nothing is left to say.
        with server.client() as client:
            client.config_set("appendonly", "yes")
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("requirepass", "hunter2")
        again = connect(f"redis://:hunter2@0.0.0.0:{server.port}", {})
        assert again.risks == []
        again.close()


@pytest.mark.parametrize("password", ["hunter2", "s3cret/with@signs: and % more"])
def test_a_password_is_in_no_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture, password: str) -> None:
    """At level DEBUG no line shows the password: at the start, in warnings, or when the server goes away and comes
    back."""
    from urllib.parse import quote

    caplog.set_level("DEBUG")
    with RedisServer(tmp_path, arguments=("--requirepass", password)) as server:
        worker = EngineCalls(
            None,
            "scrapy_bloom.FleetScheduler",
            DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter",
            BLOOM_REDIS_URL=f"redis://:{quote(password, safe='')}@127.0.0.1:{server.port}",
            BLOOM_CAPACITY=1000,
            BLOOM_FLEET_LEASE=1,
        )
        server.kill()
        while not worker.scheduler._courier.times_away:
            worker.scheduler._courier._thread.join(0.01)
        server.start()
        worker.stop()
    assert "appendonly is off" in caplog.text
    assert "is away" in caplog.text
    assert password not in caplog.text
    assert quote(password, safe="") not in caplog.text


@pytest.mark.parametrize(
    ("host", "is_risk"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), (None, False), ("10.0.0.7", True), ("::2", True)],
)
def test_only_addresses_that_others_can_reach_need_a_password(host: str | None, is_risk: bool) -> None:
    """Loopback addresses and Unix sockets give no warning without a password, and neither does what INFO may not
    tell."""
    assert bool(risks_of({}, host, has_credentials=False)) is is_risk
    assert risks_of({}, host, has_credentials=True) == []
