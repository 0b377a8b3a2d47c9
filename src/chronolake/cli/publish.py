"""The command publish, which replicates tables of the lake into relational databases."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from chronolake.cli.app import (
    JsonOption,
    LakeOption,
    NoEngineOption,
    ProjectOption,
    SettingOption,
    app,
    console,
    fail,
    open_existing,
    parse_table_name,
    print_json,
    show_error,
)
from chronolake.cli.pipelines import PARTIAL, project_of
from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from chronolake.target.publication import PublishResult
    from chronolake.target.selection import TargetTable

#: The numbers of rows that a publication has written, by what was done.
_COUNTS: Final = {"inserted": "I", "updated": "U", "deleted": "D"}


@app.command(
    epilog="Example: chronolake publish --target reporting. Exit codes: 0 all tables were "
    "published, 3 some failed, 1 all failed.",
)
def publish(
    *,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Publish to this target. Repeatable."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="TABLE", help="Publish only this table, as schema.table. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and change no table.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Replace tables that others have created or changed in the target. Requires "
            "--table.",
        ),
    ] = False,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Replicate tables of the lake into the databases of `targets`; print one line for each table.

    Each table is loaded once. Later, only the rows that differ between the published snapshot and
    the current one are written, in one transaction that also stores the snapshot. Spark starts only
    if a table has changed.
    """
    wanted = project_of(project, lake, settings)
    if not wanted.targets:
        raise ConfigurationError(
            f"{wanted.file} has no targets.", hint="Add a target below `targets`."
        )
    if take_over and not table:
        raise typer.BadParameter("name the tables with --table", param_hint="--take-over")
    only = [parse_table_name(text) for text in table or ()]
    from chronolake.target.publication import PublishResult
    from chronolake.target.runner import publish as run
    from chronolake.target.selection import target_of

    for name in target or ():
        target_of(wanted, name)
    failed = done = 0
    with open_existing(wanted.lake, *only, json=json) as opened:
        found = run(
            opened,
            wanted,
            target or (),
            only=only,
            takes_over=take_over,
            is_dry_run=dry_run,
            begin=lambda name, chosen: _show_begin(name, chosen, json=json),
        )
        for result in found:
            if isinstance(result, PublishResult):
                done += 1
                _show(result, is_dry_run=dry_run, json=json)
            else:
                failed += 1
                show_error(result.error, json=json)
    if not done and not failed:
        raise ConfigurationError(
            "No table is published.",
            hint="Check --table, and `tables` of the targets.",
        )
    if failed:
        fail(PARTIAL if done else 1)


def _show_begin(target: str, table: TargetTable, *, json: bool) -> None:
    screen = console(stderr=True)
    if not json and screen.is_terminal:
        screen.print(Text(f"{target}: {table.name} ...", style="dim"))


def result_json(result: PublishResult, *, is_dry_run: bool) -> dict[str, Any]:
    """Return the publication of a table, as JSON types."""
    return {
        "target": result.target,
        "table": result.table,
        "relation": result.relation,
        "snapshot": result.snapshot_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "done": not is_dry_run,
        **{word: result.rows.get(kind, 0) for word, kind in _COUNTS.items()},
        "converted": dict(result.converted),
        "seconds": round(result.seconds, 3),
    }


def _show(result: PublishResult, *, is_dry_run: bool, json: bool) -> None:
    if json:
        print_json(result_json(result, is_dry_run=is_dry_run), pretty=False)
        return
    outcome = {"unchanged": "is up to date", "changed": "changed", "loaded": "loaded"}
    words = [outcome[result.outcome.value]]
    if is_dry_run and result.outcome.value != "unchanged":
        words = [f"would be {words[0]}"]
    if result.reason:
        words.append(f"because {result.reason}")
    line = Text.assemble(
        (result.table, "bold"), f" → {result.target}: {result.relation}  ", " ".join(words)
    )
    if result.rows:
        line.append(
            "  "
            + ", ".join(
                f"{result.rows[kind]:,} {word}"
                for word, kind in _COUNTS.items()
                if kind in result.rows
            )
        )
    line.append(f"  snapshot {result.snapshot_id}, {result.seconds:.1f} s", style="dim")
    console().print(line, soft_wrap=True)
    for column, count in result.converted.items():
        console().print(
            Text(f"  {count:,} values of {column} were outside the target's limits", style="yellow")
        )
