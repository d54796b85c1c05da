from pathlib import Path

from scrapy_bloom.fleet.life import TRANSITIONS, SessionEvent, SessionState


def test_the_docs_show_the_table_of_a_session() -> None:
    """Each cell, and no other; every state is reached from the first one, and every one can end."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in Path("docs/fleet.md").read_text().splitlines()]
    at = next(number for number, row in enumerate(rows) if row[:1] == ["session"])
    assert rows[at][1:] == [event.value for event in SessionEvent]
    shown = {row[0]: row[1:] for row in rows[at + 2 : at + 5]}
    for state in {*SessionState} - {SessionState.ENDED}:
        after = [TRANSITIONS.get((state, event)) for event in SessionEvent]
        assert shown[state.value] == [nxt.value if nxt else "-" for nxt in after]
    reached = {SessionState.OUTSIDE}
    for _ in SessionState:
        reached |= {after for (state, _), after in TRANSITIONS.items() if state in reached}
    assert reached == {*SessionState}
    assert {state for (state, _), after in TRANSITIONS.items() if after is SessionState.ENDED} == (
        {*SessionState} - {SessionState.ENDED}
    )
