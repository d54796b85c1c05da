"""Traps: endless parts of a site in the manner of real software, and finite copies of honest pages."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import quote

from benchmarks.sites.pages import Links, Page
from benchmarks.sites.trap import Ask, Trap, endless, setting, shown, with_query, without

if TYPE_CHECKING:
    from collections.abc import Callable

# -- calendars and archives --------------------------------------------------------------------------------------------


@endless()
def calendar_by_query(t: Trap, ask: Ask) -> Page:
    """Months of an empty calendar, for ever in both directions."""
    at = ask.number("year", 2024) * 12 + ask.number("month", 5) - 1
    months = [(t.to(year=other // 12, month=other % 12 + 1), text) for other, text in ((at - 1, "<"), (at + 1, ">"))]
    days = [(t.to(year=at // 12, month=at % 12 + 1, day=day), str(day)) for day in range(1, 29)]
    return shown(f"Calendar {at % 12 + 1}/{at // 12}", months + days)


@endless()
def calendar_by_path(t: Trap, ask: Ask) -> Page:
    """Days, weeks and months as folders."""
    parts = [int(part) for part in t.folders(ask) if part.isdigit()]
    year, month = (*parts, 2024, 5)[:2]
    others = [divmod(month + step - 1, 12) for step in (-1, 1, 12)]
    links = [(f"{t.root}/{year + years}/{other + 1:02}/", "month") for years, other in others]
    links += [(f"{t.root}/{year}/{month:02}/{day:02}/", str(day)) for day in range(1, 29)]
    return shown(f"Events for {'/'.join(map(str, parts))}", links, "<p>There are no events.</p>")


@endless(lambda t: t.wording.sentences(t.draws.salt, 12))
def calendar_with_events(t: Trap, ask: Ask) -> Page:
    """Months that repeat the same few events."""
    at = ask.number("m", 0)
    rng = t.draws.seeded(at)
    events = "".join(f"<p>{rng.randint(1, 28)} {line}</p>" for line in rng.sample(t.drawn, 5))
    return shown(f"Month {at}", [(t.to(m=at + step), "month") for step in (-1, 1, 12)], events)


@endless()
def archive_by_day(t: Trap, ask: Ask) -> Page:
    """A list of known stories for every day that there ever was."""
    parts = t.folders(ask)
    first, size = ((1970, 50), (1, 12), (1, 28), (1, 0))[min(len(parts), 3)]
    lists = [(f"{ask.path.rstrip('/')}/{number + first}/", str(number)) for number in range(size)]
    return shown(f"Archive {'-'.join(parts)}", t.known(t.draws.seeded(ask.path), 4) + lists)


@endless()
def report_range(t: Trap, ask: Ask) -> Page:
    """A report between any two dates; nothing is found."""
    first, last = ask.number("from", 100), ask.number("to", 130)
    moves = ((first - 7, last), (first, last + 7), (first + 7, last + 7), (first - 30, last - 30))
    links = [(t.to(**{"from": a, "to": b}), f"{a} to {b}") for a, b in moves]
    return shown(f"Report {first} to {last}", links, "<p>No data for this period.</p>")


@endless()
def past_the_end(t: Trap, ask: Ask) -> Page:
    """A list whose pages go on past the last one."""
    at = ask.number("page", 1)
    links = [(href, t.wording.name(href)) for href in t.targets[(at - 1) * 10 : at * 10]]
    return shown("All pages", links + [(t.to(page=other), str(other)) for other in (at + 1, at + 2, at + 10)])


# -- sessions and what does not matter ---------------------------------------------------------------------------------


def session_in_query(t: Trap) -> None:
    """A session in a parameter of any name, a new one on each page."""
    t.params = [key := t.rng.choice(["zx", "osCsid", "visitor", "k", "_s"])]
    t.copies.rewrite = lambda ask: setting(key, t.draws.fresh())
    t.on_page = lambda path: [(with_query(path, **{key: t.draws.fresh()}), "view")]


def _session(t: Trap, pattern: str, enter: Callable[[str, str], str]) -> None:
    """Show the host section under a session, where *enter* puts it into a URL; a new one begins on every n-th page."""
    t.pattern = re.compile(pattern)
    often = t.rng.choice([1, 3, 10])

    def rewrite(ask: Ask) -> Callable[[str], str]:
        token = t.draws.fresh() if t.draws.count % often == 0 else re.findall(pattern, ask.url)[0]
        t.draws.count += 1
        return lambda href: enter(href, token)

    t.copies.rewrite = rewrite
    t.copies.plain = lambda ask: re.sub(pattern, "", ask.url)
    t.on_page = lambda path: [(enter(path, t.draws.fresh()), "permalink")]


def session_in_segment(t: Trap) -> None:
    """A session as the first folder."""
    root = "/" + t.rng.choice(["s-", "sid", "~", ""])
    _session(t, rf"^{root}([0-9a-f]{{12}})(?=/)", lambda path, token: f"{root}{token}{path}")


def session_in_parameter(t: Trap) -> None:
    """A session as a parameter of the path."""
    mark = f";{t.rng.choice(['jsessionid', 'sid', 'v'])}="
    _session(t, rf"{mark}([0-9a-f]+)", lambda path, token: re.sub(r"(?=\?|$)", mark + token, path, count=1))


def session_behind(t: Trap) -> None:
    """A session as the last segment: /product/7/102-1234567-1234567."""
    pattern = r"/(102-\d{7}-\d{7})"

    def enter(path: str, token: str) -> str:
        number = str(int(token, 16))  # a ValueError for a token of a link: then the page is not found
        return re.sub(r"/*(?=\?|$)", f"/102-{number[:7]:0>7}-{number[-7:]:0>7}", path, count=1)

    _session(t, pattern, enter)
    t.copies.plain = lambda ask: t.first_honest(re.sub(pattern, "", ask.url), re.sub(pattern, "/", ask.url))


def junk_behind(t: Trap) -> None:
    """Anything behind an item's path shows the item: /article/12/contact/about/contact."""
    words = t.draws.words("junk", 6)
    t.pattern = pattern = re.compile(rf"(?:/(?:{'|'.join(words)}))+/?$")
    t.copies.plain = lambda ask: t.first_honest(pattern.sub("", ask.url), pattern.sub("/", ask.url))
    t.copies.more = lambda ask: [(f"{ask.url.rstrip('/')}/{word}", word) for word in words]
    t.on_page = lambda path: [] if "?" in path else t.copies.more(Ask.of(path))[:2]


