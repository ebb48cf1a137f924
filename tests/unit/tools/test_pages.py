# ruff: noqa: RUF001 - full-width characters are what is tested
import pytest

from ramify.tools.configs import BrowserConfig
from ramify.tools.pages import count_words, passage_near, sentences, words

FILLER = "The weather was mild that year. " * 400
TEXT = f"{FILLER}Laru is a harbour town, and its mayor is Bado. {FILLER}"


def cut(text):
    return [text[start:end].strip() for start, end in sentences(text)]


def test_english_sentences_end_at_marks_before_a_blank_and_at_lines():
    assert cut('He said "no." Then 3.14 was it!  A line\nanother') == [
        'He said "no."',
        "Then 3.14 was it!",
        "A line",
        "another",
    ]


def test_chinese_sentences_end_at_full_width_marks():
    assert cut("他说：“不。”然后走了！真的？是") == ["他说：“不。”", "然后走了！", "真的？", "是"]


@pytest.mark.parametrize("text", ["", "   ", "no end", "。。。", "a.\n\n\nb", "...!?"])
def test_sentences_leave_nothing_out(text):
    assert "".join(text[start:end] for start, end in sentences(text)) == text


def test_words_are_folded_and_distinct_and_pairs_in_chinese():
    assert words("The THE ｔｈｅ 12 C++ naïve") == {"the", "12", "c", "naïve"}
    assert words("北京大学 in 中") == {"北京", "京大", "大学", "in", "中"}


def test_the_passage_lies_around_the_nearest_sentence():
    passage = passage_near(TEXT, "Its <b>mayor</b> is Bado, of Laru town", BrowserConfig(context_chars=50))
    sentence = "Laru is a harbour town, and its mayor is Bado."
    assert sentence in passage.text
    assert len(passage.text) <= 100 + len(sentence) + 1
    # By hand: 6 of the snippet's 7 words are among the sentence's 10.
    assert passage.f1 == pytest.approx(2 * 6 / (7 + 9))


def test_the_beginning_is_taken_when_nothing_is_near_enough():
    passage = passage_near(TEXT, "quantum chromodynamics", BrowserConfig(head_chars=31))
    assert (passage.text, passage.f1) == ("The weather was mild that year.", 0.0)
    assert passage_near(TEXT, "", BrowserConfig(head_chars=3)).text == "The"


def test_the_bar_must_be_exceeded():
    text = "one two three four five. six seven eight nine ten."
    exactly = passage_near(text, "six a b c d", BrowserConfig(), min_f1=0.2)
    assert exactly.f1 == 0.0
    assert passage_near(text, "six a b c d", BrowserConfig(), min_f1=0.19).f1 == pytest.approx(0.2)


def test_only_so_much_is_searched():
    near = "its mayor is Bado"
    at = TEXT.index("Laru")
    assert passage_near(TEXT, near, BrowserConfig(), searched_chars=at).f1 == 0.0
    assert passage_near(TEXT, near, BrowserConfig(), searched_chars=at + 100).f1 > 0.2


def test_the_first_of_equals_is_taken():
    text = "Bado rules. Filler filler. Bado rules."
    assert passage_near(text, "Bado rules", BrowserConfig(context_chars=1)).text.startswith("Bado rules.")


def test_chinese_passages_are_found():
    text = "天气很好。" * 300 + "拉鲁市的市长是巴多。" + "天气很好。" * 300
    passage = passage_near(text, "市长是巴多", BrowserConfig(context_chars=10))
    assert "拉鲁市的市长是巴多。" in passage.text
    assert len(passage.text) == 30


def test_words_are_counted_up_to_a_limit():
    assert count_words("one two, three", 20) == 3
    assert count_words("北京大学 one", 20) == 5
    assert count_words("a " * 1000, 20) == 20
    # Thai has vowel signs and no blanks.
    thai = "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e\u0e40\u0e1b\u0e47\u0e19\u0e40\u0e21\u0e37\u0e2d\u0e07\u0e2b\u0e25\u0e27\u0e07"
    assert count_words(thai, 20) == -(-len(thai) // 3)
    assert words(thai) == {thai[at : at + 2] for at in range(len(thai) - 1)}
