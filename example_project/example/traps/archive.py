"""What has a date. Archives of real days are honest; calendars that go on for ever are not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from example.traps.model import Answer, Section, scaled
from example.traps.text import chance, link, listed, page, paragraphs, row, title

if TYPE_CHECKING:
    from example.traps.model import Visit

FIRST_DAY = date(2004, 1, 1)
ONE_DAY = timedelta(days=1)
TODAY = date(2024, 6, 14)
"""As far as the calendars are concerned."""


def sections(factor: float) -> list[Section]:
    """Return the archives and the calendars."""
    weather = _Weather(FIRST_DAY, scaled(7_305, factor, 70))
    press = _Press(FIRST_DAY, scaled(1_500, factor, 40))
    return [
        Section("weather-days", "weather", "20 years of days, tables only", True, True, weather.day, "", weather.days),
        Section("weather-lists", "weather", "their months", True, True, weather.lists, "/weather/", weather.list_pages),
        Section("press-days", "press", "an archive by date, as a parameter", True, False, press.day, "", press.days),
        Section("press-lists", "press", "its list", True, False, press.listing, "/press/", press.pages),
        Section(
            "calendar-query", "events", "months for ever, as a parameter", False, True, _month, "/events/?month=2024-06"
        ),
        Section(
            "calendar-path", "rooms", "days, weeks and months for ever", False, False, _room, "/rooms/day/2024/6/14/"
        ),
    ]


def _parsed(*texts: str) -> date | None:
    try:
        return date(*[int(text) for text in texts])
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class _Weather:
    """``/weather/2004/01/31/``: a table of numbers for each day, a list for each month."""

    first: date
    days: int

    @property
    def last(self) -> date:
        return self.first + (self.days - 1) * ONE_DAY

    @property
    def list_pages(self) -> int:
        return 1 + (self.last.year - self.first.year) * 12 + self.last.month - self.first.month + 1

    def day(self, visit: Visit) -> Answer | None:
        if len(visit.segments) != 4 or visit.segments[3] or visit.query:
            return None
        day = _parsed(*visit.segments[:3])
        if day is None or not self.first <= day <= self.last or visit.path != _weather_path(day):
            return None
        rng = chance("weather", day.toordinal())
        low = rng.gauss(6, 8)
        hours = [
            row(f"{hour:02d}:00", *(f"{rng.gauss(low + mean, spread):.1f}" for mean, spread in _READINGS))
            for hour in range(0, 24, 2)
        ]
        neighbours = [one for one in (day - ONE_DAY, day + ONE_DAY) if self.first <= one <= self.last]
        links = [link(_weather_path(one), one.isoformat()) for one in neighbours]
        links.append(link(f"/weather/{day:%Y/%m}/", f"{day:%B %Y}"))
        head = row("Hour", "°C", "mm", "hPa", "km/h", kind="th")
        return Answer(page(f"Weather on {day:%d %B %Y}", f"<table>{head}{''.join(hours)}</table>\n{listed(links)}"))

    def lists(self, visit: Visit) -> Answer | None:
        if visit.query:
            return None
        match visit.segments:
            case [""]:
                months = sorted(
                    {(self.first + i * ONE_DAY).replace(day=1) for i in range(0, self.days, 14)}
                    | {self.last.replace(day=1)}
                )
                links = [link(f"/weather/{month:%Y/%m}/", f"{month:%B %Y}") for month in months]
                return Answer(page("Weather archive", listed(links)))
            case [year, month, ""] if (first := _parsed(year, month, "1")) and visit.path == f"/weather/{first:%Y/%m}/":
                days = [first + i * ONE_DAY for i in range(31)]
                shown = [day for day in days if day.month == first.month and self.first <= day <= self.last]
                if shown:
                    links = [link(_weather_path(day), f"{day:%d}") for day in shown]
                    return Answer(page(f"Weather in {first:%B %Y}", listed(links)))
        return None


_READINGS = ((5, 3), (0.2, 0.3), (1005, 8), (12, 6))


def _weather_path(day: date) -> str:
    return f"/weather/{day:%Y/%m/%d}/"


@dataclass(frozen=True)
class _Press:
    """``/press/archive.php?date=2004-01-31``: a release for every third day."""

    first: date
    days: int

    @property
    def pages(self) -> int:
        return -(-self.days // 50)

    def day(self, visit: Visit) -> Answer | None:
        if visit.segments != ["archive.php"]:
            return None
        day = _parsed(*visit.params.get("date", "").split("-"))
        if day is None or visit.query != f"date={day.isoformat()}":
            return None
        number, rest = divmod((day - self.first).days, 3)
        if rest or not 0 <= number < self.days:
            return None
        rng = chance("press", number)
        others = [self._link(other) for other in (number - 1, number + 1) if 0 <= other < self.days]
        body = (
            f"<p>{day:%A, %d %B %Y}</p>\n{paragraphs(rng, 40, 60)}{listed([*others, link('/press/', 'All releases')])}"
        )
        return Answer(page(title(rng, 5), body))

    def _link(self, number: int) -> str:
        day = (self.first + 3 * number * ONE_DAY).isoformat()
        return link(f"/press/archive.php?date={day}", f"{day}: {title(chance('press', number), 5)}")

    def listing(self, visit: Visit) -> Answer | None:
        number = visit.number("page") if visit.query else 1
        if visit.segments != [""] or not 1 <= number <= self.pages or (visit.query and visit.query != f"page={number}"):
            return None
        if visit.query and number == 1:
            return None
        shown = range((number - 1) * 50, min(self.days, number * 50))
        pages = [link(f"/press/?page={other}" if other > 1 else "/press/", other) for other in range(1, self.pages + 1)]
        return Answer(page("Press releases", listed(map(self._link, shown)) + " ".join(pages)))


def _month(visit: Visit) -> Answer | None:
    """Answer with a month of a calendar of events, most of it empty; every month has a next one."""
    first = _parsed(*visit.params.get("month", "").split("-"), "1")
    if visit.segments != [""] or first is None or not 2 < first.year < 9998:
        return None
    days = [first + i * ONE_DAY for i in range(31)]
    weeks = "".join(
        row(*(f"{day.day}" for day in days[i : i + 7] if day.month == first.month)) for i in range(0, 31, 7)
    )
    # Something is on in the two years around today.
    events = []
    if abs((first - TODAY).days) < 365:
        rng = chance("events", first.toordinal())
        events = [f"{rng.randrange(1, 29)} {first:%B}: {title(rng, 4)}" for _ in range(3)]
    before, after = first - ONE_DAY, first + 32 * ONE_DAY
    links = [link(f"/events/?month={other:%Y-%m}", text) for other, text in ((before, "« previous"), (after, "next »"))]
    links += [link(f"/events/?month={first.year + years:04d}-{first:%m}", f"{years:+d} year") for years in (-1, 1)]
    table = f"<table>{row('Mo', 'Tu', 'We', 'Th', 'Fr', 'Sa', 'Su', kind='th')}{weeks}</table>\n"
    return Answer(
        page(f"Events in {first:%B %Y}", table + listed(events or ["No events in this month."]) + listed(links))
    )


_VIEWS = {"day": 1, "week": 7, "month": 30}


def _room(visit: Visit) -> Answer | None:
    """Answer with the plan of meeting rooms on a day, in a week or in a month; every one of them can be booked."""
    match visit.segments:
        case [view, year, month, day_, ""] if view in _VIEWS and (day := _parsed(year, month, day_)):
            if not 2 < day.year < 9998:
                return None
        case _:
            return None
    step = _VIEWS[view] * ONE_DAY
    rooms = ("Blue room", "Green room", "Hall")
    busy = abs((day - TODAY).days) < 30
    rng = chance("rooms", day.toordinal())
    plan = [
        row(f"{hour}:00", *(title(rng, 2) if busy and rng.random() < 0.3 else "free" for _ in rooms))
        for hour in range(8, 19)
    ]
    links = [link(_room_path(view, day - step), "earlier"), link(_room_path(view, day + step), "later")]
    links += [link(_room_path(other, day), other) for other in _VIEWS if other != view]
    links += [link(_room_path("day", day + i * ONE_DAY), f"{day + i * ONE_DAY:%a %d}") for i in range(7)]
    head = row("Hour", *rooms, kind="th")
    return Answer(page(f"Rooms: {view} of {day:%d %B %Y}", f"<table>{head}{''.join(plan)}</table>\n{listed(links)}"))


def _room_path(view: str, day: date) -> str:
    return f"/rooms/{view}/{day.year}/{day.month}/{day.day}/"
