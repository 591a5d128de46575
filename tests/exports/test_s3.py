"""Uploads to a server that speaks S3: moto's, whose buckets nobody but the test makes."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import httpx
import pytest
from moto.server import ThreadedMotoServer

from specreg.core.errors import ReportError
from specreg.report.uploading import upload_folder, upload_histories
from specreg.verdicts.history import History, load_history, record_history
from tests.unit import reports
from tests.unit.report.test_breakdown import CASE


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    """The storage, with one bucket that is called so."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    httpx.post(f"http://{host}:{port}/moto-api/reset")  # another server's buckets are here as well
    for name, text in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "somebody"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, text)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    storage = fsspec.filesystem("s3")
    storage.mkdir("bucket")
    yield storage
    server.stop()


def test_a_run_lies_in_the_bucket_as_in_its_folder(
    bucket: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "run-1/logs").mkdir(parents=True)
    (tmp_path / "run-1/logs/a.log").write_text("a")
    assert upload_folder(tmp_path / "run-1", "s3://bucket/x") == "s3://bucket/x/run-1"
    assert bucket.cat_file("bucket/x/run-1/logs/a.log") == b"a"


def test_no_bucket_is_made(bucket: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1/report.json").write_text("{}")
    with pytest.raises(
        ReportError, match=r"upload to 's3://other/x/run-1': .*bucket does not exist"
    ):
        upload_folder(tmp_path / "run-1", "s3://other/x")
    assert bucket.ls("") == ["bucket"]


def test_the_histories_of_two_runners_are_both_there(
    bucket: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    days = [reports.lived(day, tpot_p50_ms=float(day)) for day in (1, 2, 3)]
    for name, lived in (("a", days[:2]), ("b", days[2:]), ("a", [])):
        record_history(tmp_path / name / "history/cpu-x.jsonl", lived)
        upload_histories(tmp_path / name / "history", "s3://bucket/x")
    bucket.get_file("bucket/x/history/cpu-x.jsonl", str(tmp_path / "back"))
    assert load_history(tmp_path / "back") == History({CASE.id: tuple(days)})
