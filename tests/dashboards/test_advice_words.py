"""Every sentence of analyzer, recommender and verify has its Chinese, by its code and with its values."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.profile import profile_fleet
from dashboards.access.namespace_cut import cut_plan
from dashboards.words.advice import change_words, reason_words, refusal_words, remark_words, state_words
from fleet.capabilities.register import CAPABILITIES, MGPU, MIG, VGPU_MANAGER
from fleet.decisions import Plan, RecommendationKind, Refusal, Withheld
from fleet.inventory import Inventory, Priority, WorkloadId
from fleet.sentences import Sentence, sentence
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.words import Language, Words, catalogue
from recommender.node_terms import node_terms
from tests.recommender.builders import NOW, Service, cluster, plan_of
from tests.recommender.test_rules import CASES, OPTIONS
from tests.repository.test_catalogues import places

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *(path for folder in ("analyzer", "recommender") for path in ROOT.glob(f"{folder}/**/*.py")),
    ROOT / "enforcer" / "verify.py",
]
ZH = Language.ZH
GROUPS = ("bar", "said", "refused", "stage")


Values = frozenset[str]
"""Names of the values that one call records with a code."""


class Records(ast.NodeVisitor):
    """Codes of sentences, and reasons with their values, as one source writes them."""

    def __init__(self, source: str) -> None:
        self.said: set[str] = set()
        self.reasons: dict[str, set[Values]] = defaultdict(set)
        self._named: dict[str, list[ast.expr]] = defaultdict(list)
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self._named[target.id].append(node.value)
        self.visit(tree)

    def visit_Call(self, node: ast.Call) -> None:
        """A call that records a code."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {word.arg: word.value for word in node.keywords}
        if called == "sentence" and node.args:
            for code in self.literals(node.args[0]):
                self.said.add(code)
                self.reasons[code].add(frozenset(filter(None, given)))
        elif called == "refuse" and len(node.args) > 1:
            for code in self.literals(node.args[1]):
                self.reasons[code].add(frozenset(filter(None, given)))
        elif called in ("Refusal", "Withheld", "NoInstance"):
            for code in self.literals(given.get("reason")):
                self.reasons[code].add(frozenset(self.names(given.get("values"))))
        self.generic_visit(node)

    def literals(self, node: ast.expr | None) -> set[str]:
        """Every text that an expression may be: a literal, a choice between some, a name of one."""
        if isinstance(node, ast.IfExp):
            return self.literals(node.body) | self.literals(node.orelse)
        if isinstance(node, ast.Name):
            return {text for value in self._named[node.id] for text in self.literals(value)}
        return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()

    def names(self, node: ast.expr | None) -> set[str]:
        """Names of the values in a tuple of (name, value)."""
        if isinstance(node, ast.Starred):
            return self.names(node.value)
        if isinstance(node, ast.Name):
            return {name for value in self._named[node.id] for name in self.names(value)}
        if not isinstance(node, ast.Tuple):
            return set()
        if len(node.elts) == 2 and isinstance(node.elts[0], ast.Constant):
            return {str(node.elts[0].value)}
        return {name for part in node.elts for name in self.names(part)}


def records() -> tuple[set[str], dict[str, set[Values]]]:
    """Codes of sentences, and of every code the values that are recorded with it."""
    said: set[str] = set()
    reasons: dict[str, set[Values]] = defaultdict(set)
    for path in SOURCES:
        found = Records(path.read_text(encoding="utf-8"))
        said |= found.said
        for code, values in found.reasons.items():
            reasons[code] |= values
    return said, reasons


def texts_of(group: str, code: str, language: Language) -> list[str]:
    """Texts of a code, the one with most values first."""
    texts = {str(one.id): str(one.string) for one in catalogue(language)}
    return [texts[name] for way in ("", ".1", ".2", ".3") if (name := f"{group}.{code}{way}") in texts]


def test_every_code_that_is_written_has_its_chinese() -> None:
    said, reasons = records()
    assert {"idle", "reclaim", "slice", "tide"} <= said
    assert {"opt_out", "moves_max", "backend_refuses", "peaks_break_preset", "no_samples"} <= reasons.keys()
    # Codes that are put together of the way in which pods join, and of what holds low priority back there.
    said |= {f"join_{kind}" for kind in ("colocate", "offpeak_pair", "oversubscribe", "slice")}
    said |= {f"join_colocate_{hold}" for hold in ("agent", "cores", "equals", "gate")}
    known = {group: {name.partition(".")[0] for name in Words(language=ZH).ids(group)} for group in GROUPS}
    assert known["said"] <= said
    assert {code for code in said if "." not in code} <= set().union(*known.values())
    assert reasons.keys() - said - known["refused"] == set()


