"""What an answer of each format says, in our own records."""

from __future__ import annotations

from closeloop.providers import anthropic_format, gemini_format, openai_format, responses_format

DECODERS = {
    "openai": openai_format.decode_openai,
    "responses": responses_format.decode_responses,
    "anthropic": anthropic_format.decode_anthropic,
    "gemini": gemini_format.decode_gemini,
}
