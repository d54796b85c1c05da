"""Mazes: pages made up as they are asked for, by accident or on purpose, whose links lead further in."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from example.traps.model import Answer, Section
from example.traps.text import STEMS, babble, chance, hexadecimal, link, listed, page, paragraphs, title, uuid

if TYPE_CHECKING:
    from example.traps.model import Visit


def sections() -> list[Section]:
    """Return the mazes; no scale makes them larger."""
    return [
        Section(
            "soft-404",
            "help",
            "an error page with status 200 that repeats the address",
            False,
            True,
            _help,
            "/help/contact-us",
        ),
        Section(
            "search-echo", "find", "searches that suggest further searches", False, False, _search, "/find?q=garden"
        ),
        Section(
            "hash-maze", "o", "hashes that lead to hashes", False, True, _hashes, "/o/0a1b2c3d4e5f60718293a4b5c6d7e8f9"
        ),
        Section(
            "token-maze",
            "verify",
            "one-time tokens as parameters",
            False,
            False,
            _tokens,
            "/verify?token=" + uuid("first"),
        ),
        Section("word-maze", "wander", "folders named by words", False, True, _wander, "/wander/"),
        Section(
            "hyphen-maze", "ideas", "pages named by several words", False, False, _ideas, "/ideas/garden-lake-stone"
        ),
        Section(
            "babble-words",
            "library",
            "new prose on every page, as Nepenthes writes it",
            False,
            True,
            _nepenthes,
            "/library/",
            babble=True,
        ),
        Section(
            "babble-deep",
            "notes",
            "new prose in new folders, as iocaine writes it",
            False,
            False,
            _iocaine,
            "/notes/",
            babble=True,
        ),
    ]


def _help(visit: Visit) -> Answer | None:
    """Answer to any address that there is no such page, and suggest two that there are not either."""
    topic = visit.segments[-1] if visit.segments else ""
    rng = chance("help", visit.path)
    words = topic.split("-")[-3:]
    near = ["-".join([*words, rng.choice(STEMS)]) for _ in range(3)]
    said = (
        f"<p>We are sorry, but the page {visit.path} could not be found on this server.</p>"
        f"<p>Did you look for {topic.replace('-', ' ')}? One of these may help:</p>"
    )
    return Answer(page("Help", said + listed(link(f"/help/{one}", one.replace("-", " ")) for one in near)))


def _search(visit: Visit) -> Answer | None:
    asked = visit.params.get("q", "")
    if visit.segments or not asked:
        return None
    rng = chance("search", asked)
    words = asked.split()[-4:]
    further = [" ".join([*words[-3:], rng.choice(STEMS)]) for _ in range(3)] + [" ".join(rng.sample(words, len(words)))]
    links = [link(f"/find?q={quote_plus(one)}", one) for one in further]
    said = f"<form><input name=q value='{asked}'></form><p>Your search for <b>{asked}</b> did not match any pages.</p>"
    return Answer(page(f"Search: {asked}", f"{said}<p>Related searches:</p>{listed(links)}"))


def _hashes(visit: Visit) -> Answer | None:
    name = visit.segments[0] if len(visit.segments) == 1 else ""
    if not name:
        return None
    below = [hexadecimal("hash", name, i) for i in range(4)]
    said = f"<p>Object {name}</p><p>Objects are addressed by their content and never change.</p>"
    return Answer(page(f"Object {name[:12]}", said + listed(link(f"/o/{one}", one) for one in below)))


def _tokens(visit: Visit) -> Answer | None:
    token = visit.params.get("token", "")
    if visit.segments or not token:
        return None
    links = [
        link(f"/verify?token={uuid('token', token, i)}", text)
        for i, text in enumerate(("Send again", "Cancel", "Help"))
    ]
    said = "<p>This link has expired. Ask for a new one and confirm your address within ten minutes.</p>"
    return Answer(page("Confirm your address", said + listed(links)))


def _wander(visit: Visit) -> Answer | None:
    if visit.segments[-1:] != [""]:
        return None
    rng = chance("wander", visit.path)
    below = rng.choices(STEMS, k=5)
    here = visit.segments[-2] if len(visit.segments) > 1 else "nowhere"
    said = f"<p>You are standing in the {here}. Exits lead in all directions.</p>"
    return Answer(page(f"The {here}", said + listed(link(f"{one}/", one) for one in below)))


def _ideas(visit: Visit) -> Answer | None:
    words = visit.segments[0].split("-") if len(visit.segments) == 1 else []
    if len(words) < 2:
        return None
    rng = chance("ideas", visit.path)
    further = ["-".join(rng.sample([*words, *rng.choices(STEMS, k=2)], 3)) for _ in range(5)]
    said = f"<p>Here are the best ideas about {' and '.join(words)}, chosen for you by our readers.</p>"
    links = [link(f"/ideas/{one}", one.replace("-", " ").title()) for one in further]
    return Answer(page(" ".join(words).title(), said + listed(links)))


def _nepenthes(visit: Visit) -> Answer:
    """Answer with prose and links to words, some of them a folder deeper; nothing ever leads out or back."""
    rng = chance("nepenthes", visit.path)
    links = []
    for _ in range(rng.randrange(4, 10)):
        words = rng.choices(STEMS, k=rng.randrange(1, 4))
        links.append(link("/library/" + "/".join(words), rng.choice(words)))
    pieces = [f"<p>{babble(rng, 40)} {one}</p>" for one in links]
    return Answer(
        f"<!DOCTYPE html>\n<html><head><title>{title(rng, 4)}</title></head><body>{''.join(pieces)}</body></html>"
    )


def _iocaine(visit: Visit) -> Answer:
    """Answer with a whole article in the dress of the site, and links that are relative and go deeper."""
    rng = chance("iocaine", visit.path)
    further = [f"{rng.choice(STEMS)}-{rng.choice(STEMS)}/" for _ in range(rng.randrange(2, 6))]
    back = ["../"] if rng.random() < 0.3 else []
    links = listed(link(one, babble(rng, 4)) for one in further + back)
    return Answer(page(title(rng, 4), paragraphs(rng, 50, 70, 40) + links))
