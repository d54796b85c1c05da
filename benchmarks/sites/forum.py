"""A forum in the manner of phpBB."""

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
