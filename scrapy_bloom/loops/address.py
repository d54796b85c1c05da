"""Splits a URL into parts, and masks segments that look like random tokens or numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_numbers_in = re.compile(r"\d+").finditer
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

    def without_parts(self) -> dict[str, Address]:
        """Return what the address is without each part that may not matter, by part.

        A part is a parameter, ``?name`` or ``;name``, all of a query, ``?name&name``, the first folder, ``/0/mirror``,
        all folders, ``/*``, a token at the end, ``/-1/H``, or a number in the last name, ``/#2/topic-N-N``.
        """
        given = self.parameters
        kept = {name: tuple(pair for pair in given if pair[0] != name) for name, _ in given}
        query = sorted({name[1:] for name in kept if name[0] == "?"})
        if len(query) > 1:
            kept["?" + "&".join(query)] = tuple(pair for pair in given if pair[0][0] != "?")
        shorter = {part: self._replace(parameters=parameters) for part, parameters in kept.items()}
        return shorter | {part: self._replace(segments=segments) for part, segments in self._shorter_paths()}

    def _shorter_paths(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each part of the path that may not matter, and the path without it."""
        segments = self.segments
        leaf = segments[-1] if segments else ""
        numbers = [*_numbers_in(leaf)]
        if 1 < len(numbers) < 5:
            for at, number in enumerate(numbers):
                yield f"/#{at}/{self.mask(-1)}", (*segments[:-1], leaf[: number.start()] + leaf[number.end() :])
        if len(segments) < 2:
            return
        if segments[0]:
            yield f"/0/{self.mask(0)}", segments[1:]
        for at in range(-1, -min(len(segments), 3), -1):
            if is_token(segments[at]):
                yield f"/{at}/{self.mask(at)}", segments[:at] + segments[len(segments) + at + 1 :]
        named = [segment for segment in segments if segment]
        if len(named) > 1:
            yield FOLDERS, (named[-1],)

    def names(self) -> list[str]:
        """Return the names of the URL's kinds below the host, from the outside in."""
        segments = [mask(segment)[:60] for segment in self.segments]
        names = [name for name, _ in self.parameters if name[0] == ";"][:1]
        names += [f"{segment}/" for segment in segments[:-1][:DEEPEST]]
        leaf = segments[-1] if segments else ""
        keys = sorted({_mask_digits("N", name[1:]) for name, _ in self.parameters if name[0] == "?"})
        return names + ([f"{leaf}?", "&".join(keys)[:90]] if keys else [leaf or "$"])
