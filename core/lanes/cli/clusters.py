"""`lanes clusters`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import output

if TYPE_CHECKING:
    from lanes.claims import Sight
    from lanes.clusters import Cluster
    from lanes.errors import LanesError
    from lanes.hosts import Host

    Seen = Sight | LanesError


@click.group("clusters", invoke_without_command=True)
@click.option("--cluster", metavar="C", help="Only this one, by name or file.")
@output.as_json
@click.pass_context
def command(ctx: click.Context, cluster: str | None, as_json: bool) -> None:
    """List the clusters, and who holds which of their nodes since when.

    Every node is asked; nothing is changed. `lanes clusters release C` cleans up after a dead owner.
    """
    if ctx.invoked_subcommand is not None:
        return
    from lanes import clusters, paths
    from lanes.errors import UsageError

    found: dict[str, Cluster | UsageError] = {}
    for name in [cluster] if cluster else clusters.known():
        try:
            found[name] = clusters.find(name)
        except UsageError as error:
            if cluster:
                raise
            found[name] = error
    read = [one for one in found.values() if not isinstance(one, UsageError)]
    seen = _look([host for one in read for host in clusters.hosts_of(one)])
    rows = [_row(name, one, seen) for name, one in found.items()]
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        click.echo(f"No cluster yet. Put a file with its [[nodes]] into {paths.clusters()}.")
        return
    _show(rows)


@command.command("release")
@click.argument("cluster")
@output.as_json
def release(cluster: str, as_json: bool) -> None:
    """Clean up on CLUSTER after owners that are dead or silent: remove their containers and their claims.

    Nothing is taken from an owner that lives, and nothing is changed on a protected cluster.
    """
    from lanes import claims, clusters
    from lanes.errors import Claimed, LaneError, LanesError

    chosen = clusters.changeable(clusters.find(cluster))
    ways = clusters.hosts_of(chosen)
    seen = _look(ways)
    released: list[dict[str, str]] = []
    refused: list[LanesError] = []
    for node, way in zip(chosen.nodes, ways, strict=True):
        sight = seen[way]
        try:
            if isinstance(sight, LanesError):
                raise sight
            if sight.state != "free":
                claims.release_dead(node.name, way, sight)
                released.append({"node": node.name, "holder": sight.sentence()})
        except LanesError as error:
            refused.append(error)
    if as_json:
        output.print_json({"released": released, "refused": [str(one) for one in refused]})
    else:
        for one in released:
            click.echo(f"released {one['node']}: {one['holder']}")
        if not released and not refused:
            click.echo("nothing to release")
    if refused:
        living = all(isinstance(one, Claimed) for one in refused)
        what = "; ".join(one.message for one in refused)
        raise (Claimed if living else LaneError)(what, refused[0].next_step)


def _look(ways: Any) -> dict[Host, Seen]:
    """The claims on all these nodes, asked at once; of one that does not answer, why."""
    from concurrent.futures import ThreadPoolExecutor

    from lanes import claims
    from lanes.errors import LaneError

    def attempt(way: Host) -> Seen:
        try:
            return claims.look(way)
        except LaneError as error:
            return error

    distinct = list(dict.fromkeys(ways))
    with ThreadPoolExecutor(max_workers=16) as pool:
        return dict(zip(distinct, pool.map(attempt, distinct), strict=True))


def _row(name: str, cluster: Any, seen: dict[Host, Seen]) -> dict[str, Any]:
    from lanes import clusters
    from lanes.errors import UsageError

    if isinstance(cluster, UsageError):
        return {"cluster": name, "protected": None, "problem": str(cluster), "nodes": []}
    ways = zip(cluster.nodes, clusters.hosts_of(cluster), strict=True)
    return {
        "cluster": name,
        "protected": cluster.protected,
        "problem": None,
        "nodes": [{"node": node.name, "ssh": node.ssh, **_node(seen[way])} for node, way in ways],
    }


def _node(sight: Seen) -> dict[str, Any]:
    from lanes.errors import LanesError

    if isinstance(sight, LanesError):
        return {"state": "unreachable", "sentence": str(sight), "claim": None}
    claim = sight.claim
    return {
        "state": sight.state,
        "sentence": sight.sentence(),
        "claim": claim
        and {
            "lane": claim.lane,
            "run": claim.run,
            "cluster": claim.cluster,
            "user": claim.controller.user,
            "host": claim.controller.host,
            "pid": claim.controller.owner.pid,
            "since": time.time() - sight.age_s,
            "silent_s": sight.silent_s,
            "lease_s": claim.lease_s,
            "took_over": claim.took_over,
        },
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = output.table("cluster", "node", "state", "who")
    for row in rows:
        name = f"{row['cluster']} (protected)" if row["protected"] else row["cluster"]
        if row["problem"]:
            table.add_row(name, "", "unreadable", row["problem"])
        for node in row["nodes"]:
            who = "" if node["state"] == "free" else node["sentence"]
            table.add_row(name, node["node"], node["state"], who)
            name = ""
    output.console().print(table)
    if any(node["state"] in ("dead", "stale") for row in rows for node in row["nodes"]):
        click.echo("`lanes stop` cleans up after lanes of yours; `lanes clusters release C` after anybody's.")
