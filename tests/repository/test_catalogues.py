"""Catalogues and the code that says their messages fit each other: ids, places, languages."""

import ast
import re
import string
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleet.words import Language, catalogue

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("fleet", "pipeline", "analyzer", "recommender", "enforcer", "dashboards", "gputide")
SOURCES = [path for room in ROOMS for path in ROOT.joinpath(room).glob("**/*.py")]
TEMPLATES = [*ROOT.glob("dashboards/templates/*.j2")]
TEMPLATE_CALL = re.compile(r"""(?:say|code)\(["']([a-z_0-9.]+)["'](?: ~)?""")
RECORDED = ("changes.", "finding.", "refused.", "said.", "stage.")
"""Groups of codes that plans and profiles record: `tests/dashboards/test_advice_words.py` checks them."""
SAYS = frozenset({"say", "sentence"})
"""Functions that take an id and the values of its places."""
CODES = frozenset({"code", "say_code", "in_english", "group"})
"""Functions that take the group of an id."""
Texts = Mapping[str, tuple[str, ...]]


def texts(language: Language) -> Texts:
    """Every form of every message, by id."""
    return {
        message.id[0] if isinstance(message.id, tuple) else str(message.id): tuple(
            map(str, message.string if isinstance(message.string, tuple) else (message.string,))
        )
        for message in catalogue(language)
        if message.id
    }


def places(text: str) -> set[str]:
    """Names of the values that a text needs; a size in GiB or MiB is a value in bytes."""
    names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    return {re.sub(r"_(gib|mib)$", "_bytes", name) for name in names}


def unlike(english: Texts, other: Texts) -> list[str]:
    """Ids that one of two languages lacks, leaves without text, or gives other places."""
    wrong = set(english) ^ set(other)
    for name in set(english) & set(other):
        forms = (*english[name], *other[name])
        # One of several forms may leave its number out: `last plan`, `last {count} plans`.
        inside = {frozenset(places(form) - {"count"}) for form in forms}
        counts = {any("count" in places(form) for form in language[name]) for language in (english, other)}
        if not all(forms) or len(inside) > 1 or len(counts) > 1:
            wrong.add(name)
    return sorted(wrong)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def literals(node: ast.expr) -> set[str]:
    """Every text that an expression may be, of a literal or a choice between some."""
    if isinstance(node, ast.IfExp):
        return literals(node.body) | literals(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def wrong_calls(source: str, english: Texts) -> list[str]:
    """Calls that say a message that is not there, or with other values than its text has places."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or called(node) not in SAYS or not node.args:
            continue
        given = {word.arg for word in node.keywords}
        chosen = literals(node.args[0])
        if called(node) == "sentence" and not any("." in name for name in chosen):
            continue  # a code of `advice.po`, see tests/dashboards/test_advice_words.py
        for name in chosen:
            needed = {place for form in english.get(name, ()) for place in places(form)}
            is_short = None not in given and not needed <= given
            is_more = None not in given and len(chosen) == 1 and not given <= needed | {"count"}
            if name not in english or is_short or is_more:
                wrong.append(f"{name}: places {sorted(needed)}, values {sorted(map(str, given))}")
    return wrong


def used(sources: Iterable[str], templates: Iterable[str], all_texts: Iterable[str]) -> tuple[set[str], set[str]]:
    """Ids that are written out, and beginnings of those that are put together."""
    written: set[str] = set()
    begun = set(RECORDED)
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                written.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                begun.add(str(node.values[0].value))
            elif isinstance(node, ast.Call) and called(node) in CODES and node.args:
                begun |= {f"{group.removesuffix('.')}." for group in literals(node.args[0])}
    for template in templates:
        for name in TEMPLATE_CALL.findall(template):
            written.add(name)
            begun.add(f"{name.removesuffix('.')}.")
    for text in all_texts:
        for _, _, form, _ in string.Formatter().parse(text):
            (begun if (form or "").endswith(".") else written).add(form or "")
    return written, {name for name in begun if "." in name}


def test_every_message_is_in_both_languages_with_the_same_places() -> None:
    assert unlike(texts(Language.EN), texts(Language.ZH)) == []


def test_a_message_without_translation_or_with_another_place_is_found() -> None:
    english = {"a.b": ("{count} card", "{count} cards"), "a.c": ("freed",), "a.d": ("{need_gib:0.0} GiB",)}
    assert unlike(english, {"a.b": ("{count} 张卡",), "a.c": ("腾出",), "a.d": ("{need_mib:0} MiB",)}) == []
    assert unlike(english, {"a.b": ("{cards} 张卡",), "a.c": ("",), "a.e": ("新",)}) == ["a.b", "a.c", "a.d", "a.e"]


def test_every_call_names_a_message_and_fills_its_places() -> None:
    english = texts(Language.EN)
    wrong = {str(path.relative_to(ROOT)): wrong_calls(path.read_text(encoding="utf-8"), english) for path in SOURCES}
    assert {path: found for path, found in wrong.items() if found} == {}


def test_a_call_with_a_wrong_id_or_place_is_found() -> None:
    english = {"a.cards": ("{count} card", "{count} cards"), "a.none": ("none",)}
    assert wrong_calls('say("a.cards", count=2); say("a.none" if x else "a.cards", count=2)', english) == []
    for source in ('say("a.cards", cards=2)', 'say("a.cards")', 'say("a.card", count=2)', 'say("a.none", who=1)'):
        assert len(wrong_calls(source, english)) == 1, source


def test_every_message_is_said_somewhere() -> None:
    english = texts(Language.EN)
    all_texts = [form for language in Language for forms in texts(language).values() for form in forms]
    written, begun = used(
        (path.read_text(encoding="utf-8") for path in SOURCES),
        (path.read_text(encoding="utf-8") for path in TEMPLATES),
        all_texts,
    )
    assert sorted(name for name in english if name not in written and not name.startswith(tuple(begun))) == []


def test_catalogues_are_sorted_by_id_so_that_a_message_has_one_place() -> None:
    for language in Language:
        files = sorted(ROOT.joinpath("fleet", "locale", language, "LC_MESSAGES").glob("*.po"))
        assert [file.stem for file in files] == ["advice", "doctor", "enforcer", "gputide"]
        for file in files:
            names = re.findall(r'^msgid "(.+)"$', file.read_text(encoding="utf-8"), re.MULTILINE)
            assert names == sorted(names), file
