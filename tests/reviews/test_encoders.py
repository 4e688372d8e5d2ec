"""Encoders: what they keep to, how often the right rule is found, and how fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop import plugins
from closeloop.cli import main
from closeloop.contracts import check_encoder
from closeloop.providers.model_opening import open_provider_encoder as open_provider
from closeloop.records.errors import BadInput, Fault, PluginFailed
from closeloop.records.settings import MemorySettings, ModelSettings, Settings
from closeloop.reviews import minilm, ngrams
from closeloop.reviews.minilm import encode_pieces, split_words
from closeloop.reviews.rule_index import (
    encode_texts,
    open_encoder,
    score_nearest,
    vectors_for_texts,
)
from closeloop.store import open_store

sys.path.append(str(Path(__file__).resolve().parents[2] / "quality"))
import memory as quality

local = pytest.mark.skipif(not minilm.ready(), reason="run `closeloop admin encoder install`")


def test_every_encoder_that_is_here_keeps_the_contract() -> None:
    found = [one for one in plugins.load_plugins("encoders") if one.ready()]
    assert ngrams in found
    for encoder in found:
        check_encoder(encoder)


@settings(deadline=None)
@given(st.lists(st.text(max_size=300), max_size=5))
def test_ngrams_take_any_text(texts: list[str]) -> None:
    rows = ngrams.encode(texts)
    assert rows.shape == (len(texts), ngrams.WIDTH)
    assert np.isfinite(rows).all()


def test_no_contrary_is_confirmed_and_the_floor_holds() -> None:
    assert quality.confirmed() == []
    found = quality.score(ngrams)
    assert found.top3 is not None
    assert found.top3.value >= 0.35
    assert found.opposite is not None
    assert found.opposite.value >= 0.9


def test_the_nearest_of_a_hundred_thousand_rules_are_found_in_a_moment() -> None:
    assert quality.speed(ngrams) < 50


@local
def test_the_local_encoder_finds_the_right_rule_in_the_top_three() -> None:
    found = quality.score(minilm)
    assert found.top3 is not None
    assert found.kept is not None
    assert found.top3.value >= 0.84
    assert found.kept.value >= 0.84


@local
def test_the_local_encoder_gives_the_numbers_that_its_makers_publish() -> None:
    row = minilm.encode(["This is an example sentence"])[0]
    assert row[:3] == pytest.approx([0.067657, 0.063496, 0.048713], abs=1e-5)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_pieces(text: str) -> None:
    vocabulary = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "##b": 4}
    numbers = encode_pieces(text, vocabulary, 16)
    assert numbers[0] == 0
    assert numbers[-1] == 1
    assert len(numbers) <= 16


def test_words_are_cut_as_the_vocabulary_was_made() -> None:
    assert list(split_words("Héllo, don't 日本 foo_bar")) == [
        "hello", ",", "don", "'", "t", "日", "本", "foo", "_", "bar",
    ]  # fmt: skip


def test_auto_takes_the_best_that_is_here_and_an_unknown_name_is_bad_input(tmp_path: Path) -> None:
    best = minilm if minilm.ready() else ngrams
    assert open_encoder(Settings(), tmp_path, {}) is best
    named = Settings(memory=MemorySettings(encoder="ngram"))
    with pytest.raises(BadInput, match="Did you mean 'ngrams'"):
        open_encoder(named, tmp_path, {})


def test_vectors_are_made_once_and_kept_apart_by_encoder() -> None:
    class Counting:
        id, floor, alike = "counting:1", 0.0, 0.5
        made = 0

        def ready(self) -> bool:
            return True

        def encode(self, texts: Any) -> Any:
            Counting.made += len(texts)
            return np.eye(4, dtype=np.float32)[: len(texts)]

    with open_store(":memory:") as store:
        vectors_for_texts(["one", "two"], Counting(), store)
        vectors_for_texts(["two", "one"], Counting(), store)
        assert Counting.made == 2
        vectors_for_texts(["one"], ngrams, store)
        assert (
            len(
                store.memory.load_vectors(
                    "counting:1", [*vectors_for_texts(["one"], Counting(), store)]
                )
            )
            == 1
        )


@pytest.mark.parametrize("answer", [np.zeros(3), np.zeros((2, 3)), None])
def test_an_encoder_that_breaks_is_the_plugins_fault(answer: Any) -> None:
    class Broken:
        id, floor, alike = "broken:1", 0.0, 0.5

        def ready(self) -> bool:
            return True

        def encode(self, texts: Any) -> Any:
            return answer

    with pytest.raises(PluginFailed, match="broken:1"):
        encode_texts(["one"], Broken())


# A provider


class Server(BaseHTTPRequestHandler):
    """Speaks as much of OpenAI's format as there is to embeddings; says them in reverse order."""

    answer: Any = None
    asked: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
        Server.asked.append(body)
        rows = [
            {"index": at, "embedding": [float(len(text)), 1.0]}
            for at, text in enumerate(body["input"])
        ]
        content = msgspec.json.encode(self.answer or {"data": rows[::-1]})
        self.send_response(200 if self.path == "/v1/embeddings" else 404)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    Server.answer, Server.asked = None, []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def by_provider(address: str, **model: Any) -> Any:
    known = ModelSettings(provider="openai", model="embed", base_url=address, retries=0, **model)
    return open_provider("mine", Settings(models={"mine": known}), {}, Path())