@pytest.mark.parametrize("language", Language)
def test_every_refusal_has_a_name_of_its_reason(language: Language) -> None:
    words = Words(language=language)
    assert words.ids("reason") == {name.partition(".")[0] for name in words.ids("refused")}


@pytest.mark.parametrize("language", Language)
def test_every_text_of_a_refusal_but_the_plainest_is_filled_by_code_that_records_it(language: Language) -> None:
    _, reasons = records()
    codes = {name.partition(".")[0] for name in Words(language=language).ids("refused")}
    assert codes <= reasons.keys(), "nothing records it"
    unfilled = []
    for code in sorted(codes):
        texts = texts_of("refused", code, language)
        richer = texts[: max(1, len(texts) - 1)]
        unfilled += [text for text in richer if not any(places(text) <= values for values in reasons[code])]
    assert unfilled == []


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_sentence_of_a_plan_is_said_in_chinese_with_its_values(name: str) -> None:
    plan = plan_of(CASES[name], **OPTIONS.get(name, {}))
    assert plan.recommendations
    for item in plan.recommendations:
        for said in (reason_words(item, ZH), change_words(item, ZH)):
            assert_chinese(said)
        for said in (reason_words(item, Language.EN), change_words(item, Language.EN)):
            assert_sentence(said)
        assert item.why[-1].code in Words(language=ZH).ids("changes")
    left: list[Refusal | Withheld] = [*plan.refused, *plan.withheld]
    for refusal in left:
        assert_chinese(refusal_words(refusal, ZH))
        assert " " in refusal_words(refusal, Language.EN), f"{refusal.reason} is no sentence"


def test_numbers_are_those_of_the_english_sentence() -> None:
    plan = plan_of(CASES["slice"])
    for item in plan.recommendations:
        english, chinese = reason_words(item, Language.EN), reason_words(item, ZH)
        numbers = re.compile(r"\d+\.\d+|\d+(?= ?%)")
        assert numbers.search(english)
        assert set(numbers.findall(english)) <= set(numbers.findall(chinese))


def test_states_are_said_in_chinese() -> None:
    services = (
        Service(name="idle-book", kind="Notebook", level=0.0, priority=Priority.NORMAL, server="jupyter"),
        Service(name="small", level=0.1),
        Service(name="full", level=0.9, used_gib=20.0),
        Service(name="young", level=0.9, age_days=0.5),
        Service(name="by-day", level=0.9, hours=(8, 12)),
    )
    settings = Settings().analyzer
    found = profile_fleet(cluster(*services, days=14), settings=settings, now=NOW).workloads
    assert len({profile.state for profile in found}) >= 4
    for profile in found:
        assert_chinese(state_words(profile, ZH))
        assert_sentence(state_words(profile, Language.EN))


NODE_BARS: dict[str, tuple[Callable[[Inventory], Inventory], str]] = {
    "sizes": (
        lambda known: replace(known, cards=(replace(known.cards[0], framebuffer_bytes=80 * GIB), *known.cards[1:])),
        (
            "its nodes share no cards: node node-0 has NVIDIA A10 (24 GiB), NVIDIA A10 (80 GiB), and mgpu knows one "
            "size of card per node"
        ),
    ),
    "label": (
        lambda known: labelled(known, {"node-0": "native-burst-share"}),
        (
            "its nodes share no cards: node node-0 has vke.volcengine.com/mgpu-compute-policy=native-burst-share, and "
            "cards are shared only with fixed-share, guaranteed-burst-share"
        ),
    ),
    "policies": (
        lambda known: labelled(known, {"node-0": "fixed-share", "node-1": "guaranteed-burst-share"}),
        (
            "its nodes share no cards: its replicas have one pod template and would need several core policies "
            "(node-0: hard, node-1: burst)"
        ),
    ),
}


def labelled(known: Inventory, policies: Mapping[str, str]) -> Inventory:
    """Nodes with their compute policy."""
    nodes = tuple(
        replace(node, labels=(("vke.volcengine.com/mgpu-compute-policy", policies[node.node]),))
        if node.node in policies
        else node
        for node in known.nodes
    )
    return replace(known, nodes=nodes)


