"""Which parts of URLs do not matter: learned from pages that show the same under URLs that differ in one part alone.

Session ids, print views, mirrors and sort orders show a page again. The parts of a URL are those of
:meth:`Address.parts`: a parameter, all parameters, the first folder, all folders, and the like. A page is
compared with the last one whose URL is the same without a part, also after the parts that are known not to matter were
dropped. Pages that show the same speak for the part, others against it. Each section of a site, which is a first folder
or a script, has its own votes. So a section with random content does not hide what the others show. A part that is
believed on the host does not matter in the sections that agree.

A URL that is like one asked for before but for parts that do not matter is a *copy*. It is fetched after all others,
and never dropped: a wrong belief costs nothing but order.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.loops.address import DEEPEST, FOLDERS, is_token, mask
from scrapy_bloom.loops.kinds import SECTION
from scrapy_bloom.loops.lately import Lately
from scrapy_bloom.loops.links import LinkCounts
from scrapy_bloom.loops.novelty import likeness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrapy_bloom.loops.address import Address
    from scrapy_bloom.loops.novelty import Brought

# A part whose values are tokens is believed not to matter after this many pairs of pages have shown the same
TOKENS = 4
# Factor for TOKENS if the values look like words, dates or numbers. In a calendar, most months are empty and look the
# same, so the month seems not to matter, although one month in ten has the events
PLAIN = 3
ALIKE, OTHER = 0.8, 0.5  # shares of common lines: two pages are alike from ALIKE on, and differ below OTHER
CONTRADICTION = 0.5  # news of a page that was taken for a copy, from which on it is none
PAIRS = 20_000  # URLs, with and without a part, whose last page is remembered; at most twice as many: some 25 MB
PARTS, SECTIONS = 64, 64  # parts of a host that are learned, and sections that vote on each: some 400 kB a host
HOSTS = 1_000  # hosts that are learned


class Votes:
    """Pairs of pages that differ in one part, by section: how many showed the same, and how many did not."""

    __slots__ = ("_is_believed", "by_section", "is_changed", "is_plain")

    def __init__(self) -> None:
        self.by_section: dict[str, list[int]] = {}
        """How many pairs showed the same, and how many did not. Both are 0 if no pair could be compared."""
        self.is_plain = False
        """Whether a value looked like a word, a date or a number."""
        self.is_changed = True
        self._is_believed: bool | None = None  # it is asked for each link

    def of(self, section: str) -> list[int]:
        """Return the counts of *section*, to be changed. If there are too many sections, they are counted nowhere."""
        self.is_changed, self._is_believed = True, None
        if len(self.by_section) >= SECTIONS:
            return self.by_section.get(section, [0, 0])
        return self.by_section.setdefault(section, [0, 0])

    def contradict(self, section: str) -> None:
        """Count so many pairs that differ in *section* that the part matters there."""
        pair = self.of(section)
        pair[1] = max(pair[1], pair[0] // self.bounds[1]) + 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The least number of pairs that show the same, and the least ratio of these to pairs that differ."""
        return (PLAIN * TOKENS, 9) if self.is_plain else (TOKENS, 3)

    def ignores(self, section: str) -> bool:
        """Return whether the part does not matter in *section*. The section's own pairs count before the host's."""
        need, factor = self.bounds
        same, other = self.by_section.get(section, (0, 0))
        if same >= need:
            return same > factor * other
        return self.is_believed and factor * other < max(1, same)

    @property
    def is_suspected(self) -> bool:
        """Whether in some section more pairs show the same than not. URLs are then remembered without the part, too."""
        return any(same > other for same, other in self.by_section.values())

    @property
    def is_believed(self) -> bool:
        """Whether the part does not matter in most sections of the host."""
        if self._is_believed is None:
            self._is_believed = self._believes()
        return self._is_believed

    def _believes(self) -> bool:
        need, factor = self.bounds
        pairs = self.by_section.values()
        same = sum(min(yes, need) for yes, no in pairs if yes > (factor * no if self.is_plain else no))
        other = sum(min(no, TOKENS) for yes, no in pairs if no >= yes)
        return same >= need and same >= 3 * other

    @property
    def is_unanimous(self) -> bool:
        """Whether each section on record says that the part does not matter, so that a rule may drop it."""
        least = 0 if self.is_plain else 1 / 50
        agree = [same > 0 and other <= same * least for same, other in self.by_section.values()]
        return all(agree) and len(agree) < SECTIONS


