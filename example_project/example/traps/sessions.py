"""Sites that hand out something new with every page: a session, the time, a token, the number of the visit.

Each has a few dozen pages, and no end of addresses for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from example.traps.model import Answer, Section, decimal
from example.traps.text import chance, hexadecimal, link, listed, page, paragraphs, row, slug, title

if TYPE_CHECKING:
    from example.traps.model import Visit

OFFERS = 40


def sections() -> list[Section]:
    """Return the sites, which no scale makes larger: they are endless as they are."""
    return [
        Section(
            "session-query", "travel", "PHPSESSID, renewed with every page", False, True, _travel, "/travel/index.php"
        ),
        Section(
            "session-path", "tickets", "jsessionid and (S(...)), renewed", False, False, _tickets, "/tickets/start.do"
        ),
        Section(
            "clock",
            "status",
            "links that carry the time, a page that shows it",
            False,
            True,
            _status,
            "/status?t=1718000000",
        ),
        Section(
            "counter",
            "lottery",
            "visitor numbers, tokens, how long it took",
            False,
            False,
            _lottery,
            "/lottery/visit/1",
        ),
    ]


def _travel(visit: Visit) -> Answer | None:
    if visit.segments not in (["index.php"], ["offer.php"]):
        return None
    number = visit.number("id")
    # The session in the request has expired by the time of the next page, so that one gets a new one.
    session = f"PHPSESSID={hexadecimal('session', visit.path, visit.query)[:26]}"
    links = [link(f"/travel/offer.php?id={one}&{session}", _offer(one)) for one in _shown(number)]
    links.append(link(f"/travel/index.php?{session}", "All offers"))
    body = paragraphs(chance("travel", number), 40) if 0 <= number < OFFERS else ""
    hidden = f'<input type=hidden name=PHPSESSID value="{session[10:]}">'
    return Answer(page(_offer(number) if body else "Travel", f"<form>{hidden}</form>{body}{listed(links)}"))


def _offer(number: int) -> str:
    return title(chance("offer", number))


def _shown(number: int) -> list[int]:
    """Return the offers that a page links to: all, or some from one."""
    return [(number * 3 + i) % OFFERS for i in range(8)] if number >= 0 else list(range(OFFERS))


def _tickets(visit: Visit) -> Answer | None:
    segments = [segment for segment in visit.segments if not segment.startswith("(S(")]
    name = segments[0].partition(";")[0] if len(segments) == 1 else ""
    session = chance("tickets", visit.path)
    number = decimal(name.removeprefix("show").removesuffix(".do"))
    if name != "start.do" and not 0 <= number < OFFERS:
        return None

    def address(file: str) -> str:
        if session.random() < 0.5:  # two application servers, each with its own way
            return f"/tickets/{file};jsessionid={session.getrandbits(128):032X}"
        token = "".join(session.choices("abcdefghijklmnopqrstuvwxyz012345", k=24))
        return f"/tickets/(S({token}))/{file}"

    links = [link(address(f"show{one}.do"), title(chance("show", one))) for one in _shown(number)]
    links.append(link(address("start.do"), "All shows"))
    if number < 0:
        return Answer(page("Tickets", listed(links)))
    rng = chance("show", number)
    return Answer(page(title(rng), paragraphs(rng, 50) + listed(links)))


def _status(visit: Visit) -> Answer | None:
    if visit.segments:
        return None
    now = 1_718_000_000 + visit.served * 3
    services = [row(slug("service", i), "up", f"{now % (97 + i)} ms", f"{now - 60 * i}") for i in range(8)]
    links = [
        link(f"/status?t={now + step}", text)
        for step, text in ((1, "Refresh"), (60, "in a minute"), (-3600, "an hour ago"))
    ]
    body = f"<p>Server time: {now}</p><table>{''.join(services)}</table>{listed(links)}"
    return Answer(page("Status", f"{body}<p>Generated in 0.{now % 9973:04d} seconds, {now % 211} users online.</p>"))


def _lottery(visit: Visit) -> Answer | None:
    match visit.segments:
        case ["visit", digits] if decimal(digits) >= 0:
            number = decimal(digits)
        case _:
            return None
    rng = chance("lottery", visit.served)
    token = f"{rng.getrandbits(256):064x}"
    links = [link(f"/lottery/visit/{number * 3 + i + 1}", f"Game {i}") for i in range(3)]
    visitor = 1_000_000 + visit.served * 13
    body = (
        f"<p>Welcome! You are visitor number {visitor} since 1999. Your ticket is {token[:12]}.</p>\n"
        f'<form><input type=hidden name=csrf value="{token}"></form>\n'
        f"<p>Choose one of our games and come back tomorrow for the numbers.</p>\n{listed(links)}"
        f"<p>Created in {rng.random():.6f} s by server {rng.randrange(1, 9)}, {rng.randrange(9, 99)} queries.</p>\n"
    )
    return Answer(page("The lottery", body))
