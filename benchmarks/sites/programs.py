"""A wiki and a tracker in the manner of real programs; the list of all programs."""

from __future__ import annotations

from benchmarks.sites.forum_and_shop import Drupal, Magento, PhpBB, PhpBBSessions
from benchmarks.sites.git_viewer import GitViewer
from benchmarks.sites.pages import Links, Page
from benchmarks.sites.program import Program, link, shown
from benchmarks.sites.records import Learning, Library
from benchmarks.sites.source_and_shop import Shop, SourceHost
from benchmarks.sites.wiki_and_board import Board, SpaceWiki


class MediaWiki(Program):
    """Articles, talk pages and categories; histories, differences and special pages of each."""

    home = "/wiki/Main_Page"

    def make(self) -> None:
        names = list(dict.fromkeys(self.name(n).replace(" ", "_") for n in range(700)))
        self.articles = names[:500]
        self.talks = [name for name in self.articles if self.rng.random() < 0.3]
        self.categories = [f"Category:{self.name('cat', n).replace(' ', '_')}{n}" for n in range(30)]
        self.users = [f"User:{self.name('user', n).replace(' ', '')}{n}" for n in range(25)]
        self.by_category = {name: self.rng.sample(self.articles, 40) for name in self.categories}
        for n, name in enumerate(self.articles):
            self.by_category[self.categories[n % 30]].append(name)
        self.note("article", self.home, *(f"/wiki/{name}" for name in self.articles))
        self.note("talk", *(f"/wiki/Talk:{name}" for name in self.talks))
        self.note("category", *(f"/wiki/{name}" for name in self.categories))
        self.note("user", *(f"/wiki/{name}" for name in self.users))

    def tools(self, title: str) -> Links:
        base = "/index.php"
        revision = self.seeded(title, "revision").randint(10_000, 99_999)
        subject = title.removeprefix("Talk:")
        return [
            link(f"/wiki/Talk:{subject}") if subject in self.talks else
            link(base, "discuss", title=f"Talk:{subject}", action="edit", redlink=1),
            link(f"/wiki/{subject}"),
            link(base, "edit", title=title, action="edit"), link(base, "history", title=title, action="history"),
            link(base, "info", title=title, action="info"), link(base, "link", title=title, oldid=revision),
            link(base, "print", title=title, printable="yes"),
            link(base, "cite", title="Special:CiteThisPage", page=title, id=revision),
            link(f"/wiki/Special:WhatLinksHere/{title}"), link(f"/wiki/Special:RecentChangesLinked/{title}"),
            link("/wiki/Special:RecentChanges"), link("/wiki/Special:Random"), link("/wiki/Special:SpecialPages"),
            link(base, "log in", title="Special:UserLogin", returnto=title), link("/wiki/Main_Page"),
        ]  # fmt: skip

    def of(self, title: str) -> tuple[str, Links] | None:
        """Return the content of a page, and its links into the wiki."""
        if title == "Main_Page":
            return self.text(title), [link(f"/wiki/{name}") for name in [*self.articles[:10], *self.categories[:8]]]
        if title in self.by_category:
            return self.text(title, size=1), [link(f"/wiki/{name}") for name in self.by_category[title]]
        if title in self.users:
            return self.text(title), [link(f"/wiki/{name}") for name in self.seeded(title).sample(self.articles, 3)]
        is_talk = title.startswith("Talk:")
        if title.removeprefix("Talk:") not in (self.talks if is_talk else self.articles):
            return None
        rng = self.seeded(title)
        if is_talk:
            users = rng.sample(self.users, 2)
            return self.text(title, size=3), [link(f"/wiki/{user}") for user in users]
        others = [self.articles[int(rng.random() ** 2 * len(self.articles))] for _ in range(7)]
        links = [link(f"/wiki/{name}") for name in others]
        at = self.articles.index(title)
        links += [link(f"/wiki/{name}") for name in {self.categories[at % 30], rng.choice(self.categories)}]
        return self.text(title, size=6), links

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        title = query.get("title") or path.removeprefix("/wiki/")
        if title.startswith("Special:"):
            return self.special(title, query)
        content = self.of(title)
        action = query.get("action", "view")
        at = int(query.get("oldid") or 0)
        if action == "edit":
            return shown(
                f"Editing {title}",
                "<form>You are not logged in. Your address will be public.</form>",
                self.tools(title),
            )
        if content is None:
            return None
        base = "/index.php"
        last = self.seeded(title, "revision").randint(10_000, 99_999)
        if action == "history":
            return self.history(title, last, query.get("limit", "50"))
        if action == "info":
            return shown(
                f"Information for {title}",
                f"<p>Page length {len(content[0])}</p><p>Page ID {last // 7}</p>",
                self.tools(title),
            )
        if "diff" in query:
            return self.difference(title, last, at)
        html, links = content
        if at and at != last:
            html = "\n".join(html.split("\n")[: max(1, len(html.split("\n")) - (last - at) // 37)])
            links = [*links, link(base, "older revision", title=title, diff="prev", oldid=at)]
        return shown(title, html, links + self.tools(title))

    def history(self, title: str, last: int, limit: str) -> Page:
        base, links = "/index.php", list[tuple[str, str]]()
        for old in [last - 37 * n for n in range(self.seeded(title, "n").randint(2, 12))]:
            links += [
                link(base, "cur", title=title, diff=last, oldid=old),
                link(base, self.date(old), title=title, oldid=old),
                link(base, "prev", title=title, diff=old, oldid="prev"),
                link(base, "undo", title=title, action="edit", undo=old),
                link(f"/wiki/{self.seeded(old).choice(self.users)}"),
            ]  # fmt: skip
        links += [link(base, n, title=title, action="history", limit=n) for n in ("20", "100", "250") if n != limit]
        html = "<p>For any version listed below, click on its date.</p>"
        return shown(f"{title}: Revision history", html, links + self.tools(title))

    def difference(self, title: str, last: int, at: int) -> Page:
        rows = self.text(title, size=6).split("\n")[:2]
        step = [
            link("/index.php", "older", title=title, diff="prev", oldid=at or last),
            link("/index.php", "newer", title=title, diff="next", oldid=at or last),
        ]
        return shown(
            f"{title}: Difference",
            f"<p>Revision as of {self.date(at)}</p>\n{rows[at % 2]}\n<del>{self.text(title, at, size=1)}</del>",
            step + self.tools(title),
        )

    def special(self, title: str, query: dict[str, str]) -> Page | None:
        name, _, target = title.removeprefix("Special:").partition("/")
        base = "/index.php"
        if name == "Random":
            self.count += 1
            return Page("", "none", "", location=f"/wiki/{self.articles[self.count * 7 % len(self.articles)]}")
        if name == "SpecialPages":
            names = ["AllPages", "Log", "ListUsers", "RecentChanges", "Version", "Statistics"]
            return shown(name, "<p>List of special pages</p>", [link(f"/wiki/Special:{each}") for each in names])
        if name == "AllPages":
            at = int(query.get("from", 0))
            rows = [link(f"/wiki/{row}") for row in self.articles[at : at + 60]]
            return shown(name, "", [*rows, link(base, "next", title=title, **{"from": at + 60})])
        if name == "ListUsers":
            return shown(name, "", [link(f"/wiki/{user}") for user in self.users])
        if name == "WhatLinksHere":
            return self.what_links(title, target, query)
        if name in ("RecentChangesLinked", "RecentChanges", "Log", "Contributions"):
            return self.changes(title, query)
        if name == "CiteThisPage":
            return shown(name, f"<p>Retrieved {self.date(query.get('page'))}</p>", self.tools(query["page"]))
        if name in ("UserLogin", "Version", "Statistics"):
            forgot = link(base, "forgot", title="Special:PasswordReset", returnto=query.get("returnto", ""))
            return shown(name, "<form>User name and password</form>", [forgot])
        return None

    def what_links(self, title: str, target: str, query: dict[str, str]) -> Page:
        rng, base = self.seeded(title, sorted(query.items())), "/index.php"
        links = [link(f"/wiki/{each}") for each in rng.sample(self.articles, 5)]
        links += [link(base, f"{n}", title=title, limit=n) for n in (20, 50, 100, 250, 500)]
        links += [link(base, hide, title=title, **{hide: 1}) for hide in ("hidetrans", "hidelinks", "hideredirs")]
        return shown(
            f"Pages that link to {target}", "<p>The following pages link here.</p>", links + self.tools(target)
        )

    def changes(self, title: str, query: dict[str, str]) -> Page:
        rng, base = self.seeded(title, sorted(query.items())), "/index.php"
        name, _, target = title.removeprefix("Special:").partition("/")
        links = [link(f"/wiki/{each}") for each in rng.sample(self.articles, 8)]
        links += [
            link(base, "diff", title=each, diff=rng.randint(10_000, 99_999), oldid="prev")
            for each in rng.sample(self.articles, 4)
        ]
        options = {
            "days": (1, 3, 7, 14, 30),
            "limit": (50, 100, 250, 500),
            "hidebots": (0, 1),
            "hideminor": (0, 1),
            "hideanons": (0, 1),
        }
        for key, values in options.items():
            links += [link(base, key, **(query | {"title": title, key: value})) for value in values]
        moment = f"2024{rng.randint(10**9, 10**10 - 1)}"
        links += [link(base, "newest", **(query | {"title": title, "from": moment}))]
        users = [user.removeprefix("User:") for user in rng.sample(self.users, 3)]
        links += [link(f"/wiki/Special:Contributions/{user}") for user in users]
        return shown(name, f"<p>{len(links)} changes</p>", links + (self.tools(target) if target else []))


class Trac(Program):
    """Wiki, tickets, changesets and files; versions, differences, revisions, annotations, reports and queries."""

    home = "/wiki"

    def make(self) -> None:
        self.wiki = [self.name("wiki", n).replace(" ", "") + str(n) for n in range(60)]
        self.tickets, self.changes = range(1, 260), range(1, 220)
        self.files = [f"{self.slug('dir', n % 12)}/{self.slug('file', n)}{n}.py" for n in range(90)]
        self.dirs = sorted({name.split("/")[0] for name in self.files})
        self.note("wiki", "/wiki", *(f"/wiki/{name}" for name in self.wiki))
        self.note("ticket", *(f"/ticket/{n}" for n in self.tickets))
        self.note("changeset", *(f"/changeset/{n}" for n in self.changes))
        self.note("file", "/browser", *(f"/browser/{name}" for name in [*self.dirs, *self.files]))

    def common(self, path: str) -> Links:
        paths = ("/wiki", "/timeline", "/roadmap", "/browser", "/report", "/query", "/search")
        return [*map(link, paths), link("/login", referer=path)]

    def show_wiki(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return self.wiki_page(path, parts[1] if len(parts) > 1 else "", query, self.common(path))

    def show_ticket(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        rng = self.seeded(path, sorted(query.items()))
        common = self.common(path)
        n = int(parts[1])
        if n not in self.tickets:
            return None
        links = [link(f"/ticket/{n + step}") for step in (-1, 1) if n + step in self.tickets] + common
        links += [
            link(f"/changeset/{rng.choice(self.changes)}"),
            link("/query", "owner", owner=f"u{n % 9}", status="!closed"),
        ]
        links += [
            link(path, "csv", format="csv"),
            link(path, "up", replyto=1),
            link(path, "diff", action="diff", version=rng.randint(1, 3)),
        ]
        if "action" in query or "format" in query:
            return shown(f"#{n}", f"<p>{self.name('ticket', n)}</p>", links)
        return shown(f"#{n}", f"<p>Opened {self.date('t', n)}</p>\n{self.text('ticket', n, size=3)}", links)

    def show_changeset(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        common = self.common(path)
        n = int(parts[1].split("_")[0])
        if n not in self.changes:
            return None
        name = self.files[n % 90]
        links = [
            link(f"/changeset/{n - 1}"),
            link(f"/changeset/{n}/{name}"),
            link(f"/browser/{name}", rev=n),
            link(path, "diff", format="diff", new=n),
            link(path, "zip", format="zip", new=n),
            link(f"/log/{name}", rev=n),
        ]
        html = self.text("change", n, size=2) + (self.text("file", name, size=1) if len(parts) == 2 else "")
        return shown(f"Changeset {n}", html, [*links, link(f"/ticket/{n}"), *common])

    def show_browser(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return self.browse("/".join(parts[1:]), query, self.common(path))

    def show_log(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        name = "/".join(parts[1:])
        if not self.has(name):
            return None
        base, own = f"/{name}" if name else "", self.changes_of(name)
        links = [link(f"/changeset/{n}") for n in own] + [link(f"/browser{base}", rev=n) for n in own]
        links += [link(f"/log{base}", rev=n, mode=mode) for n in own for mode in ("stop_on_copy", "path_history")]
        return shown(f"Log of {name}", "<p>Revision log</p>", links + self.common(path))

    def show_export(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        name = "/".join(parts[1:])
        return shown(name, self.text("file", name, size=5), []) if self.has(name) else None

    def show_timeline(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        rng = self.seeded(path, sorted(query.items()))
        common = self.common(path)
        at = int(query.get("from", "20240501"))
        links = [
            link("/timeline", "older", **{"from": at - 30, "daysback": 30}),
            link("/timeline", "newer", **{"from": at + 30, "daysback": 30}),
        ]
        links += [link(f"/changeset/{n}") for n in rng.sample(self.changes, 5)] + [
            link(f"/ticket/{n}") for n in rng.sample(self.tickets, 5)
        ]
        return shown("Timeline", f"<p>{self.date(at)}</p>", links + common)

    def show_report(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        rng = self.seeded(path, sorted(query.items()))
        links = [link(f"/ticket/{n}") for n in rng.sample(self.tickets, 12)] + self.common(path)
        if parts == ["report"]:
            links = [link(f"/report/{n}") for n in range(1, 9)] + self.common(path)
        return shown("report", "", links + self.columns(path, query, "sort", "asc"))

    def show_query(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        rng = self.seeded(path, sorted(query.items()))
        links = [link(f"/ticket/{n}") for n in rng.sample(self.tickets, 12)] + self.common(path)
        return shown("query", "", links + self.columns(path, query, "order", "desc"))

    def columns(self, path: str, query: dict[str, str], order: str, way: str) -> Links:
        """Return the links that put a table in *order*, and to its other pages; a query can also be grouped."""
        keys = ("ticket", "summary", "owner", "status", "milestone", "created")
        links: Links = []
        for key in keys:
            ordered = query | {order: key}
            links += [link(path, key, **ordered), link(path, key, **(ordered | {way: 1}))]
        if order == "order":
            links += [link(path, key, **(query | {"group": key})) for key in keys[2:]]
            links += [link(path, f"{key}", **(query | {"col": key})) for key in keys]
        return links + [link(path, "page", **(query | {"page": n})) for n in range(2, 5)]

    def show_search(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return shown("Search", "<form>Search</form>", self.common(path))

    def show_roadmap(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        links = [link("/query", milestone=f"m{n}", status="closed", group="status") for n in range(5)]
        return shown("Roadmap", self.text("roadmap", size=2), links + self.common(path))

    def show_login(self, path: str, parts: list[str], query: dict[str, str]) -> Page | None:
        return Page("", "none", "", location=query.get("referer", "/wiki"))

    def wiki_page(self, path: str, name: str, query: dict[str, str], common: Links) -> Page | None:
        if name and name not in self.wiki:
            return None
        rng = self.seeded("wiki", name)
        links = [link(f"/wiki/{other}") for other in rng.sample(self.wiki, 6)] + common
        versions = rng.randint(2, 9)
        actions = [link(path, action, action=action) for action in ("history", "edit", "delete", "rename")] + [
            link(path, "txt", format="txt"),
            link(path, "last", action="diff", version=versions),
        ]
        html = self.text("wiki", name)
        if query.get("action") == "history":
            rows = [link(path, str(v), version=v) for v in range(1, versions)] + [
                link(path, "diff", action="diff", version=v) for v in range(1, versions)
            ]
            rows += [link(path, "cmp", action="diff", version=v, old_version=v - 1) for v in range(2, versions)]
            return shown(f"Change History for {name}", f"<p>{self.date(name)}</p>", rows + common)
        if query.get("action") == "diff":
            return shown(
                f"Changes of {name}",
                html.split("\n")[0] + f"<p>{self.text('old', name, query.get('version'), size=1)}</p>",
                actions + common,
            )
        if "action" in query:
            return shown("Error", "<p>You are not allowed to do that.</p>", common)
        return shown(name, html, links + actions)

    def has(self, name: str) -> bool:
        return not name or name in self.dirs or name in self.files

    def changes_of(self, name: str) -> list[int]:
        """Return the changes of a file, or some for a folder."""
        at = self.files.index(name) if name in self.files else None
        own = [n for n in self.changes if n % 90 == at]
        return own or self.seeded(name).sample(self.changes, 4)

    def browse(self, name: str, query: dict[str, str], common: Links) -> Page | None:
        if not self.has(name):
            return None
        rev = query.get("rev")
        suffix = {"rev": rev} if rev else {}
        base = "/" + name if name else ""
        links = [
            link(f"/browser{base}", **suffix),
            link(f"/log{base}", **suffix),
            link(f"/browser{base}", order="date", desc=1, **suffix),
            link(f"/browser{base}", order="size", **suffix),
            *common,
        ]
        links += [link(f"/browser{base}", rev=n) for n in self.changes_of(name)[:2]]
        if name in self.files:
            if rev is None and "order" not in query:
                links += [
                    link(f"/browser{base}", annotate="blame"),
                    link(f"/export/head{base}"),
                    link(f"/browser{base}", format="txt"),
                    link(f"/browser{base}", format="raw"),
                ]
            return shown(name, self.text("file", name, size=5), links)
        below = self.dirs if not name else [each for each in self.files if each.startswith(f"{name}/")]
        return shown(name or "root", "", [link(f"/browser/{each}", **suffix) for each in below] + links)


HOSTED = (Library, Learning, SourceHost, Shop, SpaceWiki, Board)
PROGRAMS = (MediaWiki, PhpBB, PhpBBSessions, Magento, Drupal, Trac, GitViewer, *HOSTED)
