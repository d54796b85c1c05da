"""Crawls a site of this checkout with the loop guard, and the crawl loop, of another one."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from benchmarks.sites.programs import NAMED


class Once(dict[str, str]):
    """The honest pages of a site, as versions count them that ask for each URL whether it is one."""

    def __contains__(self, url: object) -> bool:
        """Whether *url* shows an honest page that no URL before it has shown."""
        content = self.content_of(url)
        is_new = self.get(content) is not None and content not in self.counted
        self.counted.add(content)
        return is_new


def crawl(folder: str, name: str, seed: int, budget: float, *, fifo: bool) -> dict[str, Any]:
    """Return what the crawl of ``benchmarks/loops.py`` in *folder* came to."""
    spec = spec_from_file_location("benchmarks.loops", Path(folder) / "benchmarks" / "loops.py")
    assert spec
    assert spec.loader
    module = sys.modules["benchmarks.loops"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = NAMED[name](seed)
    honest = Once(drawn.honest)
    honest.content_of, honest.counted = drawn.content_of, set()
    drawn.honest = honest
    result = module.crawl(drawn, budget, fifo=fifo)._asdict()
    result["share"] = result.get("share", result["at"][3])
    return {key: result[key] for key in ("at", "by_part", "pages", "waiting", "is_over", "share")}
