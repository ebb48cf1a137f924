import pytest

from ramify.quickstart.world_questions import LEVELS, RELATIONS, evaluate, make_edition, make_question

EDITION = make_edition("any", LEVELS[3])


def solve(text: str) -> str:
    """Answer a question from its text alone."""
    words = text.removesuffix("?").removeprefix("what is ").replace(",", "").split()
    if words[0] == "which":
        *_, relation, first, _, second = words
        return max(first, second, key=lambda name: int(EDITION.value(name, relation)))
    terms: list[list[str]] = [[]]
    for word in words:
        terms.append([word] if word in ("plus", "minus", "times") else [])
        if not terms[-1]:
            terms.pop()
            terms[-1].append(word)
    values = []
    for term in terms:
        *path, name = [word for word in term if word not in ("the", "of", "plus", "minus", "times")]
        for relation in reversed(path):
            assert relation in RELATIONS
            name = EDITION.value(name, relation)
        values.append(name)
    if len(values) == 1:
        return values[0]
    operators = [term[0] for term in terms[1:]]
    return str(evaluate([int(value) for value in values], operators))


@pytest.mark.parametrize("kind", LEVELS[3].kinds)
def test_answers_follow_from_the_text_and_the_facts(kind: str) -> None:
    offset = LEVELS[3].kinds.index(kind)
    for number in range(offset, 300, 6):
        question = make_question(number, "train", EDITION, LEVELS[3], seed=0)
        assert question.kind == kind
        assert question.answer == solve(question.text), question.text


def test_times_binds_before_plus_and_minus() -> None:
    assert evaluate([2, 3, 4, 5], ["plus", "times", "minus"]) == 2 + 3 * 4 - 5
    assert evaluate([2, 3, 4, 5], ["times", "minus", "times"]) == 2 * 3 - 4 * 5


def test_no_question_compares_equals() -> None:
    for number in range(4, 400, 5):
        question = make_question(number, "test", EDITION, LEVELS[1], seed=0)
        relation = question.relations[0]
        first, second = (EDITION.value(name, relation) for name in question.subjects)
        assert first != second


def test_draws_of_a_split_depend_on_the_seed_only_where_they_should() -> None:
    def text(split: str, seed: int) -> str:
        return " ".join(make_question(n, split, EDITION, LEVELS[1], seed).text for n in range(20))

    assert text("train", 0) != text("train", 1)
    assert text("demo", 0) != text("demo", 1)
    assert text("train", 0) != text("demo", 0)
    assert text("test", 0) == text("test", 1)
    assert text("test", 0) != text("dev", 0)
    assert text("seen", 0) == text("seen", 1)
