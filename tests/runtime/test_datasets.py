from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindeval.formats.digest import digest_bytes
from mindeval.service.runtime.datasets.documents import Document, read_documents
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import BlobLocation, DatasetFile, DatasetRequest
from mindeval.service.runtime.models.adapter import ModelSpec
from mindeval.service.runtime.tasks.prepared import PreparedDatasets
from mindeval.service.runtime.tokenization import ByteEncoder


def dataset(folder: Path, data: bytes | dict[str, bytes], kind: str, **fields: Any) -> DatasetRequest:
    named = data if isinstance(data, dict) else {"data.bin": data}
    files = []
    for path, content in named.items():
        (folder / path).write_bytes(content)
        files.append(DatasetFile(path, digest_bytes(content), BlobLocation(str(folder / path), 0, len(content))))
    values = {"version": "d", "language": "en", "text_field": "text", "padding_token": None, **fields}
    return DatasetRequest(format=kind, files=tuple(files), **values)


def read(folder: Path, data: bytes | dict[str, bytes], kind: str, **fields: Any) -> list[Document]:
    return read_documents(dataset(folder, data, kind, **fields), ByteEncoder(), lambda: None)


def failure(folder: Path, data: bytes, kind: str, **fields: Any) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        read(folder, data, kind, **fields)
    return caught.value


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def text(document: Document) -> str:
    return document.tokens.astype(np.uint8).tobytes().decode()


def test_text_is_one_document_a_file_as_it_is(tmp_path: Path) -> None:
    documents = read(tmp_path, {"a.txt": b" one\ntwo \n", "blank.txt": b" \n", "b.txt": "三".encode()}, "text")
    assert [(d.sample, text(d)) for d in documents] == [("a.txt", " one\ntwo \n"), ("b.txt", "三")]
    # Words are pieces of a split on white space, empty ones at the ends included.
    assert [(d.words, d.utf8_bytes) for d in documents] == [(4, 10), (1, 3)]


def test_text_lines_are_named_by_line(tmp_path: Path) -> None:
    data = "one\r\n\n  \ntwo\u2028still two\nthree".encode()
    documents = read(tmp_path, data, "text_lines")
    assert [(d.sample, text(d)) for d in documents] == [
        ("data.bin:1", "one"),
        ("data.bin:4", "two\u2028still two"),
        ("data.bin:5", "three"),
    ]


