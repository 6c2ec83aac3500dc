"""`lanes recipes`."""

from __future__ import annotations

import click

from lanes.cli import output


@click.command("recipes")
@click.argument("recipe", required=False)
@click.option("--engine", help="Only those of one engine.")
@output.as_json
def command(recipe: str | None, engine: str | None, as_json: bool) -> None:
    """List the recipes that can be named, or show RECIPE (a name or a file) as it is read."""
    from lanes import describe, recipes
    from lanes.plugins import Plugins

    plugins = Plugins()
    if recipe is not None:
        found = recipes.find(recipe, plugins)
        lane = recipes.lane(found, plugins.engine(found.engine))
        output.print_json(describe.recipe(lane))
        return
    if engine is not None:
        plugins.engine(engine)
    rows = list(recipes.listed(plugins, engine))
    if as_json:
        output.print_json(
            [
                {
                    "name": row.name,
                    "engine": row.engine,
                    "origin": row.origin,
                    "description": row.recipe.description if row.recipe else "",
                    "problem": row.problem,
                }
                for row in rows
            ]
        )
        return
    if not rows:
        click.echo("No recipe is installed; name a recipe's file, or `lanes run --engine E --model FILE`.")
        return
    table = output.table("recipe", "engine", "nodes>", "model", "what")
    for row in rows:
        if row.recipe is None:
            table.add_row(row.name, row.engine, "", "", f"broken: {row.problem}")
        else:
            table.add_row(
                row.name, row.engine, str(row.recipe.nodes), row.recipe.model.name, row.recipe.description
            )
    output.console().print(table)
