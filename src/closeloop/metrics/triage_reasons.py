"""What moved an estimate, in words: each feature with its value and what is usual."""

from __future__ import annotations

from closeloop.records.triage import TriageReason
from closeloop.text.wording import count_with_noun, format_percent

MIN_EFFECT = 0.02
"""In log odds: less than this is no reason."""

COUNT_NOUNS = {
    "actions": ("action", "actions"),
    "actions_after_write": ("action after the last change", "actions after the last change"),
    "changes": ("change of files", "changes of files"),
    "failed_edits": ("failed edit", "failed edits"),
    "failures_in_a_row": ("failure in a row", "failures in a row"),
    "feedback_unused": ("failing check not acted on", "failing checks not acted on"),
    "files_changed": ("file changed", "files changed"),
    "files_read": ("file read", "files read"),
    "folders_changed": ("folder changed", "folders changed"),
    "hesitations": ("word of doubt", "words of doubt"),
    "last_edit_lines": ("line in the last edit", "lines in the last edit"),
    "last_turn_tokens": ("token in the last turn", "tokens in the last turn"),
    "lines_changed": ("line changed", "lines changed"),
    "output_tokens": ("token written", "tokens written"),
    "request_words": ("word in the request", "words in the request"),
    "rereads": ("file read again", "files read again"),
    "rewrites": ("edit of files changed before", "edits of files changed before"),
    "rules_broken": ("rule with findings", "rules with findings"),
    "runs": ("run of the code", "runs of the code"),
    "runs_after_write": ("run after the last change", "runs after the last change"),
    "standstill": ("iteration with the same failures", "iterations with the same failures"),
    "tool_text": ("character returned by tools", "characters returned by tools"),
    "turns": ("turn", "turns"),
    "words": ("word on the way", "words on the way"),
    "write_span": ("action from first to last change", "actions from first to last change"),
}
SHARE_WORDS = {
    "failing_last_quarter": "of the last actions failed",
    "failing_share": "of the actions failed",
    "feedback_share": "of the failing checks were acted on",
    "focus": "of the reads were of files that it changed",
    "first_write": "of the session was over at its first change",
    "last_write": "of the session was over at its last change",
    "repeated_actions": "of the actions were repeats",
}
PER_HUNDRED_WORDS = {
    "certainty": "words of certainty in a hundred",
    "hesitation": "words of doubt in a hundred",
}
EITHER_WORDS = {
    "ends_in_action": ("it ends in the middle of the work", "it ends with words of its own"),
    "ends_in_edit": ("its last action is an edit", "its last action is no edit"),
    "last_check_passes": ("the last check passes", "the last check fails"),
    "last_run_fails": ("the last run fails", "the last run does not fail"),
    "named_by_request": (
        "it changed a file that the request names",
        "it changed no file that the request names",
    ),
    "no_code_change": ("it changed no code", "it changed code"),
    "verified": ("a check ran after the last change", "no check ran after the last change"),
}


def describe_reason(
    feature: str, value: float, usual: float, effect: float, *, is_own: bool
) -> TriageReason:
    """`61 actions (usually 22)`; `is_own`: what is usual for the agent, not in public runs."""
    return TriageReason(
        feature=feature,
        value=value,
        usual=usual,
        effect=effect,
        text=_reason_text(feature, value, usual, "usually" if is_own else "public runs:"),
    )


def _reason_text(feature: str, value: float, usual: float, usually: str) -> str:
    if feature in EITHER_WORDS:
        return EITHER_WORDS[feature][value < 0.5]
    if feature in SHARE_WORDS:
        return f"{format_percent(value)} {SHARE_WORDS[feature]} ({usually} {format_percent(usual)})"
    if feature in PER_HUNDRED_WORDS:
        return f"{100 * value:.1f} {PER_HUNDRED_WORDS[feature]} ({usually} {100 * usual:.1f})"
    if feature in COUNT_NOUNS:
        return f"{count_with_noun(round(value), *COUNT_NOUNS[feature])} ({usually} {usual:,.0f})"
    return f"{feature.replace('_', ' ')} {value:g} ({usually} {usual:g})"
