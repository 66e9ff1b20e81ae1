"""Deployment settings: replicas and resource shares of each stage; invalid combinations are refused. No Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from s1_mini import EngineConfig
from s1_mini.cluster import app, check, check_resources, has_peers, options_of, settings_of
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.registry import get_family
from s1_mini.remote.ray_settings import ClusterSettings, Count

STAGES = ("semantic", "coarse", "fine", "codec")
CPU = EngineConfig(device="cpu")


def test_variables_and_arguments_set_replicas_and_shares_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_CLUSTER_REPLICAS", "coarse=2, codec=1-4")
    monkeypatch.setenv("S1_MINI_MAX_BATCH_SIZE", "16")

    config, cluster = settings_of({"device": "cuda", "gpus": "coarse=0.5", "cpus": "codec=2"})

    assert cluster.replicas == {"coarse": Count(2, 2), "codec": Count(1, 4)}
    coarse = options_of("coarse", config, cluster, is_first=False)
    assert (coarse["num_replicas"], coarse["ray_actor_options"]) == (2, {"num_cpus": 0.2, "num_gpus": 0.5})
    codec = options_of("codec", config, cluster, is_first=False)
    assert codec["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 12}
    assert codec["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1}
    semantic = options_of("semantic", config, cluster, is_first=True)
    assert semantic["max_ongoing_requests"] == 16, "as many as it has slots: others go to another replica, or wait"
    assert codec["max_ongoing_requests"] > 100, "most of a later stage's wait for the stages before"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"replicas": "coarse"}, "'coarse' must be stage=number, with each stage only once"),
        (
            {"replicas": "semantic=2,coarse=0"},
            "REPLICAS='semantic=2,coarse=0': '0' must be a number of replicas, at least 1, or a range such as 1-4",
        ),
        ({"replicas": "coarse=4-2"}, "'4-2' must be a number of replicas"),
        ({"gpus": "coarse=-1"}, "S1_MINI_CLUSTER_GPUS='-1': Input should be greater than or equal to 0"),
        ({"gpu": "coarse=1"}, "gpu is not a setting"),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_by_name(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        settings_of(given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"replicas": "vocoder=2"},
            "S1_MINI_CLUSTER_REPLICAS: Bark has no stage vocoder; available: semantic, coarse, fine, codec and ingress",
        ),
        ({"placement": {"codec": "cpu"}}, r"placement: .* one process .*; on a cluster, S1_MINI_CLUSTER_GPUS"),
        ({"device": "cuda:1"}, "device='cuda:1' names one GPU. On a cluster, Ray assigns GPUs to replicas"),
        ({"gpus": "fine=0.5,codec=0.5"}, "fine, codec share a GPU, and .* KV cache .S1_MINI_KV_CACHE_GB"),
        ({"replicas": "ingress=2"}, "several replicas of ingress need a shared folder .* S1_MINI_VOICES_PATH"),
    ],
)
def test_a_placement_that_does_not_fit_the_family_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check(*settings_of(given), get_family("cascade"))


def test_several_ingresses_are_peers_of_each_other() -> None:
    assert not has_peers(settings_of({"replicas": "coarse=4"})[1])
    assert has_peers(settings_of({"replicas": "ingress=1-2"})[1])


@pytest.mark.parametrize(
    ("device", "given", "nodes", "sentence"),
    [
        (
            "cuda",
            {"replicas": "coarse=2"},
            [{"CPU": 8, "GPU": 4}],
            r"need 5 GPUs \(1 × semantic \(1 each\), 2 × coarse .*\), "
            "but the cluster has 4; reduce the number of replicas",
        ),
        (
            "cuda",
            {"gpus": "coarse=2"},
            [{"CPU": 8, "GPU": 1}] * 8,
            "a replica of coarse needs 2 GPUs, but the cluster's largest machine has 1",
        ),
        (
            "cpu",
            {"replicas": "fine=40"},
            [{"CPU": 2}],
            "need 8.6 CPUs .*, but the cluster has 2; .*S1_MINI_CLUSTER_CPUS",
        ),
    ],
)
def test_more_replicas_than_devices_are_refused_with_a_hint(
    device: str, given: dict[str, str], nodes: list[dict[str, float]], sentence: str
) -> None:
    config, names = EngineConfig(device=device), STAGES

    with pytest.raises(ConfigurationError, match=sentence):
        check_resources(config, ClusterSettings(**given), names, nodes)

    check_resources(config, ClusterSettings(**given, grows=True), names, nodes)
    check_resources(CPU, ClusterSettings(), names, [{"CPU": 2}])


def test_missing_ray_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("s1_mini.extras.find_spec", lambda name: None if name == "ray" else object())

    with pytest.raises(ConfigurationError, match=r'needs ray, which is not installed: pip install "s1-mini\[ray\]"'):
        app({"checkpoint_path": str(tmp_path)})
