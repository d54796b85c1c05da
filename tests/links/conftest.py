from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.links.crawling import OpenCrawl, opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def crawl() -> Iterator[OpenCrawl]:
    with opened() as crawl:
        yield crawl
