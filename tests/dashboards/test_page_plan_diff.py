"""A preview is read object by object: which lines change, and for whom it opens."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dashboards.access.people import Person, Right, Role, everything
from dashboards.pages.plan_diff import KeptPreviews, sides
from enforcer.preview import ObjectDiff

OLD = "kind: Deployment\nspec:\n  replicas: 2\n  image: a\n"
NEW = "kind: Deployment\nspec:\n  replicas: 1\n  paused: true\n  image: a\n"


def an_object(name: str = "a", *, length: int = 0) -> ObjectDiff:
    return ObjectDiff(kind="Deployment", namespace="team", name=name, recommendation="r", before="x" * length, after="")


def test_changed_lines_have_a_sign_and_equal_lines_stand_at_the_same_height() -> None:
    before, after = sides(OLD, NEW)
    assert before == ["  kind: Deployment\n  spec:\n", "-   replicas: 2\n", "\n    image: a\n"]
    assert after == ["  kind: Deployment\n  spec:\n", "+   replicas: 1\n+   paused: true\n", "    image: a\n"]


def test_line_that_stands_elsewhere_too_is_marked_where_it_is_new() -> None:
    _, after = sides("a:\n  x: 1\nb:\n", "a:\n  x: 1\nb:\n  x: 1\n")
    assert after == ["  a:\n    x: 1\n  b:\n", "+   x: 1\n", ""]


def test_new_object_has_nothing_before() -> None:
    before, after = sides("", "a: 1\n")
    assert "".join(before).strip() == ""
    assert after == ["", "+ a: 1\n", ""]


_TEXT = st.lists(st.sampled_from(["a: 1", "b: 2", "  c: 3", ""]), max_size=12).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)


@given(old=_TEXT, new=_TEXT)
def test_each_side_holds_its_text_and_both_are_as_high(old: str, new: str) -> None:
    before, after = sides(old, new)
    for runs, text, sign in ((before, old, "-"), (after, new, "+")):
        shown = [line for run in runs for line in run.splitlines() if line != ""]
        assert [line[2:] for line in shown] == text.splitlines()
        assert {line[:2] for run in runs[::2] for line in run.splitlines()} <= {"  ", ""}
        assert {line[:2] for run in runs[1::2] for line in run.splitlines()} <= {f"{sign} "}
    assert "".join(before).count("\n") == "".join(after).count("\n")


def test_preview_opens_for_the_person_who_asked_for_it_with_the_same_rights() -> None:
    kept = KeptPreviews()
    boss, team = everything("bo"), Person(name="bo", rights=(Right(role=Role.VIEWER, namespaces=frozenset({"team"})),))
    name = kept.keep(boss, (an_object("a"), an_object("b")))
    found = kept.find(boss, name, 1)
    assert found is not None
    assert found.name == "b"
    assert kept.find(boss, name, 2) is None
    assert kept.find(boss, "x", 0) is None
    assert kept.find(team, name, 0) is None
    assert kept.find(everything("li"), name, 0) is None


def test_oldest_previews_go_first_and_the_newest_is_always_kept() -> None:
    kept, boss = KeptPreviews(characters_max=130), everything("bo")
    names = [kept.keep(boss, (an_object(length=length),)) for length in (30, 40, 50, 20)]
    assert [kept.find(boss, name, 0) is not None for name in names] == [False, False, True, True]
    large = kept.keep(boss, (an_object(length=1000),))
    assert kept.find(boss, large, 0) is not None
    assert kept.find(boss, names[-1], 0) is None


def test_previews_of_refused_stages_are_bounded_as_well() -> None:
    kept, boss = KeptPreviews(characters_max=1000), everything("bo")
    names = [kept.keep(boss, (replace(an_object(), refusal="no" * 100),)) for _ in range(20)]
    assert sum(kept.find(boss, name, 0) is not None for name in names) == 4
