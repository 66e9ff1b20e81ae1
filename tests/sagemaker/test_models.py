"""The multi-model container API: load, list, invoke and unload within one memory budget."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from container_room import SHORT
from door_room import Door
from s1_mini.sagemaker.models import HostedModels
from s1_mini.types import EngineState
from waiting import wait_until


@pytest.fixture
def hosted(container: Door) -> HostedModels:
    models: HostedModels = container.app.state.hosted
    return models


def load(http: httpx2.Client, name: str, url: Path | str) -> httpx2.Response:
    return http.post("/models", json={"model_name": name, "url": str(url)})


def test_models_are_loaded_listed_invoked_and_unloaded(http: httpx2.Client, tiny: Path) -> None:
    assert load(http, "one", tiny).status_code == 200
    again = load(http, "one", tiny)
    assert load(http, "two", tiny).status_code == 200
    third = load(http, "three", tiny)

    listed = http.get("/models").json()["models"]
    page = http.get("/models", params={"limit": 1}).json()
    rest = http.get("/models", params={"limit": 1, "next_page_token": page["nextPageToken"]}).json()
    said = http.post("/models/one/invoke", json=SHORT, headers={"X-Amzn-SageMaker-Target-Model": "one.tar.gz"})
    described = http.get("/models/two").json()
    gone = [http.delete(f"/models/{name}").status_code for name in ("one", "two")]

    assert (again.status_code, again.json()["error"]["code"]) == (409, "model_already_loaded")
    assert (third.status_code, third.json()["error"]["code"]) == (507, "model_memory_exceeded")
    assert [model["modelName"] for model in listed] == ["one", "two"]
    assert [model["modelName"] for model in page["models"] + rest["models"]] == ["one", "two"]
    assert "nextPageToken" not in rest
    assert said.content == http.post("/invocations", json=SHORT).content
    assert described == {"modelName": "two", "modelUrl": str(tiny)}
    assert gone == [200, 200]
    assert http.get("/models").json() == {"models": []}


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/invoke")])
def test_a_model_that_is_not_loaded_is_404(http: httpx2.Client, method: str, path: str) -> None:
    answer = http.request(method, f"/models/none{path}", json=None if method != "POST" else SHORT)

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "url", ["/", "/etc", "../..", "{root}/../..", "{root}/nothing", "{root}/s1_mini_keys.txt", "x\x00y"]
)
def test_only_folders_below_the_root_are_loaded(http: httpx2.Client, tiny: Path, url: str) -> None:
    answer = load(http, "other", url.replace("{root}", str(tiny.parent)))

    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "url")


@pytest.mark.parametrize("name", ["../x", "a b", "-x", "x" * 129, ""])
def test_a_name_that_could_be_a_path_is_refused(http: httpx2.Client, tiny: Path, name: str) -> None:
    answer = load(http, name, tiny)

    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "model_name")


def test_a_folder_without_a_checkpoint_leaves_nothing_loaded(http: httpx2.Client, tiny: Path) -> None:
    answer = load(http, "broken", tiny.parent)

    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "url"
    assert http.get("/models/broken").status_code == 404


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"next_page_token": "-1"}])
def test_an_invalid_page_token_is_refused_by_its_field(http: httpx2.Client, query: dict[str, str]) -> None:
    answer = http.get("/models", params=query)

    assert (answer.status_code, answer.json()["error"]["field"]) == (422, *query)


def test_a_model_whose_engine_has_failed_is_unloaded_and_can_be_loaded_again(
    http: httpx2.Client, hosted: HostedModels, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(http, "one", tiny)
    monkeypatch.setattr(hosted.get("one").engine, "state", lambda: EngineState("failed"))

    wait_until(lambda: http.get("/models").json() == {"models": []})

    assert http.post("/models/one/invoke", json=SHORT).status_code == 404
    wait_until(lambda: load(http, "one", tiny).status_code == 200)
    assert http.post("/models/one/invoke", json=SHORT).status_code == 200
    http.delete("/models/one")
