"""Scaling as `loadgen show --json` gives it (contract, format 1: names are added, never changed)."""

import math
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from analysis.scaling.heldout import HeldOut
from analysis.scaling.knee import Growth, Knee
from analysis.scaling.law import Law, Predicted
from analysis.scaling.services import Service
from analysis.scaling.study import GroupLaw, Scaling
from analysis.scaling.whatif import Answer

LAW_UNITS = (
    ("contention", "GIL wait over that of processor sharing"),
    ("own", "of the loop's held time, in its turn"),
    ("core", "of the others' held time, in the loop's turn"),
    ("spread", "of a turn's host time, over its mean"),
    ("gathering", "how readily submits gather into a message"),
    ("turns_a_token", "steps of a request over its output tokens"),
)


def scaling_document(scaling: Scaling) -> dict[str, Any]:
    """Lay everything out by names with units; unknown numbers are None."""
    return {
        "knees": [_knee(knee) for knee in scaling.knees],
        "growth": [_growth(one) for one in scaling.growth],
        "laws": [_law(law) for law in scaling.laws],
        "what_if": [_answer(answer) for answer in scaling.answers],
        "left_out": [{"cell": one.cell, "why": one.why} for one in scaling.left_out],
        "slo": [term.text for term in scaling.terms],
    }


def _knee(knee: Knee) -> dict[str, Any]:
    law = knee.law
    return {
        "knobs": dict(knee.setting.pairs),
        "concurrency": knee.at,
        "low": knee.low,
        "high": knee.high,
        "sentence": knee.sentence,
        "usl": None
        if law is None
        else {
            "lambda_tok_s": law.rate,
            "alpha": law.alpha,
            "beta": law.beta,
            "residual": law.residual,
            "held_out_error": law.error,
            "holds": law.holds,
            "knee": law.knee if math.isfinite(law.knee) else None,
        },
    }


def _growth(one: Growth) -> dict[str, Any]:
    return {
        "knobs": dict(one.setting.pairs),
        "metric": one.name,
        "from": one.start,
        "to": one.end,
        "slope": one.slope,
        "low": one.low,
        "high": one.high,
        "blocks": one.blocks,
        "faster_than_users": one.faster,
    }


def _law(group: GroupLaw) -> dict[str, Any]:
    return {
        "knobs": dict(group.knobs.pairs),
        "cells": len(group.cells),
        "doubt": group.reason,
        "parameters": None if group.law is None else law_parameters(group.law),
        "service_times_ms": [_service(one) for one in group.services],
        "held_out": [_held_out(one) for one in group.held_out],
    }


def law_parameters(law: Law) -> dict[str, Any]:
    """Give the parameters by the names of docs/scaling.md."""
    return {
        **{name: getattr(law, name) for name, _ in LAW_UNITS},
        "device_ms": dict(zip(("step", "active_request", "kilotoken"), law.device.tolist(), strict=True)),
        "way_in_ms": dict(zip(("request", "step", "arriving"), law.way_in.tolist(), strict=True)),
        "front_end_cores": dict(zip(("rest", "req_s"), law.front_end.tolist(), strict=True)),
    }


def _service(one: Service) -> dict[str, Any]:
    return {
        "operation": one.operation,
        "executor_loop": one.loop_ms,
        "executor_loop_error": one.loop_error_ms,
        "others": one.others_ms,
        "others_error": one.others_error_ms,
    }


def _held_out(one: HeldOut) -> dict[str, Any]:
    return {
        "metric": one.quantity.name,
        "error": one.mean,
        "holds": one.holds,
        "repeat_error": one.repeat,
        "points": [
            {
                "knobs": dict(point.setting.pairs),
                "concurrency": point.concurrency,
                "blocks": point.blocks,
                "measured": point.measured,
                "low": point.low,
                "high": point.high,
                "fitted": point.fitted,
                "held_out": point.held_out,
            }
            for point in one.points
        ],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "question": answer.question,
        "workload": None if answer.workload is None else asdict(answer.workload),
        "refused": answer.refusal,
        "predicted": None if answer.predicted is None else predicted_document(answer.predicted, answer.withheld),
        "held_out_error": dict(answer.errors),
        "sustainable_concurrency": None if answer.sustained is None else answer.sustained.concurrency,
        "sustainable_note": None if answer.sustained is None else answer.sustained.note,
        "notes": list(answer.notes),
    }


def predicted_document(at: Predicted, withheld: Collection[str] = ()) -> dict[str, Any]:
    """Give a prediction by the metrics' names (docs/metrics.md); None for the quantities that are withheld.

    Output tokens go with requests, and a latency's mean with its percentile.
    """
    kept = {
        "gil_wait_ms_per_step": at.wait_ms,
        "host_step_ms": at.step_ms,
        "ttft_ms": {"mean": at.ttft_ms, **_of("ttft_ms", at)},
        "tpot_ms": {"mean": at.tpot_ms, **_of("tpot_ms", at)},
        "e2e_ms": {"mean": at.e2e_ms, **_of("e2e_ms", at)},
        "req_s": at.req_s,
        "output_tok_s": at.output_tok_s,
        "active_requests": at.active,
        "rpc_messages_per_request": at.messages_a_request,
    }
    hidden = {name.partition(".")[0] for name in withheld}
    hidden |= {"req_s"} if "output_tok_s" in hidden else set()
    return {name: None if name in hidden else value for name, value in kept.items()}


def _of(metric: str, at: Predicted) -> dict[str, float]:
    names = [name for name in at.percentiles if name.startswith(f"{metric}:")]
    return {name.partition(":")[2]: at.percentile_ms(name) for name in names}
