"""A source code host, and a shop by collections: the same things at every commit, and under every choice."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlencode

from benchmarks.sites.pages import Links, Page, shown
from benchmarks.sites.program import Query, Routed, link, picked, table

_GITLAB = table("""
home /explore  repo /dev/{repo}  tree /dev/{repo}/-/tree/{ref}/{path}  root /dev/{repo}/-/tree/{ref}
blob /dev/{repo}/-/blob/{ref}/{path}  blame /dev/{repo}/-/blame/{ref}/{path}  raw /dev/{repo}/-/raw/{ref}/{path}
log /dev/{repo}/-/commits/{ref}  history /dev/{repo}/-/commits/{ref}/{path}  commit /dev/{repo}/-/commit/{id}
issues /dev/{repo}/-/issues  issue /dev/{repo}/-/issues/{n}  new /dev/{repo}/-/issues/new  tags /dev/{repo}/-/tags
compare /dev/{repo}/-/compare/{first}...{last}  archive /dev/{repo}/-/archive/{ref}.zip  sign_in /users/sign_in
user /u{u}
""")
_GITEA = table("""
home /explore/repos  repo /dev/{repo}  tree /dev/{repo}/src/{ref}/{path}  root /dev/{repo}/src/{ref}
blob /dev/{repo}/src/{ref}/{path}  blame /dev/{repo}/blame/{ref}/{path}  raw /dev/{repo}/raw/{ref}/{path}
log /dev/{repo}/commits/{ref}  history /dev/{repo}/commits/{ref}/{path}  commit /dev/{repo}/commit/{id}
issues /dev/{repo}/issues  issue /dev/{repo}/issues/{n}  new /dev/{repo}/issues/new/choose  tags /dev/{repo}/tags
compare /dev/{repo}/compare/{first}...{last}  archive /dev/{repo}/archive/{id}.zip  sign_in /user/login  user /u{u}
""")


class SourceHost(Routed):
    """GitLab, and for judging Gitea: files, commits, issues; files and folders at every commit, blame, comparisons."""

    routes = (_GITLAB, _GITEA)
    names: ClassVar = {"label_name": "labels", "redirect_to_referer": "redirect_to", "view": "style"}
    ignored = ("lang", "view", "w", "ref_type")
    tags = 10

    def make(self) -> None:
        self.repos = [self.slug("repo", n) + str(n) for n in range(2)]
        self.commits = {repo: [self.token(repo, n, bits=160) for n in range(self.many(150))] for repo in self.repos}
        self.files: dict[str, list[str]] = {}
        self.issues = range(1, self.many(80))
        self.note("home", "/")
        self.main = "branch/main" if self.is_judge else "main"
        for repo in self.repos:
            names = [f"{self.slug(repo, 'dir', n % 7)}/{self.slug(repo, 'file', n)}{n}.c" for n in range(self.many(70))]
            self.files[repo], of = names, {"repo": repo, "ref": self.main}
            self.note("repo", *(self.url(kind, of) for kind in ("repo", "root", "tags")))
            self.note("folder", *(self.url("tree", {**of, "path": name}) for name in self.folders(repo)))
            self.note("file", *(self.url("blob", {**of, "path": name}) for name in names))
            self.note("commit", *(self.url("commit", {"repo": repo, "id": commit}) for commit in self.commits[repo]))
            self.note("issue", *(self.url("issue", {"repo": repo, "n": n}) for n in self.issues))
            self.pages_of("log", self.commits[repo], {"repo": repo, "ref": self.main})
            self.pages_of("issues", list(self.issues), {"repo": repo})

    def folders(self, repo: str) -> list[str]:
        return sorted({name.split("/")[0] for name in self.files[repo]})

    def ref(self, commit: str) -> str:
        return f"commit/{commit}" if self.is_judge else commit

    def age(self, repo: str, ref: str) -> int:
        """Return how many commits ago *ref* was; -1 if there is no such commit."""
        commits = self.commits[repo]
        name = ref.removeprefix("commit/")
        return 0 if ref == self.main else commits.index(name) if name in commits else -1

    def frame(self, url: str, q: Query) -> Links:
        links = [("/", "Explore"), self.to("sign_in", "Sign in", redirect_to_referer=url)]
        links += [link(url.rstrip("?"), name, lang=name) for name in ("de", "fr") if self.is_judge]
        if "repo" in q:
            of = {"repo": q["repo"], "ref": self.main}
            links += [self.to(kind, kind.title(), of) for kind in ("repo", "root", "log", "issues", "tags")]
        return links

    def show_home(self, q: Query) -> Page:
        return shown("Projects", "", self.to_repos())

    def to_repos(self) -> Links:
        return [self.to("repo", repo, {"repo": repo}) for repo in self.repos]

    def show_repo(self, q: Query) -> Page:
        html = self.text("readme", q["repo"], size=6)
        return shown(q["repo"], html, self.show_root({**q, "ref": self.main}).links)

    def show_root(self, q: Query) -> Page:
        of = {"repo": q["repo"], "ref": q["ref"]}
        links = [self.to("tree", name, {**of, "path": name}) for name in self.folders(q["repo"])]
        latest = {"repo": q["repo"], "id": self.commits[q["repo"]][self.age(q["repo"], q["ref"])]}
        links += [self.to("commit", "Latest commit", latest), self.to("archive", "Download", {**of, **latest})]
        return shown(q["repo"], "", links)

    def show_tree(self, q: Query) -> Page | None:
        if q["path"] in self.files[q["repo"]]:
            return self.show_blob({**q, "kind": "blob"})
        names = [name for name in self.files[q["repo"]] if name.startswith(q["path"] + "/")]
        if not names or self.age(q["repo"], q["ref"]) < 0:
            return None
        of = {"repo": q["repo"], "ref": q["ref"]}
        links = [self.to("blob", name, {**of, "path": name}) for name in names]
        for name in names:
            links += [self.to("commit", "Last change", {**of, "id": self.last(q["repo"], name, q["ref"])})]
        return shown(q["path"], "", [*links, self.to("history", "History", {**of, "path": q["path"]})])

    def last(self, repo: str, name: str, ref: str) -> str:
        """Return the commit that changed a file last before *ref*."""
        own, age = self.changes(repo, name), self.age(repo, ref)
        return next((commit for commit in own if self.age(repo, self.ref(commit)) >= age), own[-1])

    def changes(self, repo: str, name: str) -> list[str]:
        at = self.files[repo].index(name)
        return self.commits[repo][at % len(self.commits[repo]) :: len(self.files[repo])] or self.commits[repo][-1:]

    def show_blob(self, q: Query) -> Page | None:
        repo, name, age = q["repo"], q["path"], self.age(q["repo"], q["ref"])
        if name not in self.files[repo] or age < 0:
            return None
        versions = sum(self.age(repo, self.ref(commit)) >= age for commit in self.changes(repo, name))
        changed = versions if versions < 2 else 0
        lines = [self.text("file", name, part, changed if part == age % 3 else 0, size=2) for part in range(3)]
        if q["kind"] == "raw":
            return shown(name, "".join(lines), [])
        of = {"repo": repo, "ref": q["ref"], "path": name}
        links = [self.to(kind, kind.title(), of) for kind in ("blob", "raw", "blame", "history")]
        links += [self.to("blob", "Permalink", {**of, "ref": self.ref(self.commits[repo][age])})]
        links += [self.to("tree", "Folder", {**of, "path": name.split("/")[0]})]
        if q["kind"] == "blame":
            own = self.changes(repo, name)
            links += [self.to("commit", "Change", {"repo": repo, "id": commit}) for commit in own]
            links += [self.to("blame", "Blame before this change", {**of, "ref": self.ref(commit)}) for commit in own]
        return shown(name, "".join(lines), links)

    show_raw = show_blame = show_blob

    def show_log(self, q: Query) -> Page | None:
        repo, age = q["repo"], self.age(q["repo"], q["ref"])
        if age < 0:
            return None
        own = self.commits[repo][age:] if "path" not in q else self.seeded(q["path"]).sample(self.commits[repo], 3)
        links: Links = []
        for commit in self.part(own, q):
            links += [self.to("commit", self.name(commit), {"repo": repo, "id": commit})]
            links += [self.to("root", "Browse files", {"repo": repo, "ref": self.ref(commit)}), self.user(commit)]
        return shown("Commits", "", links + self.pager(own, q, picked(q, "repo", "ref", "path")))

    show_history = show_log

    def user(self, key: object) -> tuple[str, str]:
        u = self.seeded("user", key).randint(1, 20)
        return self.to("user", self.name("user", u), {"u": u})

    def show_user(self, q: Query) -> Page:
        return shown("User", f"<p>{self.name('user', q['u'])}</p>", self.to_repos())

    def show_commit(self, q: Query) -> Page | None:
        repo, id_ = q["repo"], q["id"]
        age = self.age(repo, self.ref(id_))
        if age < 0:
            return None
        of, ref = {"repo": repo, "id": id_}, self.ref(id_)
        html = f"{self.text('commit', id_, size=1)}<p>authored {self.date(id_)}</p>{self.text('diff', id_, size=2)}"
        links = [self.to("root", "Browse files", {"repo": repo, "ref": ref}), self.user(id_)]
        links += [self.to("commit", view, of, view=view) for view in ("parallel", "inline")]
        links += [self.to("commit", "No whitespace", of, w=1)]
        for name in self.seeded(id_).sample(self.files[repo], 2):
            file = {"repo": repo, "ref": ref, "path": name}
            links += [self.to(kind, "View file", file) for kind in ("blob", "history")]
        if age + 1 < len(self.commits[repo]):
            parent = self.commits[repo][age + 1]
            links += [self.to("commit", "parent", {"repo": repo, "id": parent})]
            links += [self.to("compare", "Compare", {"repo": repo, "first": parent, "last": id_})]
        return shown(id_, html, links)

    def show_compare(self, q: Query) -> Page:
        links = [self.to("commit", "Commit", {"repo": q["repo"], "id": q["last"]})]
        links += [self.to("compare", "Swap", {"repo": q["repo"], "first": q["last"], "last": q["first"]})]
        return shown("Compare", self.text("diff", q["last"], size=2), links)

    def show_tags(self, q: Query) -> Page:
        links: Links = []
        for commit in self.commits[q["repo"]][:: len(self.commits[q["repo"]]) // self.tags + 1]:
            of = {"repo": q["repo"], "ref": self.ref(commit), "id": commit}
            links += self.to_each({"root": "Browse", "commit": "Commit", "archive": "Download"}, of)
        return shown("Tags", self.text("tags", q["repo"], size=1), links)

    def show_archive(self, q: Query) -> Page:
        return Page("", "plain", q.get("ref", q.get("id", "")))

    def show_issues(self, q: Query) -> Page:
        of, own = {"repo": q["repo"]}, list(self.issues)
        if "label_name" in q:
            own = [n for n in own if self.seeded(n, q["label_name"]).random() < 0.3]
        own.sort(key=lambda n: self.token(n, q["sort"]) if "sort" in q else f"{n:09}")
        links = [self.to("issue", self.name(q["repo"], "issue", n), {**of, "n": n}) for n in self.part(own, q)]
        options = picked(q, "label_name", "sort", "state", "author")
        choices = {
            "label_name": ["bug", "docs", "feature", "ui", "easy"], "sort": ["created", "updated", "popular"],
            "state": ["closed", "all"],
        }  # fmt: skip
        links += self.to_choices("issues", of, options, choices)
        links += [self.to("issues", "Author", of, **{**options, "author": f"u{n % 20}"}) for n in self.part(own, q)]
        return shown("Issues", "", links + self.pager(own, q, of) + [self.to("new", "New issue", of)])

    def show_issue(self, q: Query) -> Page | None:
        n = int(q["n"])
        if n not in self.issues:
            return None
        of, rng = {"repo": q["repo"]}, self.seeded(q["repo"], n)
        comments = range(rng.randint(1, 4))
        html = [f"<p>{self.date(n, k)}</p>{self.text(q['repo'], 'comment', n, k, size=2)}" for k in comments]
        links = [self.user((n, 1)), self.to("issues", "Label", of, label_name=rng.choice(["bug", "docs", "feature"]))]
        links += [self.to("new", "New issue", of), self.to("issue", "related", {**of, "n": rng.choice(self.issues)})]
        return shown(self.name(q["repo"], "issue", n), "".join(html), links)


_SHOPIFY = table("""
main /  collections /collections  collection /collections/{c}  tagged /collections/{c}/{tags}  product /products/{p}
within /collections/{c}/products/{p}  search /search?q={word}  vendor /collections/vendors?q={vendor}
news /blogs/news  post /blogs/news/{post}  page /pages/{page_name}  cart /cart  add /cart/add?id={v}
account /account/login
""")
_WOO = table("""
main /  collections /shop/  collection /product-category/{c}/  tagged /product-category/{c}/{tags}/
product /product/{p}/  within /shop/{c}/{p}/  search /?post_type=product&s={word}  vendor /brand/{vendor}/
news /news/  post /news/{post}/  page /{page_name}/  cart /cart/  add /cart/?add-to-cart={v}  account /my-account/
""")


def translated(forms: dict[str, str], *languages: str) -> dict[str, str]:
    """Return *forms*, and those of the same kinds below a folder for each of *languages*."""
    others = {f"{language} {kind}": f"/{language}{form}" for language in languages for kind, form in forms.items()}
    return {**forms, **others}


class Shop(Routed):
    """Shopify, and for judging WooCommerce: collections x filters x languages x variants; searches leave marks."""

    routes = (translated(_SHOPIFY, "de", "fr"), translated(_WOO, "es", "it"))
    same: ClassVar = {kind: kind.rpartition(" ")[2] for kind in translated(_WOO, "de", "fr", "es", "it")}
    same |= {kind: "product" for kind, plain in same.items() if plain == "within"}
    names: ClassVar = table("""
