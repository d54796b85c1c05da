"""Print, when a crawl of the site with traps is over, what was fetched of each section and what was missed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapy_bloom.old.crawl.loop_guard_middleware import loop_guard_wanted
from scrapy_bloom.old.loops.guard import LoopGuard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Spider
    from scrapy.crawler import Crawler

    from example.traps.model import Section


class TrapReport:
    """Extension: begins the spider's record with it, and prints the table when everything else is over."""

    def __init__(self, crawler: Crawler):
        self._crawler = crawler
        self._cpu = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> TrapReport:
        """Build the extension and connect it."""
        extension = cls(crawler)
        crawler.signals.connect(extension.spider_opened, signals.spider_opened)
        crawler.signals.connect(extension.engine_stopped, signals.engine_stopped)
        return extension

    def spider_opened(self, spider: Spider) -> None:
        """Begin a run in the record."""
        spider.record.begin_run()
        self._cpu = time.process_time()

    def engine_stopped(self) -> None:
        """Print the table, unless something kept the spider from opening."""
        spider = self._crawler.spider
        if not self._cpu:
            return
        fetched = Counter(line.partition("\t")[0] for line in spider.record.crawled())
        seconds = time.process_time() - self._cpu
        print(report(spider.site.sections.values(), fetched, self._parked()))
        print(f"{seconds:.1f} s of CPU, {1e3 * seconds / max(1, fetched.total()):.2f} ms a page")
        for line in loop_lines(self._crawler.stats.get_stats()):
            print(line)
        spider.record.close()

    def _parked(self) -> Counter[str]:
        """Return how many pages of each section the loop guard has parked; with a job directory, that file knows."""
        parked: Counter[str] = Counter()
        for _, guard in self._crawler.signals.send_catch_log(loop_guard_wanted):
            if isinstance(guard, LoopGuard):
                found = map(self._crawler.spider.site.find, guard.parked_in_memory())
                parked.update(page[0].name for page in found if page)
        return parked


def report(sections: Iterable[Section], fetched: Counter[str], parked: Counter[str]) -> str:
    """Return the table: for every section what it is for, its pages, and how many were fetched, missed and parked."""
    header = ("section", "for", "pages", "fetched", "missed", "parked", "like")
    honest, traps = [], []
    for section in sections:
        use = "tuning" if section.tuning else "scoring"
        got = fetched[section.name]
        held = f"{parked[section.name]:,}" if parked[section.name] else ""
        if section.honest:
            missed = section.size - got
            honest.append(
                (
                    section.name,
                    use,
                    f"{section.size:,}",
                    f"{got:,}",
                    f"{missed:,}" if missed else "",
                    held,
                    section.imitates,
                )
            )
        else:
            use += ", by URL" if section.by_url else ", babble" if section.babble else ""
            traps.append((section.name, use, "", f"{got:,}", "", held, section.imitates))
    sizes = sum(section.size for section in sections if section.honest)
    good = sum(fetched[section.name] for section in sections if section.honest)
    bad = sum(fetched[section.name] for section in sections if not section.honest)
    share = f"{good / sizes:.2%} of them" if sizes else ""
    held = sum(parked[section.name] for section in sections if section.honest)
    honest.append(("honest pages", "", f"{sizes:,}", f"{good:,}", f"{sizes - good:,}", f"{held:,}", share))
    traps.append(("pages of traps", "", "", f"{bad:,}", "", f"{parked.total() - held:,}", ""))
    widths = [max(len(row[i]) for row in [header, *honest, *traps]) for i in range(len(header))]

    def line(row: tuple[str, ...]) -> str:
        cells = [
            f"{cell:<{width}}" if i in (0, 1, 6) else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "-" * len(line(header))
    return "\n".join(["", line(header), rule, *map(line, honest), rule, *map(line, traps), rule])


def loop_lines(stats: dict[str, Any]) -> list[str]:
    """Return what the loop guard has counted, a line for each stat."""
    return [f"{name}: {value:,}" for name, value in sorted(stats.items()) if name.startswith("bloom/loop/")]
