"""How a crawl with workers ended, for people and as JSON: sums up what its workers have counted. Starts nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.terminal import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_bloom.old.commands.crawl_workers import Worker

FINISHED = "finished"
"""Nothing is pending, and nothing in hand."""

STOPPED = "stopped"
"""By somebody, or by a limit such as CLOSESPIDER_PAGECOUNT; the next start goes on."""

FAILED = "failed"
"""Server or workers could not be kept alive; the next start goes on."""

_OF_ALL = {"bloom/urls", "bloom/layers", "bloom/bytes", "bloom/fill_ratio", "bloom/estimated_error_rate"}
"""What each worker says of the filter that they share."""

_PER_TIME = ("per_minute", "elapsed_time_seconds")


def summary(spider: str, outcome: str, problem: str, seconds: float, workers: Sequence[Worker]) -> dict[str, Any]:
    """Return what there is to know, in plain types, under stable names."""
    return {
        "spider": spider,
        "outcome": outcome,
        "problem": problem or None,
        "seconds": round(seconds, 3),
        "stats": total(life for worker in workers for life in worker.lives),
        "workers": {
            worker.name: {
                "finish_reason": worker.reason or None,
                "deaths": worker.deaths,
                "stats": total(worker.lives),
            }
            for worker in workers
        },
    }


def total(lives: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the sum of the stats *lives*: of largest values the largest, of rates none."""
    found: dict[str, float] = {}
    for life in lives:
        for name, value in life.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or name.endswith(_PER_TIME):
                continue
            is_largest = name in _OF_ALL or name.endswith("max")
            found[name] = max(found.get(name, value), value) if is_largest else found.get(name, 0) + value
    return found


def summary_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a few lines for people."""
    stats, workers = found["stats"], found["workers"]

    def of_each(name: str) -> str:
        each = [worker["stats"].get(name, 0) for worker in workers.values()]
        parts = f" ({' + '.join(format(one, ',') for one in each)})" if len(each) > 1 else ""
        return f"{'at least ' if deaths else ''}{stats.get(name, 0):,}{parts}"

    reasons = {each["finish_reason"] for each in workers.values()} - {None, FINISHED}
    why = found["problem"] or (", ".join(sorted(reasons)) if found["outcome"] == STOPPED else "")
    deaths = [
        f"{name} {len(each['deaths'])} ({each['deaths'][-1]})" for name, each in workers.items() if each["deaths"]
    ]
    lines = [
        ("spider", found["spider"]),
        ("outcome", found["outcome"] + (f": {why}" if why else "")),
        ("time", time.strftime("%H:%M:%S", time.gmtime(found["seconds"]))),
        ("workers", str(len(workers)) + (f"; died: {', '.join(deaths)}" if deaths else "")),
        ("pages", of_each("response_received_count")),
        ("items", of_each("item_scraped_count")),
        ("duplicates", f"{stats.get('dupefilter/filtered', 0):,}"),
        ("expected lost", f"{stats.get('bloom/expected_lost', 0):.2g} pages"),
        ("errors logged", f"{stats.get('log_count/ERROR', 0) + stats.get('log_count/CRITICAL', 0):,}"),
    ]
    if stats.get("bloom/fleet/aside"):
        lines.append(("set aside", f"{stats['bloom/fleet/aside']:,} requests; see the log"))
    if found["outcome"] != FINISHED and found["job"]:
        lines.append(("next", "The same command goes on from here."))
    return rows(lines)
