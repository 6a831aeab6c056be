"""Words of texts in any script, and positions where a text can be cut."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.words import find_cut, is_unspaced, split_words

THAI = "ระบบจะพยายามเรียกบริการอีกครั้งและเพิ่มเวลารอเป็นสองเท่า"
THAI_WORDS = [
    *("ระบบ", "จะ", "พยายาม", "เรียก", "บริการ", "อีก", "ครั้ง"),
    *("และ", "เพิ่ม", "เวลา", "รอ", "เป็น", "สอง", "เท่า"),
]
JAPANESE = "請求サービスは待ち時間を二倍にします"
JAPANESE_WORDS = ["請求", "サービス", "は", "待ち", "時間", "を", "二倍", "に", "し", "ます"]
CHINESE = "搜索引擎怎么工作"
CHINESE_WORDS = ["搜索", "引擎", "怎么", "工作"]


@pytest.mark.parametrize(
    ("text", "words"), [(THAI, THAI_WORDS), (JAPANESE, JAPANESE_WORDS), (CHINESE, CHINESE_WORDS)]
)
def test_scripts_without_spaces_have_words(text: str, words: list[str]) -> None:
    assert list(split_words(text)) == words
    assert is_unspaced(text)
    ends = {sum(map(len, words[:count])) for count in range(1, len(words) + 1)}
    assert {find_cut(text, end, 0) for end in range(min(ends), len(text) + 1)} == ends


def test_words_of_other_scripts_keep_their_marks() -> None:
    assert split_words("Hello, snake_case and 3.5 c++!") == ("Hello", "snake", "case", "and", "3", "5", "c")
    assert split_words("हिन्दी में लिखा हुआ") == ("हिन्दी", "में", "लिखा", "हुआ")
    assert split_words("e\u0301te\u0301 — naïve") == ("e\u0301te\u0301", "naïve")
    assert split_words("ລະບົບ ຈະພະຍາຍາມ") == ("ລະບົບ", "ຈະພະຍາຍາມ")
    assert split_words("ใช้Python3กับฐานข้อมูล")[:2] == ("ใช้", "Python3")
    assert not is_unspaced("हिन्दी naïve")


def test_a_text_is_cut_at_its_last_space_or_between_words() -> None:
    assert find_cut("one two three", 9, 4) == 7
    assert find_cut("one two three", 9, 8) == 9
    assert find_cut(f"perdure {THAI}", 8 + len("ระบบจะพย"), 4) == 8 + len("ระบบจะ")
    long = THAI * 100
    cut = find_cut(long, 2000, 1000)
    assert cut in {sum(map(len, (THAI_WORDS * 100)[:count])) for count in range(1400)}


@pytest.mark.parametrize(
    "character", ["👨\u200d👩\u200d👧", "🇩🇪", "👍🏽", "e\u0301", "ກຳ", "ន្ត្រ", "🏴\U000e0067\U000e007f", "क्ष"]
)
def test_a_text_is_never_cut_inside_a_character(character: str) -> None:
    ends = {find_cut(character * 5, end, 0) for end in range(len(character) * 5 + 1)}
    assert ends <= {count * len(character) for count in range(6)}


@given(
    st.text(st.sampled_from("ab .กำเแ่้ข漢字かなカນ្ក🇩🇪👨\u200d\ufe0f\u0301"), max_size=300),
    st.integers(-5, 320),
)
def test_a_cut_is_a_place_in_the_text(text: str, end: int) -> None:
    cut = find_cut(text, end, max(0, end) // 2)
    assert 0 <= cut <= max(0, min(end, len(text)))
    if 0 < cut < len(text) and text[cut] != " ":
        assert not unicodedata.category(text[cut]).startswith("M") or text[cut - 1] == " "
    assert "".join(split_words(text)) == "".join(split_words("".join(split_words(text))))
