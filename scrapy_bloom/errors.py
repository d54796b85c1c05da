"""Every exception that scrapy-bloom raises on purpose: where, what was found, what was expected, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(count: int, noun: str, several: str | None = None) -> str:
    """Return *count* with its *noun*: ``"1 host"``, ``"2,000 hosts"``; *several* if that is not *noun* with an s."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


class BloomError(Exception):
    """The base class of all errors that scrapy-bloom raises."""

    def __init__(self, where: object, found: str, *, expected: str = "", advice: str) -> None:
        """Take the message in pieces.

        Args:
            where: The file, directory or server: the subject of the sentence. Without a password.
            found: What is wrong with it, from the verb on: ``"is in use by process 7"``.
            expected: What should be there instead, if *advice* does not say so.
            advice: What the reader can do, in whole sentences.

        """
        self.where = str(where)
        self.found = found
        self.expected = expected
        self.advice = advice
        super().__init__(where, found, expected, advice)

    def __str__(self) -> str:
        """Return ``where found; expected: expected. advice``."""
        expected = f"; expected: {self.expected}" if self.expected else ""
        problem = f"{self.where} {self.found}{expected}".removesuffix(".")  # some end with what a server said
        return f"{problem}. {self.advice}"


class SettingsError(BloomError, ValueError):
    """Settings are out of range, of the wrong type, or unknown. Names all of them at once."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Take *problems*: sentences, each with a setting's name, its value and what is allowed."""
        self.problems = tuple(problems)
        super().__init__("settings", "\n".join(self.problems), advice="Correct them.")

    def __str__(self) -> str:
        """Return one line per problem under a headline."""
        return "These settings cannot be used:" + "".join(f"\n  {line}" for line in self.problems)


class DamagedError(BloomError):
    """A file contradicts itself: its checksum, its length, its count, or another file of the same job.

    Raised before the first request and never repaired silently: a stray 1 bit makes a page vanish without a trace.
    """

    def __init__(self, where: object, problem: str, *, offset: int | None = None, advice: str) -> None:
        """Take as *problem* what was found and what was expected, and as *offset* the byte where, if known."""
        position = "" if offset is None else f" at byte {offset}"
        super().__init__(where, f"is damaged{position}: {problem}", advice=advice)


class UnusableError(BloomError):
    """Something cannot be opened, read or reached, or belongs to another job, format, key space or program."""


class InUseError(UnusableError):
    """Another crawl has the job directory open, in this process or another one."""


class MissingPackageError(BloomError, ImportError):
    """A part of scrapy-bloom needs a package that is not installed."""

    def __init__(self, package: str, extra: str, part: str) -> None:
        """Take the *part* that needs *package*, which comes with the optional dependencies *extra*."""
        super().__init__(
            part,
            f"needs the package {package}, which is not installed",
            advice=f'Install it with: pip install "scrapy-bloom[{extra}]", or in a checkout pip install ".[{extra}]"',
        )
