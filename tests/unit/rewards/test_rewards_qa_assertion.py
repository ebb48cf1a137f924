import pytest

from ramify.rewards.qa import contains_words, word_f1


@pytest.mark.parametrize(
    ("prediction", "gold", "met"),
    [
        ("Yes they are", "yes", 1),
        ("Yes they are", "no", 0),
        ("Yes indeed", "yes", 1),
        ("**Yes**, both", "yes", 1),
        ("No they are not", "no", 1),
        ("No they are not", "yes", 0),
        ("No one knows", "no", 0),
        ("no longer", "no", 0),
        ("The answer is yes.", "yes", 1),
        ("yes or no", "no", 0),
        ("yes or no", "yes", 0),
        ("yes, or no", "yes", 0),
        ("yes and no", "yes", 0),
        ("Yes/no", "no", 0),
        ("not yes", "yes", 0),
        ("Yes (both American)", "yes", 1),
        ("No. 5", "no", 0),
        ("No. They differ.", "no", 1),
        ("I cannot say yes", "yes", 0),
    ],
)
def test_verdicts(prediction: str, gold: str, met: float) -> None:
    assert contains_words(prediction, [gold]) == met


def test_an_answer_that_begins_with_the_verdict_has_its_f1() -> None:
    assert word_f1("Yes they are", ["yes"]) == 1.0
    assert word_f1("Yes they are", ["no"]) == 0.0
    assert word_f1("yes or no", ["no"]) < 1.0


@pytest.mark.parametrize(
    ("prediction", "gold", "asserted"),
    [
        ("Not London, Paris", "Paris", 1),
        ("Not London, Paris", "London", 0),
        ("Not London. Paris", "Paris", 1),
        ("(not London) Paris", "Paris", 1),
        ("Paris (not London)", "London", 0),
        ("It's not London; it is Paris, France", "Paris, France", 1),
        ("Not Dr. Smith", "Smith", 0),
        ("not U.S. Steel", "Steel", 0),
        ("not 1,000", "1000", 0),
        ("not Rome, Rome", "Rome", 1),
        ("not London but Paris", "Paris", 1),
        ("not London but Paris", "London", 0),
        ("anything but Paris", "Paris", 0),
        ("none but Paris", "Paris", 1),
        ("London rather than Paris", "Paris", 0),
        ("Paris rather than London", "Paris", 1),
        ("London instead of Paris", "Paris", 0),
        ("I do not think that it is Paris", "Paris", 0),
        ("It cannot be Paris", "Paris", 0),
        ("Not only is it Paris", "Paris", 1),
        ("Paris is wrong, it is London", "Paris", 0),
        ("Paris is wrong, it is London", "London", 1),
        ("Paris is not the answer", "Paris", 0),
        ("Paris isn't right", "Paris", 0),
        ("Paris is not in Germany", "Paris", 1),
        ("不是北京", "北京", 0),
        ("副院长", "院长", 0),
        ("他是院长", "院长", 1),
        ("并非北京", "北京", 0),
        ("不北京", "北京", 0),
        ("不是上海\uff0c是北京", "北京", 1),
        ("不是上海而是北京", "北京", 1),
        ("南非约翰内斯堡", "约翰内斯堡", 1),
        ("不丹廷布", "廷布", 1),
    ],
)
def test_a_denial_reaches_to_the_end_of_its_clause(prediction: str, gold: str, asserted: float) -> None:
    assert contains_words(prediction, [gold]) == asserted


@pytest.mark.parametrize(
    ("prediction", "gold", "asserted"),
    [
        ("Paris, Rome, or London", "Paris", 0),
        ("Paris, Rome, or London", "Rome", 0),
        ("Paris, Rome, or London", "London", 0),
        ("It is Paris, New York City or London", "Paris", 0),
        ("neither London, Paris, nor Rome", "Paris", 0),
        ("北京、上海或广州", "北京", 0),
        ("北京\uff0c上海或者广州", "北京", 0),
        ("Paris, not Rome or London", "Paris", 1),
        ("It is Paris. Rome or London are wrong", "Paris", 1),
        ("In Paris, where he worked for a paper or two", "Paris", 1),
    ],
)
def test_one_of_several_candidates_is_no_answer(prediction: str, gold: str, asserted: float) -> None:
    assert contains_words(prediction, [gold]) == asserted


@pytest.mark.parametrize(
    ("prediction", "gold", "met"),
    [
        ("It is located in Nepal", "in", 0),
        ("It told us nothing", "US", 0),
        ("He lives in the US", "US", 1),
        ("He lives in the US", " US ", 1),
        ("The film is Up.", "Up", 1),
        ("They went up", "Up", 0),
        ("It is a film", "It", 0),
        ("IT", "It", 1),
    ],
)
def test_a_small_word_stands_in_a_sentence_only_in_its_capitals(
    prediction: str, gold: str, met: float
) -> None:
    assert contains_words(prediction, [gold]) == met


@pytest.mark.parametrize(
    ("prediction", "met"),
    [
        ("Warner Music Group or Sony", 0),
        ("Sony or Warner Music Group", 0),
        ("anything but Warner Music Group", 0),
        ("not Warner Music Group but Sony", 0),
        ("Warner Music Group", 1),
        ("It belongs to Warner Music Group", 1),
        ("It is not Warner Music Group but Warner Music", 1),
    ],
)
def test_a_gold_within_a_longer_one_stands_and_falls_with_it(prediction: str, met: float) -> None:
    assert contains_words(prediction, ["Warner Music Group", "Warner Music", "Music Group"]) == met


@pytest.mark.parametrize(
    "text", ["not " + "a, " * 5000 + "or b", "不是" + "京、" * 5000 + "或", "x or " * 3000]
)
def test_thousands_of_clauses(text: str) -> None:
    assert contains_words(text, ["Paris"]) == 0.0
    assert contains_words(text, ["x"]) == 0.0