def test_a_provider_gives_vectors_in_the_order_that_was_asked_for(address: str) -> None:
    encoder = by_provider(address)
    rows = encoder.encode(["a" * length for length in range(1, 100)])
    assert [round(row[0] / row[1]) for row in rows] == [*range(1, 100)]
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
    assert len(Server.asked) == 2
    check_encoder(encoder)


@pytest.mark.parametrize(
    "answer",
    [{"data": []}, {"data": [{"embedding": ["x"]}]}, {"data": [{"embedding": []}]}, [1], {"a": 1}],
)
def test_a_wrong_answer_of_a_provider_is_a_fault_in_plain_words(address: str, answer: Any) -> None:
    Server.answer = answer
    with pytest.raises(Fault, match=r"embeddings|not JSON"):
        by_provider(address).encode(["one"])


def test_a_provider_without_embeddings_is_bad_input() -> None:
    other = ModelSettings(provider="anthropic", model="m", base_url="http://127.0.0.1:9")
    with pytest.raises(BadInput, match="has no embeddings"):
        open_provider("mine", Settings(models={"mine": other}), {}, Path())


def test_the_command_says_which_encoder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closeloop.toml").write_text('[memory]\nencoder = "ngrams"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["admin", "encoder", "--json"])
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert [row["name"] for row in rows["items"] if row["used"]] == ["ngrams"]
    with pytest.raises(SystemExit):
        main(["admin", "encoder"])
    assert "ngrams:2" in capsys.readouterr().out
    assert not (tmp_path / ".closeloop").exists()


def test_files_that_are_not_the_ones_known_to_work_are_refused(tmp_path: Path) -> None:
    for name in minilm.FILE_SHA256:
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(BadInput, match="encoder install"):
        minilm.verify_model_files(tmp_path)


def test_of_rules_that_are_about_as_near_the_one_said_more_often_comes_first() -> None:
    remark, nearer = "Please add unit tests", "Add unit tests for files"
    near = "Add some more unit tests for the loader class"
    texts = quality.EncodedTexts([remark, near, nearer], ngrams)
    known = texts.index([quality.rule("once", nearer, nearer), quality.rule("often", near)])
    scored = score_nearest(known, remark, texts.vectors(remark))
    assert [rule.id for _, rule, _ in scored] == ["once", "often"]
    known = texts.index(
        [quality.rule("once", nearer, nearer), quality.rule("often", near, near, near, near, near)]
    )
    again = score_nearest(known, remark, texts.vectors(remark))
    assert [rule.id for _, rule, _ in again] == ["often", "once"]
    # The order changes, and not what is near enough to be asked about.
    assert {rule.id: score for score, rule, _ in again} == {
        rule.id: score for score, rule, _ in scored
    }
