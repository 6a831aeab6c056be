"""Contexts of workflow runs are decoded once if they are small."""

from perdure.kernel.codec import encode_json
from perdure.workflows.values import MAX_REMEMBERED, context_of


def test_only_small_contexts_are_remembered() -> None:
    small, large = encode_json({"title": "one"}), encode_json({"title": "x" * MAX_REMEMBERED})
    assert context_of(small) == {"title": "one"}
    assert context_of(small) is context_of(small)
    assert context_of(large) == {"title": "x" * MAX_REMEMBERED}
    assert context_of(large) is not context_of(large)
    assert context_of(None) == {}
