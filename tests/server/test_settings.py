"""Server settings: variables, validation, and messages to the user."""

from __future__ import annotations

import warnings

import pytest

from s1_mini import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.remote.ray_settings import ClusterSettings
from s1_mini.sagemaker.environment import container_environment
from s1_mini.server.settings import ServerSettings
from s1_mini.variables import variables_of


def test_server_variables_are_read_and_do_not_confuse_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_SERVER_PORT", "9000")
    monkeypatch.setenv("S1_MINI_SERVER_CORS_ORIGINS", "https://a.example, https://b.example")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EngineConfig()
        settings = ServerSettings()

    assert settings.port == 9000
    assert settings.cors_origins == ("https://a.example", "https://b.example")


def test_a_wrong_value_is_named_and_a_key_is_never_shown() -> None:
    with pytest.raises(ConfigurationError, match="S1_MINI_SERVER_PORT=70000"):
        ServerSettings(port=70_000)
    with pytest.raises(ConfigurationError) as caught:
        ServerSettings(api_key=["sesame"])

    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(ServerSettings(api_key="sesame"))


@pytest.mark.parametrize("value", [",,", " ", ", ,"])
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        *[
            (ServerSettings, name)
            for name in ("api_key", "api_keys", "api_key_names", "cors_origins", "allowed_hosts", "voice_names")
        ],
        *[(EngineConfig, name) for name in ("placement", "vllm_stages")],
        *[(ClusterSettings, name) for name in ("replicas", "gpus", "cpus")],
    ],
)
def test_a_list_of_nothing_is_refused_by_name(
    settings: type, field: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (variable, *_) = variables_of(settings, field)
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigurationError, match=f"{variable}.*has no entry"):
        settings()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("alice,bob,carl", "the number of names is 3, that of keys 2"),
        ("alice", "the number of names is 1, that of keys 2"),
        ("alice,alice", "name 2 is a repeated one"),
        ("alice,a b", "name 2 .* letters, digits"),
    ],
)
def test_wrong_names_of_keys_are_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"S1_MINI_SERVER_API_KEY_NAMES.*{message}"):
        ServerSettings(api_key="first", api_keys="second", api_key_names=names)


def test_two_names_for_one_key_are_refused_and_a_comma_in_the_first_key_separates_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"S1_MINI_SERVER_API_KEY_NAMES: has two names for the same key"):
        ServerSettings(api_key="first", api_keys="second,first", api_key_names="alice,bob,carl")

    settings = ServerSettings(api_key="one,two", api_key_names="alice")
    assert (settings.keys, settings.key_name(0)) == (["one,two"], "alice")


def test_a_comma_too_many_in_a_list_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_SERVER_API_KEYS", "one,, two,")

    assert ServerSettings().keys == ["one", "two"]


def test_the_deadline_is_below_the_platforms_minute_and_the_drain_below_its_half() -> None:
    assert float(container_environment({})["S1_MINI_SERVER_REQUEST_TIMEOUT_S"]) < 60
    assert ServerSettings().drain_timeout_s < 30
