# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Whether two kernel packs hold the same machine code, program by program, whatever the names: after
a change to kernels that is one of names and shape alone.

    python3 same_code.py PACK PACK [--disassemble N]

Programs are compared in their order: their sections of code, by name, byte by byte (the order of
functions in a program does not count). Exits with 1 where any differ, and prints the first
instructions of N of them that do (by nvdisasm).
"""
import argparse
import difflib
import struct
import subprocess
import sys
import tempfile
import zlib

HEAD = struct.Struct("<16sQQQQ")  # magic, hashes of key and bytes, bytes, and inflated ones


def entries(path):
    """The key and the ELF image of every entry of a pack."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        _, _, _, size, inflated = HEAD.unpack_from(data, at)
        content = data[at + HEAD.size:at + HEAD.size + size]
        if inflated != size:
            content = zlib.decompress(content)
        key, rest = content.split(b"\0", 1)
        while True:  # names, then an empty one
            name, rest = rest.split(b"\0", 1)
            if not name:
                break
        yield key.decode(), rest
        at += HEAD.size + size


def code_of(image):
    """The bytes of every section of code, in the order of the sections' names."""
    offset, = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, offset + i * size) for i in range(count)]
    base = headers[names][4]
    sections = {}
    for name, _, _, _, begin, length in headers:
        text = image[base + name:image.index(b"\0", base + name)]
        if text.startswith(b".text."):
            sections[text] = image[begin:begin + length]
    return [sections[name] for name in sorted(sections)]


def instructions(image):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run(["nvdisasm", "-c", file.name], capture_output=True, text=True)
    return [line.split("*/", 1)[-1].strip() for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--disassemble", type=int, default=0, metavar="N")
    options = parser.parse_args()
    before, after = (list(entries(path)) for path in (options.before, options.after))
    if len(before) != len(after):
        sys.exit(f"{len(before)} programs before, {len(after)} after")
    changed = [(old, new) for old, new in zip(before, after) if code_of(old[1]) != code_of(new[1])]
    for (key, _), _ in changed:
        print("differs:", key)
    for (_, old), (_, new) in changed[:options.disassemble]:
        lines = difflib.unified_diff(instructions(old), instructions(new), lineterm="", n=1)
        print("\n".join(list(lines)[:60]))
    print(f"{len(before) - len(changed)} of {len(before)} programs have the same machine code")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
