"""What people decide about rules and repeated mistakes."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import get_args

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.model.errors import BadInput, Fault, unknown
from closeloop.model.memory import RepeatState, RuleState
from closeloop.reviewing.memory import contraries, decide, find, put
from closeloop.web.desk import Desk
from closeloop.web.forms import fields
from closeloop.web.page import caller_name, status_of
from closeloop.web.render import render


def deciding_routes(desk: Desk) -> list[Route]:
    async def decided(request: Request) -> Response:
        given = {name: values[0] for name, values in fields(await request.body()).items()}
        who = caller_name(request, desk)
        try:
            await anyio.to_thread.run_sync(partial(_settle, desk, given, who))
        except Fault as fault:
            text = render("refused.html", why=str(fault))
            return Response(text, status_of(fault), media_type="text/html")
        return RedirectResponse("/memory", 303)

    return [Route("/memory", decided, methods=["POST"])]


def _settle(desk: Desk, given: dict[str, str], who: str) -> None:
    """`rule` or `remark`, and the state that it is in from now on."""
    store, state = desk.store, given.get("state", "")
    if "remark" in given:
        for known in get_args(RepeatState):
            if known == state:
                decide(store, given["remark"], known, who)
                return
        raise unknown("state", state, get_args(RepeatState))
    rule = find(store, given.get("rule", ""))
    if state == "active" and (against := contraries(store, rule)):
        raise BadInput(f"{against[0].text!r} is active and wants the contrary: retire it first.")
    for stage in get_args(RuleState):
        if stage == state:
            put(store, rule, stage, who, datetime.now(UTC))
            return
    raise unknown("state", state, get_args(RuleState))
