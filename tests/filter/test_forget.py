"""Taking keys back, against a Python set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom import ScalableBloomFilter

KEYS = st.sampled_from([b"%d" % number for number in range(12)])


@given(st.lists(st.tuples(st.sampled_from(["add", "forget", "recall"]), KEYS), max_size=60))
def test_add_forget_and_recall_do_what_a_set_does(steps: list[tuple[str, bytes]]) -> None:
    """Through growth, exactly: a forgotten key is new once, and a recalled one is as if never forgotten."""
    seen = ScalableBloomFilter(capacity=2, error_rate=1e-9)
    present, taken_back = set[bytes](), set[bytes]()
    for step, key in steps:
        if step == "add":
            assert seen.add(key) is (key not in present)
            present.add(key)
            taken_back.discard(key)
        elif step == "forget":
            assert seen.forget(key) is (key in present)
            if key in present:
                present.discard(key)
                taken_back.add(key)
        else:
            assert seen.recall(key) is (key in taken_back)
            if key in taken_back:
                present.add(key)
                taken_back.discard(key)
        assert len(seen) == len(present)
        assert seen.forgotten == len(taken_back)
        assert {key for key in (b"%d" % number for number in range(12)) if key in seen} == present
        seen._check()


def test_a_key_too_long_for_the_record_is_refused() -> None:
    """Rather than forgotten in memory only."""
    with pytest.raises(ValueError, match="65535"):
        ScalableBloomFilter().forget(bytes(65_536))
