"""Resource accounts: everything the server holds for clients, charged in one place, per client and in total.

A client is identified by its API key if it sends one, otherwise by its address (`Accounts.client`). Three rules limit
concurrent requests, bytes of bodies and bytes of unsent audio:

1. all clients together hold at most the limit;
2. one client holds at most `CLIENT_SHARE` of what the other clients leave;
3. one request or connection holds at most its share (`HOLDING_SHARES`) of what its client's other requests leave.

Therefore neither a client nor a single request can use up a resource. With `by_client=False` (behind SageMaker, where
all requests come from one address), rule 2 does not apply. At the limit of connections or sessions, a new one replaces
an existing one and is refused only if none can be evicted (`IdlePool`). Used only by the event loop's thread.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Generic, TypeVar

from s1_mini.core.turns import CLIENT_SHARE, client_share
from s1_mini.exceptions import S1MiniError
from s1_mini.server.errors import BusyError, TooManyRequestsError

MAX_NAME = 64  # characters of a client's name that is not an address
IPV6_CLIENT_BITS = 64  # one subscriber usually controls a whole /64

Member = TypeVar("Member", bound=Hashable)


class Resource(StrEnum):
    """A resource that is charged to clients."""

    CONNECTIONS = "connections"
    SESSIONS = "sessions"  # WebSocket
    STICKY_SESSIONS = "sticky_sessions"  # SageMaker
    STICKY_BYTES = "sticky_bytes"  # recordings of sticky sessions
    REQUESTS = "requests"  # texts being spoken, each item of a batch separately; each has a queue position or a slot
    BODY_BYTES = "body_bytes"  # bodies, unfinished messages and recordings
    AUDIO_BYTES = "audio_bytes"  # generated but not yet sent


# Shares of one request or connection. The shares of bytes are smaller, so that a client's large requests leave room
# for its small ones; the share of requests is larger, because a batch or JSON lines may use most of the slots.
HOLDING_SHARES = {Resource.REQUESTS: 3 / 4, Resource.BODY_BYTES: 1 / 3, Resource.AUDIO_BYTES: 1 / 3}
NAMES = {
    Resource.REQUESTS: "texts in progress",
    Resource.BODY_BYTES: "bytes of request bodies",
    Resource.AUDIO_BYTES: "bytes of unsent audio",
}


class Accounts:
    """The amounts held of each resource, by client and in total."""

    def __init__(
        self, limits: dict[Resource, int], *, by_client: bool = True, max_requests_per_client: int = 0
    ) -> None:
        """Set the limit of each resource. With `max_requests_per_client` 0, only the shares limit requests."""
        self.limits, self.by_client = limits, by_client
        self._max_requests_per_client = max_requests_per_client
        self._total: Counter[Resource] = Counter()
        self._clients: dict[str, Counter[Resource]] = {}

    def client(self, address: str, key: int | None = None) -> str:
        """Return the name of the client to charge for a request; `key` is the index of its API key, if it has one.

        Without `by_client`, all requests belong to one client with an empty name.
        """
        if not self.by_client:
            return ""
        return client_of(address) if key is None else f"key {key}"

    def hold(self, client: str) -> Holding:
        return Holding(self, client)

    def total(self, resource: Resource) -> int:
        return self._total[resource]

    def of(self, client: str, resource: Resource) -> int:
        return self._clients[client][resource] if client in self._clients else 0

    @property
    def clients(self) -> list[str]:
        return list(self._clients)

    def largest(self, resource: Resource) -> int:
        """Return the maximum that one request can hold while nothing else is held."""
        share = CLIENT_SHARE if self.by_client else 1.0
        return max(1, int(self.limits[resource] * share * HOLDING_SHARES[resource]))

    def describe(self) -> dict[str, dict[str, int]]:
        """Return for each resource the amount held, the limit, and the largest amount held by one client."""
        return {
            resource.value: {
                "held": self._total[resource],
                "limit": limit,
                "largest_client": max((held[resource] for held in self._clients.values()), default=0),
            }
            for resource, limit in self.limits.items()
        }

    def refusal(self, client: str, resource: Resource, amount: int, held: int = 0) -> S1MiniError | None:
        """Return the error if a request that holds `held` may not hold `amount` more; None if it may."""
        limit, of_client = self.limits[resource], self.of(client, resource)
        name = NAMES[resource]
        if self._total[resource] + amount > limit:
            return BusyError(f"The server's limit of {name} ({limit:,}) is reached. Retry in one second.")
        if resource is Resource.REQUESTS and (most := self._max_requests_per_client) and of_client + amount > most:
            return TooManyRequestsError(f"Your limit of {name} ({most:,}) is reached. Wait for one to finish.")
        allowed: float = limit
        if self.by_client:
            allowed = client_share(limit, self._total[resource], of_client)
            if of_client + amount > max(1, allowed):
                return TooManyRequestsError(
                    f"This request would raise your {name} to {of_client + amount:,}; your share is now "
                    f"{max(1, int(allowed)):,} of {limit:,}. Wait for another request to finish."
                )
        if held + amount > max(1, HOLDING_SHARES[resource] * (allowed - of_client + held)):
            return BusyError(f"This request needs more {name} than one request may now hold. Retry in one second.")
        return None

    def _change(self, client: str, resource: Resource, change: int) -> None:
        held = self._clients.setdefault(client, Counter())
        held[resource] += change
        self._total[resource] += change
        if not any(held.values()):
            del self._clients[client]


class Holding:
    """The resources held by one request or connection; `release` frees all of them.

    A part is a holding inside another holding, such as one text of a batch. It can be released separately; `release` of
    the whole also releases its parts.
    """

    def __init__(self, accounts: Accounts, client: str, whole: Holding | None = None) -> None:
        self._accounts, self.client, self._whole = accounts, client, whole
        self._held: Counter[Resource] = Counter()
        self._parts: set[Holding] = set()
        self._is_released = False

    def part(self) -> Holding:
        part = Holding(self._accounts, self.client, self)
        part._is_released = self._is_released
        self._parts.add(part)
        return part

    def get(self, resource: Resource) -> int:
        """Return the held amount, without that of the parts."""
        return self._held[resource]

    def sum(self, resource: Resource) -> int:
        """Return the held amount, including that of the parts."""
        return self._held[resource] + sum(part.sum(resource) for part in self._parts)

    def set(self, resource: Resource, amount: int, *, checked: bool = True) -> None:
        """Set the held amount of a resource; after `release`, it can only decrease.

        Raises `BusyError` or `TooManyRequestsError` and changes nothing if the amount is not allowed. `checked=False`
        skips this check.
        """
        change = amount - self._held[resource]
        if change > 0 and self._is_released:
            return
        if change > 0 and checked:
            whole = self._whole or self
            refused = self._accounts.refusal(self.client, resource, change, whole.sum(resource))
            if refused is not None:
                raise refused
        if change:
            self._held[resource] = amount
            self._accounts._change(self.client, resource, change)

    def add(self, resource: Resource, amount: int) -> None:
        """Add `amount`, which may be negative. Raises the errors of `set`."""
        self.set(resource, self._held[resource] + amount)

    def release(self) -> None:
        """Free everything that this holding and its parts hold; afterwards nothing can be added."""
        self._is_released = True
        for part in list(self._parts):
            part.release()
        for resource in list(self._held):
            self.set(resource, 0)
        if self._whole is not None:
            self._whole._parts.discard(self)


class IdlePool(Generic[Member]):
    """Open connections or sessions (the members), at most `limit`; at the limit, a new member evicts another one.

    The longest idle member of the client with the most members is evicted, so that a client with many members cannot
    evict those of clients with few. If no idle member can be evicted, a stalled one is evicted, or else the oldest
    member of a client that has more than `CLIENT_SHARE` of the limit.
    """

    def __init__(
        self,
        accounts: Accounts,
        resource: Resource,
        evict: Callable[[Member], None],
        is_stalled: Callable[[Member], bool] = lambda _: False,
    ) -> None:
        """`evict` ends a member that has left the pool; `is_stalled` returns whether its client has stopped reading."""
        self._accounts, self._resource, self._evict = accounts, resource, evict
        self._holdings: dict[Member, Holding] = {}  # oldest first
        self._idle: dict[str, OrderedDict[Member, None]] = {}  # by client, longest idle first
        self._is_stalled = is_stalled
        self.limit = accounts.limits[resource]

    def __len__(self) -> int:
        return len(self._holdings)

    def add(self, member: Member, client: str, *, can_evict: Callable[[Member], bool] = lambda _: True) -> bool:
        """Add an idle member; at the limit, evict another member, or return False if none can be evicted."""
        if len(self) >= self.limit:
            least = self._accounts.of(client, self._resource)  # members of clients with fewer than that are not evicted
            if not self.evict_one(self._resource, can_evict, client, least) and not self._evict_busy(client, least):
                return False
        self._holdings[member] = self._accounts.hold(client)
        self._holdings[member].set(self._resource, 1, checked=False)
        self.mark_idle(member)
        return True

    def mark_busy(self, member: Member) -> None:
        """Mark a member as busy: idle members are evicted before it."""
        if (holding := self._holdings.get(member)) is not None:
            self._forget_idle(member, holding.client)

    def mark_idle(self, member: Member) -> None:
        """Mark a member as idle and last in the eviction order; does nothing if it is already idle."""
        if (holding := self._holdings.get(member)) is not None:
            self._idle.setdefault(holding.client, OrderedDict()).setdefault(member, None)

    def remove(self, member: Member) -> None:
        if (holding := self._holdings.pop(member, None)) is not None:
            self._forget_idle(member, holding.client)
            holding.release()

    @property
    def busy(self) -> list[Member]:
        return [member for member, held in self._holdings.items() if member not in self._idle.get(held.client, ())]

    def _forget_idle(self, member: Member, client: str) -> None:
        if (idle := self._idle.get(client)) is not None:
            idle.pop(member, None)
            if not idle:
                del self._idle[client]

    def evict_one(
        self,
        resource: Resource,
        can_evict: Callable[[Member], bool] = lambda _: True,
        newcomer: str = "",
        least: int = 0,
    ) -> bool:
        """Evict the longest idle member of the client that holds most of `resource`; return False if there is none.

        Clients that hold less than `least` are exempt, except the client `newcomer`, for which the place is needed.
        """
        sizes = self._sizes(self._idle, resource, newcomer, least)
        by_size = sorted(sizes, key=lambda client: sizes[client], reverse=True)
        found = (member for client in by_size for member in self._idle[client] if can_evict(member))
        return self._end(next(found, None))

    def _evict_busy(self, newcomer: str, least: int) -> bool:
        """Evict a stalled member, or the oldest one of a client that has more than `CLIENT_SHARE` of the limit."""
        clients = {member: holding.client for member, holding in self._holdings.items()}
        sizes = self._sizes(set(clients.values()), self._resource, newcomer, least)
        members = [member for member, client in clients.items() if client in sizes]
        if stalled := [member for member in members if self._is_stalled(member)]:
            return self._end(max(stalled, key=lambda member: sizes[clients[member]]))
        largest = max(sizes, key=lambda client: sizes[client], default=newcomer)
        if largest == newcomer or sizes[largest] <= CLIENT_SHARE * self.limit:
            return False
        return self._end(next(member for member in members if clients[member] == largest))

    def _sizes(self, clients: Iterable[str], resource: Resource, newcomer: str, least: int) -> dict[str, int]:
        """Return the amounts that `clients` hold, without those below `least` other than `newcomer`."""
        sizes = {client: self._accounts.of(client, resource) for client in clients}
        return {client: size for client, size in sizes.items() if client == newcomer or size >= least}

    def _end(self, member: Member | None) -> bool:
        if member is None:
            return False
        self.remove(member)
        self._evict(member)
        return True


def client_of(address: str) -> str:
    """Return the client that an address belongs to: the address itself, or the /64 network of an IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:MAX_NAME]  # "", the proxy's socket, or a name sent by a trusted proxy
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((int(parsed), IPV6_CLIENT_BITS), strict=False))
    return str(parsed)
