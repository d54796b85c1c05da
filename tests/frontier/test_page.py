"""The states of a page, and what is committed when."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.frontier.page import TRANSITIONS, Event, Page, Row, State, check, done, lead_to_memory, split

JOB_PAGE = Path(__file__).parents[2] / "docs" / "job.md"


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_event_has_a_next_state_or_is_a_fault(state: State, event: Event) -> None:
    """No event is passed over in silence."""
    page = Page(Request("data:,"), "", state=state)
    if (state, event) in TRANSITIONS:
        page.move(event)
        assert page.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            page.move(event)


def test_the_documentation_has_the_table() -> None:
    """Row by row, in the same order."""
    rows = re.findall(r"^(\w+) +(done before others|\w+) +(\w+)\b", JOB_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    table = [(state.value, event.value, then.value) for (state, event), then in TRANSITIONS.items()]
    assert [row for row in rows if row[0] in {state.value for state in State}] == table


class Recorder:
    """A sink that keeps what it is given, in order."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.requests: list[int] = []

    def write(self, key: int, request: Any) -> None:
        self.requests.append(key)

    def commit(self, page: Page) -> None:
        assert page not in self.pages
        self.pages.append(page)


@pytest.mark.parametrize("seed", range(30))
def test_a_page_is_committed_with_all_that_only_it_leads_to(seed: int) -> None:
    """Pages lead to requests of all sorts, are done in any order, and some are committed in parts."""
    rng = random.Random(seed)
    sink = Recorder()
    pages, opened, queued = [Page(Request("data:,"), "", Row(0, 0))], [0], 0
    led_to: list[Page | None] = [None]
    while opened:
        place = rng.choice(opened)
        page = pages[place]
        step = rng.random()
        if step < 0.45 and len(pages) < 60:
            child = Page(Request("data:,"), "", None if rng.random() < 0.4 else Row(0, len(pages)))
            if child.row is None:
                lead_to_memory(page, child)
            elif rng.random() < 0.7 and not page.is_split:
                page.held[len(pages)] = child
                child.parent = page
            led_to.append(child.parent)
            opened.append(len(pages))
            pages.append(child)
            queued += child.parent is not None and child.row is not None
        elif step < 0.5:
            split(page, sink)
        else:
            opened.remove(place)
            done(page, sink)
        for each in pages:
            check(each)
        committed = {id(each): order for order, each in enumerate(sink.pages)}
        for each, parent in zip(pages, led_to, strict=True):
            if id(each) in committed and parent is not None and not parent.is_split:
                assert committed[id(parent)] < committed[id(each)]
            if id(each) in committed:
                children = [child for child, other in zip(pages, led_to, strict=True) if other is each]
                assert all(child.state is State.COMMITTED or child.row is not None for child in children)
    assert all(page.state is State.COMMITTED for page in pages)
    assert len(sink.requests) == queued
