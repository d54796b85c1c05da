"""Reads the order that a queue class of Scrapy's settings stands for: first-in-first-out or last-in-first-out.

Knows names of classes, and no queue.
"""

from __future__ import annotations

import logging
from typing import Any

from scrapy.utils.misc import load_object

logger = logging.getLogger(__name__)


def is_lifo(setting: Any) -> bool:
    """Return the order that a queue class stands for, by its name or, given the class, by those of its bases."""
    names = (
        [setting.rpartition(".")[2]] if isinstance(setting, str) else [c.__name__ for c in load_object(setting).__mro__]
    )
    if any("Fifo" in name for name in names):
        return False
    if not any("Lifo" in name for name in names):
        logger.warning(
            "%s has neither Lifo nor Fifo in its name: pending requests are kept by scrapy-bloom itself, and in "
            "last-in-first-out order",
            setting,
        )
    return True
