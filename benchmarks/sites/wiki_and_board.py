"""A wiki with the history of each page, and a forum whose topics are met in many views."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_uppercase
from typing import ClassVar

from benchmarks.sites.pages import Links, Page, shown
from benchmarks.sites.program import Query, Routed, link, picked, table

_CONFLUENCE = table("""
main /  page /display/{s}/{t}  by_id /pages/viewpage.action?pageId={n}  space /display/{s}
list /pages/listpages.action?key={s}  letter /pages/listpages-alphaview.action?key={s}&startsWith={letter}
history /pages/viewpreviousversions.action?pageId={n}  info /pages/viewinfo.action?pageId={n}
version /pages/viewpage.action?pageId={n}.{v}  diff /pages/diffpagesbyversion.action?pageId={n}&v1={v}&v2={w}
source /plugins/viewsource/viewpagesrc.action?pageId={n}  export /exportword?pageId={n}
attachments /pages/viewpageattachments.action?pageId={n}  edit /pages/editpage.action?pageId={n}
copy /pages/copypage.action?pageId={n}  login /login.action?os_destination={back}
user /users/viewuserprofile.action?username={u}  label /label/{s}/{label}
recent /pages/recentlyupdated.action?key={s}  search /dosearchsite.action?queryString={word}
""")
_DOKUWIKI = table("""
main /  page /doku.php?id={s}:{t}  by_id /doku.php?id={s}:{t}&do=show  space /doku.php?id={s}:start
list /doku.php?do=index&idx={s}  letter /doku.php?do=index&idx={s}&letter={letter}
history /doku.php?id={s}:{t}&do=revisions  info /doku.php?id={s}:{t}&do=backlink
version /doku.php?id={s}:{t}&rev=17{v}  diff /doku.php?id={s}:{t}&do=diff&rev2=17{v}&rev1=17{w}
source /doku.php?id={s}:{t}&do=export_raw  export /doku.php?id={s}:{t}&do=export_xhtml
attachments /doku.php?id={s}:{t}&do=media  edit /doku.php?id={s}:{t}&do=edit  copy /doku.php?id={s}:{t}&do=subscribe
login /doku.php?do=login&id={back}  user /doku.php?id=user:{u}&do=profile
label /doku.php?id=tag:{s}:{label}&do=showtag  recent /doku.php?do=recent&id={s}  search /doku.php?do=search&q={word}
""")


class SpaceWiki(Routed):
    """Confluence, and for judging DokuWiki: pages in spaces; versions, differences, sources, exports of each."""

    routes = (_CONFLUENCE, _DOKUWIKI)
    ignored = ("focusedCommentId", "decorator", "showComments")
    same: ClassVar = {"by_id": "page"}
    size = 25

    def make(self) -> None:
        self.spaces = [f"{self.slug('space', n)}{n}".replace("-", "").upper() for n in range(6)]
        self.titles = [f"{self.name('page', n)} {n}".replace(" ", "+") for n in range(self.many(480))]
        self.posts = [n for n in range(len(self.titles)) if n % 9 == 0]
        self.note("main", "/")
        self.known("space", "s", self.spaces)
        self.note("page", *(self.url("page", self.of(n)) for n in range(len(self.titles))))

    def of(self, n: int) -> dict[str, object]:
        """Return what names the page *n*."""
        return {"n": 200_000 + n, "s": self.spaces[n % len(self.spaces)], "t": self.titles[n]}

    def number(self, q: Query) -> int:
        """Return the page that *q* is about; raise ValueError or IndexError if there is none."""
        n = int(q["n"]) - 200_000 if "n" in q else self.titles.index(q["t"].replace(" ", "+"))
        self.titles[n]
        return n

    def plain(self, values: Query) -> dict[str, object]:
        """Return the space and the title, if *values* are of a page."""
        if not {"n", "t"} & values.keys() or {"v", "w"} & values.keys():
            return {**values}
        return self.of(self.number(values))

    def frame(self, url: str, q: Query) -> Links:
        links = [("/", "Dashboard"), self.to("login", "Log in", {"back": url})]
        if "s" in q or "n" in q or "t" in q:
            space = q.get("s") or self.spaces[self.number(q) % len(self.spaces)]
            links += self.to_each({"space": "Space", "list": "Pages", "recent": "Recently updated"}, {"s": space})
        return links

    def show_main(self, q: Query) -> Page:
        return shown("Dashboard", self.text("main"), self.to_named("space", "s", self.spaces))

    def show_space(self, q: Query) -> Page:
        own = range(self.spaces.index(q["s"]), len(self.titles), len(self.spaces))
        return shown(q["s"], self.text("space", q["s"]), self.to_pages(own[:10]))

    def to_pages(self, numbers: Iterable[int]) -> Links:
        return [self.to("page", self.titles[n], self.of(n)) for n in numbers]

    def tools(self, n: int) -> Links:
        texts = {
            "history": "Page History", "info": "Page Information", "source": "View Source", "export": "Export to Word",
            "attachments": "Attachments", "edit": "Edit", "copy": "Copy", "by_id": "Link to this page",
        }  # fmt: skip
        links = [*self.to_each(texts, self.of(n)), self.to("page", "Print", self.of(n), decorator="printable")]
        return [*links, self.to("page", "Comments", self.of(n), showComments="true")]

    def show_page(self, q: Query) -> Page | None:
        n = self.number(q)
        rng, step, whole = self.seeded("page", n), len(self.spaces), len(self.titles)
        space = n % step
        lines = self.text("page", n, size=5).split("\n")
        links = self.to_pages(rng.sample(range(space, whole, step), 3))
        children = (n * 2 + step - space, n * 2 + 2 * step - space)
        links += [self.to("page", "child", self.of(m)) for m in children if m < whole]
        for label in rng.sample(self.wording.words[:30], 2):
            links += [self.to("label", label, {**self.of(n), "label": label})]
        links += [self.to("user", "Author", {"u": f"u{rng.randint(1, 25)}"})]
        comments = range(n * 9, n * 9 + rng.randint(0, 3))
        links += [self.to("page", "Permalink", self.of(n), focusedCommentId=comment) for comment in comments]
        if q["kind"] == "source":
            return shown(self.titles[n], f"<pre>{' '.join(lines)}</pre>", self.tools(n))
        if q["kind"] == "export":
            return shown(self.titles[n], "\n".join(lines), [])
        return shown(self.titles[n], "\n".join(lines), links + self.tools(n))

    show_source = show_export = show_page

    def versions(self, n: int) -> range:
        return range(1, self.seeded("versions", n).randint(2, 9))

    def show_history(self, q: Query) -> Page:
        n = self.number(q)
        links: Links = []
        for v in self.versions(n):
            links += [self.to("version", f"v. {v}", {**self.of(n), "v": v})]
            links += [self.to("user", "Changed by", {"u": f"u{(n + v) % 25}"})]
            others = [w for w in (v - 1, self.versions(n)[-1]) if 0 < w != v]
            links += [self.to("diff", "compare", {**self.of(n), "v": w, "w": v}) for w in others]
        html = "".join(f"<p>{self.date(n, v)}</p>" for v in self.versions(n))
        return shown(f"Page History {self.titles[n]}", html, links + self.tools(n))

    def show_version(self, q: Query) -> Page | None:
        n, v = self.number(q), int(q["v"])
        if v not in self.versions(n):
            return None
        of, around = self.of(n), {"Previous": v - 1, "Next": v + 1}
        lines = [*self.text("page", n, size=5).split("\n")[: v // 2 + 1], self.text("page", n, v, size=1)]
        html = "<p>You are viewing an old version of this page.</p>" + "\n".join(lines)
        links = [self.to("version", t, {**of, "v": w}) for t, w in around.items() if w in self.versions(n)]
        links += [self.to("diff", "Compare with Current", {**of, "v": v, "w": self.versions(n)[-1]})]
        return shown(self.titles[n], html, links + self.tools(n))

    def show_diff(self, q: Query) -> Page:
        n = self.number(q)
        html = f"<p>{self.text('page', n, q['v'], size=1)}</p><p>{self.text('page', n, q['w'], size=1)}</p>"
        return shown(f"Compare {self.titles[n]}", html, self.tools(n))

    def show_info(self, q: Query) -> Page:
        n = self.number(q)
        links = self.to_pages(self.seeded("links", n).sample(range(len(self.titles)), 3))
        return shown(f"About {self.titles[n]}", f"<p>Created {self.date(n)}</p>", links + self.tools(n))

    def show_attachments(self, q: Query) -> Page:
        n = self.number(q)
        links: Links = []
        for key in ("name", "size", "date"):
            links += [self.to("attachments", key, self.of(n), sortBy=key, sortOrder=way) for way in ("asc", "desc")]
        return shown("Attachments", "<p>No files shared here yet.</p>", links + self.tools(n))

    def show_list(self, q: Query) -> Page:
        own = [n for n in range(len(self.titles)) if self.of(n)["s"] == q["s"]]
        if "letter" in q:
            own = [n for n in own if self.titles[n].startswith(q["letter"])]
        elif q["kind"] != "list":
            own = self.seeded(sorted(q.items())).sample(own, min(10, len(own)))
        links = self.to_pages(self.part(own, q))
        if q["kind"] in ("list", "letter"):
            links += [self.to("letter", c, {"s": q["s"], "letter": c}) for c in ascii_uppercase]
            links += self.pager(own, q, picked(q, "s", "letter"))
        else:
            most = int(q.get("maxRecentlyUpdatedPageCount", 20)) + 20
            links += [self.to("recent", "more", {"s": q["s"]}, maxRecentlyUpdatedPageCount=most)]
        return shown("Pages", "", links)

    show_letter = show_recent = show_label = show_list

    def show_user(self, q: Query) -> Page:
        recent = self.seeded("of", q["u"]).sample(range(len(self.titles)), 5)
        links = [self.to("page", "Recent", self.of(n)) for n in recent]
        return shown(q["u"], f"<p>{self.name('user', q['u'])}</p>", links)


_DISCUZ = table("""
main /forum.php  forum /forum.php?mod=forumdisplay&fid={f}&page={page}
topic /forum.php?mod=viewthread&tid={t}&extra=page%3D{back}&page={page}  first /forum.php?mod=viewthread&tid={t}
post /forum.php?mod=redirect&goto=findpost&ptid={t}&pid={p}  step /forum.php?mod=redirect&goto={way}&tid={t}
member /home.php?mod=space&uid={u}  reply /forum.php?mod=post&action=reply&tid={t}
new /forum.php?mod=post&action=newthread&fid={f}  favorite /home.php?mod=spacecp&ac=favorite&id={t}&formhash={key}
plain /archiver/?tid-{t}.html  login /member.php?mod=logging&action=login  register /member.php?mod=register
ranks /misc.php?mod=ranklist&type={type}  guide /forum.php?mod=guide&view={view}  report /misc.php?mod=report&rid={p}
search /search.php?mod=forum&srchtxt={word}
""")
_REWRITTEN = _DISCUZ | table("""
main /bbs/  forum /bbs/forum-{f}-{page}.html  topic /bbs/thread-{t}-{page}-{back}.html
first /bbs/forum.php?mod=viewthread&tid={t}  member /bbs/space-uid-{u}.html  plain /bbs/archiver/tid-{t}.html
""")


class Board(Routed):
    """Discuz, and for judging with rewritten URLs: topics by place in their forum, by author, in orders, plain."""

    routes = (_DISCUZ, _REWRITTEN)
    ignored = ("mobile",)
    same: ClassVar = {"first": "topic"}

    def make(self) -> None:
        self.forums = [str(f) for f in range(2, 2 + self.many(9))]
        self.topics = [str(t) for t in range(500, 500 + self.many(320))]
        self.members = [str(u) for u in range(1, self.many(120))]
        self.by_forum = {f: self.topics[n :: len(self.forums)] for n, f in enumerate(self.forums)}
        self.forum_of = {t: f for f, topics in self.by_forum.items() for t in topics}
        self.pages = {t: self.seeded(t, "pages").choice([1, 1, 1, 2, 2, 3]) for t in self.topics}
        self.note("main", "/")
        self.known("member", "u", self.members)
        for f, topics in self.by_forum.items():
            pages_of_forum = range(1, (len(topics) - 1) // self.size + 2)
            self.note("forum", *(self.url("forum", {"f": f, "page": n}) for n in pages_of_forum))
        for t, pages in self.pages.items():
            self.note("topic", *(self.url("topic", self.of(t, n)) for n in range(1, pages + 1)))

    def of(self, t: str, page: int = 1, back: int = 1) -> dict[str, object]:
        return {"f": self.forum_of[t], "t": t, "page": page, "back": back}

    def plain(self, values: Query) -> dict[str, object]:
        """Return *values* as if one came from the first page of the forum."""
        return {**values, **(self.of(values["t"], int(values.get("page", 1))) if "t" in values else {})}

    def frame(self, url: str, q: Query) -> Links:
        links = [("/", "Forum"), *self.to_each({"login": "Log in", "register": "Register"}, {})]
        links += [self.to("guide", "Guide", {"view": "hot"}), self.to("ranks", "Ranks", {"type": "member"})]
        return [*links, link(url.rstrip("?"), "Mobile", mobile=2)]

    def show_main(self, q: Query) -> Page:
        links = [self.to("forum", self.name("forum", f), {"f": f, "page": 1}) for f in self.forums]
        for topics in self.by_forum.values():
            links += [self.to("step", "Last post", {"t": topics[-1], "way": "lastpost"})]
        return shown("Forums", self.text("main", size=2), links)

    def author(self, *key: object) -> tuple[str, str]:
        u = self.seeded("author", *key).choice(self.members)
        return self.to("member", self.name("member", u), {"u": u})

    def show_forum(self, q: Query) -> Page | None:
        f, page = q["f"], int(q["page"])
        own = self.by_forum.get(f)
        if own is None or (page - 1) * self.size >= len(own):
            return None
        if "typeid" in q:
            own = [t for t in own if int(t) % 4 == int(q["typeid"])]
        own = sorted(own, key=lambda t: self.token(t, q.get("orderby")) if "orderby" in q else t)
        links: Links = []
        for t in own[(page - 1) * self.size : page * self.size]:
            links += [self.to("topic", self.name("topic", t), self.of(t, back=page)), self.author(t, 0)]
            links += [self.to("topic", str(n), self.of(t, n, page)) for n in range(2, self.pages[t] + 1)]
            links += [self.to("step", "last post", {"t": t, "way": "lastpost"})]
        options, here = picked(q, "typeid", "orderby", "filter"), {"f": f, "page": 1}
        pages = range(1, (len(own) - 1) // self.size + 2)
        links += [self.to("forum", str(n), {"f": f, "page": n}, **options) for n in pages if n != page]
        links += [self.to("forum", f"type {n}", here, **{**options, "filter": "typeid", "typeid": n}) for n in range(4)]
        for key in ("lastpost", "dateline", "replies", "views"):
            links += [self.to("forum", key, here, **{**options, "filter": key, "orderby": key})]
        return shown(self.name("forum", f), "", [*links, self.to("new", "New topic", {"f": f})])

    def show_topic(self, q: Query) -> Page | None:
        t, page = q["t"], int(q.get("page", 1))
        if t not in self.pages or not 1 <= page <= self.pages[t]:
            return None
        posts = [(n, self.seeded("author", t, n).choice(self.members)) for n in range(page * 6 - 6, page * 6 - 1)]
        if "authorid" in q:
            posts = [(n, u) for n, u in posts if u == q["authorid"]]
        if q.get("ordertype") == "1":
            posts.reverse()
        html = [f"<p>{self.date(t, n)}</p>{self.text('post', t, n, size=2)}" for n, _ in posts]
        if q["kind"] == "plain":
            return shown(self.name("topic", t), "".join(html), [self.to("first", "Full version", {"t": t})])
        back = int(q.get("back", 1))
        links = [self.to("forum", "Forum", {"f": self.forum_of[t], "page": back})]
        links += [self.to("plain", "Archiver", {"t": t})]
        for n, u in posts:
            p = int(t) * 100 + n
            links += [self.author(t, n), self.to("post", f"#{n}", {"t": t, "p": p})]
            links += [self.to("topic", "Only this author", self.of(t), authorid=u)]
            links += [self.to("reply", "Quote", {"t": t}, repquote=p), self.to("report", "Report", {"p": p})]
        links += [self.to("topic", str(n), self.of(t, n, back)) for n in range(1, self.pages[t] + 1) if n != page]
        links += [self.to("topic", "Newest first", self.of(t, page, back), ordertype=1)]
        links += [self.to("topic", "Print", self.of(t), action="printable")]
        links += [self.to("step", way, {"t": t, "way": way}) for way in ("nextnewset", "nextoldset")]
        self.count += 1
        key = self.token("key", self.count // 5, bits=32)
        links += [self.to("favorite", "Favorite", {"t": t, "key": key}), self.to("reply", "Reply", {"t": t})]
        words = self.seeded(t).sample(self.wording.words[:150], 2)
        links += [self.to("search", word, {"word": word}) for word in words]
        return shown(self.name("topic", t), "".join(html), links)

    show_first = show_plain = show_topic

    def show_post(self, q: Query) -> Page:
        return Page("", "none", "", location=self.url("topic", self.of(q["t"], int(q["p"]) % 100 // 6 + 1)))

    def show_step(self, q: Query) -> Page:
        own = self.by_forum[self.forum_of[q["t"]]]
        at = own.index(q["t"])
        t = own[(at + {"nextnewset": 1, "nextoldset": -1}.get(q["way"], 0)) % len(own)]
        page = self.pages[t] if q["way"] == "lastpost" else 1
        return Page("", "none", "", location=self.url("topic", self.of(t, page)))

    def show_member(self, q: Query) -> Page | None:
        u = q["u"]
        if u not in self.members:
            return None
        html = f"<p>{self.name('member', u)}</p><p>Joined {self.date('joined', u)}</p>{self.text('about', u, size=1)}"
        views = ("thread", "profile", "friend", "wall", "album")
        return shown(self.name("member", u), html, [self.to("member", view, {"u": u}, do=view) for view in views])

    def show_guide(self, q: Query) -> Page:
        own = self.seeded(sorted(q.items())).sample(self.topics, 15)
        links = self.to_named("first", "t", own, "topic")
        links += [self.to("guide", view, {"view": view}) for view in ("new", "hot", "digest", "sofa")]
        if (page := int(q.get("page", 1))) < 20:
            links += [self.to("guide", "next", {"view": q.get("view", "hot")}, page=page + 1)]
        return shown("Guide", "", links)

    show_search = show_guide

    def show_ranks(self, q: Query) -> Page:
        links: Links = []
        for kind in ("member", "thread", "blog", "poll", "activity", "picture"):
            links += [self.to("ranks", kind, {"type": kind}, view=view) for view in ("all", "month", "week")]
        return shown("Ranks", "", links + [self.author(q["type"], q.get("view"), n) for n in range(10)])
