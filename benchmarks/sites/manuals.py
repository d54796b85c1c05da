"""The links of manuals, as programs that make documentation set them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

Links = list[list[int]]
"""The links of each page, as numbers of pages; the first page is the start."""


def manual(rng: random.Random) -> Links:
    """As Sphinx makes it: chapters in a sidebar, their pages on their index, next and previous, an index of terms."""
    sizes = [rng.randint(5, 80) for _ in range(rng.randint(10, 30))]
    firsts = [2 + sum(sizes[:number]) for number in range(len(sizes))]
    count = 2 + sum(sizes)
    links = [
        [0, 1, *firsts, max(n - 1, 0), min(n + 1, count - 1), *rng.choices(range(count), k=4)] for n in range(count)
    ]
    for first, size in zip(firsts, sizes, strict=True):
        links[first] += range(first, first + size)
    links[1] += rng.sample(range(count), count // 2)
    return links


def reference(rng: random.Random) -> Links:
    """As Javadoc makes it: packages, their classes, and related classes; no list of all."""
    links: Links = [[]]
    for _ in range(rng.randint(15, 50)):
        package, size = len(links), rng.randint(4, 60)
        links[0].append(package)
        links += [[0, *range(package + 1, package + size)], *[[0, package] for _ in range(1, size)]]
    for page in links:
        page += rng.choices(range(len(links)), k=rng.randint(0, 5))
    return links


def members(rng: random.Random) -> Links:
    """As Doxygen makes it: lists of all classes and files; for each class a page of members, and a file."""
    count = rng.randint(300, 800)
    classes = range(3, 3 + count)
    files = range(3 + 2 * count, 3 + 2 * count + count // 4)
    of_class = [[1, 2, each + count, rng.choice(files), *rng.choices(classes, k=2)] for each in classes]
    return [
        [1, 2],
        [2, *classes],
        [1, *files],
        *of_class,
        *[[1, 2, each] for each in classes],
        *[[1, 2] for _ in files],
    ]


def book(rng: random.Random) -> Links:
    """As mdBook makes it: every page links to all."""
    count = rng.randint(40, 300)
    return [list(range(count))] * count


MANUALS = (manual, reference, members, book)
