"""Settings: what wins, what is refused, and that secrets stay hidden."""

from __future__ import annotations

import pytest

from buquet.config import AccessKeys, Settings
from buquet.errors import BadEndpoint, ConfigError, NoBucket, NoCredentials
from buquet.protocol.keys import Keys


def resolve(endpoint: str | None = None, bucket: str | None = "jobs", *, env=None, **arguments) -> Settings:
    return Settings.resolve(endpoint, bucket, env=env or {}, **arguments)


def test_the_environment_completes_the_arguments():
    env = {
        "S3_ENDPOINT": "http://localhost:4566",
        "S3_BUCKET": "from-env",
        "S3_REGION": "eu-west-1",
        "AWS_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "BUQUET_DRIVER": "minio",
        "BUQUET_PREFIX": "team/jobs",
    }
    assert Settings.resolve(env=env) == Settings(
        kind="s3",
        bucket="from-env",
        endpoint="http://localhost:4566",
        region="eu-west-1",
        driver="minio",
        prefix="team/jobs/",
        keys=AccessKeys("id", "secret", "token"),
    )


def test_an_argument_beats_the_environment():
    env = {
        "S3_ENDPOINT": "http://a",
        "S3_BUCKET": "env",
        "S3_REGION": "a",
        "BUQUET_DRIVER": "a",
        "BUQUET_PREFIX": "a",
    }
    settings = Settings.resolve("http://b", "argument", "b", driver="b", prefix="b", env=env)
    assert (settings.endpoint, settings.bucket, settings.region) == ("http://b", "argument", "b")
    assert (settings.driver, settings.prefix) == ("b", "b/")


@pytest.mark.parametrize("name", ["S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"])
def test_each_name_of_the_region(name):
    assert resolve(env={name: "eu-west-1"}).region == "eu-west-1"


@pytest.mark.parametrize("name", ["S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_each_name_of_the_endpoint(name):
    assert resolve(env={name: "http://host"}).endpoint == "http://host"


def test_empty_variables_are_unset():
    settings = resolve(
        env={"S3_ENDPOINT": "", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": ""}
    )
    assert (settings.endpoint, settings.keys, settings.profile) == (None, None, None)


def test_keys_come_from_one_source_alone():
    env = {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "e", "AWS_SESSION_TOKEN": "of another pair"}
    assert resolve(env=env, access_key_id="a", secret_access_key="b").keys == AccessKeys("a", "b", None)
    with pytest.raises(NoCredentials, match="secret_access_key is not"):
        resolve(env=env, access_key_id="a")
    with pytest.raises(NoCredentials, match="AWS_ACCESS_KEY_ID is not"):
        resolve(env={"AWS_SECRET_ACCESS_KEY": "e"})


def test_a_profile_beats_the_keys_of_the_environment_only_as_an_argument():
    env = {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "e", "AWS_PROFILE": "dev"}
    assert resolve(env=env).keys == AccessKeys("e", "e")
    assert resolve(env=env, profile="ops") == resolve(profile="ops")


def test_the_embedded_stores():
    assert Settings.resolve("local:./q.db", env={}) == Settings(kind="local", bucket="buquet", path="./q.db")
    assert Settings.resolve("memory:", "other", env={}) == Settings(kind="memory", bucket="other")


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("localhost:4566", "did you mean http://localhost:4566"),
        ("minio", "did you mean http://minio"),
        ("s3://jobs", "not an http"),
        ("http://", "names no host"),
        ("http://host?x=1", "must end before"),
        ("http://host:port", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("local:", "names no file"),
    ],
)
def test_a_bad_endpoint(endpoint, said):
    with pytest.raises(BadEndpoint, match=said.replace("?", r"\?")):
        resolve(endpoint)


def test_a_password_in_the_endpoint_is_refused_and_not_repeated():
    with pytest.raises(BadEndpoint) as caught:
        resolve("http://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


def test_no_bucket():
    with pytest.raises(NoBucket, match="S3_BUCKET"):
        resolve(bucket=None)


@pytest.mark.parametrize("bucket", ["a", "s3://jobs", "jobs/sub", "jobs?", "-jobs", "jobs\n"])
def test_not_a_bucket(bucket):
    with pytest.raises(ConfigError, match="not a bucket's name"):
        resolve(bucket=bucket)


def test_a_directory_bucket_is_refused():
    with pytest.raises(ConfigError, match="Express One Zone"):
        resolve(bucket="jobs--use1-az4--x-s3")


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("/", ""), ("/a", "a/"), ("a/b/", "a/b/")])
def test_prefix(given, prefix):
    assert resolve(prefix=given).prefix == prefix


@pytest.mark.parametrize("prefix", ["a//b", "a\\b", "a/../b", ".", "a b", "ü", "a%20b"])
def test_a_bad_prefix(prefix):
    with pytest.raises(ConfigError, match="prefix"):
        resolve(prefix=prefix)


FOLDERS = {
    key.partition("/")[0]
    for key in (
        Keys().ready,
        Keys().tasks,
        Keys().sessions,
        Keys().all_failed,
        Keys().poison("01a228b4-8bdd-7000-9548-987c2d220000"),
        Keys().schedules,
        Keys().schedule_run("x"),
        "probe/",
    )
}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_queue_does_not_lie_in_a_folder_of_another_one(folder):
    """A queue that is its parent would take its objects for its own."""
    assert len(FOLDERS) == 8
    for prefix in (folder, f"{folder}/a", f"a/{folder}", f"/{folder}/"):
        with pytest.raises(ConfigError, match=f"with '{folder}'"):
            resolve(prefix=prefix)
    assert resolve(prefix=f"my-{folder}").prefix == f"my-{folder}/"


def test_no_secret_in_a_repr():
    settings = resolve(access_key_id="AKIDKEY", secret_access_key="hunter2", session_token="sesame")
    for hidden in ("AKIDKEY", "hunter2", "sesame"):
        assert hidden not in repr(settings)


@pytest.mark.parametrize("endpoint", ["http://host/jobs", "http://host:9000/jobs/", "https://host/a/jobs"])
def test_an_endpoint_that_ends_in_the_bucket(endpoint):
    """It would be a folder of that name in the bucket: a second queue beside the one that was meant."""
    with pytest.raises(BadEndpoint, match="ends in the bucket's name"):
        Settings.resolve(endpoint, "jobs", env={})
    assert Settings.resolve("http://host/jobs", "other", env={}).endpoint == "http://host/jobs"
