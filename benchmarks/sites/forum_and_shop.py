"""A forum, a shop, and a blog with a calendar, in the manner of real programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.sites.pages import Links, Page
from benchmarks.sites.program import Program, link, shown

if TYPE_CHECKING:
    from benchmarks.sites.draw import Answer


class PhpBB(Program):
    """Forums, topics over several pages and members; searches, posts as topics, print views, replies."""

    home = "/index.php"
    has_sessions = False

    def make(self) -> None:
        self.topics = {t: (2 + t % 9, self.seeded(t, "n").choice([1, 1, 1, 2, 2, 3, 5])) for t in range(100, 400)}
        self.members = range(50, 150)
        self.note("index", self.home)
        by_forum: dict[int, list[int]] = {}
        for t, (f, pages) in self.topics.items():
            by_forum.setdefault(f, []).append(t)
            self.note("topic", f"/viewtopic.php?f={f}&t={t}")
            self.note("topic pages", *(f"/viewtopic.php?f={f}&t={t}&start={15 * n}" for n in range(1, pages)))
        self.by_forum = by_forum
        for f, topics in by_forum.items():
            self.note("forum", f"/viewforum.php?f={f}")
            self.note("forum", *(f"/viewforum.php?f={f}&start={n}" for n in range(25, len(topics), 25)))
        self.note("member", *(f"/memberlist.php?mode=viewprofile&u={u}" for u in self.members))

    def content_of(self, url: str) -> str:
        """Return *url* without its session."""
        return re.sub(r"[?&]sid=[0-9a-f]+", "", url)

    def page(self, url: str) -> Answer:
        """Answer for *url*; a session ends after eight pages, and without one another begins."""
        self.count += 1
        given = url.partition("sid=")[2][:32]
        self.session = given if given and self.count % 8 else self.token("sid", self.count)
        return super().page(url)

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        query.pop("sid", None)
        page = self.inner(path, query)
        if page is not None and self.has_sessions:
            page.links = [link(href, text, sid=self.session) for href, text in page.links]
        return page

    def inner(self, path: str, query: dict[str, str]) -> Page | None:
        common = [
            link("/index.php"), link("/search.php"), link("/search.php", search_id="unanswered"),
            link("/search.php", search_id="active_topics"), link("/memberlist.php"), link("/ucp.php", mode="login"),
            link("/ucp.php", mode="register"), link("/app.php/help/faq"), link("/viewonline.php"),
        ]  # fmt: skip
        page = getattr(self, path[1:].removesuffix(".php").replace("/", "_").replace(".php", ""), lambda query: None)(
            query
        )
        if page is not None:
            page.links += common
        return page  # type: ignore[no-any-return]

    def index(self, query: dict[str, str]) -> Page:
        links = [link("/viewforum.php", f=f) for f in self.by_forum]
        rows = [self.seeded("last", f).choice(topics) for f, topics in self.by_forum.items()]
        links += [link("/viewtopic.php", f=self.topics[t][0], p=t * 40 + 1) for t in rows]
        return shown("Board index", "".join(f"<p>{self.name('about', f)}</p>" for f in self.by_forum), links)

    def viewforum(self, query: dict[str, str]) -> Page:
        f, at = int(query["f"]), int(query.get("start", 0))
        topics = self.by_forum[f]
        links: Links = []
        for t in topics[at : at + 25]:
            pages = self.topics[t][1]
            links += [
                link("/viewtopic.php", self.name(t), f=f, t=t),
                link("/viewtopic.php", "last", f=f, p=t * 40 + pages * 15),
            ]
            links += [link("/viewtopic.php", str(n + 1), f=f, t=t, start=15 * n) for n in range(1, pages)][:1]
            links += [self.member(t, 0)]
        links += [link("/viewforum.php", "page", f=f, start=n) for n in range(25, len(topics), 25)]
        links += [link("/viewforum.php", "sort", f=f, sk=sk, sd=sd, st=0) for sk in "atrsv" for sd in "ad"]
        links += [
            link("/posting.php", "new topic", mode="post", f=f),
            link("/viewforum.php", "read", f=f, hash=self.token(f, bits=32), mark="topics"),
        ]
        return shown(f"Forum {f}", "", links)

    def member(self, t: int, n: int) -> tuple[str, str]:
        u = self.seeded(t, n, "author").choice(self.members)
        return link("/memberlist.php", self.name("member", u), mode="viewprofile", u=u)

    def viewtopic(self, query: dict[str, str]) -> Page | None:
        if "p" in query:
            t = int(query["p"]) // 40
            at = max(0, int(query["p"]) % 40 - 1) // 15 * 15
        else:
            t, at = int(query["t"]), int(query.get("start", 0))
        if t not in self.topics:
            return None
        f, pages = self.topics[t]
        if query.get("view") in ("next", "previous"):
            t = self.by_forum[f][
                (self.by_forum[f].index(t) + (1 if query["view"] == "next" else -1)) % len(self.by_forum[f])
            ]
            return Page("", "none", "", location=link("/viewtopic.php", f=f, t=t)[0])
        at = min(at, 15 * (pages - 1))
        html, links = [], []
        for n in range(at, at + 6):
            html.append(
                f"{self.text(t, n, size=2)}\n<p>Posts: {self.seeded(t, n).randint(1, 900)}</p><p>{self.date(t, n)}</p>"
            )
            p = t * 40 + n + 1
            links += [link("/viewtopic.php", "post", f=f, p=p), link("/posting.php", "quote", mode="quote", f=f, p=p)]
            links += [link("/report.php", "report", f=f, p=p), self.member(t, n)]
        if query.get("view") == "print":
            links = []
        links += [link("/viewtopic.php", str(n), f=f, t=t, start=15 * n) for n in range(1, pages) if 15 * n != at]
        links += [link("/viewtopic.php", "1", f=f, t=t)] if at else []
        links += [link("/viewtopic.php", "print", f=f, t=t, view="print", **({"start": at} if at else {}))]
        links += [link("/viewtopic.php", way, f=f, t=t, view=way) for way in ("next", "previous")]
        links += [link("/viewtopic.php", "sort", f=f, t=t, sk=sk, sd=sd, st=0) for sk in "ats" for sd in "ad"]
        links += [
            link("/posting.php", "reply", mode="reply", f=f, t=t),
            link("/memberlist.php", "mail", mode="email", t=t),
        ]
        links += [
            link("/viewforum.php", f=f),
            link("/search.php", "author", author_id=self.seeded(t).choice(self.members), sr="posts"),
        ]
        return shown(self.name(t), "\n".join(html), links)

    def memberlist(self, query: dict[str, str]) -> Page:
        mode = query.get("mode")
        if mode == "viewprofile":
            u = int(query["u"])
            if u not in self.members:
                raise KeyError(u)
            own = [
                link("/search.php", "posts", author_id=u, sr="posts"),
                link("/memberlist.php", "mail", mode="email", u=u),
            ]
            return shown(
                self.name("member", u),
                f"<p>Joined {self.date('joined', u)}</p>\n<p>Total posts: {u * 13 % 999}</p>\n"
                f"{self.text('sig', u, size=1)}",
                own,
            )
        if mode == "email":
            return shown("Mail", "<p>You have to be logged in to send mail.</p>", [])
        rng, at = self.seeded(sorted(query.items())), int(query.get("start", 0))
        links = [
            link("/memberlist.php", self.name("member", u), mode="viewprofile", u=u)
            for u in list(self.members)[at : at + 25]
        ]
        links += [
            link(
                "/memberlist.php",
                "sort",
                sk=sk,
                sd=sd,
                **({"first_char": query["first_char"]} if "first_char" in query else {}),
            )
            for sk in "abcdef"
            for sd in "ad"
        ]
        links += [link("/memberlist.php", c, first_char=c) for c in rng.sample("abcdefghijklmnopqrstuvwxyz", 26)]
        links += [link("/memberlist.php", "next", **(query | {"start": at + 25}))] if at < 100 else []
        return shown("Members", "", links)

    def search(self, query: dict[str, str]) -> Page:
        if not query:
            return shown("Search", "<form>Search for keywords</form>", [])
        rng, at = self.seeded(sorted(query.items())), int(query.get("start", 0))
        links: Links = []
        for t in rng.sample(sorted(self.topics), 10):
            f, pages = self.topics[t]
            word = rng.choice(self.wording.words[:40])
            links += [
                link("/viewtopic.php", self.name(t), f=f, t=t, hilit=word),
                link("/viewtopic.php", "post", f=f, t=t, p=t * 40 + 1, hilit=word),
            ]
            links += [link("/viewtopic.php", "2", f=f, t=t, hilit=word, start=15)] if pages > 1 else []
            links += [self.member(t, 0)]
        links += [link("/search.php", "next", **(query | {"start": at + 10}))] if at < 90 else []
        links += [link("/search.php", word, keywords=word) for word in rng.sample(self.wording.words[:200], 2)]
        return shown("Search found matches", "", links)

    def posting(self, query: dict[str, str]) -> Page:
        return shown("Information", "<p>You need to login in order to post in this forum.</p>", [])

    def report(self, query: dict[str, str]) -> Page:
        return shown("Report", "<p>You are not authorised to report.</p>", [])

    def ucp(self, query: dict[str, str]) -> Page:
        modes = ("login", "register", "sendpassword", "terms", "privacy")
        return shown(
            "User control panel", "<form>User name and password</form>", [link("/ucp.php", mode=mode) for mode in modes]
        )

    def viewonline(self, query: dict[str, str]) -> Page:
        rng = self.seeded("online", self.count)
        links = [link("/viewonline.php", "sort", sk=sk, sd=sd, sg=rng.randint(0, 1)) for sk in "abc" for sd in "ad"]
        return shown("Who is online", f"<p>{rng.randint(2, 80)} users are online</p>", links)

    def app_help_faq(self, query: dict[str, str]) -> Page:
        return shown("FAQ", self.text("faq"), [])


class PhpBBSessions(PhpBB):
    """The same with a session in each link: without cookies, each visit begins others."""

    has_sessions = True


class Magento(Program):
    """Products in categories over pages; layered navigation, orders, limits, modes, comparing, wish lists, reviews."""

    def make(self) -> None:
        self.categories = [f"/{self.slug('top', n)}/{self.slug('cat', n)}-{n}.html" for n in range(14)]
        self.products = [f"/{self.slug('product', n)}-{n}.html" for n in range(600)]
        self.by_category = {name: self.products[n::14] for n, name in enumerate(self.categories)}
        self.note("home", "/")
        self.note("product", *self.products)
        self.facets = {
            "color": range(49, 61),
            "size": range(166, 172),
            "price": ["0-10", "10-20", "20-30", "30-"],
            "material": range(30, 38),
            "sale": [1],
            "new": [1],
        }
        for name, products in self.by_category.items():
            self.note("category", name, *(f"{name}?p={n}" for n in range(2, (len(products) + 11) // 12 + 1)))

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        common = [link(name) for name in self.categories] + [
            link("/checkout/cart/"),
            link("/customer/account/login/"),
            link("/catalogsearch/advanced/"),
        ]
        common += [link(path, "language", ___store=store) for store in ("de", "fr")]
        if path == "/":
            return shown("Home", self.text("home"), [*common, *(link(each) for each in self.products[:8])])
        if path in self.by_category:
            return self.category(path, query, common)
        if path in self.products:
            n = self.products.index(path)
            html = f"{self.text('product', n, size=2)}\n<p>SKU: {n * 17 + 1000}</p>\n<p>{n * 37 % 199}.00 EUR</p>"
            html += f"<img src=/media/catalog/{n}.jpg>"
            links = [link(each) for each in self.seeded(n).sample(self.products, 5)]
            key = self.token(self.count, bits=64)
            links += [
                link(f"/catalog/product_compare/add/product/{n}/uenc/{self.token(path, query, bits=160)}/"),
                link(f"/wishlist/index/add/product/{n}/form_key/{key}/"), link(f"/sendfriend/product/send/id/{n}/"),
                link(f"/review/product/list/id/{n}/"), link(path, "swatch", color=49 + n % 12),
            ]  # fmt: skip
            return shown(self.name("product", n), html, links + common)
        if path.startswith("/review/product/list/id/"):
            n = int(path.split("/")[-2])
            return shown(
                f"Reviews of {self.name('product', n)}",
                "<p>Be the first to review this product</p>",
                [link(self.products[n]), *common],
            )
        if path.startswith(("/catalog/product_compare", "/wishlist", "/sendfriend", "/checkout", "/customer")):
            return shown(
                "Customer login",
                "<form>If you have an account, sign in.</form>",
                [link("/customer/account/create/"), link("/customer/account/forgotpassword/"), *common],
            )
        if path.startswith("/catalogsearch"):
            rng = self.seeded(sorted(query.items()))
            links = [link(each) for each in rng.sample(self.products, 8)]
            links += [link("/catalogsearch/result/", word, q=word) for word in rng.sample(self.wording.words[:300], 4)]
            return shown("Search results", "", links + common)
        return None

    def chosen(self, path: str, query: dict[str, str]) -> list[str]:
        """Return the products of a category that have what *query* chooses of the facets, in its order."""
        facets = {key: list(map(str, values)) for key, values in self.facets.items() if key in query}
        products = [
            product
            for product in self.by_category[path]
            if all(self.seeded(product, key).choice(values) == query[key] for key, values in facets.items())
        ]
        if "product_list_order" in query:
            is_falling = query.get("product_list_dir") == "desc"
            products.sort(key=lambda product: self.token(product, query["product_list_order"]), reverse=is_falling)
        return products

    def category(self, path: str, query: dict[str, str], common: Links) -> Page:
        products = self.chosen(path, query)
        size, at = int(query.get("product_list_limit", 12)), int(query.get("p", 1))
        links = [link(product) for product in products[size * (at - 1) : size * at]]
        others = {key: value for key, value in query.items() if key != "p"}
        links += [link(path, str(n), **(others | {"p": n})) for n in range(2, (len(products) + size - 1) // size + 1)]
        for key, values in self.facets.items():
            if key not in query:
                links += [link(path, f"{value}", **(others | {key: value})) for value in values]
        links += [
            link(path, order, **(query | {"product_list_order": order})) for order in ("position", "name", "price")
        ]
        links += [link(path, "dir", **(query | {"product_list_dir": way})) for way in ("asc", "desc")]
        links += [link(path, "limit", **(query | {"product_list_limit": n})) for n in (24, 36)]
        links += [link(path, "mode", **(query | {"product_list_mode": "list"}))]
        html = "" if products else "<p>We can't find products matching the selection.</p>"
        return shown(self.name(path), html, links + common)


class Drupal(Program):
    """Nodes in lists, terms and a calendar with few events; replies, prints, logins, tables in any order."""

    def make(self) -> None:
        self.nodes = range(1, 500)
        self.terms = range(1, 40)
        self.note("home", "/")
        self.note("node", *(f"/node/{n}" for n in self.nodes))
        self.note("list", *(f"/blog?page={n}" if n else "/blog" for n in range(20)))
        for term in self.terms:
            of_term = [n for n in self.nodes if n % 39 + 1 == term]
            self.note(
                "term",
                f"/taxonomy/term/{term}",
                *(f"/taxonomy/term/{term}?page={n}" for n in range(1, (len(of_term) + 9) // 10)),
            )
        self.events = {f"{2023 + n // 12}-{n % 12 + 1:02}": n for n in self.rng.sample(range(36), 14)}
        self.note("event", *(f"/event/{self.slug('event', n)}-{n}" for n in self.events.values()))

    def common(self, path: str) -> Links:
        return [
            link("/"),
            link("/blog"),
            link("/calendar/month"),
            link("/user/login", destination=path),
            link("/user/register", destination=path),
            link("/search/node"),
            link("/content"),
        ]

    def show_home(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        links = [link(f"/node/{n}") for n in range(490, 500)] + [link(f"/taxonomy/term/{t}") for t in range(1, 10)]
        return shown("Home", self.text("home"), self.common(path) + links)

    def show_node(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        n = int(parts[1])
        if len(parts) != 2 or n not in self.nodes:
            return None
        links = [link(f"/taxonomy/term/{n % 39 + 1}"), link(f"/print/{n}"), *self.common(path)]
        links += [link(f"/node/{self.seeded(n, k).choice(self.nodes)}") for k in range(2)]
        links += [
            link(f"/comment/reply/node/{n}/comment"),
            link("/user/login", destination=f"/node/{n}#comment-form"),
        ]
        comments = self.seeded(n, "comments").randint(0, 3)
        links += [link(f"/comment/reply/node/{n}/comment/{n * 10 + k}") for k in range(comments)]
        html = self.text("node", n, size=4) + "".join(self.text("comment", n, k, size=1) for k in range(comments))
        return shown(self.name("node", n), html, links if parts[0] == "node" else links[:1])

    show_print = show_node

    def show_blog(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return self.list_of(path, list(self.nodes), 25, query) if path == "/blog" else None

    def show_taxonomy(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return self.list_of(path, [n for n in self.nodes if n % 39 + 1 == int(parts[2])], 10, query)

    def list_of(self, path: str, nodes: list[int], size: int, query: dict[str, str]) -> Page:
        at, last = int(query.get("page", 0)), (len(nodes) + size - 1) // size
        links = [link(f"/node/{n}") for n in nodes[size * at : size * (at + 1)]] + self.common(path)
        links += [link(path, "page", page=n) for n in (at + 1, at + 2, last - 1) if 0 < n < last]
        return shown(f"List {path}", "", links)

    def show_content(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        rng = self.seeded(sorted(query.items()))
        links = [link(f"/node/{n}") for n in rng.sample(self.nodes, 10)] + self.common(path)
        links += [
            link(path, key, **(query | {"order": key, "sort": way}))
            for key in ("title", "author", "changed", "comments")
            for way in ("asc", "desc")
        ]
        links += [link(path, "type", **(query | {"type": kind})) for kind in ("article", "page", "event", "All")]
        links += [link(path, "page", **(query | {"page": n})) for n in range(1, 4)]
        return shown("Content", "", links)

    def show_calendar(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        kind, at = parts[1], (parts[2] if len(parts) > 2 else "2024-05")
        year, month = map(int, at.split("-")[:2])
        around = [divmod(year * 12 + month - 1 + step, 12) for step in (-1, 1)]
        links = [link(f"/calendar/{kind}/{y}-{m + 1:02}") for y, m in around] + self.common(path)
        others = [other for other in ("month", "week", "year") if other != kind]
        links += [link(f"/calendar/{other}/{year}-{month:02}") for other in others]
        event = self.events.get(f"{year}-{month:02}")
        if event is not None and kind in ("month", "day"):
            links.append(link(f"/event/{self.slug('event', event)}-{event}"))
        if kind == "month":
            links += [link(f"/calendar/day/{year}-{month:02}-{day:02}") for day in range(1, 29)]
        return shown(f"Calendar {at}", "<p>There are no events.</p>" if event is None else "", links)

    def show_event(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        n = int(path.rsplit("-", 1)[1])
        return shown(self.name("event", n), self.text("event", n), self.common(path))

    def show_comment(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        n = int(parts[3])
        first = self.text("node", n, size=4).split("\n")[0]
        html = f"{first}\n<form>Your name, subject and comment</form>"
        return shown("Add new comment", html, [link(f"/node/{n}"), *self.common(path)])

    def show_user(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        target = query.get("destination", "")
        links = [link(f"/user/{other}", destination=target) for other in ("login", "register", "password")]
        return shown("Log in", "<form>User name and password</form>", links + self.common(path))

    def show_search(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return shown("Search", "<form>Enter your keywords</form>", self.common(path))
