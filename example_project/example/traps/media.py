"""Pictures. A gallery and a comic are honest though they say hardly a word; a map that can be moved is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from example.traps.model import Answer, Section, decimal, scaled
from example.traps.text import chance, image, link, listed, page, slug, title

if TYPE_CHECKING:
    from example.traps.model import Visit

PER_ALBUM = 50
PER_YEAR = 150


def sections(factor: float) -> list[Section]:
    """Return the pictures."""
    photos = _Photos(scaled(60, factor, 2))
    comic = _Comic(scaled(1_200, factor, 40))
    return [
        Section("photos", "photos", "galleries with hardly any text", True, True, photos.photo, "", photos.photos),
        Section("photo-lists", "photos", "their albums", True, True, photos.lists, "/photos/", photos.albums + 1),
        Section("comic", "strip", "one picture a page, in a chain", True, False, comic.strip, "/strip/1", comic.strips),
        Section("comic-lists", "strip", "its years", True, False, comic.years, "/strip/archive/", comic.list_pages),
        Section(
            "map", "map", "a map that moves and zooms for ever", False, False, _map, "/map?lat=52.50&lon=13.40&z=11"
        ),
    ]


@dataclass(frozen=True)
class _Photos:
    """``/photos/garden-7/12.html``."""

    albums: int

    @property
    def photos(self) -> int:
        return self.albums * PER_ALBUM

    def _album(self, name: str) -> int:
        album = decimal(name.rpartition("-")[2])
        return album if 0 <= album < self.albums and name == _album_name(album) else -1

    def photo(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case [name, file] if file.endswith(".html") and not visit.query and (album := self._album(name)) >= 0:
                number = decimal(file.removesuffix(".html"))
            case _:
                return None
        if not 1 <= number <= PER_ALBUM:
            return None
        picture = f"DSC_{chance('photo', album, number).randrange(10_000):04d}"
        links = [
            link(f"{other}.html", text)
            for other, text in ((number - 1, "previous"), (number + 1, "next"))
            if 1 <= other <= PER_ALBUM
        ]
        links.append(link("./", "Album"))
        return Answer(page(f"{picture}.JPG", image(f"/media/{name}/{picture}-{number}-large.jpg") + listed(links)))

    def lists(self, visit: Visit) -> Answer | None:
        if visit.query:
            return None
        match visit.segments:
            case [""]:
                return Answer(
                    page("Photos", listed(link(f"{_album_name(i)}/", _album_name(i)) for i in range(self.albums)))
                )
            case [name, ""] if (album := self._album(name)) >= 0:
                shown = [
                    link(f"{number}.html", image(f"/media/{name}/{album}-{number}-small.jpg"))
                    for number in range(1, PER_ALBUM + 1)
                ]
                return Answer(page(name, " ".join(shown)))
        return None


def _album_name(album: int) -> str:
    return f"{slug('album', album, words=1)}-{album}"


@dataclass(frozen=True)
class _Comic:
    """``/strip/17``: a picture, the one before, the one after."""

    strips: int

    @property
    def list_pages(self) -> int:
        return -(-self.strips // PER_YEAR) + 1

    def strip(self, visit: Visit) -> Answer | None:
        number = decimal(visit.segments[0]) if len(visit.segments) == 1 and not visit.query else -1
        if not 1 <= number <= self.strips:
            return None
        others = ((1, "first"), (number - 1, "previous"), (number + 1, "next"), (self.strips, "latest"))
        links = [link(f"/strip/{other}", text) for other, text in others if 1 <= other <= self.strips]
        picture = image(f"/media/strip/{number:05d}.png", title(chance("strip", number), 2))
        return Answer(page(f"Strip {number}", f"{picture}\n{' '.join(links)} {link('/strip/archive/', 'archive')}\n"))

    def years(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case ["archive", ""] if not visit.query:
                links = [link(f"/strip/archive/{year}/", f"Year {year}") for year in range(1, self.list_pages)]
            case ["archive", digits, ""] if not visit.query and 1 <= (year := decimal(digits)) < self.list_pages:
                shown = range((year - 1) * PER_YEAR + 1, min(year * PER_YEAR, self.strips) + 1)
                links = [link(f"/strip/{number}", number) for number in shown]
            case _:
                return None
        return Answer(page("Archive", listed(links)))


def _map(visit: Visit) -> Answer | None:
    """Answer with a map: nine tiles, and links that move it a little or zoom."""
    try:
        latitude, longitude = float(visit.params["lat"]), float(visit.params["lon"])
        zoom = int(visit.params["z"])
    except (KeyError, ValueError):
        return None
    if visit.segments or not abs(latitude) <= 90 or not abs(longitude) <= 180 or not 1 <= zoom <= 18:
        return None
    step = 20 / 2**zoom
    moves = {"North": (step, 0, 0), "South": (-step, 0, 0), "East": (0, step, 0), "West": (0, -step, 0)}
    moves |= {"Zoom in": (0, 0, 1), "Zoom out": (0, 0, -1)}
    links = [
        link(f"/map?lat={latitude + north:.4f}&lon={longitude + east:.4f}&z={zoom + closer}", text)
        for text, (north, east, closer) in moves.items()
    ]
    # The tiles are drawn on a canvas by a script: there is nothing in the page but the place.
    script = f'<div id=map data-lat="{latitude}" data-lon="{longitude}" data-zoom="{zoom}"></div>\n'
    return Answer(page("Map", f"{script}<p>Position: {latitude:.4f}, {longitude:.4f}</p>\n{listed(links)}"))
