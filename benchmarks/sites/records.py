"""A library catalogue and a learning platform: scripts in one folder, one key for records and services beside them."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.sites.pages import Links, Page, shown
from benchmarks.sites.program import Query, Routed, link, picked, table

_KOHA = table("""
main main.pl  record detail.pl?biblionumber={n}  marc MARCdetail.pl?biblionumber={n}
isbd ISBDdetail.pl?biblionumber={n}  hold reserve.pl?biblionumber={n}
export export.pl?op=export&format={format}&bib={n}  cart basket.pl?bib_list={n}/  review review.pl?biblionumber={n}
keep addbybiblionumber.pl?biblionumber={n}  search search.pl?q={word}  author authoritiesdetail.pl?authid={a}
authors authorities-home.pl  shelf shelves.pl?op=view&shelfnumber={s}  shelves shelves.pl  user user.pl  tags tags.pl
language changelanguage.pl?language={language}
""")
_EVERGREEN = table("""
main home  record record/{n}  marc record/{n}?expand=marchtml  isbd record/{n}?expand=cnbrowse
hold place_hold?hold_target={n}&hold_type=T  export extras/retrieve/{format}/record/{n}  cart mylist/add?record={n}
review record/{n}?expand=reviews  keep mylist/move?record={n}  search results?query={word}  author browse/author/{a}
authors browse/author  shelf results?bookbag={s}  shelves lists  user login  tags browse/subject
language home?set_eg_locale={language}
""")
TABS = "Holdings|Title notes|Comments (0)|Images|Browse shelf|More searches|Share|Print|Unhighlight|Log in to add tags"


class Library(Routed):
    """Koha, and for judging Evergreen: records, authors, lists; services of each record, searches with facets."""

    routes = (
        {kind: f"/cgi-bin/koha/opac-{form}" for kind, form in _KOHA.items()},
        {kind: f"/eg/opac/{form}" for kind, form in _EVERGREEN.items()},
    )
    names: ClassVar = {"query_desc": "qtype", "searchid": "locg", "sort_by": "sort", "limit": "facet", "page": "pg"}
    ignored = ("query_desc", "searchid")

    def make(self) -> None:
        step = 3 if self.is_judge else 1
        self.records = [str(n) for n in range(1200 * step, (1200 + self.many(700)) * step, step)]
        self.subjects = [self.name("subject", n) + f" {n}" for n in range(self.many(40))]
        self.authors = [str(n) for n in range(1, self.many(150))]
        self.shelves = [str(n) for n in range(1, self.many(15))]
        self.note("main", "/")
        self.known("record", "n", self.records)
        self.known("author", "a", self.authors)
        self.pages_of("authors", self.authors)
        self.pages_of("shelves", self.shelves)
        for shelf in self.shelves:
            self.pages_of("shelf", self.of_shelf(shelf), {"s": shelf})

    def of_shelf(self, shelf: str) -> list[str]:
        return self.seeded("shelf", shelf).sample(self.records, min(30, len(self.records)))

    def about(self, n: str) -> tuple[list[str], str]:
        """Return the subjects and the author of a record."""
        rng = self.seeded("about", n)
        return rng.sample(self.subjects, rng.randint(1, 3)), rng.choice(self.authors)

    def found(self, word: str) -> list[str]:
        if word in self.subjects:
            return [n for n in self.records if word in self.about(n)[0]]
        if word in self.authors:
            return [n for n in self.records if word == self.about(n)[1]]
        return self.seeded("found", word).sample(self.records, 25 if len(self.records) > 25 else 2)

    def frame(self, url: str, q: Query) -> Links:
        links = [self.to("shelves", "Lists"), self.to("authors", "Authority search"), self.to("tags", "Tag cloud")]
        links += [self.to("user", "Log in to your account"), ("/", "Library catalog")]
        return links + [self.to("language", name, {"language": name}) for name in ("en", "de-DE", "fr-FR")]

    def services(self, n: str) -> Links:
        names = {
            "record": "Normal view", "marc": "MARC view", "isbd": "ISBD view", "hold": "Place hold",
            "cart": "Add to your cart", "keep": "Save to lists", "review": "Post your comments on this title",
        }  # fmt: skip
        links = self.to_each(names, {"n": n}) + [self.to("record", text, {"n": n}) for text in TABS.split("|")]
        return links + [self.to("export", name, {"n": n, "format": name}) for name in ("marcxml", "mods", "ris", "dc")]

    def rows(self, records: list[str], **options: object) -> Links:
        """Return the links of a list of records: each record, and some services."""
        links: Links = []
        for n in records:
            links += [self.to("record", self.name("title", n), {"n": n}, **options)]
            links += [self.to("hold", "Place hold", {"n": n}), self.to("cart", "Add to cart", {"n": n})]
        return links

    def show_main(self, q: Query) -> Page:
        links = self.rows(self.records[-12:]) + [self.to("search", kind, {"word": kind}) for kind in ("books", "maps")]
        return shown("Catalog", self.text("main"), links)

    def show_language(self, q: Query) -> Page:
        return Page("", "none", "", location="/")

    def show_record(self, q: Query) -> Page | None:
        n = q["n"]
        if n not in self.records:
            return None
        rng, (subjects, author) = self.seeded(n), self.about(n)
        lines = [self.name("title", n), f"By: {self.name('author', author)}", f"ISBN: {rng.randint(10**12, 10**13)}"]
        lines.append(f"Description: {rng.randint(80, 900)} pages")
        lines += self.text("record", n, size=rng.choice([0, 0, 1])).split("\n")
        if q["kind"] == "isbd":
            return shown(lines[0], f"<p>{'. - '.join(lines)}</p>", self.services(n))
        if q["kind"] in ("marc", "export"):
            rows = "".join(f"<tr><td>{tag}</td><td>{line}</td></tr>\n" for tag, line in enumerate(lines, 100))
            return shown(lines[0], f"<table>{rows}</table>", [] if q["kind"] == "export" else self.services(n))
        links = [self.to("search", subject, {"word": subject}) for subject in subjects]
        links += [self.to("author", "author", {"a": author}), self.to("search", "by author", {"word": author})]
        links += [self.to("record", "similar", {"n": other}) for other in rng.sample(self.records, 2)]
        html = "\n".join(f"<p>{line}</p>" for line in lines) + "<p>There are no comments on this title.</p>"
        return shown(lines[0], html, links + self.services(n))

    show_marc = show_isbd = show_export = show_record

    def show_search(self, q: Query) -> Page:
        found = self.found(q["word"])
        if "limit" in q:
            found = [n for n in found if self.seeded(n, q["limit"]).random() < 0.4]
        found.sort(key=lambda n: self.token(n, q.get("sort_by")))
        self.count += 1
        here, mark = {"word": q["word"]}, f"scs_{1_700_000_000 + self.count}"
        links = self.rows(self.part(found, q), query_desc=q["word"], searchid=mark) + self.pager(found, q, here)
        options = picked(q, "limit", "sort_by")
        limits = [f"su-to:{name}" for name in self.subjects[:6]] + ["itype:BK", "itype:MP", "itype:CF", "itype:DVD"]
        orders = ["relevance", "title_az", "title_za", "author_az", "pubdate_dsc", "acqdate_dsc"]
        links += self.to_choices("search", here, options, {"limit": limits, "sort_by": orders})
        links += [self.to("search", "RSS", here, **{**options, "format": "rss"})]
        return shown(f"Results for {q['word']}", f"<p>Your search returned {len(found)} results.</p>", links)

    def show_author(self, q: Query) -> Page | None:
        if q["a"] not in self.authors:
            return None
        born = self.seeded(q["a"]).randint(1800, 1990)
        html = f"<p>{self.name('author', q['a'])}, {born}</p>{self.text('life', q['a'], size=1)}"
        return shown("Author", html, [self.to("search", "Used in records", {"word": q["a"]})])

    def show_authors(self, q: Query) -> Page:
        links = self.to_named("author", "a", self.part(self.authors, q), "author")
        return shown("Authorities", "", links + self.pager(self.authors, q))

    def show_shelves(self, q: Query) -> Page:
        links = self.to_named("shelf", "s", self.part(self.shelves, q), "shelf")
        return shown("Lists", "", links + self.pager(self.shelves, q))

    def show_shelf(self, q: Query) -> Page:
        own, here = self.of_shelf(q["s"]), {"s": q["s"]}
        links = self.rows(self.part(own, q)) + self.pager(own, q, here)
        for order in ("title", "author"):
            links += [self.to("shelf", order, here, sort_by=order, dir=way) for way in ("asc", "desc")]
        return shown(self.name("shelf", q["s"]), "", links)

    def show_tags(self, q: Query) -> Page:
        return shown("Subjects", "", [self.to("search", word, {"word": word}) for word in self.subjects])


_MOODLE = table("""
front /  course /course/view.php?id={c}  category /course/index.php?categoryid={k}  page /mod/page/view.php?id={m}
forum /mod/forum/view.php?id={m}  discussion /mod/forum/discuss.php?d={d}
book /mod/book/view.php?id={m}&chapterid={x}  quiz /mod/quiz/view.php?id={m}  assign /mod/assign/view.php?id={m}
chat /mod/chat/view.php?id={m}  choice /mod/choice/view.php?id={m}  feedback /mod/feedback/view.php?id={m}
login /login/index.php  report /grade/report/index.php?id={c}  user /user/view.php?id={u}&course={c}
reply /mod/forum/post.php?reply={p}  subscribe /mod/forum/subscribe.php?id={m}&sesskey={key}
enrol /enrol/index.php?id={c}  device /theme/switchdevice.php?url={back}&device=mobile&sesskey={key}
forgot /login/forgot_password.php  calendar /calendar/view.php?view={view}&time={time}
print /mod/book/tool/print/index.php?id={m}  search /course/search.php?search={word}
""")


class Learning(Routed):
    """Moodle: courses, pages, books and forums of one numbering; log-in pages everywhere, session keys, a calendar."""

    routes = (_MOODLE, {kind: "/lms" + form.replace("/page/", "/lesson/") for kind, form in _MOODLE.items()})
    ignored = ("lang", "forceview", "sesskey", "redirect")
    size, first = 10, 0

    def make(self) -> None:
        self.courses = range(2, 2 + self.many(40))
        self.modules = range(100, 100 + self.many(900))
        self.discussions = range(1000, 1000 + self.many(300))
        self.open = [c for c in self.courses if c % 4]
        self.by_course = {c: list(self.modules)[n :: len(self.open)] for n, c in enumerate(self.open)}
        self.course_of = {m: c for c, modules in self.by_course.items() for m in modules}
        names = ["page", "forum", "book", "quiz", "assign", "chat", "choice", "feedback"]
        kinds = self.rng.choices(names, [10, 1, 2, 4, 4, 4, 4, 4], k=len(self.modules))
        self.kinds = dict(zip(self.modules, kinds, strict=True))
        forums = self.of_kind("forum")
        self.forum_of = {d: forums[n % len(forums)] for n, d in enumerate(self.discussions)} if forums else {}
        self.note("front", "/")
        self.known("course", "c", self.open)
        self.known("page", "m", self.of_kind("page"))
        self.known("discussion", "d", self.forum_of)
        for m in forums:
            self.pages_of("forum", self.of_forum(m), {"m": str(m)})
        for k in range(8):
            self.pages_of("category", list(self.courses)[k::8], {"k": str(k)})
        for m in self.of_kind("book"):
            self.note("book", *(self.url("book", {"m": m, "x": m * 10 + x}) for x in range(3)))

    def of_kind(self, kind: str) -> list[int]:
        return [m for m in self.modules if self.kinds[m] == kind]

    def of_forum(self, m: int) -> list[int]:
        return [d for d, forum in self.forum_of.items() if forum == m]

    def module(self, m: int, **options: object) -> tuple[str, str]:
        return self.to(self.kinds[m], self.name("module", m), {"m": m, "x": m * 10}, **options)

    def frame(self, url: str, q: Query) -> Links:
        self.count += 1
        key = self.token("session", self.count // 3, bits=40)
        links = [("/", "Home"), self.to("login", "Log in"), self.to("forgot", "Lost password?")]
        links += [link(url.rstrip("?"), name, lang=name) for name in ("en", "de", "es")]
        links += [self.to("device", "Switch to the mobile theme", {"back": self.host + url, "key": key})]
        return [*links, self.to("calendar", "Calendar", {"view": "month", "time": 1717200000})]

    def show_front(self, q: Query) -> Page:
        links = self.to_named("category", "k", range(8), "category")
        return shown("Welcome", self.text("front"), links + self.to_named("course", "c", self.courses[:5], "course"))

    def show_category(self, q: Query) -> Page:
        own = list(self.courses)[int(q["k"]) :: 8]
        links = self.pager(own, q, {"k": q["k"]})
        for c in self.part(own, q):
            links += [self.to("course", self.name("course", c), {"c": c}), self.to("enrol", "Guest access", {"c": c})]
        return shown(self.name("category", q["k"]), "", links)

    def show_course(self, q: Query) -> Page | None:
        c = int(q["c"])
        own = self.by_course.get(c)
        if own is None:
            return self.show_other(q) if c in self.courses else None
        html = "" if "section" in q else self.text("course", c, size=2)
        links = [*map(self.module, own[int(q["section"]) % 5 :: 5] if "section" in q else own)]
        links += [self.to("course", f"Topic {n}", {"c": c}, section=n) for n in range(1, 5)]
        links += [self.to("user", "Teacher", {"u": 50 + n, "c": c}) for n in self.seeded(c).sample(range(200), 2)]
        return shown(self.name("course", c), html, [*links, self.to("report", "Grades", {"c": c})])

    def beside(self, m: int) -> Links:
        """Return the links from a module to its course, and to the modules before and after."""
        own = self.by_course[self.course_of[m]]
        at = own.index(m)
        around = [self.module(own[n], forceview=1) for n in (at - 1, at + 1) if 0 <= n < len(own)]
        return [self.to("course", "Course", {"c": self.course_of[m]}), *around]

    def show_page(self, q: Query) -> Page | None:
        m = int(q["m"])
        if self.kinds.get(m) != "page":
            return None
        html = f"{self.text('page', m, size=self.seeded(m).choice([1, 1, 2]))}<p>Last modified: {self.date(m)}</p>"
        return shown(self.name("module", m), html, self.beside(m))

    def show_book(self, q: Query) -> Page | None:
        m, x = int(q["m"]), int(q.get("x", 0))
        if self.kinds.get(m) != "book" or (x and x // 10 != m):
            return None
        links = [self.to("book", f"Chapter {n}", {"m": m, "x": m * 10 + n}) for n in range(3)]
        links += [self.to("print", "Print book", {"m": m}), *self.beside(m)]
        html = "".join(self.text("chapter", m * 10 + n, size=3) for n in range(3) if not x or x % 10 == n)
        return shown(self.name("module", m), html, links)

    show_print = show_book

    def show_forum(self, q: Query) -> Page | None:
        m = int(q["m"])
        if self.kinds.get(m) != "forum":
            return None
        own, links = self.of_forum(m), self.beside(m)
        for d in self.part(own, q):
            links.append(self.to("discussion", self.name("discussion", d), {"d": d}))
            links.append(self.to("user", "Author", {"u": 50 + d % 200, "c": self.course_of[m]}))
            links.append(self.to("discussion", "Last post", {"d": d}, parent=d * 10 + 1))
        links.append(self.to("subscribe", "Subscribe", {"m": m, "key": self.token("key", self.count, bits=40)}))
        return shown(self.name("module", m), "", links + self.pager(own, q, {"m": q["m"]}))

    def show_discussion(self, q: Query) -> Page:
        d = int(q["d"])
        links, parts = [self.to("forum", "Forum", {"m": self.forum_of[d]})], []
        for n in range(self.seeded(d).randint(1, 4)):
            p = d * 10 + n
            parts.append(f"<p>by {self.name('user', p % 200)}, {self.date(p)}</p>{self.text('post', p, size=2)}")
            links += [self.to("reply", "Reply", {"p": p}), self.to("discussion", "Permalink", {"d": d}, parent=p)]
            links += [self.to("user", "Author", {"u": 50 + p % 200, "c": self.course_of[self.forum_of[d]]})]
        if "parent" in q:
            parts = parts[int(q["parent"]) - d * 10 :]
        for n, mode in enumerate(("Nested", "Flat")):
            links.append(self.to("discussion", mode, {"d": d}, mode=n, sesskey=self.token(d, n, bits=40)))
        return shown(self.name("discussion", d), "".join(parts), links)

    def show_device(self, q: Query) -> Page:
        return Page("", "none", "", location=q["back"])

    def show_calendar(self, q: Query) -> Page:
        time = int(q["time"])
        steps = [(view, step) for view in ("month", "day") for step in (-30, 30)] + [("day", n) for n in range(28)]
        links = [self.to("calendar", f"{step}", {"view": view, "time": time + 86_400 * step}) for view, step in steps]
        return shown(f"Calendar {time // 86_400}", "<p>There are no upcoming events</p>", links)
