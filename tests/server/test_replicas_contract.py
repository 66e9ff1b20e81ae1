"""Two replicas behind one port pass the black-box tests of the server and the container.

These are the tests of other modules, unchanged; the doors that they are given are replicated here. Those of the
requests' and the responses' content are not repeated: behind the proxy the same code reads and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType

import httpx2
import pytest

from container_room import ENDPOINT
from replica_room import Replicas, needs_proxy, replicated
from tests.sagemaker import test_bidirectional, test_invocations, test_local_endpoint, test_models, test_sessions
from tests.sagemaker.conftest import runtime as runtime  # noqa: PLC0414 - a fixture of these tests, too
from tests.server import test_health, test_hostile, test_limits, test_tts, test_websocket

pytestmark = [needs_proxy, pytest.mark.long]

MODULES: tuple[ModuleType, ...] = (
    *(test_tts, test_websocket, test_limits, test_hostile),
    *(test_health, test_invocations, test_sessions, test_models, test_bidirectional, test_local_endpoint),
)
# Fixtures that work from outside. Other tests have their own engine, or patch one.
FIXTURES = {"http", "door", "container", "runtime", "strict", "tiny", "tone", "tmp_path"}
EXCEPT = {
    # these also inspect the process
    "test_health_reports_the_engines_health",
    "test_recordings_of_disconnected_clients_are_dropped",
    "test_a_client_that_disconnects_from_a_session_frees_its_slot",
    "test_a_flood_of_text_ends_the_session",
    "test_an_invalid_recording_opens_no_session",
    "test_lines_wait_for_a_queue_that_is_full_instead_of_failing",
    "test_a_client_that_disconnects_from_json_lines_leaves_nothing_behind",
    "test_a_name_that_sagemaker_would_not_take_is_refused",
    "test_a_client_that_closes_a_response_stream_frees_its_slot",
    "test_clearing_stops_the_audio_at_once_and_reports_how_much_was_sent_and_played",
    # hold the generation of an engine in the test's process; of the second, see test_replicas.py
    "test_clearing_after_the_end_of_the_text_ends_the_session",
    "test_a_client_that_disconnects_frees_its_slot",
    # hides a package from the test's process
    "test_without_its_package_accept_skips_aac_or_is_refused_with_the_extra",
    # metrics have a replica label, see test_replicas.py
    "test_metrics_count_synthesized_audio_and_have_no_labels_of_unknown_paths",
    "test_metrics_include_the_process",
    "test_the_dashboard_shows_only_existing_metrics",
    # limits of sessions and slots apply to each replica
    "test_batch_transform_gets_its_execution_parameters",
    "test_a_new_session_replaces_the_least_recently_used",
    # HAProxy merges the chunks, so that the body timeout ends it, and not the chunk count
    "test_a_body_in_chunks_of_one_byte_is_refused",
    # HAProxy drops the length, see test_replicas.py
    "test_a_request_with_both_a_length_and_chunks_is_refused_with_what_follows_it",
    # HAProxy drops the Upgrade of a request with a body, which makes it a plain request
    "test_an_invalid_websocket_handshake_is_answered_and_its_connection_closed",
    # HAProxy's own error page explains a bad request head, see test_replicas.py
    "test_malformed_http_is_refused_in_the_shape_of_all_errors",
    # independent of a proxy
    "test_custom_attributes_choose_another_route",
    "test_recordings_over_the_queue_limit_are_refused_and_plain_requests_are_served",
    "test_ping_answers_while_many_requests_are_being_generated",
}


@pytest.fixture(scope="module")
def container(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Two replicas with the settings of the container's tests."""
    size = sum(path.stat().st_size for path in tiny.glob("*.safetensors"))
    store = tmp_path_factory.mktemp("store")
    prefix = "S1_MINI_SERVER_SAGEMAKER_"
    budget = {f"{prefix}MODELS_KV_MB": "20", f"{prefix}MODELS_MEMORY_MB": str(2.5 * (2 * size / 1e6 + 20.0))}
    options = ("--local-endpoint", ENDPOINT, "--async-store", str(store))
    with replicated(tiny, store, *options, **{f"{prefix}MODELS_ROOT": str(tiny.parent)}, **budget) as door:
        yield door


@pytest.fixture(scope="module")
def strict(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Two replicas with a key and the small limits of the limits tests."""
    limits = {"MAX_BODY_BYTES": "4096", "BODY_TIMEOUT_S": "1", "HEAD_TIMEOUT_S": "1", "API_KEY": "sesame"}
    limits["CORS_ORIGINS"] = "https://a.example"
    settings = {f"S1_MINI_SERVER_{name}": value for name, value in limits.items()}
    with replicated(tiny, tmp_path_factory.mktemp("strict"), **settings) as door:
        yield door


@pytest.fixture(scope="module")
def door(container: Replicas) -> Replicas:
    return container


@pytest.fixture
def http(container: Replicas) -> Iterator[httpx2.Client]:
    with container.client() as client:
        yield client


def _tests() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the tests of all modules that need nothing but a server."""
    renamed = EXCEPT - {name for module in MODULES for name in vars(module)}
    assert not renamed, f"exceptions that name no test: {sorted(renamed)}"
    for module in MODULES:
        room = module.__name__.rpartition(".")[2].removeprefix("test_")
        for name, test in vars(module).items():
            if name.startswith("test_") and name not in EXCEPT:
                marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
                drawn = {one.strip() for mark in marks for one in _names(mark.args[0])}
                if set(signature(test).parameters) - drawn <= FIXTURES:
                    yield f"{name}__{room}", test


def _names(given: str | tuple[str, ...]) -> Iterable[str]:
    return given.split(",") if isinstance(given, str) else given


globals().update(_tests())