class Alias(NamedTuple):
    """A part of the URLs of a host that does not matter, with what pairs of pages say of it."""

    host: str
    part: str
    same: int
    """Pairs of pages that showed the same."""
    other: int
    """Pairs that did not."""
    is_unanimous: bool
    """Whether no section of the host contradicts."""

    def describe(self) -> str:
        """Return the part as people call it."""
        index, _, text = self.part[1:].partition("/")
        if self.part == FOLDERS:
            return "the folders before the last name"
        if index[:1] == "#":
            return f"number {int(index[1:]) + 1} in names like {text}"
        if self.part[0] == "/":
            return f"the first folder /{text}/" if index == "0" else f"the {text} at the end of the path"
        names = self.part[1:].replace("&", " with ")
        return f"the parameter {names}" if names else "the session id in the path"

    def rule(self) -> str:
        """Return the URL rule that drops the part. Returns "" if there is none, or if a section contradicts it."""
        if not self.is_unanimous:
            return ""
        if self.part == ";":
            return "session_ids_2"
        is_whole = re.fullmatch(r"[?;][^@,&;=#/\s]{1,28}", self.part)  # longer names are cut off in an Address
        return f"without:{self.part[1:]}@{self.host}" if is_whole else ""


class Pair(NamedTuple):
    """The last page that had a certain URL, or a URL that becomes this one when a part is removed."""

    sketch: bytes
    url: int
    part: str


