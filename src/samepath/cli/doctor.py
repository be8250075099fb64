"""`samepath doctor`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import count, print_report, print_table, print_text
from samepath.errors import UserError


@click.command(short_help="Look at this machine, and say what to mend.")
@click.argument("folder", type=common.PATH, default=".")
@click.option(
    "--certify",
    "recipe",
    is_flag=False,
    flag_value="digits",
    metavar="[RECIPE]",
    shell_complete=common.complete_recipe,
    callback=common.known_recipes,
    help="Try the promise at 1 to all GPUs (without one: cores), beside DDP, and write a "
    "certificate. RECIPE is digits when not given.",
)
@common.out_option("Folder of the certificate, new or empty.  [insight/RECIPE-certificate-N]")
@common.json_option
def doctor(folder: Path, recipe: str | None, out: Path | None, as_json: bool) -> int:
    """Look at this machine: what is there, and what would slow down or end a training.

    Cores and what shares them, torch, GPUs, compiler, launchers, network, shared memory, limits,
    disk and clock; FOLDER is where runs would be written. For what is wrong it says what to do. Add
    what --json prints to a bug report.

    With --certify it runs verify at every worker count up to all GPUs (or cores), times DDP beside
    it, and writes certificate.json and certificate.html, which hold no host name, user name or
    folder and can be sent to us. Exit code 0: the same bits; 1: they differ.

    \b
    Examples:
      samepath doctor
      samepath doctor /shared/runs --json
      samepath doctor --certify
      samepath doctor --certify my_recipe.py --out certificate
    """
    if recipe is not None:
        return _certify(recipe, folder, out, as_json=as_json)
    if out is not None:
        raise UserError(f"--out {out}: only a certificate is written; add --certify")
    common.announce("looking at this machine")

    from samepath.insight.doctor import examine

    findings = examine(folder)
    if as_json:
        common.print_json({"findings": [asdict(finding) for finding in findings]})
        return 0
    print_table([["", "found"], *([finding.name, finding.found] for finding in findings)])
    doubts = [finding for finding in findings if finding.advice]
    click.echo()
    print_text(f"{count(len(doubts), 'thing')} to look at" if doubts else "nothing is wrong")
    for finding in doubts:
        print_text(f"- {finding.name}: {finding.advice}")
    return 0


def _certify(recipe: str, folder: Path, out: Path | None, *, as_json: bool) -> int:
    from samepath.insight.folder import choose_folder

    place = choose_folder("certificate", recipe, out)
    there = next(each for each in place.absolute().parents if each.exists())
    if not os.access(place if place.exists() else there, os.W_OK):
        raise UserError(f"--out {place} cannot be made (not writable); give another folder")
    common.announce(f"certifying {recipe} on this machine", into=place)

    from samepath.insight.certificate import tables, verdict
    from samepath.insight.certify import certify

    with common.stdout_kept_for_json(as_json):
        content = certify(recipe, folder, lambda text: click.echo(text, err=True))
    page = _write(place, content)
    if as_json:
        common.print_json(content)
    else:
        print_report(tables(content)[:3], verdict(content), page)
        print_text(f"certificate: {page.with_suffix('.json')}")
    return 0 if content["equal"] else 1


def _write(folder: Path, content: dict[str, Any]) -> Path:
    """Write both files, or on Ctrl-C none; the page's path."""
    from samepath.files import folder_aside, write_atomically
    from samepath.insight.certificate import SEAL, tables, verdict
    from samepath.report.page import Section, table_sections, write_page

    rows = [
        ["written", content["date"]],
        ["samepath", content["samepath"]["version"]],
        ["commit", content["samepath"]["commit"] or "not known"],
        ["SHA-256 of certificate.json's content", content[SEAL]],
    ]
    about = Section(
        heading="This certificate",
        table=[["", "found"], *rows],
        note="It holds no host name, user name, network address or folder.",
    )
    sections = [Section(heading="Verdict", words=verdict(content))]
    sections += [*table_sections(tables(content)), about]
    with folder_aside(folder) as aside:
        write_page(aside / "certificate.html", f"Certificate: {content['recipe']}", sections)
        text = json.dumps(content, indent=1) + "\n"
        write_atomically(aside / "certificate.json", text)
        aside.rename(folder)
    return folder / "certificate.html"
