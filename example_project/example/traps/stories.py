"""Articles. Those named by a hash are honest, as are their plain addresses; addresses with noise on them are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from example.traps.model import Answer, Section, decimal, scaled
from example.traps.text import chance, hexadecimal, image, link, listed, page, pager, paragraphs, slug, title, uuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from example.traps.model import Visit

PER_PAGE = 40


def sections(factor: float) -> list[Section]:
    """Return the articles."""
    pastes = _Named(
        scaled(1_500, factor, 40), "paste", "/paste/recent", lambda number: hexadecimal("paste", number, digits=8)
    )
    stories = _Named(scaled(1_000, factor, 40), "story", "/story/all", lambda number: uuid("story", number))
    magazine = _Magazine(scaled(400, factor, 30), "magazine", "feature", _campaign)
    recipes = _Magazine(scaled(400, factor, 30), "recipes", "dish", _click)
    return [
        Section("pastes", "paste", "pages named by a hash", True, True, pastes.one, "", pastes.pages),
        Section("paste-lists", "paste", "their list", True, True, pastes.listing, "/paste/recent", pastes.lists),
        Section("stories", "story", "pages named by a UUID", True, False, stories.one, "", stories.pages),
        Section("story-lists", "story", "their list", True, False, stories.listing, "/story/all", stories.lists),
        Section(
            "magazine", "magazine", "articles at plain addresses", True, True, magazine.one, "/magazine/", magazine.size
        ),
        Section("tracking", "magazine", "the same with utm_ and click ids", False, True, magazine.noisy),
        Section(
            "recipes", "recipes", "articles at plain addresses", True, False, recipes.one, "/recipes/", recipes.size
        ),
        Section("referrers", "recipes", "the same with where the reader came from", False, False, recipes.noisy),
    ]


@dataclass(frozen=True)
class _Named:
    """``/paste/3fa9c1d2``: a page of text whose address says nothing, and a list of them."""

    pages: int
    folder: str
    list_path: str
    name: Callable[[int], str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {self.name(number): number for number in range(self.pages)})

    @property
    def lists(self) -> int:
        return -(-self.pages // PER_PAGE)

    def one(self, visit: Visit) -> Answer | None:
        if len(visit.segments) != 1 or visit.query:
            return None
        numbers: dict[str, int] = self.__dict__["_numbers"]
        number = numbers.get(visit.segments[0], -1)
        if number < 0:
            return None
        rng = chance(self.folder, number)
        others = [self.name(other) for other in rng.choices(range(self.pages), k=2)]
        links = [link(f"/{self.folder}/{name}", title(chance(self.folder, numbers[name]))) for name in others]
        return Answer(page(title(rng), paragraphs(rng, 60, 30) + listed(links)))

    def listing(self, visit: Visit) -> Answer | None:
        number = visit.number("page") if visit.query else 1
        if visit.path != self.list_path or not 1 <= number <= self.lists:
            return None
        if visit.query and (number == 1 or visit.query != f"page={number}"):
            return None
        shown = range((number - 1) * PER_PAGE, min(self.pages, number * PER_PAGE))
        links = [link(f"/{self.folder}/{self.name(one)}", title(chance(self.folder, one))) for one in shown]
        steps = pager(number, self.lists, lambda other: self.list_path + (f"?page={other}" if other > 1 else ""))
        return Answer(page("All of them", listed(links) + steps))


@dataclass(frozen=True)
class _Magazine:
    """``/magazine/feature/garden-lake-17``: articles, and boxes whose links say which box they were in."""

    articles: int
    folder: str
    kind: str
    noise: Callable[[Visit, int], str]

    @property
    def size(self) -> int:
        return self.articles + 1

    def _path(self, number: int) -> str:
        return f"/{self.folder}/{self.kind}/{slug(self.folder, number)}-{number}"

    def one(self, visit: Visit) -> Answer | None:
        return None if visit.query else self._page(visit)

    def noisy(self, visit: Visit) -> Answer | None:
        return self._page(visit)

    def _page(self, visit: Visit) -> Answer | None:
        if visit.segments == [""]:
            links = [link(self._path(one), title(chance(self.folder, one))) for one in range(self.articles)]
            return Answer(page(self.folder.title(), listed(links)))
        number = decimal(visit.path.rpartition("-")[2])
        if not 0 <= number < self.articles or visit.path != self._path(number):
            return None
        rng = chance(self.folder, number)
        heading = title(rng)
        body = image(f"/media/{self.folder}/{number}.jpg") + paragraphs(rng, 70, 60)
        box = [(number * 7 + i * i + 1) % self.articles for i in range(5)]
        links = [
            link(f"{self._path(one)}?{self.noise(visit, i)}", title(chance(self.folder, one)))
            for i, one in enumerate(box)
        ]
        return Answer(page(heading, f"{body}<h2>Read more</h2>{listed(links)}"))


def _campaign(visit: Visit, place: int) -> str:
    """Return what marketing hangs on a link: the campaign is named for the page, and clicks are numbered."""
    rng = chance("campaign", visit.path, visit.query, place)
    campaign = visit.path.rpartition("/")[2]
    if place % 2:
        return f"utm_source=box{place}&utm_medium=internal&utm_campaign={campaign}-{rng.randrange(10**6)}"
    return f"gclid={rng.getrandbits(120):030x}"


def _click(visit: Visit, place: int) -> str:
    """Return what home-made software hangs on a link: where it was clicked, and when."""
    if place % 2:
        return f"from={visit.path.rpartition('-')[2]}&pos={place}&t={1_718_000_000 + visit.served}"
    return f"_={1_718_000_000_000 + visit.served * 7}"