@pytest.mark.parametrize("name", NODE_BARS)
def test_why_nodes_share_nothing_is_said_in_both_languages(name: str) -> None:
    change, words = NODE_BARS[name]
    known = change(cluster(Service(name="svc", replicas=5)).inventory)
    bar = node_terms(known, known.grants, MGPU).bar_of(grant.node for grant in known.grants)
    assert bar is not None
    values = (("bar", bar.code), *bar.values)
    refusal = Refusal(workload=WorkloadId("team/Deployment/svc"), reason="node_shares_nothing", values=values)
    assert refusal_words(refusal, Language.EN) == words
    assert_chinese(refusal_words(refusal, ZH))


def test_facts_about_backends_are_those_of_their_records() -> None:
    facts = {f"{record.backend}_{kind}": fact for record in CAPABILITIES for kind, fact in record.refuses}
    words = Words(language=Language.EN)
    assert all(words.say(f"fact.{name}") == facts[name] for name in words.ids("fact"))


@pytest.mark.parametrize(
    ("capability", "only"),
    [*((record, None) for record in CAPABILITIES if record is not VGPU_MANAGER), (MIG, RecommendationKind.MIG)],
)
def test_what_a_backend_withholds_is_said_in_chinese(capability: object, only: object) -> None:
    plan: Plan = plan_of(CASES["slice"], capability=capability, only=only)
    assert plan.withheld or plan.refused
    left: list[Refusal | Withheld] = [*plan.refused, *plan.withheld]
    for item in left:
        assert_chinese(refusal_words(item, ZH))


def test_days_of_the_week_are_said_in_chinese() -> None:
    values = (("idle_days", 2.2), ("weekdays", "Mon, Sun"))
    refusal = Refusal(workload=WorkloadId("a/Notebook/b"), reason="idle_too_short", values=values)
    assert refusal_words(refusal, ZH).startswith("已闲置 2.2 天，尚未在周一、周日看到它闲置：")


def test_an_unknown_code_or_a_missing_value_is_shown_as_it_is() -> None:
    item = plan_of(CASES["reclaim"]).recommendations[0]
    assert reason_words(replace(item, why=(sentence("not_yet_known"),)), Language.EN) == "Not yet known."
    assert reason_words(replace(item, why=(Sentence(code="reclaim"),)), ZH) == "Reclaim。"
    old = Refusal(workload=WorkloadId("a/Deployment/b"), reason="moves_max")
    assert refusal_words(old, ZH) == "已达迁移上限"
    assert refusal_words(replace(old, reason="not_yet_known"), ZH) == "not yet known"


def test_values_are_no_patterns_and_the_neighbour_of_another_team_stays_unnamed() -> None:
    refusal = Refusal(
        workload=WorkloadId("a/Deployment/b"), reason="neighbour_stays",
        values=(("neighbour", "x/Deployment/{evil}"),),
    )  # fmt: skip
    assert "x/Deployment/{evil}" in refusal_words(refusal, ZH)
    plan = replace(plan_of(CASES["slice"]), refused=(refusal,))
    (cut,) = cut_plan(plan, frozenset({"a"})).refused
    assert "evil" not in refusal_words(cut, ZH)


def assert_sentence(text: str) -> None:
    """A sentence, whose places all have a value."""
    assert re.fullmatch(r"[A-Z0-9].* .*\.", text), text
    assert "{" not in text, text


def assert_chinese(text: str) -> None:
    """Names, units and codes may stand in it; English words in a row are a sentence that was left."""
    assert re.search("[\u4e00-\u9fff]", text), text
    assert not re.search(r"[A-Za-z]+ [a-z]+ [a-z]+", text), text


def test_what_is_done_by_hand_is_said_to_be_so_in_both_languages() -> None:
    plan = plan_of(CASES["sleep"], **OPTIONS["sleep"])
    (english,), (chinese,) = (remark_words(plan, language) for language in Language)
    assert english.startswith("By hand: 4 models could share 2 cards, most of them asleep.")
    assert english.endswith("no total counts this.")
    assert (
        chinese == "手动实施：4 个模型大多在休眠，可以共用 2 张卡。有请求时由 gputide 的 run router 唤醒，合计不计入。"
    )
