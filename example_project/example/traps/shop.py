"""Two shops. Their products are honest; filters in every combination, and a form for every product, are not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from example.traps.model import Answer, Section, decimal, scaled
from example.traps.text import babble, chance, image, link, listed, page, pager, paragraphs, row, slug, title

if TYPE_CHECKING:
    from example.traps.model import Visit

PER_PAGE = 20
COLOURS = ("black", "blue", "brown", "green", "grey", "red", "white", "yellow")
SIZES = ("xs", "s", "m", "l", "xl")
BRANDS = ("arden", "bellweather", "corvus", "dunmore", "everly", "foxglove")
MATERIALS = ("canvas", "cotton", "leather", "linen", "wool")
FACETS = {
    "brand": BRANDS,
    "colour": COLOURS,
    "material": MATERIALS,
    "price": ("0-20", "20-50", "50-100"),
    "size": SIZES,
}
IN_PATH = {"colour": COLOURS, "size": SIZES, "brand": BRANDS, "material": MATERIALS}


def sections(factor: float) -> list[Section]:
    """Return both shops."""
    shop = _Shop(scaled(50_000, factor, 60), scaled(100, factor**0.5, 2))
    wear = _Wear(scaled(2_000, factor, 40))
    lists = shop.categories * shop.pages_each + 1
    return [
        Section(
            "shop-products", "shop", "50,000 products under one shape", True, True, shop.product, "", shop.products
        ),
        Section("shop-lists", "shop", "categories with pages", True, True, shop.listing, "/shop/", lists),
        Section("facets-query", "shop", "filters in every combination, as parameters", False, True, shop.facets),
        Section("login-return", "account", "a login form for every page", False, True, _login),
        Section("wear-items", "wear", "products named by words", True, False, wear.item, "", wear.items),
        Section("wear-lists", "wear", "their list", True, False, wear.listing, "/wear/", wear.pages),
        Section("facets-path", "wear", "filters as folders, in any order", False, False, wear.facets),
        Section("share-forms", "tell-a-friend", "a form for every product, with its title", False, False, _share),
    ]


@dataclass(frozen=True)
class _Shop:
    """``/shop/``: products by number, categories with pages, filters as parameters."""

    products: int
    categories: int

    @property
    def pages_each(self) -> int:
        return -(-self.products // (self.categories * PER_PAGE))

    def product(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case ["product", digits] if not visit.query and 0 <= (number := decimal(digits) - 10_000) < self.products:
                pass
            case _:
                return None
        # One in five is another one in another colour: the same text, another number, image and price.
        model = number - 1 if number % 5 == 4 else number
        rng, variant = chance("product", model), chance("variant", number)
        name = title(rng)
        colour = COLOURS[variant.randrange(8)]
        facts = (
            row("Article", f"{10_000 + number}-{colour[:2].upper()}")
            + row("Colour", colour)
            + row("Brand", BRANDS[rng.randrange(6)].title())
            + row("Weight", f"{rng.randrange(50, 4000)} g")
            + row("Price", f"{variant.randrange(500, 20_000) / 100:.2f} €")
        )
        address = f"/shop/product/{10_000 + number}"
        related = [(number + variant.randrange(1, 400)) % self.products for _ in range(4)]
        body = (
            f"{image(f'/media/products/{10_000 + number}.jpg', name)}\n<table>{facts}</table>\n"
            + paragraphs(rng, 45)
            + f"<p>{link('/account/login?' + urlencode({'next': address}), 'Log in to write a review')}</p>\n"
            + "<h2>You may also like</h2>\n"
            + listed(link(f"/shop/product/{10_000 + other}", _product_name(other)) for other in related)
            + f"<p>More in {link(f'/shop/category/{self._category(number % self.categories)}/', 'this category')}</p>\n"
        )
        return Answer(page(name, body))

    def _category(self, index: int) -> str:
        return f"{slug('category', index, words=1)}-{index + 1}"

    def _category_index(self, name: str) -> int:
        index = decimal(name.rpartition("-")[2]) - 1
        return index if 0 <= index < self.categories and self._category(index) == name else -1

    def listing(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case [""] if not visit.query:
                names = [self._category(index) for index in range(self.categories)]
                return Answer(page("Shop", listed(link(f"/shop/category/{name}/", name) for name in names)))
            case ["category", name, ""] if (index := self._category_index(name)) >= 0:
                number = visit.number("page") if visit.query else 1
                if visit.query and (visit.query != f"page={number}" or number < 2):
                    return None
                if number > self.pages_each:
                    return None
                first = (number - 1) * PER_PAGE
                mine = [index + (first + i) * self.categories for i in range(PER_PAGE)]
                return self._list(name, [one for one in mine if one < self.products], number, self.pages_each, {})
        return None

    def facets(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case ["category", name, ""] if (index := self._category_index(name)) >= 0:
                chosen = {key: value for key, value in visit.params.items() if value in FACETS.get(key, ())}
                number = max(1, visit.number("page"))
                # A filter leaves a share of the category, drawn by what is chosen.
                size = min(60, self.pages_each * PER_PAGE) >> len(chosen)
                rng = chance("facets", index, sorted(chosen.items()))
                shown = sorted(
                    {index + rng.randrange(self.pages_each * PER_PAGE) * self.categories for _ in range(size)}
                )
                shown = [one for one in shown if one < self.products]
                pages = max(1, -(-len(shown) // PER_PAGE))
                return self._list(name, shown[(number - 1) * PER_PAGE : number * PER_PAGE], number, pages, chosen)
        return None

    def _list(self, category: str, shown: list[int], number: int, pages: int, chosen: dict[str, str]) -> Answer:
        base = f"/shop/category/{category}/"
        filters = []
        for key, values in FACETS.items():
            for value in values:
                rest = {k: v for k, v in chosen.items() if k != key}
                if chosen.get(key) != value:  # a click on a filter that is set takes it back
                    rest[key] = value
                filters.append(link(f"{base}?{urlencode(rest)}" if rest else base, value))
        goods = [f"{link(f'/shop/product/{10_000 + one}', _product_name(one))} {_product_price(one)}" for one in shown]
        said = " and ".join(chosen.values()) or "All"

        def address(other: int) -> str:
            query = urlencode(chosen | ({"page": str(other)} if other > 1 else {}))
            return f"{base}?{query}" if query else base

        return Answer(
            page(
                category.title(),
                f"<p>{said}: page {number}</p>\n{listed(goods)}{pager(number, pages, address)}"
                f"<div class=filters>{' '.join(filters)}</div>\n",
            )
        )


@cache
def _product_name(number: int) -> str:
    return title(chance("product", number - 1 if number % 5 == 4 else number))


@cache
def _product_price(number: int) -> str:
    variant = chance("variant", number)
    variant.randrange(8)
    return f"{variant.randrange(500, 20_000) / 100:.2f} €"


@dataclass(frozen=True)
class _Wear:
    """``/wear/``: items by words, a list with pages in the path, filters as folders."""

    items: int

    @property
    def pages(self) -> int:
        return -(-self.items // PER_PAGE)

    def _name(self, number: int) -> str:
        return f"{slug('wear', number, words=3)}-{MATERIALS[number % 5]}-{number:x}"

    def item(self, visit: Visit) -> Answer | None:
        if len(visit.segments) != 2 or visit.segments[0] != "item" or visit.query:
            return None
        name = visit.segments[1]
        try:
            number = int(name.rpartition("-")[2], 16)
        except ValueError:
            return None
        if not 0 <= number < self.items or self._name(number) != name:
            return None
        rng = chance("wear", number)
        heading = name.rpartition("-")[0].replace("-", " ").title()
        sizes = "".join(f"<option>{size.upper()}</option>" for size in SIZES)
        share = "/tell-a-friend/?" + urlencode({"url": f"/wear/item/{name}", "title": heading}, quote_via=quote)
        body = (
            "".join(image(f"/media/wear/{number}-{view}.webp") for view in range(3))
            + f"\n<p>{babble(rng, 25)}</p>\n<select>{sizes}</select>\n"
            + listed([f"{rng.randrange(40, 100)} % {MATERIALS[number % 5]}", f"Care: {babble(rng, 8)}"])
            + f"<p>{link(share, 'Tell a friend')} {link('/wear/', 'All of our wear')}</p>\n"
        )
        return Answer(page(heading, body))

    def listing(self, visit: Visit) -> Answer | None:
        if visit.query:
            return None
        match visit.segments:
            case [""]:
                number = 1
            case [folder, ""] if folder.startswith("page-"):
                number = decimal(folder.removeprefix("page-"))
            case _:
                return None
        if not 1 <= number <= self.pages or (number == 1 and len(visit.segments) > 1):
            return None
        first = (number - 1) * PER_PAGE
        goods = [link(f"/wear/item/{self._name(one)}", self._name(one)) for one in range(first, first + PER_PAGE)]
        neighbours = [
            link("/wear/" if other == 1 else f"/wear/page-{other}/", other)
            for other in (1, number - 1, number + 1, number + 2, number + 10)
            if 1 <= other <= self.pages
        ]
        return Answer(page("Wear", listed(goods[: self.items - first]) + " ".join(neighbours) + self._filters([])))

    def facets(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case ["filter", *chosen, ""] if chosen and all(self._is_filter(one) for one in chosen):
                rng = chance("wear", sorted(chosen))
                size = max(0, 16 - 4 * len(chosen))
                goods = [self._name(rng.randrange(self.items)) for _ in range(size)]
                found = listed(link(f"/wear/item/{name}", name) for name in goods)
                body = f"<p>{size} items</p>\n{found}{self._filters(chosen)}"
                return Answer(page("Wear: " + ", ".join(chosen), body))
        return None

    def _is_filter(self, text: str) -> bool:
        key, _, value = text.partition("-")
        return value in IN_PATH.get(key, ())

    def _filters(self, chosen: list[str]) -> str:
        """Return links that add a filter, in the order of the clicks: the software behind it sorts nothing."""
        keys = {one.partition("-")[0] for one in chosen}
        links = []
        for key, values in IN_PATH.items():
            if key in keys:
                rest = [one for one in chosen if not one.startswith(f"{key}-")]
                links.append(link("/".join(["/wear/filter", *rest, ""]) if rest else "/wear/", f"any {key}"))
            else:
                links += [link("/".join(["/wear/filter", *chosen, f"{key}-{value}", ""]), value) for value in values]
        return f"<div class=filters>{' '.join(links)}</div>\n"


def _login(visit: Visit) -> Answer | None:
    if visit.segments not in (["login"], ["register"]):
        return None
    target = visit.params.get("next", "/")
    return Answer(
        page(
            "Log in",
            f'<form method=post action="/account/login"><input type=hidden name=next value="{target}">\n'
            "<p>Your e-mail address</p><p>Your password</p></form>\n"
            f"<p>Not a customer yet? {link('/account/register?' + urlencode({'next': target}), 'Register')}</p>\n"
            f"<p>{link(target, 'Back')}</p>\n",
        )
    )


def _share(visit: Visit) -> Answer | None:
    target = visit.params.get("url", "/wear/")
    said = visit.params.get("title", "")
    return Answer(
        page(
            f"Recommend {said}",
            f"<form method=post><p>Send this page to a friend: {said}</p><p>Your name</p><p>Their address</p></form>\n"
            f"<p>{link(target, 'Back to ' + said)}</p>\n",
        )
    )