class Aliases:
    """Learns which parts of URLs do not matter, by host.

    Args:
        add: Remembers a key, and returns whether the key is new.

    """

    def __init__(self, add: Callable[[bytes], bool]) -> None:
        self._add = add
        self._pairs: Lately[Pair] = Lately(PAIRS)
        self._hosts: dict[str, dict[str, Votes]] = {}
        self._forgotten: list[str] = []
        self._suspected: dict[str, list[str]] = {}
        self._forms = LinkCounts()  # URLs that become this one without the parts that do not matter
        self._scripts: Lately[int] = Lately(PAIRS)  # URLs with parameters, by host and path

    def learn(self, address: Address, brought: Brought, *, is_copy: bool = False) -> bool:
        """Compare what the page at *address* brought with the last pages whose URLs differ from it in one part.

        A page that was taken for a copy, and brought something although a page that it copies was fetched, ends the
        belief in its parts at once, in its section. Returns whether the page shows what one of the last pages showed
        whose URL differs only in parts that do not matter.
        """
        likes, host = [], address.host
        ignored = [part for part in address.parts() if self._ignores(address, part)]
        for part, sketch in self._compared(address, brought.sketch):
            alike = likeness(sketch, brought.sketch)
            if not part or part in ignored:
                likes.append(alike or 0.0)
            if part:
                self._count(address, part, alike, brought)
        is_repeated = max(likes, default=0.0) >= ALIKE
        if is_copy and likes and not is_repeated and brought.news >= CONTRADICTION:
            for part in ignored:
                self._hosts[host][part].contradict(self._section(address, part))
                self._suspect(host, part)
        return is_repeated

    def _ignores(self, address: Address, part: str) -> bool:
        """Return whether *part* does not matter in the section of *address*."""
        votes = self._hosts.get(address.host, {}).get(part)
        return votes is not None and votes.ignores(self._section(address, part))

    def _compared(self, address: Address, sketch: bytes) -> Iterator[tuple[str, bytes]]:
        """Remember *sketch*, and yield those of the last pages whose URLs differ in one part, with that part.

        The part is "" if they differ in parts alone that are known not to matter.
        """
        url = hash(address.key())
        for whole in dict.fromkeys((address, self._reduced(address)[0])):
            for part in ("", *whole.parts()):
                short = whole.without(part) if part else whole
                if short is None:
                    continue
                key = hash(short.key())
                before = self._pairs.get(key)
                self._pairs.set(key, Pair(sketch, url, part))
                differs = part or (before.part if before else "")
                if before is not None and before.url != url and before.part in ("", differs):
                    yield differs, before.sketch

    def _reduced(self, address: Address, *, is_cautious: bool = True) -> tuple[Address, int]:
        """Return *address* without the parts that do not matter, and how many it had.

        Unless *is_cautious*, parts that are only suspected are left out, too.
        """
        reduced, count = address, 0
        for part in self._suspected.get(address.host, ()):
            shorter = reduced.without(part)
            if shorter is None or (is_cautious and not self._ignores(address, part)):
                continue
            while shorter is not None:
                reduced, count = shorter, count + 1
                shorter = reduced.without(part)
        return reduced, count

    def _votes(self, host: str, part: str) -> Votes | None:
        """Return the votes on *part*; None if there are too many parts."""
        if host not in self._hosts and len(self._hosts) >= HOSTS:
            self.forget(next(iter(self._hosts)))
        of_host = self._hosts.setdefault(host, {})
        if part not in of_host and len(of_host) >= PARTS:
            return None
        return of_host.setdefault(part, Votes())

    def _count(self, address: Address, part: str, alike: float | None, brought: Brought) -> None:
        """Count a pair of pages that differ in *part*. The later one is at *address* and *brought* this.

        Pages without a sketch cannot be compared, and lists of links that look alike may lead to different pages. Such
        pages differ if the later one brought much. If it brought a little, its section goes on record without a vote.
        """
        if alike is None or (alike >= ALIKE and not brought.has_text):
            alike = None if brought.news < CONTRADICTION else 0.0
        if alike is None and not brought.news:
            return
        votes = self._votes(address.host, part)
        if votes is None:
            return
        if part[0] in "?;":
            votes.is_plain |= any(name == part and not _has_token(value) for name, value in address.parameters)
        votes.is_plain |= part[:2] in (FOLDERS, "/#") or "&" in part
        pair = votes.of(self._section(address, part))
        if alike is not None and (alike >= ALIKE or alike < OTHER):
            pair[alike < OTHER] += 1
            self._suspect(address.host, part)

    def _section(self, address: Address, part: str) -> str:
        """Return the section in which a page votes on *part*: its script, or else its first folder or name.

        A script is a path that had SECTION URLs with parameters. First folders as parts have no sections.
        """
        if part.startswith("/0/") or not address.segments:
            return ""
        if part[0] in "?;":
            path = _path(address)
            if (self._scripts.get(f"{address.host}/{path}") or 0) >= SECTION:
                return path
        return address.mask(0)

    def _suspect(self, host: str, part: str) -> None:
        suspected = self._suspected.setdefault(host, [])
        if self._hosts[host][part].is_suspected != (part in suspected):
            (suspected.remove if part in suspected else suspected.append)(part)

    def is_copy(self, address: Address) -> bool:
        """Note *address*, and return whether an earlier one differs from it only in parts that do not matter."""
        if address.parameters:
            script = f"{address.host}/{_path(address)}"
            self._scripts.set(script, (self._scripts.get(script) or 0) + 1)
        suspected, _ = self._reduced(address, is_cautious=False)
        believed, count = self._reduced(address)
        is_known = count > 0 and not self._add(key := _digest(believed.key()))
        if count:
            self._forms.add(key[1:])
        if count < 2 and self._suspected.get(address.host):  # of those with one such part, the first is no copy
            is_known &= not self._add(_digest(f"{believed.key()} plain"))
        if suspected is not address:  # remembered before it is believed, so that a new belief knows its copies
            self._add(_digest(suspected.key()))
        self._add(_digest(address.key()))
        return is_known

    def forms(self, address: Address) -> int:
        """Return how many URLs that were asked for differ from *address* only in parts that do not matter."""
        reduced, count = self._reduced(address)
        return self._forms.of(_digest(reduced.key())[1:]) if count else 0

    def forget(self, host: str) -> None:
        """Forget what is known of *host*."""
        self._forgotten += [f"{host}\0{part}" for part in self._hosts.pop(host, ())]
        self._suspected.pop(host, None)

    def believed(self) -> Iterator[Alias]:
        """Yield each part that does not matter on most of its host."""
        for host, parts in self._suspected.items():
            for part in parts:
                votes = self._hosts[host][part]
                if votes.is_believed:
                    same, other = map(sum, zip(*votes.by_section.values(), strict=True))
                    yield Alias(host, part, same, other, votes.is_unanimous)

    def changed(self) -> dict[str, bytes]:
        """Return what was learned since this was last asked, by key; nothing for what is forgotten."""
        rows = dict.fromkeys(self._forgotten, b"")
        self._forgotten.clear()
        for host, parts in self._hosts.items():
            for part, votes in parts.items():
                if votes.is_changed:
                    votes.is_changed = False
                    pairs = "\n".join(f"{yes} {no} {section}" for section, (yes, no) in votes.by_section.items())
                    rows[f"{host}\0{part}"] = f"{int(votes.is_plain)}\n{pairs}".encode()
        return rows

    def load(self, rows: Mapping[str, bytes]) -> None:
        """Go on with what :meth:`changed` returned in earlier runs."""
        for key, row in rows.items():
            host, _, part = key.partition("\0")
            votes = self._hosts.setdefault(host, {})[part] = Votes()
            is_plain, *pairs = row.decode().split("\n")
            votes.is_plain, votes.is_changed = is_plain == "1", False
            for pair in filter(None, pairs):
                yes, no, section = pair.split(" ", 2)
                votes.by_section[section] = [int(yes), int(no)]
            self._suspect(host, part)


def _has_token(parameter: str) -> bool:
    """Whether the value of *parameter*, ``name=value`` or ``(S(value))``, looks drawn."""
    return bool(is_token(parameter.partition("=")[2] or parameter.rpartition("(")[2].rstrip(")")))


def _path(address: Address) -> str:
    return "/".join([mask(segment)[:60] for segment in address.segments[:DEEPEST]])


def _digest(key: str) -> bytes:
    return b"\6" + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).digest()
