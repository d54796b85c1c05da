"""Addresses that grow: a slash that is missing, a parameter that is appended, an address within an address."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from example.traps.model import Answer, Section
from example.traps.text import chance, link, listed, page, paragraphs, title

if TYPE_CHECKING:
    from example.traps.model import Visit

GUIDES = ("arrival", "parking", "tickets")
ROOMS = ("news", "team", "contact", "courses", "downloads")


def sections() -> list[Section]:
    """Return them; no scale makes them larger."""
    return [
        Section(
            "relative-link",
            "visitors",
            "one link without its first slash",
            False,
            True,
            _visitors,
            "/visitors/",
            by_url=True,
        ),
        Section(
            "relative-menu", "school", "a whole menu without its slashes", False, False, _school, "/school/index.php/"
        ),
        Section(
            "growing-query",
            "languages",
            "a switch that appends what is there already",
            False,
            True,
            _language,
            "/languages?page=start",
        ),
        Section(
            "nested-query",
            "members",
            "the address to return to, within itself",
            False,
            False,
            _members,
            "/members/login?return=%2F",
        ),
        Section(
            "print-link", "terms", "a link that sets what is set", False, True, _terms, "/terms?section=1", by_url=True
        ),
        Section("symlink-loop", "mirror", "a folder that holds itself", False, False, _mirror, "/mirror/", by_url=True),
    ]


def _visitors(visit: Visit) -> Answer | None:
    """Answer under any path with the guide that its end names: the server does not mind what stands before it."""
    if visit.segments[-1:] != [""]:
        return None
    name = visit.segments[-2] if len(visit.segments) > 1 else ""
    guide = name if name in GUIDES else "arrival"
    links = [link("visitors/", "For visitors"), *(link(f"/visitors/{one}/", one) for one in GUIDES)]
    return Answer(page(guide.title(), paragraphs(chance("visitors", guide), 50) + listed(links)))


def _school(visit: Visit) -> Answer | None:
    """Answer under any path with the page that its end names; the menu is relative, so every page multiplies it."""
    if visit.segments[:1] != ["index.php"] or visit.segments[-1:] != [""]:
        return None
    name = visit.segments[-2]
    room = name if name in ROOMS else "news"
    menu = [link(f"{one}/", one.title()) for one in ROOMS if one != name]
    return Answer(page(room.title(), listed(menu) + paragraphs(chance("school", room), 45)))


def _language(visit: Visit) -> Answer | None:
    if visit.segments or not visit.query:
        return None
    start = visit.params.get("page", "start")
    languages = [link(f"/languages?{visit.query}&lang={code}", code) for code in ("de", "en", "fr")]
    pages = [link(f"/languages?{visit.query}&page={one}", one.title()) for one in ("start", "prices", "teachers")]
    return Answer(page(f"Languages: {start}", paragraphs(chance("languages", start), 40) + listed(languages + pages)))


def _members(visit: Visit) -> Answer | None:
    if visit.segments not in (["login"], ["register"], ["password"]):
        return None
    here = f"/members/{visit.segments[0]}?{visit.query}"
    links = [
        link(f"/members/{one}?return={quote(here, safe='')}", title(chance("members", one), 2))
        for one in ("login", "register", "password")
    ]
    back = link(visit.params.get("return", "/"), "Back")
    return Answer(
        page(f"Members: {visit.segments[0]}", f"<form><p>Name</p><p>Password</p></form>{listed([*links, back])}")
    )


def _terms(visit: Visit) -> Answer | None:
    """Answer with a section of the terms; the link for printers appends its parameter to whatever is there."""
    number = visit.number("section")
    if visit.segments or not 1 <= number <= 6:
        return None
    links = [link(f"/terms?section={other}", f"Section {other}") for other in range(1, 7)]
    links.append(link(f"/terms?{visit.query}&print=yes", "Print"))
    return Answer(page(f"Terms, section {number}", paragraphs(chance("terms", number), 60) + listed(links)))


def _mirror(visit: Visit) -> Answer | None:
    """Answer with the listing of a folder of a mirror, where ``current`` is a symbolic link to the top."""
    if visit.query or visit.segments[-1:] != [""]:
        return None
    folders = visit.segments[:-1]
    while "current" in folders:
        folders = folders[folders.index("current") + 1 :]
    below = {(): ("current/", "dists/", "pool/"), ("dists",): ("main/",), ("pool",): ("main/",)}
    entries = below.get(tuple(folders), () if tuple(folders[1:]) == ("main",) else None)
    if entries is None or (folders and folders[0] not in ("dists", "pool")):
        return None
    files = [f"package_{i}.{chance('mirror', *folders).randrange(99)}.deb" for i in range(10)]
    return Answer(page(f"Index of {visit.path}", listed([*(link(one, one) for one in entries), *files])))
