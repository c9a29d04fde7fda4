"""Files, variables and flags: what beats what."""

from __future__ import annotations

from command_line import Cli


def config(cli: Cli, *arguments: str, **options: object) -> dict[str, tuple[str, str]]:
    (shown,) = cli.json("config", *arguments, **options)
    return {name: (row["value"], row["from"]) for name, row in shown.items()}


def test_each_source_beats_the_one_before(local: Cli) -> None:
    del local.environment["S3_ENDPOINT"]
    own, project = local.folder / "buquet.toml", local.folder / "pyproject.toml"
    own.write_text('endpoint = "local:a.db"\nprefix = "a"\ndriver = "s3"\n[submit]\nretries = 7\n')
    assert config(local)["endpoint"] == ("local:a.db", str(own))
    project.write_text('[tool.buquet]\nendpoint = "local:b.db"\nprefix = "b"\n')
    shown = config(local)
    assert shown["endpoint"] == ("local:b.db", str(project))
    assert shown["driver"] == ("s3", str(own))
    assert shown["submit.retries"] == (7, str(own))
    variables = {"BUQUET_PREFIX": "c", "S3_ENDPOINT": ""}
    assert config(local, env=variables)["prefix"] == ("c", "BUQUET_PREFIX")
    assert config(local, env=variables)["endpoint"] == ("local:b.db", str(project))
    assert config(local, "--prefix", "d", env=variables)["prefix"] == ("d", "--prefix")

    (task,) = local.json("submit", "echo")
    assert task["max_retries"] == 7
    (task,) = local.json("submit", "echo", env={"BUQUET_SUBMIT_RETRIES": "8"})
    assert task["max_retries"] == 8
    (task,) = local.json("submit", "echo", "--retries", "9", env={"BUQUET_SUBMIT_RETRIES": "8"})
    assert task["max_retries"] == 9
    assert (local.folder / "b.db").exists()
    assert not (local.folder / "a.db").exists()
    below = local.folder / "below"
    below.mkdir()
    assert config(Cli(below, local.environment))["endpoint"] == ("local:b.db", str(project))


def test_a_verb_of_a_group_has_a_table_of_its_own(local: Cli) -> None:
    (local.folder / "buquet.toml").write_text('[schedule.create]\ntimezone = "Asia/Tokyo"\n')
    (made,) = local.json("schedule", "create", "s", "echo", "0 0 * * *")
    assert made["timezone"] == "Asia/Tokyo"


def test_a_profile_of_a_file_gives_way_to_keys_in_the_environment(local: Cli) -> None:
    (local.folder / "buquet.toml").write_text('profile = "jobs"\n')
    keys = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "S3_ENDPOINT": "http://127.0.0.1:9",
    }
    place = ["--bucket", "jobs"]
    assert "AWS_ACCESS_KEY_ID" in config(local, *place, env=keys)["credentials"][1]
    assert config(local, *place, env={"S3_ENDPOINT": keys["S3_ENDPOINT"]})["credentials"][1].endswith("jobs")
    assert config(local, *place, "--profile", "other", env=keys)["credentials"][1].endswith("other")
    shown = local("config", *place, env=keys)
    assert "secret" not in shown.stdout.replace("AWS_SECRET_ACCESS_KEY", "")


def test_a_wrong_file_is_told(local: Cli) -> None:
    file = local.folder / "buquet.toml"
    for text, said in {
        "endpoint = ": "buquet.toml cannot be read",
        'buckets = "jobs"': "unknown key 'buckets'; there are endpoint, bucket",
        "[submit]\nretry = 1": "[submit] has an unknown key 'retry'; there are",
    }.items():
        file.write_text(text)
        assert said in local.refused("submit", "echo")


def test_what_is_wrong_is_told_after_what_holds(local: Cli) -> None:
    result = local("config", "--endpoint", "http://127.0.0.1:9", code=2)
    assert "http://127.0.0.1:9" in result.stdout
    assert result.stderr.startswith("Error: no bucket is configured: pass --bucket or set S3_BUCKET (")


def test_json_can_be_asked_for_by_a_variable(local: Cli) -> None:
    assert local("config", env={"BUQUET_JSON": "1"}).stdout.startswith("{")
