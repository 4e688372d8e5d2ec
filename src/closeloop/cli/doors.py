"""What the webhooks of a server need from settings and environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeloop.model.settings import Settings
    from closeloop.web.webhooks import Doors


def doors_of(settings: Settings, environ: Mapping[str, str]) -> Doors:
    """The secrets of code hosts, and where events are sent."""
    from closeloop.reviewing.sending import target_of
    from closeloop.reviews.authorship import agents_of
    from closeloop.web.webhooks import Doors

    pulls = settings.pulls
    return Doors(
        github=environ.get(pulls.github_secret_env) or None,
        gitlab=environ.get(pulls.gitlab_token_env) or None,
        agents=agents_of(pulls.agents),
        targets=tuple(
            target_of(name, written, environ.get(written.secret_env))
            for name, written in settings.webhooks.items()
        ),
    )
