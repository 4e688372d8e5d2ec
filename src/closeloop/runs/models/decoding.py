"""What an answer of each format says, in our own records."""

from __future__ import annotations

from closeloop.runs.models import anthropic, gemini, openai, responses

DECODERS = {
    "openai": openai.decode,
    "responses": responses.decode,
    "anthropic": anthropic.decode,
    "gemini": gemini.decode,
}
