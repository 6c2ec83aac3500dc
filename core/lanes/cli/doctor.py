"""`lanes doctor`."""

from __future__ import annotations

import click

from lanes.cli import output

_MARKS = {"ok": "ok", "note": "note", "wrong": "WRONG"}


@click.command("doctor")
@click.option("--cluster", metavar="C", required=True, help="The cluster, by name or file.")
@output.as_json
def command(cluster: str, as_json: bool) -> int:
    """Ask every node of a cluster what would keep a lane from running there, and how to mend it.

    All are asked at once, and nothing is changed. Ends with 1 when something is wrong.
    """
    import attrs

    from lanes import clusters, doctor

    chosen = clusters.find(cluster)
    found = doctor.examine(chosen)
    wrong = [check for checks in found.values() for check in checks if check.state == "wrong"]
    if as_json:
        output.print_json(
            {
                "schema": "lanes.doctor/1",
                "cluster": chosen.name,
                "protected": chosen.protected,
                "ok": not wrong,
                "nodes": [
                    {"node": name, "checks": [attrs.asdict(one) for one in checks]}
                    for name, checks in found.items()
                ],
            }
        )
        return 1 if wrong else 0
    table = output.table("node", "question", "", "what", "mend")
    for name, checks in found.items():
        for check in checks:
            table.add_row(name, check.question, _MARKS[check.state], check.what, check.mend or "")
            name = ""
    output.console().print(table)
    click.echo(f"{len(wrong)} to mend." if wrong else "Nothing is wrong.")
    return 1 if wrong else 0
