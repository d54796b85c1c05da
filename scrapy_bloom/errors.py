"""Every exception that scrapy-bloom raises on purpose, each with a message a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


class BloomError(Exception):
    """Base class of everything below, so that one ``except`` catches it all."""

    told = False
    """Whether it has been logged."""


class SettingsError(BloomError, ValueError):
    """Settings are out of range, of the wrong type, or unknown. Names all of them at once."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Take *problems*: sentences, each with a setting's name, its value and what is allowed."""
        self.problems = tuple(problems)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        """Put one line per problem under a headline that says what happens."""
        return "The crawl has not started, because of its settings:" + "".join(f"\n  {line}" for line in self.problems)


class FilterFileError(BloomError):
    """Something about the files of a filter keeps the crawl from starting."""


class DamagedFilterError(FilterFileError):
    """A filter file contradicts its own checksum, length or count.

    Raised before the first request and never repaired silently: a stray 1 bit makes a page vanish without a trace.
    """

    def __init__(self, path: Path, offset: int, problem: str) -> None:
        """Take as *problem* what was expected and what was found at byte *offset* of *path*."""
        self.path = path
        self.offset = offset
        self.problem = problem
        super().__init__(path, offset, problem)

    def __str__(self) -> str:
        """Say where, what, and the two ways out."""
        return (
            f"{self.path} is damaged at byte {self.offset}: {self.problem}. The crawl has not started. "
            f"Restore the file from a backup, or delete the directory {self.path.parent} to crawl all pages again."
        )


class UnknownFormatError(FilterFileError):
    """A filter file was written in a format or with a probe scheme that this version does not know."""

    def __init__(self, path: Path, what: str, found: int, known: int) -> None:
        """Take as *what* "format version" or "probe scheme"; *known* is the newest that this version reads."""
        self.path = path
        self.found = found
        super().__init__(path, what, found, known)

    def __str__(self) -> str:
        """Say what was found, what is known, and what to do."""
        path, what, found, known = self.args
        return (
            f"{path} has {what} {found}, and this scrapy-bloom knows {what}s up to {known}. The crawl has not started. "
            "Upgrade scrapy-bloom; if nobody has run a newer one here, the file is damaged: restore it from a backup, "
            f"or delete the directory {self.path.parent} to crawl all pages again."
        )


class KeySpaceError(FilterFileError):
    """The filter was filled with keys that are made otherwise than the crawl would make them now."""

    def __init__(self, directory: Path, differences: Mapping[str, tuple[str, str]]) -> None:
        """Take *differences*: by ingredient, what the filter was made with and what is set now."""
        self.directory = directory
        self.differences = dict(differences)
        super().__init__(directory, differences)

    def __str__(self) -> str:
        """Say what differs and the two ways out."""
        listed = "; ".join(f"{name} was {was!r}, is now {now!r}" for name, (was, now) in self.differences.items())
        return (
            f"The filter in {self.directory} was filled under other settings: {listed}. Every URL would look new. "
            "The crawl has not started. Put the setting back as it was, or use another JOBDIR, or delete the "
            "directory to crawl all pages again."
        )


class LockedError(FilterFileError):
    """Another process has the filter open."""

    def __init__(self, directory: Path, owner: str) -> None:
        """Take as *owner* the process that holds the lock, as far as it is known."""
        self.directory = directory
        self.owner = owner
        super().__init__(directory, owner)

    def __str__(self) -> str:
        """Say who holds it and what to do."""
        return (
            f"The filter in {self.directory} is in use by {self.owner}. The crawl has not started: two crawls "
            "cannot share a job directory. Stop the other one, or give this one another JOBDIR."
        )


class FrontierError(BloomError):
    """The file of pending requests in the job directory cannot be used as it is."""


class FrontierInUseError(FrontierError):
    """Another process has the file of pending requests open."""


class OtherSpiderError(FrontierError):
    """The pending requests are those of another spider, and their callbacks would not be found or be the wrong ones."""

    def __init__(self, path: Path, owner: str, spider: str) -> None:
        """Take *owner*, the name of the spider whose job it is, and *spider*, of the one that was started."""
        self.path = path
        self.owner = owner
        self.spider = spider
        super().__init__(path, owner, spider)

    def __str__(self) -> str:
        """Say whose job it is, and the three ways on."""
        rename = f"UPDATE state SET value = '{self.spider}' WHERE name = 'spider'"  # noqa: S608 - to be read, not run
        return (
            f"The job in {self.path.parent} belongs to the spider {self.owner!r}, and this is {self.spider!r}, which "
            "would use up its pending requests. The crawl has not started and nothing was changed. Use a JOBDIR for "
            "each spider (-s JOBDIR=... on the command line; -s JOBDIR= for none, with scrapy shell and scrapy "
            f"fetch). If {self.owner!r} was only renamed, tell the job so: sqlite3 {self.path} "
            f'"{rename}"'
        )


class ForeignFrontierError(FrontierError):
    """The file is in the place of the pending requests, but nothing we wrote, or written by a later version."""


class DamagedFrontierError(FrontierError):
    """The file of pending requests contradicts itself. Never repaired silently: what is missing would be lost pages."""


class ScrapyQueueError(FrontierError):
    """The job directory holds a queue of Scrapy's own that was not stopped cleanly, or that cannot be read."""


class MissingPackageError(BloomError, ImportError):
    """A part of scrapy-bloom needs a package that is not installed."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        """Take as *what* the part that needs *package*, which comes with the optional dependencies *extra*."""
        self.package = package
        super().__init__(package, extra, what)

    def __str__(self) -> str:
        """Say what is missing and how to get it."""
        package, extra, what = self.args
        return (
            f"{what} needs the package {package}, which is not installed. The crawl has not started. "
            f'Install it with: pip install "scrapy-bloom[{extra}]"'
        )


class SharedFilterError(BloomError):
    """The filter on a server cannot be used as it is. Never shows a password."""

    def __init__(self, where: str, problem: str, advice: str) -> None:
        """Take as *where* the server, without its password, and the filter's key prefix, if it got as far as that."""
        self.where = where
        self.problem = problem
        super().__init__(where, problem, advice)

    def __str__(self) -> str:
        """Say where, what was found, and what to do."""
        where, problem, advice = self.args
        return f"The filter on {where} cannot be used: {problem}. {advice}"
