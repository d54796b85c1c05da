"""A git repository as cgit shows it: https://git.zx2c4.com/cgit/tree/cgitrc.5.txt and the links of its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from benchmarks.sites.program import Program, link, shown

if TYPE_CHECKING:
    from benchmarks.sites.pages import Links, Page

COMMITS, FILES, TAGS, PER_LOG = 300, 110, 20, 50
SWITCHES = ({"context": 3}, {"context": 10}, {"ignorews": 1}, {"dt": 1}, {"dt": 2})


class GitViewer(Program):
    """Commits, files and tags; every file at every commit, differences of all kinds, and logs of single files."""

    home = "/repo/"

    def make(self) -> None:
        self.ids = [self.token("commit", n, bits=160) for n in range(COMMITS)]
        self.files = [f"{self.slug('dir', n % 9)}/{self.slug('file', n)}{n}.c" for n in range(FILES)]
        self.dirs = sorted({name.split("/")[0] for name in self.files})
        self.note("summary", "/repo/", "/repo/refs/", "/repo/tree/")
        self.note("commit", *(f"/repo/commit/?id={commit}" for commit in self.ids))
        self.note("file", *(f"/repo/tree/{name}" for name in self.files))
        self.note("directory", *(f"/repo/tree/{name}" for name in self.dirs))
        self.note("tag", *(f"/repo/tag/?h=v{n}" for n in range(TAGS)))
        self.note("log", "/repo/log/", *(f"/repo/log/?ofs={at}" for at in range(PER_LOG, COMMITS, PER_LOG)))

    def content_of(self, url: str) -> str:
        """Return the commit or the file that *url* shows, whether with a path, as a patch, plain or with authors."""
        parts = urlsplit(url)
        what, _, name = parts.path.removeprefix("/repo/").partition("/")
        commit = parse_qs(parts.query).get("id", [""])[0]
        if what in ("commit", "patch") and commit in self.ids:
            return f"{self.host}/repo/commit/?id={commit}"
        if what in ("tree", "plain", "blame") and name in self.files and commit in ("", self.ids[0]):
            return f"{self.host}/repo/tree/{name}"
        return url

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        what, _, name = path.removeprefix("/repo/").partition("/")
        at = self.ids.index(query["id"]) if "id" in query else 0
        suffix = {"id": query["id"]} if "id" in query else {}
        bar = [link(f"/repo/{tab}") for tab in ("", "refs/", "log/")]
        bar += [link(f"/repo/{tab}/{name}", **suffix) for tab in ("log", "tree", "commit", "diff")]
        if name and name not in self.files and name not in self.dirs:
            return None
        match what:
            case "" | "refs":
                links = [link("/repo/tag/", f"v{n}", h=f"v{n}") for n in range(TAGS)]
                links += [link(f"/repo/snapshot/repo-v{n}.tar.gz") for n in range(TAGS)]
                return shown("repo", self.text("repo", what), [*links, *self.log("", range(10)), *bar])
            case "tag":
                n = int(query["h"].removeprefix("v"))
                return shown(f"v{n}", self.text("tag", n), [link("/repo/commit/", id=self.ids[n * 9]), *bar])
            case "log":
                return self.show_log(name, int(query.get("ofs", at)), query, bar)
            case "commit" | "diff" | "patch":
                return self.show_commit(what, name, at, bar)
            case "tree" | "blame" | "plain":
                return self.show_tree(what, name, at, suffix, bar)
        return None

    def log(self, name: str, commits: range) -> Links:
        own = [self.ids[n] for n in commits if n < COMMITS]
        return [link(f"/repo/commit/{name}", id=commit) for commit in own]

    def show_log(self, name: str, at: int, query: dict[str, str], bar: Links) -> Page:
        links = self.log(name, range(at, at + PER_LOG))
        base = {"id": query["id"]} if "id" in query else {}
        if at + PER_LOG < COMMITS:
            links.append(link(f"/repo/log/{name}", "next", **base, ofs=at + PER_LOG))
        if at >= 2 * PER_LOG:
            links.append(link(f"/repo/log/{name}", "previous", **base, ofs=at - PER_LOG))
        expanded = link(f"/repo/log/{name}", "expand", **base, ofs=at, showmsg=1)
        return shown(f"Log {name}", "", [*links, expanded, *bar])

    def show_commit(self, what: str, name: str, at: int, bar: Links) -> Page:
        commit, path = self.ids[at], f"/repo/{what}/{name}"
        touched = self.seeded("touched", at).sample(self.files, 2)
        links = [link(f"/repo/{tab}/{name}", id=commit) for tab in ("commit", "patch", "diff", "tree")]
        links += [link(f"/repo/diff/{each}", id=commit) for each in touched]
        links += [link(path, "switch", id=commit, **switch) for switch in SWITCHES]
        if at + 1 < COMMITS:
            parent = self.ids[at + 1]
            links += [link(f"/repo/commit/{name}", id=parent), link("/repo/diff/", id=commit, id2=parent)]
        message = self.text("commit", at) if what != "diff" else ""
        return shown(commit, message + self.text("difference", at, size=2), links + bar)

    def show_tree(self, what: str, name: str, at: int, suffix: dict[str, str], bar: Links) -> Page:
        if name in self.files:
            tabs = [link(f"/repo/{tab}/{name}", **suffix) for tab in ("plain", "blame", "log")]
            changed = self.seeded("changed", name).randrange(1, 2 * COMMITS)  # in one paragraph, if at all
            parts = [self.text("file", name, part, part == 0 and at >= changed) for part in range(3)]
            return shown(name, "".join(parts), tabs + (bar if what == "tree" else []))
        below = [each for each in self.files if each.startswith(f"{name}/")] if name else self.dirs
        links = [link(f"/repo/tree/{each}", **suffix) for each in below]
        links += [link(f"/repo/{tab}/{each}", **suffix) for each in below for tab in ("log", "plain", "blame")]
        return shown(name or "tree", "", links + bar)
