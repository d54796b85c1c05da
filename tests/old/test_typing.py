from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CONSUMER = """
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.http import Response, TextResponse
from scrapy.spiders import CrawlSpider, Rule

from scrapy_bloom import (
    BloomDupeFilter,
    RequestFingerprinter,
    ScalableBloomFilter,
    UnseenLinkExtractor,
    UnseenLinks,
    canonicalize_url,
    fingerprint,
    open_filter,
)


class MySpider(UnseenLinks, CrawlSpider):
    name = "my"
    rules = (Rule(UnseenLinkExtractor(allow="/docs/"), follow=True),)

    def parse_other(self, response: TextResponse) -> Iterator[Request]:
        hrefs: list[str] = response.css("a::attr(href)").getall()
        yield from response.follow_all(self.unseen_links(hrefs, response))


class ByPath(BloomDupeFilter):
    def fingerprint(self, request: Request) -> bytes:
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))


seen = ScalableBloomFilter(capacity=1_000, error_rate=1e-6)
reveal_type(seen.add(b"1"))
reveal_type(b"1" in seen)
reveal_type(len(seen))
with open_filter(Path("directory"), capacity=1_000, error_rate=1e-6) as kept:
    reveal_type(kept.add(b"1"))
reveal_type(canonicalize_url("http://example.com"))
reveal_type(fingerprint(Request("http://example.com")))
reveal_type(RequestFingerprinter.fingerprint)
seen.add("text")  # an error: text is not bytes
"""


@pytest.mark.slow
def test_a_users_file_is_type_checked_against_the_package(tmp_path: Path) -> None:
    """A consumer under mypy --strict sees our types, not Any; and a wrong argument is an error."""
    (tmp_path / "consumer.py").write_text(CONSUMER, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "consumer.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = checked.stdout.splitlines()
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in lines if "Revealed type" in line]
    plain = [one.replace("builtins.", "") for one in revealed]
    assert plain[:6] == ["bool", "bool", "int", "bool", "str", "bytes"], checked.stdout
    assert "bytes" in plain[6]
    errors = [line for line in lines if "error:" in line]
    assert len(errors) == 1, checked.stdout
    assert 'incompatible type "str"; expected' in errors[0]
