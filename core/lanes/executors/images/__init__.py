"""Images on the nodes of a lane: there already, built, or pulled; and then brought to the nodes that lack them.

Every node gets the same image, and it is pinned: containers are started from its id, so that a name which is given to
another image meanwhile changes nothing. `delivery` moves what is missing, `building` builds, `held` says what is there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from lanes import hosts
from lanes.errors import LaneError, StagingError
from lanes.executors import docker as containers
from lanes.executors.images import building, delivery
from lanes.executors.images.courier import PARTIAL, chain
from lanes.executors.images.held import Held, common, fits, in_containerd, inspect
from lanes.executors.images.progress import Progress
from lanes.hosts import HERE, Host
from lanes.types import Build, Image

if TYPE_CHECKING:
    import docker

Tell = Callable[[str], None]

TRANSFER_S = 3600.0
MOST = 16
"""Engines that are asked at the same time."""


@frozen(kw_only=True)
class Spot:
    """A node that is to have an image: its name, the way to it, its address on the network between the nodes and its
    processor (`x86_64`; None: not known)."""

    name: str
    host: Host = HERE
    address: str | None = None
    machine: str | None = None


@frozen(kw_only=True)
class OnNode:
    """How a node came by an image. `bytes` were sent to it, `layers` of the image among them; 0 where it was there."""

    node: str
    bytes: int = 0
    layers: int = 0
    seconds: float = 0.0
    fed_by: str | None = None


@frozen(kw_only=True)
class Ready:
    """An image that all nodes hold. `pinned` is what containers are started from: its id, or where the nodes' engines
    have different ids for it, its name."""

    reference: str
    pinned: str
    id: str
    architecture: str
    size_bytes: int
    digests: tuple[str, ...] = ()
    source: str
    """The node, or this machine, whose image it is; `pulled` and `built` images are those of the node that did it."""
    pulled: bool = False
    built: building.Built | None = None
    nodes: tuple[OnNode, ...] = ()


@frozen(kw_only=True)
class _Engine:
    """An engine that is asked: what it said of itself, and the image that it holds under the name that is wanted."""

    spot: Spot
    client: docker.DockerClient = field(eq=False)
    image: Held | None
    root: str
    containerd: bool


@frozen
class _Found:
    """The image that all nodes are to have, and where it lies."""

    image: Held
    where: _Engine
    pulled: bool = False
    built: building.Built | None = field(default=None)


def ready(item: Image | Build, spots: Sequence[Spot], tell: Tell, origin: str = "") -> Ready:
    """Have every node hold the image, made for its processor.

    It is this machine's, where that has it; else the head's, or that of the next node that has it; else the head pulls
    it. A `Build` is built on the head, unless the same was built before; its paths are meant beside `origin`, the recipe's
    file. Raises StagingError.
    """
    reference = item.reference if isinstance(item, Image) else item.tag
    try:
        with contextlib.ExitStack() as stack:
            engines = _ask(spots, reference, stack)
            found = (
                _build(item, engines, tell, origin) if isinstance(item, Build) else _find(item, engines, tell)
            )
            return _bring(reference, found, [one for one in engines if one.spot in spots], tell)
    except StagingError as error:
        said = error.message if reference in error.message else f"image {reference}: {error.message}"
        raise StagingError(said, error.next_step) from None
    except LaneError as error:
        raise StagingError(f"image {reference}: {error.message}", error.next_step) from None


# -- Which image ---------------------------------------------------------------------------------


def _ask(spots: Sequence[Spot], reference: str, stack: contextlib.ExitStack) -> list[_Engine]:
    """What the engines of the nodes hold, in their order, and then this machine's where it has one. They can be asked
    until the stack is closed."""

    def one(spot: Spot) -> _Engine:
        client = stack.enter_context(containers.client(spot.host, TRANSFER_S))
        told = client.info()
        return _Engine(
            spot=spot,
            client=client,
            image=inspect(client, reference),
            root=str(told.get("DockerRootDir") or "/var/lib/docker"),
            containerd=in_containerd(told),
        )

    here = Spot(name=hosts.name(HERE))
    with ThreadPoolExecutor(max_workers=MOST) as pool:
        asked = [pool.submit(one, spot) for spot in spots]
        own = pool.submit(one, here) if all(spot.host != HERE for spot in spots) else None
        found = [future.result() for future in asked]
        # Without an engine here the nodes do by themselves.
        with contextlib.suppress(LaneError):
            found += [own.result()] if own else []
    return found


def _find(item: Image, engines: Sequence[_Engine], tell: Tell) -> _Found:
    nodes = [one for one in engines if one.spot.host != HERE or len(engines) == 1]
    order = sorted(engines, key=lambda one: one.spot.host != HERE)
    unfit: StagingError | None = None
    for one in order:
        if one.image is None:
            continue
        try:
            for node in engines:
                if one.spot.host == HERE or node is one:
                    fits(one.image, item.reference, node.spot.name, node.spot.machine)
            _is(item, one.image, one.spot.name)
        except StagingError as error:
            # What a node holds is meant for it; what this machine has may be its own.
            if one in nodes:
                raise
            unfit = error
            continue
        return _Found(one.image, one)
    try:
        return _pull(item, engines[0], tell)
    except StagingError as error:
        raise unfit or error from None


def _is(item: Image, image: Held, where: str) -> None:
    """Raise StagingError when a digest is wanted that this image does not have."""
    if item.digest and not any(one.endswith(item.digest) for one in (image.id, *image.digests)):
        has = ", ".join(one.rpartition("@")[2] for one in image.digests) or image.id
        raise StagingError(
            f"image {item.reference} on {where} is {has}, and {item.digest} is wanted",
            "pull or load the right one there, or correct the digest",
        )


def _pull(item: Image, at: _Engine, tell: Tell) -> _Found:
    import docker.errors

    layers: dict[str, tuple[int, int]] = {}
    where = hosts.name(at.spot.host)
    step = "build or load it there, or correct its name"
    progress = Progress(f"pulling {item.reference}", {at.spot.name: None}, tell)
    try:
        for event in at.client.api.pull(item.reference, stream=True, decode=True, platform=item.platform):
            if "error" in event:
                raise StagingError(
                    f"image {item.reference} is not on {where}, and cannot be pulled: {event['error']}", step
                )
            detail = event.get("progressDetail") or {}
            if "total" in detail:
                layers[event.get("id", "")] = int(detail.get("current", 0)), int(detail["total"])
                progress({at.spot.name: sum(done for done, _ in layers.values())})
    except docker.errors.APIError as error:
        said = error.explanation or error
        raise StagingError(
            f"image {item.reference} is not on {where}, and cannot be pulled: {said}", step
        ) from None
    image = inspect(at.client, item.reference)
    if image is None:
        raise StagingError(f"image {item.reference} is not on {where}, though it was pulled", step)
    _is(item, image, at.spot.name)
    return _Found(image, at, pulled=True)


def _build(item: Build, engines: Sequence[_Engine], tell: Tell, origin: str) -> _Found:
    with building.context(item, origin) as made:
        for one in engines:
            if one.image is not None and dict(one.image.labels).get(building.LABEL) == made.digest:
                return _Found(one.image, one, built=building.Built(context=made.digest, on=one.spot.name))
        head = engines[0]
        _bring_bases(made, engines, tell)
        began = time.monotonic()
        building.build(head.client, item, made, head.spot.name, tell)
        image = inspect(head.client, item.tag)
        took = round(time.monotonic() - began, 3)
    assert image is not None
    return _Found(image, head, built=building.Built(context=made.digest, on=head.spot.name, seconds=took))


def _bring_bases(made: building.Context, engines: Sequence[_Engine], tell: Tell) -> None:
    """Bring the images that it is built upon to the head, where it lacks them and another engine has them: what no
    engine has the build pulls."""
    head, *others = engines
    for base in made.bases:
        if inspect(head.client, base) is not None:
            continue
        for other in others:
            image = inspect(other.client, base)
            if image is not None:
                fits(image, base, head.spot.name, head.spot.machine)
                _bring(base, _Found(image, other), [evolve(head, image=None)], tell)
                break


# -- To the nodes --------------------------------------------------------------------------------


def _bring(reference: str, found: _Found, engines: Sequence[_Engine], tell: Tell) -> Ready:
    image = found.image
    for one in engines:
        fits(image, reference, one.spot.name, one.spot.machine)
    lacking = [
        one
        for one in engines
        if one.spot != found.where.spot and not (one.image is not None and one.image.same(image))
    ]
    tags = _tags(reference)
    moved = _deliver(reference, found, lacking, tags, tell) if lacking else {}
    with ThreadPoolExecutor(max_workers=MOST) as pool:
        names = [tags[0] if one in lacking else reference for one in engines]
        ids = list(pool.map(lambda one, name: _verified(one, name, image), engines, names))
    return Ready(
        reference=reference,
        pinned=ids[0] if len(set(ids)) == 1 else tags[0],
        id=image.id,
        architecture=image.architecture,
        size_bytes=image.size_bytes,
        digests=image.digests,
        source=found.where.spot.name,
        pulled=found.pulled,
        built=found.built,
        nodes=tuple(moved.get(one.spot.name, OnNode(node=one.spot.name)) for one in engines),
    )


def _deliver(
    reference: str, found: _Found, lacking: Sequence[_Engine], tags: tuple[str, ...], tell: Tell
) -> dict[str, OnNode]:
    image = found.image
    tell(f"{reference}: looking for layers that are there")

    def stop(one: _Engine) -> delivery.Stop:
        return delivery.Stop(
            name=one.spot.name, host=one.spot.host, address=one.spot.address, root=one.root,
            have=common(one.client, image.layers), containerd=one.containerd,
        )  # fmt: skip

    with ThreadPoolExecutor(max_workers=MOST) as pool:
        stops = list(pool.map(stop, lacking))
    where = found.where.spot
    left = _left(found.where.client, image)
    order = delivery.Order(image=image, tags=tags, left=left)
    progress = Progress(reference, {one.name: left.get(one.have) for one in stops}, tell)
    moved = delivery.deliver(order, delivery.Stop(name=where.name, host=where.host), stops, progress)
    return {
        one.name: OnNode(
            node=one.name,
            bytes=moved[one.name].bytes,
            layers=len(image.layers) - one.have,
            seconds=moved[one.name].seconds,
            fed_by=moved[one.name].fed_by,
        )
        for one in stops
    }


def _left(engine: docker.DockerClient, image: Held) -> dict[int, int]:
    """For each number of layers that are there, about how many bytes are not; what cannot be told is left out."""
    sizes = [int(one.get("Size", 0)) for one in engine.api.history(image.id)]  # type: ignore[no-untyped-call]
    sizes = [one for one in reversed(sizes) if one]
    if len(sizes) != len(image.layers):  # it has empty layers, or its history was not kept
        return {0: image.size_bytes}
    return {have: sum(sizes[have:]) for have in range(len(sizes) + 1)}


def _verified(one: _Engine, name: str, wanted: Held) -> str:
    """The id that the node's engine has for the image. Raises StagingError when it is another image."""
    image = inspect(one.client, name)
    if image is None or not image.same(wanted):
        what = "is not there" if image is None else f"is {image.id}"
        raise StagingError(
            f"on {one.spot.name}: image {name} {what}, and should be {wanted.id}: somebody else changes images there",
            "run again",
        )
    _tidy(one.client, image)
    return image.id


def _tidy(engine: docker.DockerClient, image: Held) -> None:
    """Remove what held this image's layers while they came in; those of others may be on their way."""
    own = {
        f"{PARTIAL}:{chain(list(image.layers[: number + 1]))[7:27]}" for number in range(len(image.layers))
    }
    for partial in engine.api.images(PARTIAL):
        for tag in partial.get("RepoTags") or ():
            if tag in own:
                with contextlib.suppress(Exception):
                    engine.api.remove_image(tag, noprune=False)


def _tags(reference: str) -> tuple[str, ...]:
    """The name that an image gets on the nodes: a digest is no name, and a name has a tag."""
    name, _, digest = reference.partition("@")
    folder, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    tag = digest.replace(":", "-")[:19] if digest else tag or "latest"
    return (f"{folder}{slash}{repository}:{tag}",)