def referrer(t: Trap) -> None:
    """Links that say where they were found."""
    t.params = [key := t.rng.choice(["ref", "from", "source", "via"])]
    t.copies.rewrite = lambda ask: setting(key, t.copies.plain(ask))
    t.on_page = lambda path: [
        (with_query(href, **{key: path}), text) for href, text in t.pages[path].links[:5] if href in t.host.pages
    ]


@endless(on_page=lambda t, path: [(f"{t.root}?next={quote(path, safe='')}", "Log in")])
def login(t: Trap, ask: Ask) -> Page:
    """A form that remembers where one came from, also from itself."""
    came_from = f"?next={quote(ask.url, safe='')}"
    links = [(f"{t.root}{came_from}", "Log in"), (f"{t.root}/forgot{came_from}", "Forgot?")]
    return shown("Log in", links, "<form>Name and password, please.</form>")


def cart(t: Trap) -> None:
    """Buttons that are links, and lead back."""
    t.params = [key := t.rng.choice(["add", "add-to-cart", "wish"])]
    t.serve = lambda ask: Page("", "none", "", location=t.copies.plain(ask))
    t.on_page = lambda path: [(with_query(path, **{key: n}), "Add") for n in range(len(path) % 5, 9, 3)]


def visits(t: Trap) -> None:
    """A number in each link that grows with each page."""
    t.params, numbers = ["visit"], count(1)
    t.copies.rewrite = lambda ask: lambda href: with_query(href, visit=next(numbers))
    t.on_page = lambda path: [(with_query(path, visit=next(numbers)), "stay here")]


