"""Every word of the weekly report and of messages in every language that they speak, in one table.

A key names what is said; English and Chinese stand side by side, so that neither is forgotten. Codes that come from the
analyzer and the planner (states, kinds, reasons, checks) are keys too: `state.busy`, `kind.slice`, `reason.opt_out`.
Called by `report` and `report.text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from dashboards.shown.rows import moment_words, money_words, percent_words
from fleet.decisions import Saving
from fleet.units import format_count


class Language(StrEnum):
    """Languages of the report and of messages (BCP 47 primary tags)."""

    EN = "en"
    ZH = "zh"


_METHOD_ENGLISH = (
    "A freed card is a whole card that no pod needs any more. Realised counts cards that were granted before a plan "
    "and to nobody over the measured days. Harm is the share of active time of changed workloads in which their card "
    "was contended, their grant too small or the framebuffer full. A week has 168 hours; amortised money takes the "
    "full price of a card hour, marginal what stops being paid at once."
)
_METHOD_CHINESE = (
    "“腾出的卡”指不再有任何 Pod 需要的整卡。“兑现”只计方案执行前已分配、且在测量期间无人占用的卡。"
    "“损害”指被改动的工作负载在其活跃时间内遇到算力争用、分配不足或显存占满的比例。一周按 168 小时计；"
    "摊销按卡时全价计算，边际只计立即停止支付的部分。"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

WORDS: Mapping[str, Mapping[Language, str]] = MappingProxyType(
    {
        key: MappingProxyType({Language.EN: english, Language.ZH: chinese})
        for key, english, chinese in (
            ("title", "GPU savings", "GPU 节省周报"),
            ("between", ": ", "："),
            ("clause", "; ", "；"),
            ("list", ", ", "、"),
            ("comma", ", ", "，"),
            ("open", " (", "（"),
            ("close", ")", "）"),
            ("stop", ".", "。"),
            ("space", " ", ""),
            ("span", "{since} to {until}", "{since} 至 {until}"),
            ("of_team", "team {team}", "团队 {team}"),
            ("unknown", "unknown", "未知"),
            ("coverage", "coverage {ratio}", "数据覆盖率 {ratio}"),
            ("last_week", "last week {value}", "上周 {value}"),
            ("mean", "4-week mean {value}", "前四周均值 {value}"),
            ("headline.freed", "{cards} freed and still free", "{cards}已腾空并保持空闲"),
            ("headline.more", "; the plan that waits for approval would free {count} more",
             "；待批准的方案还可再腾出 {count} 张"),
            ("headline.would", "The plan that waits for approval would free {cards}",
             "待批准的方案可腾出 {cards}"),
            ("headline.idle", "{cards} of {all} are idle or unallocated, and no plan waits",
             "共 {all} 张卡，其中 {cards}闲置或未分配，没有待批准的方案"),
            ("headline.team_idle", "{cards} of {all} of this team are idle", "本团队共 {all} 张卡，其中 {cards}闲置"),
            ("cards_one", "{count} card", "{count} 张卡"),
            ("cards_many", "{count} cards", "{count} 张卡"),
            ("figure_line", "{value} {name} ({last}, {mean})", "{name} {value}（{last}，{mean}）"),
            ("figure.freed", "cards freed", "腾出的卡"),
            ("figure.wasted", "unallocated or idle, last 7 days", "未分配或闲置成本（近 7 天）"),
            ("figure.harm", "harm of changed services", "被改动服务受到的损害"),
            ("figure.idle_hours", "card-hours unallocated or idle", "未分配或闲置的卡时"),
            ("figure.low_priority", "GPU-hours of low priority", "低优先级 GPU 小时"),
            ("figure.energy", "kWh", "用电量（kWh）"),
            ("figure.carbon", "kg CO2", "碳排放（kg CO2）"),
            ("bar.label", "cards by state and week", "各周按状态统计的卡"),
            ("bar.heading", "Cards by state, week by week", "每周各状态的卡"),
            ("top.heading", "Most left unused", "闲置最多的工作负载"),
            ("top.none", "Nobody leaves a card unused.", "没有闲置的卡。"),
            ("column.workload", "workload", "工作负载"),
            ("column.owner", "owner", "归属"),
            ("column.state", "state", "状态"),
            ("column.cards", "cards", "卡数"),
            ("column.unused_cost", "idle or unused, last 7 days", "闲置或未使用成本（近 7 天）"),
            ("column.advice", "advice", "建议"),
            ("column.team", "team", "团队"),
            ("column.granted_hours", "card-hours granted", "已分配卡时"),
            ("column.used", "used", "已使用"),
            ("column.unused", "unused", "未使用"),
            ("column.idle", "idle", "闲置"),
            ("column.idle_held", "idle, holding framebuffer", "闲置并占用显存"),
            ("column.idle_cost", "cost of idle", "闲置成本"),
            ("column.quota", "quota", "配额"),
            ("column.quota_left", "of it not held", "配额中未占用"),
            ("column.unit", "unit", "单位"),
            ("column.count", "this week", "本周数量"),
            ("column.per_million", "a million costs", "每百万成本"),
            ("unit.heading", "Unit cost", "单位成本"),
            ("unit.more", "{count} more workloads", "另有 {count} 个工作负载"),
            ("unit.requests", "requests", "请求"),
            ("unit.tokens", "tokens", "token"),
            ("column.plan", "plan", "方案"),
            ("column.promised", "cards predicted", "预计腾出"),
            ("column.freed", "cards freed", "实际腾出"),
            ("column.harm_predicted", "harm predicted", "预计损害"),
            ("column.harm_observed", "harm observed", "实际损害"),
            ("standing.too_few_windows", "too few windows", "时间窗太少"),
            ("standing.unmeasured", "not measured", "未测量"),
            ("column.stands", "stands", "情况"),
            ("column.budget", "budget", "预算"),
            ("column.burnt", "budget spent", "预算已用"),
            ("column.cause", "cause", "原因"),
            ("column.workloads", "workloads", "工作负载数"),
            ("column.why", "why", "原因"),
            ("column.example", "for example", "例如"),
            ("column.figure", "figure", "指标"),
            ("column.week", "this week", "本周"),
            ("column.last_week", "last week", "上周"),
            ("column.mean", "4-week mean", "前四周均值"),
            ("column.basis", "what it stands on", "依据"),
            ("detail.heading", "Hours, electricity and carbon", "小时数、用电与碳排放"),
            ("basis.idle_hours", "card-hours that nobody was granted, or that were granted and idle",
             "未分配的卡时，以及已分配而闲置的卡时"),
            ("basis.idle_hours_team", "card-hours that were granted and idle", "已分配而闲置的卡时"),
            ("basis.low_priority", "card hours granted to pods of low priority", "分给低优先级 Pod 的卡时"),
            ("basis.energy", "known for {ratio} of the card hours, PUE {pue}", "{ratio} 的卡时有数据，PUE {pue}"),
            ("basis.energy_none", "no card reports its power (energy.idle_watts_ratio lets it be estimated)",
             "没有卡上报功率（设置 energy.idle_watts_ratio 后可估算）"),
            ("basis.carbon", "{grid} kg a kWh", "每 kWh {grid} kg"),
            ("basis.carbon_none", "energy.grid_kg_co2_per_kwh is not set", "未设置 energy.grid_kg_co2_per_kwh"),
            ("basis.none", "nothing was collected over the week", "本周没有采集到数据"),
            ("teams.heading", "Card-hours of the last 7 days by team", "各团队近 7 天的卡时"),
            ("forecast.heading", "Forecast against outcome", "预测与结果"),
            ("forecast.none", "No plan was measured yet.", "尚无已核验的方案。"),
            ("stands.final", "verified", "已核验"),
            ("stands.interim", "interim", "核验中"),
            ("stands.undone", "undone", "已撤销"),
            ("stands.unverified", "not verified", "未核验"),
            ("budget.heading", "Harm budget of each service", "各服务的损害预算"),
            ("budget.none", "No service was changed and measured yet.", "尚无已改动且已测量的服务。"),
            ("budget.more", "{count} more services, none with more of its budget spent",
             "另有 {count} 个服务，预算消耗均不高于以上各项"),
            ("cause.contention", "contention", "算力争用"),
            ("cause.short", "grant too small", "分配不足"),
            ("cause.full", "framebuffer full", "显存占满"),
            ("next.heading", "Next", "下一步"),
            ("next.none", "No plan waits.", "没有待批准的方案。"),
            ("next.plan", "Plan", "方案"),
            ("next.frees", "frees {cards}, {saving} a week, predicted harm {harm}",
             "可腾出 {cards}，每周节省 {saving}，预计损害 {harm}"),
            ("next.room", "room for {hours} GPU-hours of low priority a week", "每周可容纳 {hours} 低优先级 GPU 小时"),
            ("next.expired", "it has expired", "已过期"),
            ("next.expires", "it expires {moment}", "{moment} 到期"),
            ("next.waits", "Plan {plan} waits until {moment}: frees {cards}, {saving} a week, predicted harm {harm}",
             "方案 {plan} 待批准，{moment} 到期：可腾出 {cards}，每周节省 {saving}，预计损害 {harm}"),
            ("next.review", "Review and approve", "审阅并批准"),
            ("next.stages", "Stages of the next plan", "下一方案的各阶段"),
            ("next.stage", "{title}: {cards}, {moves} moves", "{title}：{cards}，迁移 {moves} 个 Pod"),
            ("saving.marginal", "{money} marginal", "{money}（边际）"),
            ("saving.amortised", "{money} amortised", "{money}（摊销）"),
            ("saving.none", "no price set", "（未设价格）"),
            ("done.heading", "Done, and how it went", "已执行的改动与结果"),
            ("done.none", "Nothing was done this week.", "本周没有改动。"),
            ("done.stages", "Of its {all} stages {count} stand in the cluster",
             "共 {all} 个阶段，集群中现有 {count} 个"),
            ("done.no_stage", "none", "0"),
            ("done.by", ", approved by {who}", "，批准人 {who}"),
            ("done.action", "{count}× {action}", "{action} {count} 次"),
            ("went.undone", "It was undone on {day}, and saves nothing since.", "已于 {day} 撤销，此后不再节省。"),
            ("went.unverified", "It was not verified yet.", "尚未核验。"),
            ("action.approved", "approved", "批准"),
            ("action.applied", "applied", "应用"),
            ("action.restored", "restored", "恢复"),
            ("action.taken_back", "taken back", "收回"),
            ("action.undone", "undone", "撤销"),
            ("action.promoted", "promoted", "转正"),
            ("action.given_back", "given back", "归还"),
            ("action.refused", "refused", "拒绝"),
            ("action.frozen", "frozen", "冻结"),
            ("action.thawed", "thawed", "解冻"),
            ("funnel.heading", "From found to realised", "从发现到兑现"),
            ("step.found", "found", "发现"),
            ("step.accepted", "accepted", "批准"),
            ("step.applied", "applied", "应用"),
            ("step.verified", "verified", "核验"),
            ("step.realised", "realised", "兑现"),
            ("refused.heading", "Refused", "未给建议"),
            ("refused.none", "Nobody was refused.", "没有未给建议的工作负载。"),
            ("data.heading", "Data", "数据质量"),
            ("data.check", "{check}: {count} workloads", "{check}：{count} 个工作负载"),
            ("data.coverage", "coverage {ratio} is under 90 %: figures may be too low",
             "数据覆盖率 {ratio} 低于 90%：数字可能偏低"),
            ("data.withheld", "no advice on {kind}: {detail}", "不提供“{kind}”建议：{detail}"),
            ("small.heading", "Small print", "说明"),
            ("small.prices", "Prices: {source}; table {version}.", "价格：{source}；价目表版本 {version}。"),
            ("small.coverage", "Coverage {ratio}.", "数据覆盖率 {ratio}。"),
            ("small.made", "Made {moment}.", "生成于 {moment}。"),
            ("small.method", _METHOD_ENGLISH, _METHOD_CHINESE),
            ("source.list", "public list prices (gputide cost prices list)", "公开目录价（gputide cost prices list）"),
            ("source.own", "your prices first, then public list prices (gputide cost prices list)",
             "优先采用您设置的价格，其次为公开目录价（gputide cost prices list）"),
            ("of_namespace", "namespace {team}", "命名空间 {team}"),
            ("notice.open_savings", "Open the savings page", "打开节省页面"),
            ("notice.open_workloads", "Open the workloads", "打开工作负载页面"),
            ("notice.open_plan", "Open the plan", "打开方案"),
            ("notice.open_tenants", "Open the tenants page", "打开租户页面"),
            ("notice.review", "Review the plan", "审阅方案"),
            ("notice.rest", "… and {count} more", "…… 另有 {count} 条"),
            ("notice.digest", "{clusters}: {count} news of gputide", "{clusters}：gputide 有 {count} 条新消息"),
            ("notice.team_title", "{title}: {team}, week to {until}", "{title}：{team}，截至 {until} 的一周"),
            ("notice.team_total", "{workloads} of your workloads leave part of {cards} unused: {money} a week",
             "您有 {workloads} 个工作负载未用满所占的 {cards}：每周 {money}"),
            ("notice.team_row", "{workload} holds {cards}, {money} a week of them unused: {reason}",
             "{workload} 占用 {cards}，每周闲置 {money}：{reason}"),
            ("notice.waits", "{cluster}: a plan that frees {cards} waits for approval",
             "{cluster}：可腾出 {cards}的方案等待批准"),
            ("notice.waits_team", "{cluster}: a plan that frees {cards} of yours waits for approval",
             "{cluster}：可腾出您 {cards}的方案等待批准"),
            ("notice.waits_line", "saves {saving} a week, predicted harm {harm}, {moves} moves; expires {moment}",
             "每周节省 {saving}，预计损害 {harm}，迁移 {moves} 个 Pod；{moment} 到期"),
            ("notice.stage", "stage {stage}: {title}", "阶段 {stage}：{title}"),
            ("notice.more", "{title}; {count} more news of gputide", "{title}；gputide 另有 {count} 条新消息"),
            ("notice.taken_back", "{cluster}: {subject} of plan {plan}: {action}",
             "{cluster}：方案 {plan} 的{subject}：{action}"),
            ("notice.by", "by {who} on {moment}", "{who}，{moment}"),
            ("notice.budget_near", "{cluster}: the budget of {owner} is nearly spent",
             "{cluster}：{owner} 的预算即将用完"),
            ("notice.budget_over", "{cluster}: the budget of {owner} is exceeded", "{cluster}：{owner} 已超出预算"),
            ("notice.budget_forecast_over", "{cluster}: the budget of {owner} will be exceeded by the end of the month",
             "{cluster}：{owner} 预计月底前超出预算"),
            ("notice.budget_line", "{spent} of {budget} spent ({ratio}); the month will come to {forecast}",
             "已用 {spent}，预算 {budget}（{ratio}）；预计全月 {forecast}"),
            ("notice.budget_unpriced", "{hours} card hours have no price and are in neither",
             "另有 {hours} 卡时没有价格，未计入"),
            ("notice.test_title", "gputide can reach you", "gputide 可以联系到您"),
            ("notice.test_line", "This is a test of gputide admin notify test; nothing happened.",
             "这是 gputide admin notify test 的测试消息，没有发生任何事情。"),
            ("notice.open_app", "Open gputide", "打开 gputide"),
            ("subject.stage", "stage {numbers}", "阶段 {numbers}"),
            ("subject.stages", "stages {numbers}", "阶段 {numbers}"),
            ("state.busy", "busy", "繁忙"),
            ("state.low_use", "low use", "低使用率"),
            ("state.idle_held", "idle, held", "占用闲置"),
            ("state.free", "unallocated", "未分配"),
            ("state.untrusted", "untrusted", "数据不可信"),
            ("workload_state.busy", "busy", "繁忙"),
            ("workload_state.idle", "idle", "闲置"),
            ("workload_state.idle_held", "idle, held", "占用闲置"),
            ("workload_state.partly_idle", "partly idle", "部分闲置"),
            ("workload_state.oversized", "oversized", "分配过大"),
            ("workload_state.off_peak", "off-peak", "有低谷"),
            ("workload_state.unknown", "unknown", "未知"),
            ("kind.all_advice", "all advice", "全部建议"),
            ("kind.reclaim", "reclaim", "回收"),
            ("kind.slice", "slice", "切分"),
            ("kind.oversubscribe", "oversubscribe", "显存超分"),
            ("kind.colocate", "colocate", "混部"),
            ("kind.offpeak_pair", "offpeak pair", "错峰配对"),
            ("kind.tide", "tide", "潮汐伸缩"),
            ("kind.mig", "mig", "MIG 切分"),
            ("kind.rehome", "rehome", "换用更便宜的卡"),
            ("kind.fewer_cards", "fewer cards", "减少卡数"),
            ("stage.reclaim", "Give back idle cards", "归还闲置的卡"),
            ("stage.slice", "Cut slices in place, nobody moves", "原地切分，不迁移"),
            ("stage.rehome", "Move to cheaper cards", "迁移到更便宜的卡"),
            ("stage.mig_there", "Move onto MIG instances that are there", "迁入已有的 MIG 实例"),
            ("stage.mig", "Cut {cards} by MIG, each while it is empty", "将 {cards}切成 MIG 实例，切分时须空闲"),
            ("stage.mig_waits", "{first}: with a spare card, or {pods} pods wait meanwhile",
             "{first}；借用备用卡，否则 {pods} 个 Pod 暂时等待"),
            ("stage.share", "Share cards, batch {number} of {all}", "共享卡，第 {number} 批，共 {all} 批"),
            ("stage.share_nodes", "Share the cards of nodes, emptied for it, batch {number} of {all}",
             "腾空节点后共享其卡，第 {number} 批，共 {all} 批"),
            ("reason.autoscaled", "autoscaled", "由自动伸缩控制"),
            ("reason.compute", "compute", "算力不足"),
            ("reason.backend_cannot_share", "backend cannot share", "后端不支持共享"),
            ("reason.backend_cuts_by_mig", "backend cuts by mig", "后端只能用 MIG 切分"),
            ("reason.counter_untrusted", "counter untrusted", "计数器不可信"),
            ("reason.framebuffer_held", "framebuffer held", "仍占用显存"),
            ("reason.high_priority_service", "high priority service", "高优先级服务"),
            ("reason.history_too_short", "history too short", "历史太短"),
            ("reason.job_template_fixed", "job template fixed", "Job 模板不可修改"),
            ("reason.latency", "latency", "延迟要求"),
            ("reason.latency_critical", "latency critical", "延迟敏感"),
            ("reason.mig", "mig", "已使用 MIG 实例"),
            ("reason.moves_max", "moves max", "已达迁移上限"),
            ("reason.multi_card", "multi card", "单个 Pod 使用多张卡"),
            ("reason.neighbour_stays", "neighbour stays", "同卡的其他工作负载不能迁走"),
            ("reason.neighbours_unknown", "neighbours unknown", "同卡的其他工作负载未知"),
            ("reason.node_shares_nothing", "node shares nothing", "节点不支持共享"),
            ("reason.no_framebuffer_counter", "no framebuffer counter", "没有显存计数器"),
            ("reason.no_instance_fits", "no instance fits", "没有合适的 MIG 实例"),
            ("reason.no_mig", "no mig", "卡型不支持 MIG"),
            ("reason.no_mig_cards", "no mig cards", "没有启用 MIG 的卡"),
            ("reason.no_samples", "no samples", "没有样本"),
            ("reason.no_sm_counter", "no sm counter", "没有 SM 活跃度计数器"),
            ("reason.not_seen", "not seen", "历史中没有出现"),
            ("reason.opt_out", "opt out", "已声明不参与"),
            ("reason.peaks_break_preset", "peaks break preset", "峰值重叠超出风险预设"),
            ("reason.several_card_models", "several card models", "使用多种卡型"),
            ("reason.shares_already", "shares already", "已在共享"),
            ("reason.unknown_isolation", "unknown isolation", "隔离方式未知"),
            ("reason.unknown_profile", "unknown profile", "MIG 规格未知"),
            ("reason.video_engines", "video engines", "使用视频编解码引擎"),
            ("reason.warm_replicas", "warm replicas", "须保留热副本"),
            ("reason.warm_standby", "warm standby", "热备"),
            ("check.container_zero_while_card_busy", "container zero while card busy", "卡繁忙而容器计数为零"),
            ("check.zero_while_serving", "zero while serving", "有请求而计数为零"),
            ("check.sm_active_above_duty_cycle", "sm active above duty cycle", "SM 活跃度高于占空比"),
            ("check.scale_off_by_100", "scale off by 100", "数值相差百倍"),
            ("check.frozen", "frozen", "计数器停滞"),
            ("check.above_one", "above one", "比率超过 1"),
            ("check.out_of_range", "out of range", "数值超出范围"),
            ("check.framebuffer_above_card", "framebuffer above card", "显存用量超过整卡"),
            ("check.framebuffer_scale", "framebuffer scale", "显存单位有误"),
            ("check.framebuffer_zero_while_working", "framebuffer zero while working", "运行中而显存为零"),
            ("check.spinning", "spinning", "空转占用"),
        )
    }
)  # fmt: skip
"""What is said by key, in each language."""

_SHARED_STAGE = re.compile(r"(Share cards|Share the cards of nodes, emptied for it), batch (\d+) of (\d+)", re.ASCII)

_STAGES = re.compile(r"(stages?) (\d+(?:, \d+)*)", re.ASCII)

_MIG_STAGE = re.compile(
    r"Cut (\d{1,9}) cards? by MIG, each while it is empty(?:: with a spare card, or (\d{1,9}) pods? waits? meanwhile)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of one language."""

    language: Language

    def say(self, key: str, **values: object) -> str:
        """What a key says, with its places filled; what fills them is not read as a pattern."""
        return WORDS[key][self.language].format(**values)

    def code(self, group: str, code: str) -> str:
        """A code of a closed list; one that the table does not hold yet is shown as it stands, without underscores."""
        key = f"{group}.{code.replace(' ', '_')}"
        return self.say(key) if key in WORDS else code.replace("_", " ")

    def cards(self, count: int) -> str:
        """A number of cards."""
        return self.say("cards_one" if count == 1 else "cards_many", count=format_count(count))

    def percent(self, ratio: float | None, digits: int = 2) -> str:
        """A ratio as a percentage; Chinese sets no space before the sign."""
        text = percent_words(ratio, digits)
        return text.replace(" %", "%") if self.language is Language.ZH else text

    def moment(self, moment: datetime) -> str:
        """A moment, in UTC and said so."""
        return moment_words(moment)

    def day(self, moment: datetime) -> str:
        """A day without its year, for the picture: `19 Jan`, `1月19日`; independent of the machine's locale."""
        if self.language is Language.ZH:
            return f"{moment.month}月{moment.day}日"
        return f"{moment.day:02d} {_MONTHS[moment.month - 1]}"

    def stage(self, title: str) -> str:
        """A stage's title as the planner wrote it, in this language; one that it does not know stays as it is."""
        if self.language is Language.EN:
            return title
        match = _SHARED_STAGE.fullmatch(title)
        if match is not None:
            key = "stage.share" if match[1] == "Share cards" else "stage.share_nodes"
            return self.say(key, number=match[2], all=match[3])
        match = _MIG_STAGE.fullmatch(title)
        if match is not None:
            first = self.say("stage.mig", cards=self.cards(int(match[1])))
            return first if match[2] is None else self.say("stage.mig_waits", first=first, pods=match[2])
        return self._known("stage.", title)

    def subject(self, text: str) -> str:
        """What a line of the ledger is about: stages in this language, anything else as it stands."""
        match = _STAGES.fullmatch(text)
        return text if match is None else self.say(f"subject.{match[1]}", numbers=match[2])

    def saving(self, saving: Saving, currency: str) -> str:
        """A weekly saving on both bases, marginal first; what is unknown is left out."""
        amounts = (("saving.marginal", saving.marginal), ("saving.amortised", saving.amortised))
        parts = [self.say(key, money=money_words(amount, currency)) for key, amount in amounts if amount is not None]
        return self.say("list").join(parts) or self.say("saving.none")

    def headline_title(self, title: str) -> str:
        """The report's title; the one that is set by default is said in this language."""
        return self._known("title", title)

    def _known(self, group: str, text: str) -> str:
        for key, said in WORDS.items():
            if key.startswith(group) and said[Language.EN] == text:
                return said[self.language]
        return text
