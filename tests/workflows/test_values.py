"""Small contexts of workflow runs are decoded once."""

from perdure.kernel.codec import encode_json
from perdure.workflows.values import MAX_REMEMBERED, decode_context


def test_only_small_contexts_are_remembered() -> None:
    small, large = encode_json({"title": "one"}), encode_json({"title": "x" * MAX_REMEMBERED})
    assert decode_context(small) == {"title": "one"}
    assert decode_context(small) is decode_context(small)
    assert decode_context(large) == {"title": "x" * MAX_REMEMBERED}
    assert decode_context(large) is not decode_context(large)
    assert decode_context(None) == {}