# -- other views of the same -------------------------------------------------------------------------------------------


def _views(t: Trap, keys: list[str], values: list[str]) -> None:
    t.params = [key := t.rng.choice(keys)]
    t.on_page = lambda path: [(with_query(path, **{key: value}), value) for value in values]
    t.copies.more = lambda ask: t.on_page(ask.url)


def print_version(t: Trap) -> None:
    """A page for the printer for each."""
    _views(t, ["print", "format", "view"], ["1"])


def language(t: Trap) -> None:
    """The same page under several languages that nobody translated it to."""
    _views(t, ["lang", "hl", "locale"], ["de", "fr", "it", "ja"])


def list_orders(t: Trap) -> None:
    """Every order of every list."""
    _views(t, ["sort", "orderby", "C"], ["name", "name_desc", "date", "date_desc", "size"])


def _below(t: Trap, folders: str, most: int | None = None) -> None:
    """Show the host section below *folders*, of which links have so many characters at most."""
    pattern = re.compile(rf"^{folders}(?=/)")
    t.copies.plain = lambda ask: pattern.sub("", ask.url)
    t.copies.rewrite = lambda ask: lambda href: pattern.match(ask.url)[0][:most] + href


def views_by_path(t: Trap) -> None:
    """Blame, raw and log of every file."""
    views = t.rng.sample(["blame", "raw", "annotate", "edit", "log", "plain"], 3)
    _below(t, f"{t.root}/[^/]*")
    t.on_page = lambda path: [(f"{t.root}/{view}{path}", view) for view in views]


def revisions(t: Trap) -> None:
    """Every page as it was at every commit."""
    _below(t, f"{t.root}/[^/]*")
    t.copies.more = lambda ask: [
        (f"{t.root}/{t.draws.token(commit, n)}{t.copies.plain(ask)}", f"parent {n}")
        for commit in t.folders(ask)[:1]
        for n in (0, 1)
    ]
    t.on_page = lambda path: [(f"{t.root}/{t.draws.token(path, 'head')}{path}", "at this commit")]


def history(t: Trap) -> None:
    """The versions of a wiki page, and the difference of any two."""
    t.params = ["oldid", "diff", "action"]

    def more(ask: Ask) -> Links:
        path = t.copies.plain(ask)
        old = ask.number("oldid", 0) or len(path) * 1000
        links = [(with_query(path, oldid=old - n, diff=old), f"diff {n}") for n in range(1, 5)]
        links += [(with_query(path, oldid=old - 1), "older"), (with_query(path, action="edit", oldid=old), "edit")]
        return links

    t.copies.more = more
    t.on_page = lambda path: [(with_query(path, action=action), action) for action in ("history", "edit", "info")]


def permalinks(t: Trap) -> None:
    """A link to each post shows the topic that it is in."""
    t.params = ["p", "post"]
    t.copies.more = lambda ask: [(with_query(ask.url, p=ask.number("p", 1) + n), "#") for n in (1, 2)]
    t.on_page = lambda path: [(with_query(path, p=len(path) * 100 + n), "#") for n in range(5)]


def _reply_to(t: Trap, path: str) -> Links:
    number = len(path) * 31 + sum(map(ord, path))
    return [(with_query(f"{t.root}/posting", mode=mode, to=number), mode) for mode in ("reply", "quote")]


@endless(on_page=_reply_to)
def reply(t: Trap, ask: Ask) -> Page:
    """A form for an answer to each page and post."""
    links = [(with_query(ask.url, quote=n), "Quote") for n in range(3)]
    return shown("Write an answer", links, "<p>You have to be a member to answer here.</p>")


def feeds(t: Trap) -> None:
    """The page again for programs, behind each path."""
    t.pattern = pattern = re.compile(r"/(?:feed|amp|trackback)/?$")
    t.copies.plain = lambda ask: pattern.sub("", ask.path)
    t.on_page = lambda path: (
        [] if "?" in path or path.endswith("/") else [(f"{path}/{kind}", kind) for kind in ("feed", "amp")]
    )


