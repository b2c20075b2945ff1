"""The sentences of analyzer, recommender and verify in Chinese, said by their code and values.

Reasons, refusals, evidence and verdicts are recorded in English and, beside it, as a code with the values in it
(`fleet.sentences`). Here stands what each code says in Chinese; of several ways the first whose places all have a value
counts, so that a plan of before values were recorded is understood as well. A code that is not here is said in English.
Called by the report, the messages and the web pages, whose terms are those of `words.report`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dashboards.words.report import WORDS, Language
from enforcer.record.verdict import Verdict, english, headline, sentences
from fleet.decisions import Recommendation, Refusal, Withheld
from fleet.profiles import Profile
from fleet.sentences import Sentence, Value
from fleet.settings.guard import WEEKDAYS
from fleet.units import GIB, MIB

_UNITS = {"gib": GIB, "mib": MIB}
_STOPS = "。！？"
_WEEKDAYS = {day.capitalize(): f"周{number}" for day, number in zip(WEEKDAYS, "一二三四五六日", strict=True)}

SAID: Mapping[str, str] = MappingProxyType(
    {
        # States of workloads (analyzer).
        "by_sm_active": "依据 SM 活跃度",
        "by_duty_cycle": "依据占空比（需求的上界）",
        "need_hidden": "实际所需显存未知：只能先以金丝雀方式缩减",
        "gave_way": "同卡的高优先级工作负载运行时它没有活动：让路不算闲置",
        "off_peak": "每周有 {hours} 小时没有任何副本超过其 p95 的 {off_peak_ratio:.0%}",
        "small_compute": "算力 p99 为整卡的 {p99_ratio:.1%}，已分配 {granted_ratio:.0%}",
        "small_need": "需要显存 {need_bytes:mib0} MiB，已分配 {granted_bytes:mib0} MiB",
        "busy": "算力 p95 为 {p95_ratio:.1%}",
        "counter_untrusted": "计数器 {counter} 不可信（{check}）",
        "history_too_short": "只有 {seen_hours:g} 小时历史，至少需要 {needed_hours:g} 小时",
        "history_too_short_since_change": "新 Pod 的行为与之前不同，此后只有 {seen_hours:g} 小时历史，"
        "至少需要 {needed_hours:g} 小时",
        "no_samples": "有一个切片从未出现样本，也没有其他数据能说明它做了什么",
        "coverage_too_low": "其运行期间只有 {coverage_ratio:.0%} 的时间窗有数据，至少需要 {coverage_min:.0%}",
        "recent_coverage_too_low": "最近 {hours} 小时只有 {coverage_ratio:.0%} 有数据：看不到的时间按在工作计",
        "no_compute_counter": "没有采集到算力计数器",
        "silent_by_node": "它从未出现样本，而同节点的采集器报告了其他工作负载",
        "silent_by_card": "它从未出现样本，所在的卡也没有自己的工作",
        "partly_idle": "{live_slices} 个切片中有 {idle_slices} 个在观察期内没有活动",
        "idle": "自 {since} 起没有任何引擎超过 {idle_ratio_max:.0%}，观察期内 {coverage_ratio:.0%} 的时间有数据",
        "idle_ever": "从未有任何引擎超过 {idle_ratio_max:.0%}，观察期内 {coverage_ratio:.0%} 的时间有数据",
        "framebuffer_held": "同时占用显存 {held_bytes:mib0} MiB",
        # Recommendations (recommender).
        "reclaim": "缩容到零可腾出 {cards} 张卡",
        "fewer_cards": "共 {pods} 个 Pod，每个占用 {before} 张卡，观察期内最多只用到 {after} 张；改为申请 {after} 张"
        "可腾出 {cards} 张卡",
        "rehome": "共 {pods} 个 Pod，每个都可放入一张空闲的 {target_model}，不必使用 {source_model}：预计最多用到"
        "该卡的 {load_max_ratio:.0%}；按规格书，原卡型的速度是其 {slowdown:.1f} 倍",
        "rehome_aside": "其中 {pods} 个 Pod 不能共享，而 {nodes} 个节点（{named}）的卡将统一共享：换到别处同型号的"
        "整卡上可保持原样。这一步本身不节省，节省来自在那里共享的工作负载",
        "mig_beside": "同卡的 {pods} 个 Pod 保留其卡并会重建：切卡时机器须为空",
        "mig_waits": "切卡时卡须为空：期间 {pods} 个 Pod 停止，除非有备用卡接纳",
        "mig": "共 {pods} 个 Pod，每个最多需要 {need_bytes:gib1} GiB 显存和整卡 {load_max_ratio:.0%} 的算力；{profile} "
        "实例有 {framebuffer_bytes:gib2} GiB 和 {compute_ratio:.0%}，由硬件隔离。可腾出 {cards} 张卡。以其余各天推算"
        "的实例逐日检验：{violation_ratio:.2%} 的活跃时间会不够用",
        "slice": "共 {pods} 个 Pod，每个最多需要 {need_bytes:gib1} GiB；从 {whole_bytes:gib0} GiB 中切出 "
        "{framebuffer_bytes:gib2} GiB 和整卡 {compute_ratio:.0%} 的算力，可为同卡的其他工作负载留出空间。"
        "这一步本身不节省，节省来自后面的阶段",
        "join_colocate": "{pods} 个 Pod 可并入已被占用的 {targets} 张卡：低优先级工作使用服务剩余的算力，并随时让路。"
        "可腾出 {cards} 张卡；预计损害为活跃时间的 {violation_ratio:.2%}",
        "join_offpeak_pair": "{pods} 个 Pod 可并入已被占用的 {targets} 张卡：它的繁忙时段正是同卡工作负载的空闲时段。"
        "可腾出 {cards} 张卡；预计损害为活跃时间的 {violation_ratio:.2%}",
        "join_oversubscribe": "{pods} 个 Pod 可并入已被占用的 {targets} 张卡：峰值之和超过一张卡，但很少同时出现。"
        "可腾出 {cards} 张卡；预计损害为活跃时间的 {violation_ratio:.2%}",
        "join_slice": "{pods} 个 Pod 可并入已被占用的 {targets} 张卡：即使全部峰值同时出现，一张卡也放得下。"
        "可腾出 {cards} 张卡；预计损害为活跃时间的 {violation_ratio:.2%}",
        "tide": "每天 {start} 至 {end}（{time_zone}），其 {replicas_all} 个副本合计从未超过 {load_max_cards:.2f} 张卡："
        "{replicas} 个副本足够，每天有 {hours} 小时可让出 {cards} 张卡给其他工作",
        "tide_scaler": "每天 {start} 至 {end}（{time_zone}），其全部副本合计从未超过 {load_max_cards:.2f} 张卡："
        "{replicas} 个副本足够。其 {scaler} 至少保留 {replicas_min} 个副本；将下限降到 {replicas} 后，它会随需求缩容，"
        "每天有 {hours} 小时可让出 {cards} 张卡给其他工作",
        # Verdicts (enforcer.record.verdict).
        "harm_over_budget": "损害超出方案：{changed:,} 个服务中有 {over:,} 个超出损害预算（实际 {observed_ratio:.2%}，"
        "预计 {predicted_ratio:.2%}）",
        "services_restored": "已恢复 {restored:,} 个",
        "worst_service": "最严重的是 {workload}：{observed_ratio:.2%}，损害预算 {budget_ratio:.2%}",
        "harm_more_than_predicted": "损害高于预计（实际 {observed_ratio:.2%}，预计 {predicted_ratio:.2%}）",
        "harm_as_predicted": "损害不超过预计（实际 {observed_ratio:.2%}，预计 {predicted_ratio:.2%}）",
        "harm_too_few_windows": "损害：时间窗太少，无法判断（活跃时间窗共 {windows:,} 个）",
        "harm_unmeasured": "损害未能测量",
        "cards_freed": "承诺腾出 {promised:,} 张卡，已腾出 {freed:,} 张",
        "cards_spare": "另有 {spare:,} 张备用卡空闲",
        "services_too_few_windows": "{services:,} 个服务时间窗太少，无法判断",
        "measured_final": "已测量 {days:g} 天",
        "measured_interim": "核验中，至今测量 {days:g} 天",
    }
)
"""What each code of a sentence says in Chinese."""

_JOIN_CHANGES = (
    "某天它或同卡的工作负载超过以往所有观察，且超出预测的余量；最满的新卡预计有 {worst_ratio:.2%} 的活跃时间发生争用"
)
_TIDE_CHANGES = "某天在该时段需要超过 {replicas} 个副本，自动伸缩要求更多，或设置了 gputide.io/min-replicas-warm"

CHANGES: Mapping[str, str] = MappingProxyType(
    {
        "reclaim": "任一引擎出现活动，或加上注解 gputide.io/opt-out",
        "fewer_cards": "准备归还的卡出现活动，或新版本用到全部的卡",
        "rehome": "在新卡型上实测的速度低于规格书，所需显存超过其容量，或价格变化",
        "rehome_aside": "共享的工作负载改用另一个全部共享的节点",
        "mig": "某个 Pod 需要超过 {framebuffer_bytes:gib2} GiB 或整卡 {compute_ratio:.0%} 的算力（实例是硬边界，"
        "用不到的部分不会借出）；模型换新版本；或驱动切出的实例规格不同",
        "slice": "单个 Pod 需要超过 {framebuffer_bytes:gib2} GiB，模型换新版本，或计数器不可信",
        **dict.fromkeys(("join_colocate", "join_offpeak_pair", "join_oversubscribe", "join_slice"), _JOIN_CHANGES),
        **dict.fromkeys(("tide", "tide_scaler"), _TIDE_CHANGES),
    }
)
"""What would change an advice, by the code of its last sentence."""

REFUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "autoscaled": ("最近 {days} 天其副本数增减了 {scalings} 次：已有自动伸缩或人在调整",
                       "由 {scaler} 自动伸缩，没有可降低的下限", "副本数由自动伸缩决定"),
        "backend_cannot_share": ("后端 {backend} 不能让两个 Pod 共用一张卡", "后端不支持共享"),
        "backend_cuts_by_mig": ("后端 {backend} 只给出固定规格的实例，由硬件隔离：不共享也不出借",
                                "后端只能用 MIG 切分"),
        "backend_has_no_burst": ("后端 {backend} 不能让 Pod 超出份额使用算力", "后端不能让 Pod 超出份额使用算力"),
        "backend_has_no_priority": ("后端 {backend} 没有优先级", "后端没有优先级"),
        "backend_holds_no_limits": ("它要求硬隔离，而后端 {backend} 不强制限额", "它要求硬隔离，而后端不强制限额"),
        "backend_refuses": ("后端 {backend} 不能执行此类改动", "后端不能执行此类改动"),
        "claim_is_of_one_card": ("后端 {backend} 按 Pod 模板中的声明共享：{pods} 个 Pod 会挤在同一张卡上",
                                 "按模板中的声明共享，全部 Pod 会挤在同一张卡上"),
        "compute": ("换用的卡型算力不足",),
        "counter_untrusted": ("计数器 {counter} 不可信", "计数器不可信"),
        "coverage_too_low": ("只看到其 {coverage_ratio:.1%} 的时间窗，至少需要 {coverage_min:.0%}", "数据覆盖率太低"),
        "framebuffer": ("加上余量后，所需显存超过换用的卡型",),
        "framebuffer_held": ("没有活动的卡上仍占用 {held_bytes:mib0} MiB 显存", "仍占用显存"),
        "framebuffer_not_oversubscribed": ("后端 {backend} 不超分显存：同卡分配的显存总能放下，只有算力可重复承诺",
                                           "后端不超分显存"),
        "high_priority_service": ("闲置的高优先级服务可能是热备：可以共享",),
        "history_too_short": ("已观察 {seen_days:g} 天，至少需要 {needed_days:g} 天",
                              "已观察 {seen_hours:g} 小时，至少需要 {needed_hours:g} 小时", "历史太短"),
        "idle_too_short": (("已闲置 {idle_days:g} 天，尚未在{weekdays:weekdays}看到它闲置："
                            "此前有活动的星期几（从未有活动则为每一天）都须先闲置度过一次"), "闲置时间太短"),
        "job_template_fixed": ("Job 模板不可修改，后端 {backend} 也不在准入时改 Pod", "Job 模板不可修改"),
        "latency": ("延迟要求不允许",),
        "latency_critical": ("标记为延迟敏感：保持原样运行",),
        "likely_to_wake": ("同类工作负载中只有 {confidence:.0%} 在之后一周仍闲置，要求至少 {confidence_min:.0%}",
                           "很可能再次被使用"),
        "mig": ("有 Pod 使用 MIG 实例",),
        "moves_max": ("其 {pods} 个 Pod 会超过 {moves_max} 次迁移的上限", "已达迁移上限"),
        "multi_card": ("Pod {pod} 占用 {slices} 个切片；只处理占用一个切片的 Pod", "单个 Pod 使用多张卡"),
        "neighbour_stays": ("它与 {neighbour} 同卡，而后者放不下", "同卡的其他工作负载不能迁走"),
        "neighbours_unknown": ("后端 {backend} 不说明哪些 Pod 会共用一张卡", "同卡的其他工作负载未知"),
        "no_card_to_cut": ("没有找到可切分的卡：节点的 CPU 或内存不足，或留下的 Pod 占用未知规格的实例",),
        "no_framebuffer_counter": ("{workloads} 个工作负载都没有显存计数器", "没有显存计数器"),
        "no_instance_fits": ("没有更小的 MIG 实例能容纳它并留有余量",),
        "no_mig": ("{card_model} 不是已知可用 MIG 切分的卡型", "卡型不支持 MIG"),
        "no_mig_cards": ("没有启用 MIG 的卡",),
        "no_samples": ("从未看到其 Pod 工作",),
        "no_sm_counter": ("{workloads} 个工作负载都没有 SM 活跃度计数器；占空比只说明内核运行的频率，不说明卡有多满",
                          "没有 SM 活跃度计数器"),
        "node_policy_is_burst": ("它要求硬隔离，而其节点上所有 Pod 都可超出份额使用算力",),
        "node_shares_nothing": ("所在节点不支持共享",),
        "not_seen": ("从未采集到它的活动或显存",),
        "notebook_takes_no_annotations": ("后端 {backend} 通过 Pod 注解申请份额，而 Notebook 的 Pod 不带注解",
                                          "Notebook 的 Pod 不带注解"),
        "opt_out": ("命名空间 {namespace} 已声明不参与", "已声明不参与"),
        "peak_clash": ("其峰值与所有候选的峰值重叠",),
        "peaks_break_preset": (("即使只在以往峰值能同时放下时才共享，仍有 {violation_ratio:.2%} 的活跃时间受损，"
                               "超过要求的 {limit_ratio:.2%}：这里的服务常常超过以往的峰值；建议保持在"
                                "限度内，因此留下更多整卡"),
                               "峰值重叠超出风险预设"),
        "preallocation_hides_need": ("其服务启动时即占满显存，且不上报 KV 缓存用量，实际需求未知",),
        "several_card_models": ("其副本以同一 Pod 模板运行在多种卡型上：{card_models}", "使用多种卡型"),
        "shares_already": ("它已与 {neighbour} 同卡，但不是通过 MIG",
                           "在 {card_model} 上，其 Pod 已比预测允许的更紧密地共享", "已在共享"),
        "unknown_isolation": ("隔离方式 {isolation} 既不是 soft 也不是 hard", "隔离方式未知"),
        "unknown_owner": ("{owner_kind} 类型的属主不能修改", "属主类型不能修改"),
        "unknown_profile": ("MIG 规格未知",),
        "unlike_its_model": ("显存大小与 {card_model} 不符：其实例更大", "显存大小与卡型不符"),
        "video_engines": ("其视频引擎最高用到 {video_ratio:.0%}，并非所有卡型或实例都有", "使用视频编解码引擎"),
        "warm_replicas": ("须保留 {replicas} 个热副本", "须保留热副本"),
        "warm_standby": ("须保留 {replicas} 个热备副本：可以共享，但不停止", "热备：可以共享，但不停止"),
    }
)  # fmt: skip
"""Why an advice is refused or withheld, by reason code: ways to say it, that with most values first."""


def reason_words(item: Recommendation, language: Language) -> str:
    """Why an advice is given."""
    return _told(item.told, item.reason, language)


def change_words(item: Recommendation, language: Language) -> str:
    """What would change an advice."""
    last = item.told[-1] if item.told else None
    if language is Language.EN or last is None or last.code not in CHANGES:
        return item.change_of_mind
    return _ended(_filled(CHANGES[last.code], dict(last.values)) or item.change_of_mind)


def refusal_words(item: Refusal | Withheld, language: Language) -> str:
    """Why an advice is not given, with the values that were recorded."""
    return refused_words(item.reason, item.detail, item.values, language)


def refused_words(reason: str, detail: str, values: Sequence[tuple[str, Value]], language: Language) -> str:
    """The same by its parts.

    Args:
        reason: code.
        detail: the English sentence.
        values: what is in it.
        language: language.
    """
    if language is Language.EN:
        return detail
    known = dict(values)
    return next((said for way in REFUSED.get(reason, ()) if (said := _filled(way, known)) is not None), detail)


def state_words(profile: Profile, language: Language) -> str:
    """Why a workload is in its state."""
    return _told(profile.told, profile.reason, language)


def headline_words(verdict: Verdict, language: Language) -> str:
    """What leads wherever a plan is spoken of."""
    return judged_words(headline(verdict), language)


def verdict_words(verdict: Verdict, language: Language) -> str:
    """All that a verdict says, the headline first."""
    return judged_words(sentences(verdict), language)


def judged_words(said: Sequence[Sentence], language: Language) -> str:
    """Sentences of a verdict."""
    return _told(said, english(said), language)


def _told(told: Sequence[Sentence], english: str, language: Language) -> str:
    if language is Language.EN or not told:
        return english
    parts = [_filled(SAID.get(one.code, ""), dict(one.values)) for one in told]
    # Half a sentence would say something else.
    known = [part for part in parts if part]
    return _ended("；".join(known)) if len(known) == len(parts) else english


def _filled(way: str, values: Mapping[str, Value]) -> str | None:
    """A way to say it with its places filled; None where a value is missing. Values are not read as patterns."""
    try:
        return _Bytes().vformat(way, (), dict(values))
    except (KeyError, ValueError, TypeError):
        return None


def _ended(text: str) -> str:
    return text if text.endswith(tuple(_STOPS)) else f"{text}。"


class _Bytes(string.Formatter):
    """Writes bytes as `gib1`: in GiB with one digit; days of the week and a check by their own Chinese words."""

    def format_field(self, value: Value, format_spec: str) -> str:
        unit = _UNITS.get(format_spec[:3])
        if unit is not None and not isinstance(value, str):
            return f"{value / unit:.{int(format_spec[3:])}f}"
        if format_spec == "weekdays":
            return "、".join(_WEEKDAYS[day] for day in str(value).split(", "))
        if isinstance(value, str):
            known = WORDS.get(f"check.{value}")
            return value if known is None else known[Language.ZH]
        return str(format(value, format_spec))
