"""What is said when prompts differ from those of a model's training: the text, and the turn that it stands in."""

from ramify.core.messages import Message, Problem
from ramify.runs.trained_prompts import difference_notes, training_stage

TEXT = "Use the tools.\nBe brief."


def problems(*roles):
    """Questions with the text as a system message, in the user's turn, or without it."""
    by_role = {
        "system": lambda q: (Message.of("system", TEXT), Message.of("user", q)),
        "user": lambda q: (Message.of("user", f"{TEXT}\n{q}"),),
        "none": lambda q: (Message.of("user", q),),
    }
    return [Problem(str(i), by_role[role](f"what is {i} ?"), ("1",)) for i, role in enumerate(roles)]


def notes(trained, now, tmp_path):
    stage = training_stage("sft", "tags", (), problems(*trained), tmp_path)
    return difference_notes("m was trained", stage, problems(*now), ())


def test_the_same_text_in_another_turn_is_another_prompt(tmp_path):
    (note,) = notes(["user"] * 4, ["system"] * 3, tmp_path)
    assert note.startswith("3 of 3 prompts have the system message")
    assert "but m was trained under in the user's turn the text \"Use the tools." in note
    assert note.endswith(
        'Set data.instructions to "from:" and the file of the training data unless this is meant.'
    )
    (note,) = notes(["system"] * 4, ["user"] * 3, tmp_path)
    assert note.endswith("Set data.instructions to that text unless this is meant.")


def test_equal_prompts_are_no_news(tmp_path):
    for role in ("system", "user", "none"):
        assert notes([role] * 4, [role] * 3, tmp_path) == ()
