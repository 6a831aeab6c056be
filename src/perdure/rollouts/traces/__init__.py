"""Traces and figures: what lists show of spans, in rows beside them."""
