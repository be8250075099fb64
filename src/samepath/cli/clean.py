"""`samepath clean`."""

from __future__ import annotations

import click

from samepath.cli import common


@click.command(short_help="Remove what killed processes have left on this machine.")
@click.option("--dry-run", is_flag=True, help="List what would go; remove nothing.")
@common.json_option
def clean(dry_run: bool, as_json: bool) -> None:
    """Remove what processes that were killed have left on this machine.

    Shared memory, semaphores and temporary folders of launchers and workers that are gone. Every
    run does the same when it starts. What belongs to a process that lives stays, and so does the
    last step of a run that can still be resumed from it.

    \b
    Examples:
      samepath clean --dry-run
      samepath clean
    """
    common.announce("looking for what killed processes have left")

    from samepath.engine.launch.leftovers import find, remove

    found = find()
    failed = [] if dry_run else remove(found)
    if as_json:
        listed = [
            {"path": str(each.path), "what": each.what, "bytes": each.num_bytes} for each in found
        ]
        paths = [str(each.path) for each in failed]
        common.print_json({"dry_run": dry_run, "found": listed, "failed": paths})
        return
    for each in found:
        why_not = "; it cannot be removed" if each in failed else ""
        click.echo(f"{each.path}  {each.what}, {_size(each.num_bytes)}{why_not}")
    gone = [each for each in found if each not in failed]
    total = _size(sum(each.num_bytes for each in gone))
    click.echo(f"{len(gone)} {'would go' if dry_run else 'removed'}, {total}")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB" if num_bytes >> 20 else f"{num_bytes >> 10} KiB"
