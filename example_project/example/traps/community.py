"""What people write together. Forums, a wiki and a list of firms are honest; their endless views are not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from example.traps.model import Answer, Section, decimal, scaled
from example.traps.text import NAMES, STEMS, babble, chance, link, listed, page, pager, paragraphs, row, slug, title

if TYPE_CHECKING:
    import random

    from example.traps.model import Visit

THREADS_PER_PAGE = 25
POSTS_PER_PAGE = 8
BOARD_POSTS = 10
FIRMS_PER_PAGE = 30


def sections(factor: float) -> list[Section]:
    """Return the communities."""
    forum = _Forum(scaled(1_500, factor, 30))
    board = _Board(scaled(1_000, factor, 25))
    wiki = _Wiki(scaled(2_000, factor, 40))
    firms = _Firms(scaled(3_000, factor, 70))
    threads = sum(forum.thread_pages(number) for number in range(forum.threads))
    topics = sum(board.topic_pages(number) for number in range(1, board.topics + 1))
    return [
        Section("forum-threads", "forum", "threads with pages", True, True, forum.thread, "", threads),
        Section("forum-lists", "forum", "their list", True, True, forum.listing, "/forum/", forum.pages),
        Section("paging-empty", "forum", "past the end of the list, empty pages", False, True, forum.past_the_end),
        Section(
            "board",
            "board",
            "threads with pages, all as parameters",
            True,
            False,
            board.page,
            "/board/index.php",
            topics + 1,
        ),
        Section("board-replies", "board", "a form for every post", False, False, board.reply),
        Section(
            "wiki", "wiki", "pages linked to each other", True, True, wiki.article, "/wiki/Main_Page", wiki.articles
        ),
        Section("wiki-views", "w", "histories, differences and editors", False, True, wiki.view),
        Section("firms", "firms", "two lines a page, behind a list only", True, False, firms.firm, "", firms.firms),
        Section("firm-lists", "firms", "that list", True, False, firms.listing, "/firms/", firms.pages),
        Section("sort-views", "firms", "the list in every order, size and view", False, False, firms.views),
    ]


def _posts(rng: random.Random, first: int, count: int) -> str:
    posts = [
        f"<div class=post><p>#{first + i} {rng.choice(NAMES)} wrote:</p>{paragraphs(rng, rng.randrange(8, 40))}</div>\n"
        for i in range(count)
    ]
    return "".join(posts)


@dataclass(frozen=True)
class _Forum:
    """``/forum/thread/17?page=2``; the list at ``/forum/?page=2`` believes that there is always more."""

    threads: int

    @property
    def pages(self) -> int:
        return -(-self.threads // THREADS_PER_PAGE)

    def thread_pages(self, number: int) -> int:
        return 1 + chance("thread", number).randrange(20) ** 2 // 60  # most have one page, a few have seven

    def thread(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case ["thread", digits] if 0 <= (number := decimal(digits) - 1) < self.threads:
                pass
            case _:
                return None
        shown = visit.number("page") if visit.query else 1
        pages = self.thread_pages(number)
        if not 1 <= shown <= pages or (visit.query and (shown == 1 or visit.query != f"page={shown}")):
            return None
        rng = chance("posts", number, shown)
        others = [
            link(f"/forum/thread/{1 + other}", "Similar thread") for other in rng.choices(range(self.threads), k=2)
        ]
        steps = pager(
            shown, pages, lambda other: f"/forum/thread/{number + 1}" + (f"?page={other}" if other > 1 else "")
        )
        posts = _posts(rng, 1 + (shown - 1) * POSTS_PER_PAGE, POSTS_PER_PAGE if shown < pages else 3)
        return Answer(
            page(title(chance("topic", number), 4), f"{posts}{steps}{listed([*others, link('/forum/', 'Forum')])}")
        )

    def listing(self, visit: Visit) -> Answer | None:
        number = visit.number("page") if visit.query else 1
        if visit.segments != [""] or not 1 <= number <= self.pages:
            return None
        if visit.query and (number == 1 or visit.query != f"page={number}"):
            return None
        return self._list(number)

    def past_the_end(self, visit: Visit) -> Answer | None:
        number = visit.number("page")
        return self._list(number) if visit.segments == [""] and number >= 1 else None

    def _list(self, number: int) -> Answer:
        shown = range((number - 1) * THREADS_PER_PAGE, min(self.threads, number * THREADS_PER_PAGE))
        threads = [link(f"/forum/thread/{1 + one}", title(chance("topic", one), 4)) for one in shown]
        steps = pager(
            number, self.pages, lambda other: f"/forum/?page={other}" if other > 1 else "/forum/", endless=True
        )
        return Answer(page("Forum", listed(threads or ["There are no threads here yet."]) + steps))


@dataclass(frozen=True)
class _Board:
    """``/board/viewtopic.php?t=17&start=20``: everything is a parameter, and every post can be replied to."""

    topics: int

    def topic_pages(self, number: int) -> int:
        return 1 + chance("board", number).randrange(4)

    def page(self, visit: Visit) -> Answer | None:
        if visit.segments == ["index.php"] and not visit.query:
            links = [
                link(f"/board/viewtopic.php?t={one}", title(chance("board topic", one), 3))
                for one in range(1, self.topics + 1)
            ]
            return Answer(page("Board", listed(links)))
        number, start = visit.number("t"), visit.number("start") if "start" in visit.params else 0
        if visit.segments != ["viewtopic.php"] or not 1 <= number <= self.topics:
            return None
        pages = self.topic_pages(number)
        if visit.query not in (f"t={number}", f"t={number}&start={start}") or ("start" in visit.params) != (start > 0):
            return None
        if start % BOARD_POSTS or start // BOARD_POSTS >= pages:
            return None
        rng = chance("board posts", number, start)
        replies = [
            link(f"/board/posting.php?mode=quote&t={number}&p={(number * 10 + start) * 100 + i}", "Quote")
            for i in range(4)
        ]
        steps = pager(
            start // BOARD_POSTS + 1,
            pages,
            lambda other: (
                f"/board/viewtopic.php?t={number}" + (f"&start={(other - 1) * BOARD_POSTS}" if other > 1 else "")
            ),
        )
        body = _posts(rng, start + 1, 4) + " ".join(replies) + steps + link("/board/index.php", "Board")
        return Answer(page(title(chance("board topic", number), 3), body))

    def reply(self, visit: Visit) -> Answer | None:
        if visit.segments != ["posting.php"]:
            return None
        token = f"{chance('token', visit.served).getrandbits(64):016x}"
        form = f'<form method=post><input type=hidden name=form_token value="{token}"><textarea></textarea></form>'
        links = [
            link(f"/board/viewtopic.php?t={visit.number('t')}", "Back"),
            link("/board/ucp.php?mode=register", "Register"),
        ]
        return Answer(
            page("Post a reply", f"{form}<p>You must log in to reply to topics on this board.</p>{listed(links)}")
        )


@dataclass(frozen=True)
class _Wiki:
    """``/wiki/Garden_lake``, and ``/w/index.php?title=…&action=…`` for all that can be done with an article."""

    articles: int

    def _name(self, number: int) -> str:
        if not number:
            return "Main_Page"
        return f"{slug('wiki', number).replace('-', '_').capitalize()}_{number}"

    def _number(self, name: str) -> int:
        if name == "Main_Page":
            return 0
        number = decimal(name.rpartition("_")[2])
        return number if 0 < number < self.articles and name == self._name(number) else -1

    def _text(self, number: int) -> str:
        return paragraphs(chance("wiki", number), 60, 50)

    def article(self, visit: Visit) -> Answer | None:
        number = self._number(visit.segments[0]) if len(visit.segments) == 1 and not visit.query else -1
        if number < 0:
            return None
        rng = chance("wiki links", number)
        targets = [child for child in range(3 * number + 1, 3 * number + 4) if child < self.articles]
        targets += rng.choices(range(self.articles), k=5)
        links = [link(f"/wiki/{self._name(one)}", self._name(one).replace("_", " ")) for one in targets]
        name = self._name(number)
        views = [link(f"/w/index.php?title={name}&action={action}", action) for action in ("edit", "history", "info")]
        return Answer(page(name.replace("_", " "), self._text(number) + listed(links) + " ".join(views)))

    def view(self, visit: Visit) -> Answer | None:
        name, action = visit.params.get("title", ""), visit.params.get("action", "view")
        number = self._number(name)
        if visit.segments != ["index.php"] or number < 0:
            return None
        text = self._text(number)
        newest = 1000 + number * 40
        base = f"/w/index.php?title={name}"
        article = link(f"/wiki/{name}", "Article")
        if action == "history":
            rows = [
                f"{link(f'{base}&oldid={newest - i}', f'revision {newest - i}')} by {NAMES[(number + i) % len(NAMES)]} "
                f"({link(f'{base}&diff={newest - i}&oldid={newest - i - 1}', 'prev')})"
                for i in range(10)
            ]
            more = [link(f"{base}&action=history&limit={limit}", limit) for limit in (20, 50, 100, 250)]
            return Answer(page(f"Revision history of {name}", listed(rows) + " ".join(more) + article))
        if action == "edit":
            return Answer(page(f"Editing {name}", f"<textarea>{text}</textarea>{article}"))
        if action == "info":
            return Answer(page(f"Information for {name}", f"<table>{row('Length', len(text))}</table>{article}"))
        revision = visit.number("oldid")
        if revision < 0:
            return None
        steps = [
            link(f"{base}&oldid={revision - 1}", "← Older"),
            link(f"{base}&diff={revision + 1}&oldid={revision}", "Newer →"),
        ]
        return Answer(page(f"{name}: revision {revision}", f"{' '.join(steps)}{text}{article}"))


@dataclass(frozen=True)
class _Firms:
    """``/firms/lake-garden-17/``: nothing but the list leads there, and the list can be had in hundreds of ways."""

    firms: int

    @property
    def pages(self) -> int:
        return -(-self.firms // FIRMS_PER_PAGE)

    def _name(self, number: int) -> str:
        return f"{slug('firm', number)}-{number}"

    def firm(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case [name, ""] if not visit.query:
                number = decimal(name.rpartition("-")[2])
            case _:
                return None
        if not 0 <= number < self.firms or name != self._name(number):
            return None
        rng = chance("firm", number)
        street = f"{rng.randrange(1, 200)} {rng.choice(STEMS).title()} Street"
        lines = f"<p>{street}, {rng.choice(STEMS).title()}town</p><p>Telephone 555-{rng.randrange(10_000):04d}</p>"
        return Answer(
            page(f"{name.rpartition('-')[0].replace('-', ' ').title()} Ltd", f"{lines}<p>{babble(rng, 9)}</p>")
        )

    def listing(self, visit: Visit) -> Answer | None:
        number = visit.number("page") if visit.query else 1
        if visit.segments != [""] or not 1 <= number <= self.pages:
            return None
        if visit.query and (number == 1 or visit.query != f"page={number}"):
            return None
        return self._list(range((number - 1) * FIRMS_PER_PAGE, number * FIRMS_PER_PAGE), number, self.pages, {})

    def views(self, visit: Visit) -> Answer | None:
        if visit.segments != [""]:
            return None
        chosen = {key: value for key, value in visit.params.items() if value in _VIEWS.get(key, ())}
        each = int(chosen.get("per_page", FIRMS_PER_PAGE))
        pages = -(-self.firms // each)
        number = max(1, visit.number("page"))
        if number > pages:
            return None
        order = _order(self.firms, chosen.get("sort", ""), chosen.get("dir", ""))
        return self._list(order[(number - 1) * each : number * each], number, pages, chosen)

    def _list(self, shown: range | list[int], number: int, pages: int, chosen: dict[str, str]) -> Answer:
        firms = [link(f"/firms/{self._name(one)}/", self._name(one)) for one in shown if one < self.firms]

        def address(other: int) -> str:
            query = urlencode(chosen | ({"page": str(other)} if other > 1 else {}))
            return f"/firms/?{query}" if query else "/firms/"

        views = [
            link("/firms/?" + urlencode(chosen | {key: value}), value)
            for key, values in _VIEWS.items()
            for value in values
        ]
        return Answer(page("Firms", listed(firms) + pager(number, pages, address) + " ".join(views)))


@cache
def _order(firms: int, by: str, direction: str) -> list[int]:
    if not by:
        return list(range(firms))
    return sorted(range(firms), key=lambda one: (one * _STRIDES[by] + 7) % 9973, reverse=direction == "desc")


_VIEWS = {
    "sort": ("name", "town", "rating"),
    "dir": ("asc", "desc"),
    "per_page": ("10", "50"),
    "view": ("grid", "list"),
}
_STRIDES = {"name": 1237, "town": 3571, "rating": 7919}
