"""Splits a URL into parts, and masks segments that look like random tokens or numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

FOLDERS = "/*"
"""The part of a URL that all its folders make."""
DEEPEST = 8  # folders of a path that are told apart
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE).fullmatch
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{8,}", re.IGNORECASE).fullmatch
_TOKEN = re.compile(r"(?=.*\d)(?=.*[a-z])[\w~=+-]{16,}", re.IGNORECASE).fullmatch
_SESSION = re.compile(r"\((?:[A-Z]\([^()]*\))+\)", re.IGNORECASE).fullmatch
"""As ASP.NET writes it without cookies: ``/(S(lit3py55t21z5v55vlm25s55))/orders.aspx``."""
_SLUG = re.compile(r"[a-z]{2,}[-_+]").search
_mixed = re.compile(r"(?<![^\W_])(?=[^\W_]*[a-z]\d+[a-z])[^\W_]{9,}", re.IGNORECASE).sub
"""Letters and digits in turn: a token with something before or behind it."""
_find_numbers = re.compile(r"\d+").finditer
_mask_digits = re.compile(r"\d+").sub
is_token = re.compile(r"(?=.*\d)[\w~=+-]{10,}|\d{3,}-\d{5,}-\d+", re.IGNORECASE).fullmatch
_split = re.compile(r"(?:[a-z][\w+.-]*:)?(?://)?([^/?#]*)([^?#]*)\??([^#]*)", re.IGNORECASE | re.DOTALL).match


@lru_cache(4_096)
def mask(segment: str) -> str:
    """Return *segment* of a path with numbers and random text masked: ``N``, ``H``, ``HASH``, ``UUID``, ``TOKEN``."""
    if segment.isalpha():
        return segment
    if segment.isdigit():
        return "N"
    segment = _mixed("H", segment)
    if _UUID(segment):
        return "UUID"
    if _HASH(segment):
        return "HASH"
    if _TOKEN(segment) and not _SLUG(segment):
        return "TOKEN"
    return _mask_digits("N", segment)


class Address(NamedTuple):
    """A URL in parts."""

    host: str
    segments: tuple[str, ...]
    """Segments of the path, which are separated by slashes. The last one is empty if the path ends with a slash."""
    parameters: tuple[tuple[str, str], ...]
    """Of its path, ``(";name", "name=value")``, and of its query, ``("?name", "name=value")``."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the parts of *url*."""
        match = _split(url)
        assert match is not None  # noqa: S101 -- every part of the pattern may be empty
        host, path, query = match.groups()
        segments, parameters = [], []
        if ":" in path or "%3A" in path:
            path = path.replace("%3A", ":").replace(":", ":/")
        for segment in path.split("/")[1:]:
            if segment.startswith("(") and _SESSION(segment):
                parameters.append((";", segment))
                continue
            if ";" in segment:
                segment, _, parameter = segment.partition(";")
                parameters.append((";" + parameter.partition("=")[0][:20], parameter))
            segments.append(segment)
        if query:
            parameters += [("?" + pair.partition("=")[0][:30], pair) for pair in query.split("&") if pair]
        return cls(host.lower()[:100], tuple(segments), tuple(parameters))

    def mask(self, at: int) -> str:
        """Return the segment *at* with what looks drawn or counted replaced."""
        return mask(self.segments[at])[:60]

    def key(self) -> str:
        """Return text that is the same for the same address, in whichever order its parameters are."""
        parameters = "&".join(sorted(pair for _, pair in self.parameters))
        return f"{self.host}/{'/'.join(self.segments)}?{parameters}"

    def parts(self) -> list[str]:
        """Return the parts that may not matter.

        A part is a parameter, ``?name`` or ``;name``, all of a query, ``?name&name``, the first folder, ``/0/mirror``,
        all folders, ``/*``, a token at the end, ``/-1/H``, or a number in the last name, ``/#2/topic-N-N``.
        """
        segments, query = self.segments, self._query()
        parts = [*dict.fromkeys(name for name, _ in self.parameters)]
        if len(query) > 1:
            parts.append("?" + "&".join(query))
        numbers = len([*_find_numbers(segments[-1])]) if segments else 0
        if 1 < numbers < 5:
            parts += [f"/#{at}/{self.mask(-1)}" for at in range(numbers)]
        parts += [f"/{at}/{self.mask(at)}" for at in (0, -1, -2) if self._may_lack(at)]
        if sum(map(bool, segments)) > 1:
            parts.append(FOLDERS)
        return parts

    def without(self, part: str) -> Address | None:
        """Return what the address is without *part*; None if it does not have *part*."""
        if part[0] == "/":
            segments = self._segments_without(part)
            return None if segments is None else Address(self.host, segments, self.parameters)
        names = {part}
        if part[0] == "?" and "&" in part:
            query = self._query()
            if part != "?" + "&".join(query):
                return None
            names = {"?" + name for name in query}
        kept = tuple([pair for pair in self.parameters if pair[0] not in names])
        return None if len(kept) == len(self.parameters) else Address(self.host, self.segments, kept)

    def _segments_without(self, part: str) -> tuple[str, ...] | None:
        segments = self.segments
        if part == FOLDERS:
            named = [segment for segment in segments if segment]
            return (named[-1],) if len(named) > 1 else None
        place, _, masked = part[1:].partition("/")
        at = int(place.lstrip("#"))
        if place[0] == "#":
            numbers = [*_find_numbers(segments[-1])] if segments else []
            if not 1 < len(numbers) < 5 or at >= len(numbers) or self.mask(-1) != masked:
                return None
            start, end = numbers[at].span()
            return (*segments[:-1], segments[-1][:start] + segments[-1][end:])
        if not self._may_lack(at) or self.mask(at) != masked:
            return None
        return segments[:at] + segments[at + 1 or len(segments) :]

    def _may_lack(self, at: int) -> bool:
        """Whether the segment *at* may not matter: the first folder, or a token among the last two."""
        segments = self.segments
        if not at:
            return len(segments) > 1 and bool(segments[0])
        return -at < min(len(segments), 3) and bool(is_token(segments[at]))

    def _query(self) -> list[str]:
        """Return the names of the query's parameters, sorted, each once."""
        return sorted({name[1:] for name, _ in self.parameters if name[0] == "?"})

    def names(self) -> list[str]:
        """Return the names of the URL's kinds below the host, from the outside in."""
        segments = [mask(segment)[:60] for segment in self.segments]
        names = [name for name, _ in self.parameters if name[0] == ";"][:1]
        names += [f"{segment}/" for segment in segments[:-1][:DEEPEST]]
        leaf = segments[-1] if segments else ""
        keys = sorted({_mask_digits("N", name[1:]) for name, _ in self.parameters if name[0] == "?"})
        return names + ([f"{leaf}?", "&".join(keys)[:90]] if keys else [leaf or "$"])
