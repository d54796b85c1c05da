from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.old.support.fingerprints import fingerprints
from tests.old.support.redis_cluster import redis_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.old.fleet.filter.fleet_filter import FleetFilter
    from scrapy_bloom.old.fleet.filter.shared import SharedFilter
    from tests.old.support.redis_servers import RedisServer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Three nodes that share the slots."""
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def test_shards_spread_over_the_nodes(cluster: list[RedisServer], open_shared: Callable[..., SharedFilter]) -> None:
    """On a cluster of three, twelve shards use the memory of every node, and answer as one filter."""
    one = open_shared(cluster[0].url, shards=12, capacity=600)
    other = open_shared(cluster[1].url)
    assert one.server.is_cluster
    sample = fingerprints(3000)
    assert one.add(sample[:1500]) == [True] * 1500
    assert [other.add([fingerprint])[0] for fingerprint in sample[1400:1700]] == [False] * 100 + [True] * 200
    assert other.seen_many(sample) == [True] * 1700 + [False] * 1300
    per_node = [node.client().dbsize() for node in cluster]
    assert all(per_node)
    before = other.server.round_trips
    other.seen_many(sample[:100])
    assert other.server.round_trips - before <= 3
    one.clear()
    assert [node.client().dbsize() for node in cluster] == [0, 0, 0]


def test_a_slot_that_moves_is_followed(cluster: list[RedisServer], open_shared: Callable[..., SharedFilter]) -> None:
    """While a shard's slot moves to another node, and afterwards, its fingerprints are known."""
    shared = open_shared(cluster[0].url, shards=4)
    sample = fingerprints(400)
    assert all(shared.add(sample))
    meta, *layers = shared._chains[0].all_keys()
    clients = [node.client() for node in cluster]
    slot = clients[0].execute_command("CLUSTER KEYSLOT", meta)
    names = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    source = next(i for i in range(3) if clients[i].execute_command("CLUSTER COUNTKEYSINSLOT", slot))
    target = (source + 1) % 3
    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[source])
    clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
    found = clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
    clients[source].execute_command("MIGRATE", "127.0.0.1", cluster[target].port, "", 0, 5000, "KEYS", *found)
    assert set(found) == {meta, *layers}
    assert all(shared.seen_many(sample))
    for client in (clients[target], clients[source], clients[3 - source - target]):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[target])
    assert all(shared.seen_many(sample))
    assert not any(shared.add([fingerprint])[0] for fingerprint in sample[:50])
    shared.clear()
    for client in clients:
        client.close()


def test_a_node_that_dies_drops_nothing(
    cluster: list[RedisServer], open_fleet: Callable[..., FleetFilter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one node of the cluster is away, URLs of its shards are new once, and those of the others are as before;
    while all are away, every URL that this process does not know is new once."""
    monkeypatch.setattr("scrapy_bloom.old.fleet.filter.fleet_filter.RETRY_SECONDS", 0.3)
    fleet = open_fleet(cluster[0].url, shards=12)
    sample = fingerprints(600)
    assert all(fleet.add(fingerprint) for fingerprint in sample[:300])
    cluster[2].kill()
    assert all(fleet.add(fingerprint) for fingerprint in sample[300:])
    assert not any(fleet.add(fingerprint) for fingerprint in sample)
    assert fleet.outage.times >= 1
    for node in cluster[:2]:
        node.kill()
    further = fingerprints(50, start=600)
    assert all(fleet.add(fingerprint) for fingerprint in further)
    assert not any(fleet.add(fingerprint) for fingerprint in further)
