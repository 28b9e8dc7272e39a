#!/usr/bin/env python3
"""Writes the licences of all crates in the program `kiln` to standard output:

    .ci/licences.py [--features FEATURES] > THIRD-PARTY.txt

Every crate of the resolved graph of kiln-cli without build scripts, macros and tests, with its licence expression, its repository and
the text of its licence files; a text that several crates have stands once. cargo-deny (deny.toml) decides which licences are allowed.
Needs cargo, and the sources of the crates (`cargo fetch`).
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

FILES = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", default="", help="features of kiln-cli, as in cargo build")
    parser.add_argument("--target", help="the target of the build; without it, this machine's")
    return parser.parse_args()


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def packages(features, target):
    """The packages that are in the program, by name and version."""
    target = target or re.search(r"^host: (\S+)", run("rustc", "-vV"), re.MULTILINE)[1]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(run(*command, *(["--features", features] if features else [])))
    tree = ["cargo", "tree", "--locked", "--package", "kiln-cli", "--edges", "normal,no-proc-macro", "--prefix", "none"]
    tree += ["--target", target, "--format", "{p}", *(["--features", features] if features else [])]
    used = {tuple(line.split()[:2]) for line in run(*tree).splitlines() if line.strip()}
    own = set(metadata["workspace_members"])
    every = [package for package in metadata["packages"] if (package["name"], "v" + package["version"]) in used]
    return sorted((package for package in every if package["id"] not in own), key=lambda one: (one["name"], one["version"]))


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    named = [folder / package["license_file"]] if package["license_file"] else []
    found = sorted(path for path in folder.iterdir() if path.is_file() and FILES.match(path.name) and path.suffix not in (".rs", ".toml"))
    return {path.resolve(): path.read_text(errors="replace").strip() for path in named + found if path.is_file()}.values()


def main():
    given = arguments()
    found = packages(given.features, given.target)
    if not found:
        sys.exit("no crate found: is this the checkout of Kiln?")
    by_text, lines = {}, []
    for package in found:
        name = f"{package['name']} {package['version']}"
        licence = package["license"] or "see its file"
        lines.append(f"{name}: {licence}" + (f", {package['repository']}" if package["repository"] else ""))
        own = [text for text in texts(package) if text]
        if not own:
            authors = ", ".join(package["authors"]) or "its authors"
            own = [f"The published crate has no licence file. It is by {authors}, under {licence}."]
        for text in own:
            by_text.setdefault(text, []).append(name)
    print(f"Kiln contains {len(found)} crates of others.\n")
    print("\n".join(lines))
    for text, names in sorted(by_text.items(), key=lambda item: (-len(item[1]), item[1][0])):
        print("\n" + "=" * 100 + "\n" + ", ".join(names) + "\n" + "-" * 100 + "\n\n" + text)


if __name__ == "__main__":
    main()