def test_jsonl_takes_the_declared_field(tmp_path: Path) -> None:
    data = '\ufeff{"body": "one"}\n\n{"body": "", "text": 3}\n{"body": "\\u4e09"}\n'.encode()
    documents = read(tmp_path, data, "jsonl", text_field="body")
    assert [(d.sample, text(d)) for d in documents] == [("data.bin:1", "one"), ("data.bin:3", ""), ("data.bin:4", "三")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{nonsense}", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"body": "x"}', "no field 'text'"),
        (b'{"text": 1}', "int"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    error = failure(tmp_path, b'{"text": "good"}\n' + line + b"\n", "jsonl")
    assert error.reason == "DATASET_INVALID"
    assert message in error.message
    assert (error.metadata["file"], error.metadata["line"]) == ("data.bin", "2")


@pytest.mark.parametrize("kind", ["text", "text_lines"])
def test_text_that_is_not_utf8_is_named_by_line(tmp_path: Path, kind: str) -> None:
    error = failure(tmp_path, b"good\nb\xe4d\n", kind)
    assert (error.reason, error.metadata["sample"]) == ("DATASET_INVALID", "data.bin:2")


@pytest.mark.parametrize(("data", "kind"), [(b"", "text"), (b"\n\n", "text_lines"), (b"", "jsonl")])
def test_a_dataset_without_documents_is_empty(tmp_path: Path, data: bytes, kind: str) -> None:
    error = failure(tmp_path, data, kind)
    assert (error.reason, error.metadata["file"]) == ("DATASET_EMPTY", "data.bin")


def test_token_rows_lose_padding_at_both_ends(tmp_path: Path) -> None:
    data = npy(np.array([[0, 0, 5, 6], [7, 0, 8, 0], [0, 0, 0, 0]], dtype=np.uint16))
    documents = read(tmp_path, data, "tokens_npy", padding_token=0)
    assert [d.sample for d in documents] == ["data.bin:0", "data.bin:1", "data.bin:2"]
    assert [d.tokens.tolist() for d in documents] == [[5, 6], [7, 0, 8], []]
    scored = documents[1].scored
    assert scored is not None
    assert scored.tolist() == [True, False, True]


def test_a_flat_array_is_one_document(tmp_path: Path) -> None:
    (document,) = read(tmp_path, npy(np.arange(5)), "tokens_npy")
    assert (document.sample, document.tokens.tolist()) == ("data.bin", [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "data",
    [
        b"no array",
        npy(np.zeros(3)),
        npy(np.zeros((2, 2, 2), dtype=np.int32)),
        npy(np.array(3)),
        npy(np.array([2**63], dtype=np.uint64)),
        npy(np.arange(100))[:-9],
        npy(np.arange(3)).replace(b"<i8", b"|O "),
    ],
)
def test_a_bad_array_is_named(tmp_path: Path, data: bytes) -> None:
    error = failure(tmp_path, data, "tokens_npy")
    assert (error.reason, error.metadata["file"]) == ("DATASET_INVALID", "data.bin")


def test_changed_bytes_are_refused(tmp_path: Path) -> None:
    request = dataset(tmp_path, b"some text", "text")
    (tmp_path / "data.bin").write_bytes(b"same_text")
    with pytest.raises(RunnerError) as caught:
        read_documents(request, ByteEncoder(), lambda: None)
    assert (caught.value.reason, caught.value.metadata["file"]) == ("DATASET_INVALID", "data.bin")


SPEC = ModelSpec(vocab_size=300, max_length=8, prefix_token_id=256, prefix="bos", tokenizer="bytes")


def prepare(request: DatasetRequest, prefix: int | None = 256) -> Any:
    encoder = None if request.format == "tokens_npy" else ByteEncoder()
    return PreparedDatasets().get(request, SPEC, encoder, prefix=prefix, max_length=8, check=lambda: None)


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        prepare(dataset(tmp_path, npy(np.array([[1, 2], [3, 300]])), "tokens_npy"))
    assert caught.value.reason == "TOKEN_OUT_OF_VOCABULARY"
    assert caught.value.metadata == {
        "sample": "data.bin:1",
        "token": "300",
        "position": "1",
        "vocabulary_size": "300",
    }


def test_the_prefix_token_is_never_doubled(tmp_path: Path) -> None:
    prepared = prepare(dataset(tmp_path, npy(np.array([[256, 2, 3], [4, 5, 6]])), "tokens_npy"))
    assert [entry.window.inputs.tolist() for entry in prepared.entries] == [[256, 2], [256, 4, 5]]
    assert prepared.tokens == 5


def test_words_and_bytes_stand_on_the_first_window_only(tmp_path: Path) -> None:
    prepared = prepare(dataset(tmp_path, b"twenty bytes of text", "text"))
    assert [(e.index, e.words, e.utf8_bytes) for e in prepared.entries] == [(0, 4, 20), (1, 0, 0), (2, 0, 0)]


def test_a_document_with_nothing_to_score_still_counts(tmp_path: Path) -> None:
    prepared = prepare(dataset(tmp_path, b"a\nbc\n", "text_lines"), prefix=None)
    assert prepared.documents == 2
    assert [(e.sample, e.window.targets.size, e.utf8_bytes) for e in prepared.entries] == [
        ("data.bin:1", 0, 1),
        ("data.bin:2", 1, 2),
    ]


def test_only_padding_is_an_empty_dataset(tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        prepare(dataset(tmp_path, npy(np.zeros((2, 3), dtype=np.int64)), "tokens_npy", padding_token=0))
    assert caught.value.reason == "DATASET_EMPTY"
