"""Resource accounts: what each client holds, refusals and evictions. Pure bookkeeping, no sockets."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from s1_mini.server.accounts import Accounts, IdlePool, Resource, client_of
from s1_mini.server.errors import BusyError, TooManyRequestsError

REQUESTS, BYTES, CONNECTIONS = Resource.REQUESTS, Resource.BODY_BYTES, Resource.CONNECTIONS


def accounts(limit: int = 100, **named: object) -> Accounts:
    return Accounts(dict.fromkeys(Resource, limit), **named)


def fill(held: Accounts, client: str, resource: Resource, most: int = 1000) -> int:
    """Hold as much as the client may, one unit at a time; return the total."""
    for number in range(most):
        if held.refusal(client, resource, 1) is not None:
            return number
        held.hold(client).set(resource, 1)
    return most


@pytest.mark.parametrize("num_hogs", [1, 2, 3])
def test_clients_that_use_their_whole_share_leave_room_for_a_new_one(num_hogs: int) -> None:
    held = accounts(1000)
    for hog in range(num_hogs):
        assert fill(held, f"hog {hog}", REQUESTS) > 0

    assert held.refusal("newcomer", REQUESTS, 1) is None


def test_a_single_client_may_hold_three_quarters_and_is_refused_more() -> None:
    held = accounts(100)

    assert fill(held, "client", REQUESTS) == 75
    assert isinstance(held.refusal("client", REQUESTS, 1), TooManyRequestsError)


def test_clients_behind_one_address_are_not_refused_below_the_limit() -> None:
    held = accounts(100, by_client=False)

    assert fill(held, "platform", REQUESTS) == 100
    assert isinstance(held.refusal("platform", REQUESTS, 1), BusyError)


@pytest.mark.parametrize("by_client", [True, False])
def test_large_requests_of_one_client_leave_room_for_its_small_ones(by_client: bool) -> None:
    held = accounts(256 * 2**20, by_client=by_client)
    for _ in range(20):
        large = held.hold("client")
        for _ in range(16 * 16):  # 16 MiB in pieces of 64 KiB
            try:
                large.add(BYTES, 64 * 1024)
            except (BusyError, TooManyRequestsError):
                break

    assert held.refusal("client", BYTES, 10_000) is None


def test_a_client_at_its_own_limit_is_told_the_limit() -> None:
    held = accounts(by_client=True, max_requests_per_client=1)
    held.hold("client").add(REQUESTS, 1)

    assert str(held.refusal("client", REQUESTS, 1)).startswith("Your limit of texts in progress (1) is reached.")


def test_a_limit_of_one_can_be_used() -> None:
    held = accounts(1)
    one = held.hold("client")
    one.set(REQUESTS, 1)

    assert isinstance(held.refusal("other", REQUESTS, 1), BusyError)
    one.release()
    assert held.refusal("other", REQUESTS, 1) is None


def test_the_fixed_limit_of_a_client_counts_below_its_share() -> None:
    held = accounts(100, max_requests_per_client=2)

    assert fill(held, "client", REQUESTS) == 2
    assert held.refusal("other", REQUESTS, 1) is None


def test_a_refused_request_is_not_charged() -> None:
    held = accounts(100)
    one = held.hold("client")
    one.set(BYTES, 10)

    with pytest.raises((BusyError, TooManyRequestsError)):
        one.set(BYTES, 90)

    assert held.of("client", BYTES) == one.get(BYTES) == 10


def test_releasing_a_request_releases_its_parts() -> None:
    held = accounts(1000)
    whole = held.hold("client")
    parts = [whole.part() for _ in range(3)]
    for part in parts:
        part.set(REQUESTS, 1)
        part.set(BYTES, 10)
    parts[0].release()
    assert (held.total(REQUESTS), whole.sum(BYTES)) == (2, 20)

    whole.release()

    assert held.total(REQUESTS) == held.total(BYTES) == 0
    assert held.clients == []


def test_totals_are_the_sums_of_all_holdings_whatever_happens() -> None:
    chance = random.Random(1)
    held = accounts(200)
    holdings = [(client, held.hold(client)) for client in "abcd" for _ in range(5)]
    for _ in range(5000):
        owner, holding = chance.choice(holdings)
        resource = chance.choice([REQUESTS, BYTES])
        if chance.random() < 0.2:
            holding.release()
            number = holdings.index((owner, holding))
            holdings[number] = owner, held.hold(owner)
        elif chance.random() < 0.3:
            holding.part().set(resource, chance.randrange(3), checked=False)
        else:
            with suppress(BusyError, TooManyRequestsError):
                holding.set(resource, chance.randrange(40))
        for each in (REQUESTS, BYTES):
            assert held.total(each) == sum(one.sum(each) for _, one in holdings)
            for name in "abcd":
                assert held.of(name, each) == sum(one.sum(each) for other, one in holdings if other == name)


def test_a_released_request_cannot_be_charged() -> None:
    held = accounts(100)
    whole = held.hold("client")
    part = whole.part()
    whole.release()

    for each in (whole, part, whole.part()):
        each.set(BYTES, 10)

    assert held.total(BYTES) == 0


# ---- eviction


@pytest.fixture
def evicted() -> list[str]:
    return []


@pytest.fixture
def pool(evicted: list[str]) -> IdlePool[str]:
    return IdlePool(accounts(4), CONNECTIONS, evicted.append)


def test_the_longest_idle_member_of_the_largest_client_makes_room(pool: IdlePool[str], evicted: list[str]) -> None:
    pool.add("other", "quiet")
    for name in ("first", "second", "third"):
        pool.add(name, "hog")
    pool.mark_busy("first")
    pool.mark_idle("first")  # it was used, so it is no longer the longest idle

    assert pool.add("new", "somebody")
    assert evicted == ["second"]
    assert len(pool) == 4


def test_busy_members_of_clients_within_their_share_are_never_evicted(pool: IdlePool[str], evicted: list[str]) -> None:
    for name in ("a", "b", "c", "d"):
        pool.add(name, "even" if name in "bd" else "odd")
        pool.mark_busy(name)

    assert not pool.add("new", "other")
    pool.mark_idle("c")
    assert pool.add("new", "other")
    assert evicted == ["c"]
    assert sorted(pool.busy) == ["a", "b", "d"]


def test_a_client_that_keeps_all_members_busy_loses_its_oldest_to_another_client(
    pool: IdlePool[str], evicted: list[str]
) -> None:
    for name in ("a", "b", "c", "d"):
        pool.add(name, "hog")
        pool.mark_busy(name)

    assert not pool.add("e", "hog")
    assert pool.add("new", "other")
    assert evicted == ["a"]


def test_a_busy_member_with_a_stalled_client_is_evicted_for_any_client(evicted: list[str]) -> None:
    pool = IdlePool(accounts(2), CONNECTIONS, evicted.append, lambda name: name == "stalled")
    for name in ("reading", "stalled"):
        pool.add(name, "client")
        pool.mark_busy(name)

    assert pool.add("new", "client")
    assert evicted == ["stalled"]


def test_members_that_cannot_be_evicted_are_passed_over(pool: IdlePool[str], evicted: list[str]) -> None:
    for name in ("a", "b", "c", "d"):
        pool.add(name, "client")

    assert pool.add("new", "client", can_evict=lambda name: name == "c")
    assert evicted == ["c"]


def test_a_member_that_has_left_frees_its_place_once(pool: IdlePool[str]) -> None:
    pool.add("a", "client")
    pool.remove("a")
    pool.remove("a")
    pool.mark_idle("a")

    assert len(pool) == 0
    assert pool.busy == []


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("", ""),
        ("proxy", "proxy"),
    ],
)
def test_addresses_of_one_subscriber_are_one_client(address: str, client: str) -> None:
    assert client_of(address) == client
