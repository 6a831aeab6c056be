"""A pretend coding agent: it writes real files, and knows beforehand what it will say. There is no model."""

from pathlib import Path

FIRST = """\
def slug(title):
    return title.lower().replace(" ", "-")
"""
SECOND = """\
def slug(title):
    return "-".join(title.lower().split())
"""
DOCUMENTED = SECOND.replace("\n", '\n    """The part of a URL that a title makes."""\n', 1)
TESTS = """\
import unittest

from slug import slug


class Slugs(unittest.TestCase):
    def test_spaces(self):
        self.assertEqual(slug("  Hello   World "), "hello-world")
"""


async def coder(ctx, input):
    """Answer a prompt of the workflow. The label of the phase says which one it is."""
    folder = Path(ctx.phase.workspace)
    label = ctx.phase.label
    await ctx.usage(input_tokens=900, output_tokens=120, cost_usd=0.004)
    if label == "plan":
        return f"1. Write slug.py for {input['context']['title']!r}.\n2. Test it with spaces."
    if label.startswith("code"):
        (folder / "test_slug.py").write_text(TESTS)
        (folder / "slug.py").write_text(FIRST if input["iteration"] == 1 else SECOND)
        return f"Iteration {input['iteration']}: wrote slug.py and test_slug.py."
    if label.startswith("review_fix"):
        (folder / "slug.py").write_text(DOCUMENTED)
        return "Added a docstring."
    if '"""' in (folder / "slug.py").read_text():
        return "It is documented and tested.\nVERDICT: APPROVED"
    return "slug() has no docstring.\nVERDICT: REQUEST_CHANGES"