def mirror(t: Trap) -> None:
    """The section again below another folder, and again below that."""
    _below(t, f"(?:{t.root})+", most=12 * len(t.root))
    t.copies.more = lambda ask: [(t.root + ask.url, "mirror")]
    t.on_page = lambda path: [(t.root + path, "mirror")]


# -- lists without end -------------------------------------------------------------------------------------------------


@endless(lambda t: {key: t.draws.words(key, 4) for key in t.draws.words("facets", t.rng.randint(4, 7))})
def facets(t: Trap, ask: Ask) -> Page:
    """Filters in the query in any number, over a list of known things."""
    links = t.known(t.draws.seeded(sorted(ask.query.items())), 6)
    for key, values in t.drawn.items():
        links += [(with_query(ask.url, **{key: value}), value) for value in values if key not in ask.query]
    return shown("Products " + " ".join(ask.query.values()), links)


@endless(lambda t: t.draws.words("values", t.rng.randint(8, 16)))
def facets_by_path(t: Trap, ask: Ask) -> Page:
    """Filters as folders in any order."""
    chosen = t.folders(ask)
    links = [(f"{ask.path.rstrip('/')}/{value}", value) for value in t.drawn if value not in chosen]
    return shown(" ".join(chosen), t.known(t.draws.seeded(sorted(chosen)), 5) + links)


@endless(lambda t: t.draws.words("tags", t.rng.randint(12, 40)))
def tag_cloud(t: Trap, ask: Ask) -> Page:
    """Lists of what has all of some tags."""
    chosen = [tag for tag in ask.path[len(t.root) + 1 :].split("+") if tag]
    rng = t.draws.seeded(sorted(chosen))
    links = t.known(rng, 5)
    links += [(f"{t.root}/{'+'.join([*chosen, tag])}", tag) for tag in rng.sample(t.drawn, 8) if tag not in chosen]
    return shown("Tagged " + " and ".join(chosen), links)


@endless()
def search(t: Trap, ask: Ask) -> Page:
    """Results for any words, and more words to search for."""
    rng, asked = t.draws.seeded(ask.url), ask.query.get("q", "")
    words = asked.split()
    links = t.known(rng, 6)
    links += [(t.to(q=" ".join([*words[-2:], word])), word) for word in rng.sample(t.wording.words, 6)]
    return shown("Results for " + " ".join(words), [*links, (t.to(q=asked, page=ask.number("page", 1) + 1), "more")])


@endless()
def compare(t: Trap, ask: Ask) -> Page:
    """Any two things beside each other."""
    found = re.fullmatch(r"/(\d+)-vs-(\d+)", ask.path[len(t.root) :])
    first, second = map(int, found.groups()) if found else (0, 1)
    known = t.targets[:60]
    texts = [t.wording.sentences(t.pages[known[n % len(known)]].key, 1)[0] for n in (first, second)]
    links = [(f"{t.root}/{first}-vs-{other}", f"and {other}") for other in range(second + 1, second + 6)]
    links += [(f"{t.root}/{first + 1}-vs-{second}", "next")]
    return shown("Comparison", links, "".join(f"<p>{text}</p>" for text in texts))


@endless()
def cursor(t: Trap, ask: Ask) -> Page:
    """A list in JSON whose cursor never ends."""
    titles = [t.pages[path].title for path in t.targets[:10]]
    links = [(t.to(cursor=t.draws.token(ask.query.get("cursor", ""))), "next")]
    return shown("Items", links, " ".join(f"<p>{title}</p>" for title in titles))


@endless(lambda t: t.wording.sentences(t.draws.salt, t.rng.choice([15, 60])))
def shuffled(t: Trap, ask: Ask) -> Page:
    """Sayings of a pool, others each time."""
    rng = t.draws.seeded(ask.url)
    links = [(f"{t.root}/{rng.getrandbits(32)}", "another one") for _ in range(3)]
    return shown("A saying", links, "".join(f"<p>{line}</p>" for line in rng.sample(t.drawn, 3)))


