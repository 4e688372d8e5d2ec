"""What people decide about rules and repeated mistakes."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import get_args

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.records.errors import BadInput, Fault, unknown_name_error
from closeloop.records.team_rules import RepeatState, RuleState
from closeloop.reviews.rule_editing import contrary_rules, decide_repeat, find_rule, set_rule_state
from closeloop.web.form_fields import parse_form_fields
from closeloop.web.page import caller_or_local_user, fault_status
from closeloop.web.page_context import PageContext
from closeloop.web.render import render_template


def memory_decision_routes(desk: PageContext) -> list[Route]:
    async def decide_by_form(request: Request) -> Response:
        form_fields = {
            name: values[0] for name, values in parse_form_fields(await request.body()).items()
        }
        decided_by = caller_or_local_user(request, desk)
        try:
            await anyio.to_thread.run_sync(partial(_apply_decision, desk, form_fields, decided_by))
        except Fault as fault:
            text = render_template("refused.html", why=str(fault))
            return Response(text, fault_status(fault), media_type="text/html")
        return RedirectResponse("/memory", 303)

    return [Route("/memory", decide_by_form, methods=["POST"])]


def _apply_decision(desk: PageContext, given: dict[str, str], who: str) -> None:
    """`rule` or `remark`, and the state that it is in from now on."""
    store, state = desk.store, given.get("state", "")
    if "remark" in given:
        for repeat_state in get_args(RepeatState):
            if repeat_state == state:
                decide_repeat(store, given["remark"], repeat_state, who)
                return
        raise unknown_name_error("state", state, get_args(RepeatState))
    rule = find_rule(store, given.get("rule", ""))
    if state == "active" and (against := contrary_rules(store, rule)):
        raise BadInput(f"{against[0].text!r} is active and wants the contrary: retire it first.")
    for rule_state in get_args(RuleState):
        if rule_state == state:
            set_rule_state(store, rule, rule_state, who, datetime.now(UTC))
            return
    raise unknown_name_error("state", state, get_args(RuleState))
