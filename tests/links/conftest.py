from collections.abc import Iterator

import pytest

from tests.links.crawling import OpenCrawl, opened


@pytest.fixture
def crawl() -> Iterator[OpenCrawl]:
    with opened() as crawl:
        yield crawl
