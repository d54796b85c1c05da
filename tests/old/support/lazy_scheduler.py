"""A scheduler that neither opens nor closes its duplicate filter, as that of scrapy-redis."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import BaseDupeFilter

if TYPE_CHECKING:
    from collections.abc import Iterator


class LazyScheduler(Scheduler):
    def open(self, spider: Any) -> Any:
        with self._without_filter():
            return super().open(spider)

    def close(self, reason: str) -> Any:
        with self._without_filter():
            return super().close(reason)

    @contextmanager
    def _without_filter(self) -> Iterator[None]:
        dupefilter, self.df = self.df, BaseDupeFilter()
        try:
            yield
        finally:
            self.df = dupefilter