@endless()
def online(t: Trap, ask: Ask) -> Page:
    """Who is here at a time."""
    rng, at = t.draws.seeded(ask.url), ask.number("t", 1_700_000_000)
    links = [(t.to(t=at + rng.randint(1, 999)), "refresh") for _ in range(2)]
    return shown("Members online", links, f"<p>{', '.join(rng.sample(t.draws.words('names', 30), 8))}</p>")


def relative(t: Trap) -> None:
    """A relative link that was meant to be absolute."""
    t.entries = [f"{t.root}/"]
    links = [(f"{word}/", word) for word in t.draws.words("relative", 3)]
    t.serve = lambda ask: Page("About us", "line", str(t.draws.salt), 3, links)


@endless()
def slideshow(t: Trap, ask: Ask) -> Page:
    """Pictures that were seen, in any size, order and speed."""
    at = ask.number("slide", 0)
    moves = [{"slide": at + 1}, {"size": "lsm"[at % 3]}, {"speed": at % 7}, {"order": "ad"[at % 2]}]
    links = [(with_query(without(ask.url, *move), **move), "go") for move in moves]
    return shown("Show", links, f'<img src="/media/show{at % 20}.jpg">')


@endless()
def soft_404(t: Trap, ask: Ask) -> Page:
    """Any address below it answers that it was not found, with links that were not either."""
    links = [(f"{t.root}/{word}-{n}", word) for n, word in enumerate(t.draws.words(ask.url, 4))]
    return shown("Not found", links, f"<p>Sorry, {ask.url} could not be found.</p><p>Did you mean one of these?</p>")


@endless(lambda t: t.rng.random() < 0.5)
def babble(t: Trap, ask: Ask) -> Page:
    """New text on every page, without end."""
    base = ask.path.rstrip("/") if t.drawn and ask.path.count("/") < 9 else t.root
    links = [(f"{base}/{t.wording.slug((t.draws.salt, ask.url, n))}", "more") for n in range(t.rng.choice([2, 6]))]
    return Page(t.wording.name(ask.url), "text", f"{t.draws.salt} {ask.url}", 6, links)


@endless()
def map_tiles(t: Trap, ask: Ask) -> Page:
    """A map that goes on in all directions, with new numbers everywhere."""
    x, y, z = (ask.number(key, 5) for key in "xyz")
    moves = [(x + 1, y, z), (x - 1, y, z), (x, y + 1, z), (x, y - 1, z), (x * 2, y * 2, z + 1)]
    return Page("Map", "numbers", f"{t.draws.salt} {ask.url}", 8, [(t.to(x=a, y=b, z=c), "go") for a, b, c in moves])


@endless()
def thesaurus(t: Trap, ask: Ask) -> Page:
    """Words that lead to words."""
    title = ask.path.rsplit("/", 1)[1]
    links = [(f"{t.root}/{word}", f"see {word}") for word in t.draws.words(ask.url, 6)]
    word, other = t.draws.words((ask.url, 2), 2)
    links += [(f"{t.root}/{word}-{other}", f"{word} {other}")]
    return shown(title, links, f"<p>{title} has {len(links)} narrower terms.</p>")


@endless()
def comments(t: Trap, ask: Ask) -> Page:
    """The newest comments, a sentence each, back to the beginning of time."""
    at = ask.number("before", 900_000)
    return Page("Comments", "line", f"{t.draws.salt} {at}", 3, [(t.to(before=at - n), "older") for n in (10, 20, 100)])


TRAPS: list[Callable[[Trap], None]] = [
    calendar_by_query, calendar_by_path, calendar_with_events, archive_by_day, report_range, past_the_end,
    session_in_query, session_in_segment, session_in_parameter, session_behind, junk_behind, referrer, login, cart,
    visits, print_version, language, list_orders, views_by_path, revisions, history, permalinks, reply, feeds, mirror,
    facets, facets_by_path, tag_cloud, search, compare, cursor, shuffled, online, relative, slideshow, soft_404,
    babble, map_tiles, thesaurus, comments,
]  # fmt: skip