filter.v.option.color filter_color  filter.v.option.size filter_size  filter.v.price.lte max_price  sort_by orderby
variant attribute_pa_color  _pos pos  _sid v  _ss src  pr_seq seq  pr_rec_id rec
""")
    ignored = ("variant", "_pos", "_sid", "_ss", "pr_seq", "pr_rec_id")
    size, language = 12, ""

    def make(self) -> None:
        self.products = {f"{self.slug('product', n)}-{n}": n for n in range(self.many(400))}
        names, products = [self.slug("collection", n) + f"-{n}" for n in range(self.many(18))], list(self.products)
        own = [products[n :: len(names)] + self.seeded(name).sample(products, 12) for n, name in enumerate(names)]
        self.collections = dict(zip(names, own, strict=True))
        self.posts = [f"{self.slug('post', n)}-{n}" for n in range(self.many(60))]
        self.infos = ["shipping", "returns", "about-us", "contact", "size-guide"]
        self.note("main", "/", self.url("collections", {}))
        self.known("product", "p", self.products)
        self.known("post", "post", self.posts)
        self.known("page", "page_name", self.infos)
        self.pages_of("news", self.posts)
        for name, listed in self.collections.items():
            self.pages_of("collection", listed, {"c": name})

    def show(self, path: str, query: Query) -> Page | None:
        kind, *_ = self.match(f"{path}?{urlencode(query)}")
        self.language = kind[: kind.find(" ") + 1]
        return super().show(path, query)

    def here(self, kind: str, text: str = "", of: dict[str, str] | None = None, **options: object) -> tuple[str, str]:
        """Return a link in the language of the page that is shown."""
        return self.to(self.language + kind, text or kind, of, **options)

    def frame(self, url: str, q: Query) -> Links:
        kind, values, options = self.match(url)
        links = [self.here(name, name.title()) for name in ("main", "collections", "news", "cart", "account")]
        links += [self.here("page", name, {"page_name": name}) for name in self.infos]
        languages = sorted({name[: name.find(" ") + 1] for name in self.forms} - {self.language})
        plain = kind.removeprefix(self.language)
        return links + [self.to(language + plain, language or "en", values, **options) for language in languages]

    def show_main(self, q: Query) -> Page:
        links = self.to_named(f"{self.language}product", "p", list(self.products)[:8], "product")
        return shown("Home", self.text("home"), links)

    def show_collections(self, q: Query) -> Page:
        return shown("Collections", "", self.to_named(f"{self.language}collection", "c", self.collections))

    def show_product(self, q: Query) -> Page:
        n = self.products[q["p"]]
        rng = self.seeded("product", n)
        variants = [str(40_000_000_000_000 + n * 100 + v) for v in range(rng.randint(2, 8))]
        html = f"<h3>{self.name('product', n)}</h3><p>{rng.randint(5, 300)}.95 EUR</p>{self.text('product', n, size=2)}"
        shown_first = variants.index(q["variant"]) if q.get("variant") in variants else 0
        html += f"<img src=/cdn/shop/files/{shown_first}-{n}.jpg>"
        links = [self.to(q["kind"], f"Variant {v}", picked(q, "c", "p"), variant=v) for v in variants]
        links += [self.here("add", "Add to cart", {"v": variants[0]})]
        links += [self.here("vendor", "Vendor", {"vendor": f"v{n % 12}"})]
        key = self.token(n, "advice", bits=36)
        for p in rng.sample(list(self.products), 4):
            links += [self.here("product", "You may also like", {"p": p}, pr_seq="uniform", pr_rec_id=key)]
        return shown(self.name("product", n), html, links)

    show_within = show_product

    def chosen(self, products: list[str], q: Query) -> list[str]:
        for key in ("filter.v.option.color", "filter.v.option.size", "filter.v.price.lte", "tags"):
            for value in q.get(key, "").split("+") if key in q else ():
                products = [p for p in products if self.seeded(p, key, value).random() < 0.35]
        return sorted(products, key=lambda p: self.token(p, q["sort_by"]) if "sort_by" in q else "")

    def show_collection(self, q: Query) -> Page:
        own, of = self.chosen(self.collections[q["c"]], q), picked(q, "c", "tags")
        links = [self.here("within", self.name("product", p), {"c": q["c"], "p": p}) for p in self.part(own, q)]
        links += self.pager(own, q, of)
        options = {key: value for key, value in q.items() if key == "sort_by" or key.startswith("filter")}
        choices = {
            "filter.v.option.color": ["red", "blue", "green", "black", "white"], "filter.v.option.size": list("SML"),
            "filter.v.price.lte": ["20", "50", "100"], "sort_by": ["price-ascending", "title-ascending", "best"],
        }  # fmt: skip
        links += self.to_choices(q["kind"], of, options, choices)
        tags = q["tags"].split("+") if "tags" in q else []
        for tag in ("new", "sale", "cotton", "gift"):
            if tag not in tags:
                links += [self.here("tagged", tag, {"c": q["c"], "tags": "+".join([*tags, tag])})]
        return shown(self.name(q["c"]), "" if own else "<p>No products found</p>", links)

    show_tagged = show_collection

    def show_search(self, q: Query) -> Page:
        self.count += 1
        own = self.chosen(self.seeded(q["word"]).sample(list(self.products), 24), q)
        sid = self.token("search", self.count, bits=36)
        links: Links = []
        for n, p in enumerate(self.part(own, q), 1):
            links += [self.here("product", self.name("product", p), {"p": p}, _pos=n, _sid=sid, _ss="r")]
        links += self.searches(3, q["word"], "more") + self.pager(own, q, {"word": q["word"]})
        return shown(f"Results for {q['word']}", "", links)

    def searches(self, count: int, *key: str) -> Links:
        words = self.seeded(*key).sample(self.wording.words[:200], count)
        return [self.here("search", word, {"word": word}) for word in words]

    def show_vendor(self, q: Query) -> Page:
        own = [p for p, n in self.products.items() if f"v{n % 12}" == q["vendor"]]
        links = self.to_named(f"{self.language}product", "p", self.part(own, q), "product")
        return shown(q["vendor"], "", links + self.pager(own, q, {"vendor": q["vendor"]}))

    def show_news(self, q: Query) -> Page:
        links = self.to_named(f"{self.language}post", "post", self.part(self.posts, q))
        return shown("News", "", links + self.pager(self.posts, q))

    def show_post(self, q: Query) -> Page | None:
        if q["post"] not in self.posts:
            return None
        return shown(self.name(q["post"]), self.text("post", q["post"], size=5), self.searches(2, q["post"]))

    def show_page(self, q: Query) -> Page | None:
        return shown(q["page_name"], self.text("page", q["page_name"]), []) if q["page_name"] in self.infos else None

    def show_cart(self, q: Query) -> Page:
        return shown("Cart", "<p>Your cart is empty</p>", [])

    show_add = show_cart
