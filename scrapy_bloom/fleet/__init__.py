"""The fleet: one queue and one filter on a Redis or Valkey server that many workers share."""

from importlib.util import find_spec

from scrapy_bloom.errors import MissingPackageError

for _package in ("redis", "msgpack"):
    if find_spec(_package) is None:
        raise MissingPackageError(_package, "fleet", "A fleet")
