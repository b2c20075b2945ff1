"""`gputide plan backtest`: plans made on earlier days of one's own history, judged on the days that followed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from enforcer.probe.stored_results import measured_capability
from fleet.documents import document
from fleet.errors import Misconfigured
from fleet.units import format_percent
from gputide.container.cluster import own_cluster
from gputide.container.history import load_judged
from gputide.container.relief import relief_counted_on
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.scanning.remembered import as_scanned
from gputide.session import Session
from recommender.backtest import BacktestReport
from recommender.backtest import backtest as run_backtest
from recommender.judged_folds import BacktestScore

app = typer.Typer()


@app.command(epilog="Example: gputide plan backtest --train-days 5 --test-days 2 --folds 2")
@answering
def backtest(
    session: Session,
    train_days: Annotated[int, typer.Option(min=1, help="Days that each plan is made from.")] = 7,
    test_days: Annotated[int, typer.Option(min=1, help="Days that each plan is judged on.")] = 3,
    folds: Annotated[int, typer.Option(min=1, max=28, help="Cuts, one day apart.")] = 1,
    picture: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw saved against harm into this HTML file.")
    ] = None,
) -> Answer:
    """Judge what plans would have saved and harmed, beside naive rules: per preset, on days they had not seen."""
    report = judged(session, train_days=train_days, test_days=test_days, folds=folds)
    by_rule: dict[str, list[BacktestScore]] = defaultdict(list)
    for score in report.scores:
        by_rule[score.rule].append(score)
    answer = Answer(
        document=document(report),
        listings=(
            Listing(
                title=f"{folds} folds, {train_days} days learned, {test_days} days judged (means over folds)",
                columns=(
                    "rule",
                    "saved",
                    "violation",
                    "predicted",
                    "contention",
                    "framebuffer",
                    "lost work",
                    "pods not judged",
                ),
                rows=[_row(rule, scores) for rule, scores in by_rule.items()],
            ),
        ),
    )
    if picture is not None:
        _draw(by_rule, f"{folds} folds of {train_days} + {test_days} days, means over the folds", picture)
    return answer


def judged(session: Session, *, train_days: int, test_days: int, folds: int) -> BacktestReport:
    """What plans made on earlier days would have saved and harmed on the days that followed, beside naive rules.

    Raises:
        NotEnoughData: the history is too short for so many days.
    """
    session, _ = as_scanned(session, None)
    folder, now = session.folder(), session.now()
    history = load_judged(session)
    is_own = own_cluster(folder, session.settings) in (None, history.inventory.cluster)
    return run_backtest(
        history,
        train_days=train_days,
        test_days=test_days,
        settings=session.settings,
        capability=measured_capability(folder, session.settings, now, is_own=is_own),
        folds=folds,
        relief=relief_counted_on(folder, session.settings, now),
    )


def _draw(by_rule: Mapping[str, Sequence[BacktestScore]], caption: str, picture: Path) -> None:
    # Plotly is loaded where a picture is asked for, and nowhere else.
    from dashboards.figures.backtest import JudgedRule, backtest_page

    rules = [
        JudgedRule(
            rule=rule,
            saved_ratio=fmean(score.saved_ratio for score in scores),
            violation_ratio=fmean(observed),
            predicted_violation_ratio=fmean(predicted) if predicted else None,
        )
        for rule, scores in by_rule.items()
        for predicted in [_known(score.predicted_violation_ratio for score in scores)]
        if (observed := _known(score.violation_ratio for score in scores))
    ]
    try:
        picture.write_text(backtest_page(rules, caption), encoding="utf-8")
    except OSError as exc:
        raise Misconfigured(f"cannot write --picture {picture}: {exc.strerror}") from exc


def _known(ratios: Iterable[float | None]) -> list[float]:
    return [ratio for ratio in ratios if ratio is not None]


def _row(rule: str, scores: Sequence[BacktestScore]) -> tuple[str, ...]:
    def mean(ratios: Iterable[float | None]) -> str:
        known = _known(ratios)
        return format_percent(fmean(known), digits=2) if known else ""

    return (
        rule,
        mean(score.saved_ratio for score in scores),
        mean(score.violation_ratio for score in scores),
        mean(score.predicted_violation_ratio for score in scores),
        mean(score.contention_ratio for score in scores),
        mean(score.framebuffer_ratio for score in scores),
        mean(score.lost_work_ratio for score in scores),
        str(sum(score.unjudged_pods for score in scores)),
    )
