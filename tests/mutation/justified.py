# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""tests/mutants.txt: faults that change nothing that the library promises."""


def read_justified(path):
    """{(file, text of the line, fault): reason}"""
    entries, entry = {}, {}
    with open(path) as file:
        for number, line in enumerate([*file, ""], 1):
            line = line.strip()
            if line.startswith("#"):
                continue
            if line:
                name, _, value = line.partition(": ")
                if name not in ("file", "line", "fault", "why") or name in entry or not value:
                    raise ValueError(f"{path}:{number}: expected file, line, fault or why: '{line}'")
                entry[name] = value.strip()
            elif entry:
                if len(entry) != 4:
                    raise ValueError(f"{path}:{number}: an entry lacks a field: {entry}")
                entries[entry["file"], entry["line"], entry["fault"]] = entry["why"]
                entry = {}
    return entries
