"""Words, prose and HTML: the same for the same key, in microseconds. Knows no section."""

from __future__ import annotations

import random
import zlib
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_STEMS = """
anchor apple arch autumn badge bank barn basket beach bell bench berry birch blanket blossom boat border bottle branch
brass bread brick bridge bronze brook brush bucket butter button cabin cable canal candle canvas canyon cargo carpet
castle cedar cellar chain chalk chapel cherry circle cliff clock cloud coast copper coral corner cotton cradle crane
crater creek crown crystal curtain desert diamond ditch dock door dragon drum dune dust eagle ember engine estate
fabric falcon farm feather fence fern ferry field flame flint flood floor flute fog forest forge fountain fox frame
frost garden garnet gate glacier glass globe gold grain granite grape grass gravel grove gull hammer harbour harvest
hawk hazel hedge helmet hill hinge hollow honey hook horizon horn horse island ivory ivy jacket jasmine jewel journey
juniper kettle key kitchen ladder lagoon lake lamp lantern lark laurel lawn leather ledge lemon lily linen lion log
loom maple marble market marsh mast meadow mill mirror mist moon morning moss mountain needle nest north oak oar ocean
olive orchard orchid otter oven owl paddle palace paper park parrot pasture path pearl pebble pepper petal pier pigeon
pillar pillow pine pipe plain planet plank plaza plum pocket pond poplar porch port pottery prairie quarry quartz
quilt rabbit raft rail rain raven reed reef ribbon ridge ring river road robin rocket roof rope rose rudder saddle
sail salt sand sapphire scarf season shadow shell shelter ship shore silk silver sky slate sleeve smoke snow spark
sparrow spice spring spruce square stable star station steel stone storm stove straw stream street summer sun swan
table tailor temple thistle thorn thread thunder tide timber tower trail train tulip tunnel turtle valley velvet
village vine violet voyage wagon wall walnut water wave wharf wheat wheel willow wind window winter wolf wood wool
yard
""".split()  # noqa: SIM905 - as a list it would take 350 lines

NAMES = """
Adams Baker Brandt Carter Castillo Dahl Ekström Fischer Fontaine Garcia Haddad Hoffman Ivanova Jansen Kim Kowalski Lund
Marino Nakamura Novak Okafor Olsen Patel Quinn Rossi Santos Schmidt Silva Tanaka Tran Ueda Varga Weber Yilmaz Zhang
""".split()  # noqa: SIM905 - as a list it would take 35 lines

_GLUE = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "on", "by", "at", "from")

WORDS = [stem + ending for ending in ("", "s", "ed", "ing", "er", "less", "like", "ward") for stem in _STEMS]
"""What prose, names and addresses are made of: some 2,800 words."""

STEMS = _STEMS
"""The 350 of them without an ending, for addresses that people think up."""


def chance(*key: object) -> random.Random:
    """Return the source of everything that is accidental about *key*: the same on every run."""
    return random.Random(zlib.crc32(repr(key).encode()))  # noqa: S311 - the same site on every run is the point


def _followers() -> list[list[str]]:
    """Return for every word the words that may come after it: a Markov chain of order one, as the mazes use."""
    rng = chance("followers")
    return [rng.choices(WORDS, k=5) + rng.choices(_GLUE, k=4) for _ in WORDS]


_FOLLOWERS = dict(zip(WORDS, _followers(), strict=True))
_AFTER_GLUE = chance("glue").choices(WORDS, k=1024)


def babble(rng: random.Random, words: int) -> str:
    """Return prose of that many words. Honest text and that of mazes come from here: no word gives a maze away."""
    rolls = rng.getrandbits(16 * words).to_bytes(2 * words, "big")
    word = _AFTER_GLUE[rolls[0] << 2 | rolls[1] & 3]
    said = [word.capitalize()]
    since_stop = 0
    for i in range(2, 2 * words, 2):
        followers = _FOLLOWERS.get(word)
        word = followers[rolls[i] % 9] if followers else _AFTER_GLUE[(rolls[i] << 2) | (rolls[i + 1] & 3)]
        since_stop += 1
        if since_stop > 7 and rolls[i + 1] < 40 and word in _FOLLOWERS:
            said[-1] += "."
            said.append(word.capitalize())
            since_stop = 0
        else:
            said.append(word)
    return " ".join(said) + "."


def paragraphs(rng: random.Random, *lengths: int) -> str:
    """Return prose as HTML, one paragraph for each number of words."""
    return "".join([f"<p>{babble(rng, length)}</p>\n" for length in lengths])


def title(rng: random.Random, words: int = 3) -> str:
    """Return a name of that many words."""
    return " ".join(rng.choices(WORDS, k=words)).title()


def slug(*key: object, words: int = 2) -> str:
    """Return words for an address, the same for the same key."""
    return "-".join(chance("slug", *key).choices(STEMS, k=words))


def hexadecimal(*key: object, digits: int = 32) -> str:
    """Return digits that look like a hash and are the same for the same key."""
    return f"{chance('hex', *key).getrandbits(4 * digits):0{digits}x}"


def uuid(*key: object) -> str:
    """Return what looks like a random UUID and is the same for the same key."""
    digits = hexadecimal("uuid", *key)
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def link(href: str, text: object) -> str:
    """Return a link."""
    return f'<a href="{escape(href)}">{text}</a>'


def listed(links: Iterable[str]) -> str:
    """Return links as a list."""
    return "<ul>\n" + "".join([f"<li>{item}</li>\n" for item in links]) + "</ul>\n"


def row(*cells: object, kind: str = "td") -> str:
    """Return a row of a table."""
    return "<tr>" + "".join([f"<{kind}>{cell}</{kind}>" for cell in cells]) + "</tr>\n"


def image(source: str, text: str = "") -> str:
    """Return an image."""
    return f'<img src="{source}" alt="{escape(text)}">'


def pager(number: int, pages: int, href: Callable[[int], str], *, endless: bool = False) -> str:
    """Return links to the neighbours of page *number* of a list, and to its first and last page.

    *href* makes the address of a page. A pager that does not know its list is *endless*: there is always a next one.
    """
    near = {1, number - 2, number - 1, number + 1, number + 2, pages} - {number}
    links = [link(href(other), other) for other in sorted(near) if 1 <= other <= pages]
    if number < pages or endless:
        links.append(link(href(number + 1), "Next"))
    return f'<div class="pager">{" ".join(links)}</div>\n'


MENU = (
    ("/", "Home"),
    ("/shop/", "Shop"),
    ("/forum/", "Forum"),
    ("/wiki/Main_Page", "Wiki"),
    ("/docs/", "Documentation"),
    ("/photos/", "Photos"),
    ("/weather/", "Weather"),
    ("/firms/", "Firms"),
)
_MENU = "<ul class=menu>" + "".join(f"<li>{link(href, text)}</li>" for href, text in MENU) + "</ul>\n"
_FOOTER = (
    "<footer><p>All prices include taxes. Orders before noon leave the house on the same day.</p>"
    "<p>© The Example Company. Terms and conditions apply.</p></footer>\n"
)


def page(heading: str, body: str) -> str:
    """Return a whole page: heading and *body*, and around them what every page of the site has."""
    return (
        f"<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>{heading} | Example</title></head>\n<body>\n"
        f"{_MENU}<main>\n<h1>{heading}</h1>\n{body}</main>\n{_FOOTER}</body></html>\n"
    )
