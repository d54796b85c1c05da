"""Print a table at the very end of a crawl: what was crawled, what was filtered, what remembering it cost.

Reads Scrapy's stats and the spider's ``record``; a stat that the duplicate filter does not have is shown as n/a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals

from example.compare import compare

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

SCRAPY_BYTES_PER_URL = 91
"""Bytes of memory per URL in the set of fingerprints of Scrapy's own filter (2.19, measured at 5 million URLs)."""

SMALL = 1 << 20
"""Bytes below which a filter is mostly the padding of its layers, and bytes per URL say nothing."""

Row = tuple[str, str, str]
"""Label, value, remark."""


class CrawlSummary:
    """Extension: opens the record of the spider with it, and prints the table when everything else is over."""

    def __init__(self, crawler: Crawler):
        self._crawler = crawler
        self._opened = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CrawlSummary:
        """Build the extension and connect it.

        The duplicate filter is closed, and so has set its last stats, before ``spider_closed``. ``engine_stopped``
        comes last of all: nothing is logged after the table that could push it off the screen.
        """
        extension = cls(crawler)
        crawler.signals.connect(extension.spider_opened, signals.spider_opened)
        crawler.signals.connect(extension.engine_stopped, signals.engine_stopped)
        return extension

    def spider_opened(self, spider: Spider) -> None:
        """Begin a run in the record."""
        spider.record.begin_run()
        self._opened = True

    def engine_stopped(self) -> None:
        """Print the table, unless something kept the spider from opening: then there was no crawl to sum up."""
        if not self._opened:
            return
        spider = self._crawler.spider
        stats = self._crawler.stats.get_stats()
        rows = summary_rows(spider, stats)
        print(format_table(f"{spider.name}: summary of the crawl", rows))
        spider.record.close()
        alone = not self._crawler.settings["JOBDIR"] and stats.get("finish_reason") == "finished"
        if alone and getattr(spider, "compares", False):
            print("\nNow the same site in both ways, with and without scrapy-bloom (some 10 seconds) ...", flush=True)
            print(compare(len(spider.site)))


def summary_rows(spider: Spider, stats: dict[str, Any]) -> list[Row]:
    """Return the rows of the table for *spider*, whose crawl has ended."""
    record = spider.record
    totals = record.totals()
    reason = stats.get("finish_reason", "n/a")
    rows = [
        ("ended because", str(reason), ""),
        ("resumed", "yes", f"run {totals.runs} of this job") if totals.runs > 1 else ("resumed", "no", ""),
        ("pages crawled, this run", f"{record.pages:,}", ""),
        ("pages crawled, all runs", f"{totals.pages:,}", _completeness(spider, reason, totals.pages)),
        ("links followed", f"{record.links:,}", "this run"),
        ("duplicates filtered", _number(stats, "dupefilter/filtered", default=0), "this run"),
        ("of these, as links", _number(stats, "bloom/links_dropped", default=0), "before they became requests"),
    ]
    if "site/requests" in stats:
        remark = f"this run, for {stats['site/pages']:,} different pages"
        rows.append(("requests served by the site", f"{stats['site/requests']:,}", remark))
    return rows + _filter_rows(stats)


def _completeness(spider: Spider, reason: str, pages: int) -> str:
    """Say how much of the site *pages* pages are; nothing if nobody knows how large the site is."""
    site = getattr(spider, "site", None)
    if site is None:
        return ""
    crawled = spider.record.crawled()
    missing = sorted(site.keys() - crawled)
    if not missing:
        again = pages - len(crawled)
        return f"all {len(site):,} pages of the site, " + (f"{again:,} of them again" if again else "each once")
    found = f"of {len(site):,} on the site; {len(missing):,} missing"
    if reason == "finished":
        return f"{found}, LOST: nothing is queued that could lead to them, e.g. {missing[0]}"
    return f"{found} so far"


def _filter_rows(stats: dict[str, Any]) -> list[Row]:
    urls = stats.get("bloom/urls")
    size = stats.get("bloom/bytes")
    per_url = ""
    if urls and size:
        per_url = f"{size / urls:,.1f} per URL" if size >= SMALL else "mostly padding; 4 per URL for millions of them"
    scrapy = "n/a" if urls is None else f"{urls * SCRAPY_BYTES_PER_URL:,}"
    return [
        ("URLs remembered", _number(stats, "bloom/urls"), "all runs"),
        ("layers", _number(stats, "bloom/layers"), ""),
        ("bytes", _number(stats, "bloom/bytes"), per_url),
        ("bytes of Scrapy's own filter", scrapy, f"{SCRAPY_BYTES_PER_URL} per URL"),
        ("fill ratio", _number(stats, "bloom/fill_ratio", ".1%"), "of the newest layer"),
        ("estimated error rate", _number(stats, "bloom/estimated_error_rate", ".2g"), "of the next URL, now"),
        ("expected pages lost", _number(stats, "bloom/expected_lost", ".2g"), "all runs"),
    ]


def _number(stats: dict[str, Any], key: str, spec: str = ",", default: Any = None) -> str:
    value = stats.get(key, default)
    return "n/a" if value is None else format(value, spec)


def format_table(title: str, rows: list[Row]) -> str:
    """Return *rows* under *title* as text: labels left, values right, remarks behind them."""
    label_width = max(len(label) for label, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    lines = [f"{label:<{label_width}}  {value:>{value_width}}  {remark}".rstrip() for label, value, remark in rows]
    rule = "-" * max(len(line) for line in lines)
    return "\n".join(["", title, rule, *lines, rule])
