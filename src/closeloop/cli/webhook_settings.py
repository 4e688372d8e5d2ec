"""What the webhooks of a server need from settings and environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeloop.records.settings import Settings
    from closeloop.web.webhooks import WebhookSecrets


def webhook_secrets_from_settings(settings: Settings, environ: Mapping[str, str]) -> WebhookSecrets:
    """The secrets of code hosts, and where events are sent."""
    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.reviews.webhook_sending import build_target
    from closeloop.web.webhooks import WebhookSecrets

    pulls = settings.pulls
    return WebhookSecrets(
        github=environ.get(pulls.github_secret_env) or None,
        gitlab=environ.get(pulls.gitlab_token_env) or None,
        agents=merge_known_agents(pulls.agents),
        targets=tuple(
            build_target(name, written, environ.get(written.secret_env))
            for name, written in settings.webhooks.items()
        ),
    )
