"""Composes URLs like the links of real pages."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

_SECTIONS = ("news", "world", "about", "product", "category", "article", "review", "index", "list", "view", "help")
_THINGS = ("forum", "thread", "user", "profile", "image", "download", "archive", "2024", "summer", "large", "garden")
WORDS = _SECTIONS + _THINGS


def composed_urls(count: int, seed: int) -> list[str]:
    """Compose links as pages have them: about 9 in 10 plain, the others with queries, escapes, fragments and `;`."""
    rng = random.Random(seed)

    def words(fewest: int, most: int, glue: str) -> str:
        return glue.join(rng.choices(WORDS, k=rng.randint(fewest, most)))

    def query(most: int, glue: str = "&") -> str:
        values = (rng.choice((rng.randint(1, 99999), words(1, 3, "+"))) for _ in range(rng.randint(1, most)))
        return glue.join(f"{rng.choice(WORDS)}={value}" for value in values)

    def url() -> str:
        host = rng.choice(("www.", "www.", "shop.", "")) + words(1, 2, "-") + rng.choice((".com", ".org", ".co.uk"))
        leaf = rng.choice(("", "/", ".html", f"-{rng.randint(1, 999999)}", f"/{words(2, 5, '-')}"))
        return f"https://{host}/{words(0, 4, '/')}{leaf}"

    kinds: list[tuple[int, Callable[[], str]]] = [
        (760, url),
        (30, lambda: url() + "#" + words(1, 2, "-")),
        (90, lambda: url() + "?" + query(1)),
        (70, lambda: url() + "?" + query(4)),
        (12, lambda: f"{url()}?url={quote(url(), safe='')}&{query(2)}"),
        (4, lambda: url() + "?" + query(3, "&amp;")),
        (20, lambda: f"{url()}/{quote(rng.choice(('München', 'Straße', '東京', 'two words', 'Москва')))}"),
        (6, lambda: f"{url()}_%28{rng.choice(WORDS)}%29"),
        (3, lambda: f"{url()};jsessionid={rng.getrandbits(64):X}"),
        (2, lambda: f"{url()}/../{rng.choice(WORDS)}"),
        (2, lambda: f"{url()}?q=é"),
        (1, lambda: f"{url()}/50%25"),
    ]
    chosen = rng.choices([kind for _, kind in kinds], weights=[weight for weight, _ in kinds], k=count)
    return [kind() for kind in chosen]
