"""URIs and the roots below which they may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindeval.service import settings
from mindeval.service.errors import ServiceError
from mindeval.service.ingest.uris import StorageRoots, parse_uri

DTYPES = {"f2": "F16", "f4": "F32", "i8": "I64"}


def test_uris_are_read_in_one_way() -> None:
    place = parse_uri("s3://bucket/a/b c/数据/")
    assert (place.scheme, place.bucket, place.path, str(place)) == (
        "s3",
        "bucket",
        "a/b c/数据",
        "s3://bucket/a/b c/数据",
    )
    assert parse_uri("file:///").path == "/"
    assert parse_uri("file:///a").is_below(parse_uri("file:///"))
    assert not parse_uri("file:///ab").is_below(parse_uri("file:///a"))
    assert not parse_uri("s3://one/a").is_below(parse_uri("s3://other/a"))


@given(st.text(), st.sampled_from(["", "file:///", "file://", "s3://bucket/", "s3://"]))
def test_any_text_is_a_plain_place_or_refused(text: str, start: str) -> None:
    try:
        place = parse_uri(start + text)
    except ServiceError as error:
        assert error.reason in ("INVALID_FIELD", "URI_FORBIDDEN")
    else:
        assert parse_uri(str(place)) == place
        assert not {"", ".", ".."} & set(place.parts)
        assert os.path.normpath(place.path) == (place.path or ".")


def test_roots_are_a_table_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        f'data_dir = "{tmp_path}/data"\n'
        f'[storage_roots]\nteam-a = ["file://{tmp_path}/a/", "s3://models/team-a"]\n"*" = ["file://{tmp_path}/all"]\n'
    )
    roots = StorageRoots(settings.load({}, {}, file).storage_roots)
    assert [str(root) for root in roots.of("team-a")] == [
        f"file://{tmp_path}/a",
        "s3://models/team-a",
        f"file://{tmp_path}/all",
    ]
    assert [str(root) for root in roots.of("other")] == [f"file://{tmp_path}/all"]
    assert StorageRoots(settings.Settings().storage_roots).of("team-a") == ()


@pytest.mark.parametrize(
    ("roots", "words"),
    [
        ('["file:///a"]', "not a table"),
        ('{"p": "file:///a"}', "not a list of URIs"),
        ('{"p": [1]}', "not text"),
        ('{"p q": ["file:///a"]}', "not an id"),
        ('{"p": ["file:///a/../b"]}', "'..'"),
        ('{"p": ["http://a"]}', "scheme"),
        ('{"p": ["file:///"]}', "data directory"),
        ("{", "storage_roots|STORAGE_ROOTS"),
    ],
)
def test_roots_that_cannot_be_used(tmp_path: Path, roots: str, words: str) -> None:
    with pytest.raises(settings.SettingsError, match=words):
        settings.load({"data_dir": tmp_path / "data"}, {"MINDEVAL_STORAGE_ROOTS": roots})


def test_a_root_must_not_hold_the_data_directory(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "data", tmp_path / "data" / "imports"):
        with pytest.raises(settings.SettingsError, match="data directory"):
            settings.load({"data_dir": tmp_path / "data"}, {"MINDEVAL_STORAGE_ROOTS": f'{{"p": ["file://{root}"]}}'})
