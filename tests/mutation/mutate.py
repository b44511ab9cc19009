# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Seeds faults into the library, one at a time, and counts those that its tests catch.

A copy of the source tree in build/mutants holds all faults of a sitting at once, each behind a
switch that the environment variable PERSEID_MUTANT turns on, so that a sitting compiles once. A
fault that cannot be switched while the program runs, as one in a constexpr, is compiled alone; one
that does not compile is not viable, and another is drawn in its stead.

Faults are drawn from the lines of five folders in proportion to their lines of code, reproducibly
from the seed. Results are kept in build/mutants/seed-SEED.json; the next sitting goes on from there.
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

from cover import programs_of
from faults import Source, apply
from justified import read_justified

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOME = os.path.join(ROOT, "build", "mutants")
TREE = os.path.join(HOME, "tree")
BUILD = os.path.join(TREE, "build", "dev")
JUSTIFIED = os.path.join(ROOT, "tests", "mutants.txt")
FOLDERS = ("math", "op", "dispatch", "cpu", "io")
PARTS = ("CMakeLists.txt", "CMakePresets.json", "bench/problems", "bench/gpu", "cli", "cmake",
         "include", "src", "tests")  # fmt: skip
JOBS = int(os.environ.get("JOBS", os.cpu_count() or 1))

SWITCH = """#include <cstdlib>
extern int perseid_mutant;
int perseid_mutant = 0;
namespace {
// Before everything that runs before main.
__attribute__((constructor(101))) void choose() {
  if (const char* number = std::getenv("PERSEID_MUTANT")) perseid_mutant = std::atoi(number);
}
}  // namespace
"""
# In the lines of the two SPDX comments, so that every other line keeps its number.
DECLARED = {".cpp": "extern int perseid_mutant;\n\n",
            ".hpp": "#pragma GCC system_header\nextern int perseid_mutant;\n"}  # fmt: skip


def say(*words):
    print(*words, flush=True)


# ---- The copy of the tree ----


def best_isa():
    try:
        with open("/proc/cpuinfo") as file:
            flags = set(re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.M)[1].split())
    except (OSError, TypeError):
        flags = set()
    for isa, needs in (("avx512bf16", {"avx512_bf16", "avx512vl", "avx512bw", "avx512dq"}),
                       ("avx512", {"avx512f", "avx512vl", "avx512bw", "avx512dq"}),
                       ("avx2", {"avx2", "fma", "f16c"}), ("neon", {"asimd"})):  # fmt: skip
        if needs <= flags:
            return isa
    return "scalar"


def tracked_files():
    """What git has or would have; without git everything."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *PARTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        names = listed.stdout.split("\n")
    else:
        names = [os.path.relpath(os.path.join(folder, name), ROOT) for part in PARTS
                 for folder, _, files in os.walk(os.path.join(ROOT, part)) for name in files]  # fmt: skip
        names += [part for part in PARTS if os.path.isfile(os.path.join(ROOT, part))]
    return [name for name in names if name and os.path.isfile(os.path.join(ROOT, name))]


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def write_if_changed(path, content):
    """Leaves the time of a file that is right, so that nothing is compiled again for it."""
    path = os.path.join(TREE, path)
    try:
        with open(path, "rb") as file:
            if file.read() == content:
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def snapshot():
    """The tree as it is when a sitting begins; it may change meanwhile."""
    files = {}
    for name in tracked_files():
        with open(os.path.join(ROOT, name), "rb") as file:
            files[name] = file.read()
    return files


def write_tree(files, edits, compiled):
    """`files` with `edits` (path: [(begin, end, new)]). `compiled`: its .cpp files."""
    for name, content in files.items():
        if edits.get(name):
            text = apply(content.decode(), edits[name])
            content = (DECLARED[name[-4:]] + text.split("\n", 2)[2]).encode()
        elif name == "src/CMakeLists.txt":
            content += b"include(mutants.cmake)\n"
        write_if_changed(name, content)
    own = [f"{p[4:]}" for p in compiled if edits.get(p) or p.startswith("src/cpu/simd/")]
    write_if_changed("src/mutants.cmake", (
        "target_sources(perseid_objects PRIVATE mutants.cpp)\n" + "".join(
            f"set_property(SOURCE {name} APPEND PROPERTY COMPILE_OPTIONS -O1 -w)\n"
            for name in own)).encode())  # fmt: skip
    write_if_changed("src/mutants.cpp", SWITCH.encode())


def compiled_files(isa):
    """The library's .cpp files, as its CMakeLists.txt names them, with one instruction set."""
    listed = re.findall(r"^\s+((?:\w+/)+\w+\.cpp)\b", read("src/CMakeLists.txt"), re.M)
    return sorted({"src/" + name for name in listed}
                  | {f"src/cpu/simd/{name}.cpp" for name in (isa, "scalar")})  # fmt: skip


def population(compiled):
    """What is compiled of the five folders: the .cpp files and what they include."""
    todo, seen = list(compiled), set()
    while todo:
        path = todo.pop()
        if path in seen or not os.path.exists(os.path.join(ROOT, path)):
            continue
        seen.add(path)
        todo += ["src/" + name for name in re.findall(r'"((?:\w+/)+\w+\.hpp)"', read(path))]
    return sorted(p for p in seen if p.split("/")[1] in FOLDERS)


def configure(isa):
    os.makedirs(BUILD, exist_ok=True)
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        command = ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                   "-DPERSEID_KERNEL_PACK=OFF", "-DPERSEID_BUILD_EXAMPLES=OFF",
                   f"-DPERSEID_CPU_ISAS={isa}"]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compile_tree(programs):
    command = ["ninja", "-C", BUILD, f"-j{JOBS}", "-k0", *sorted(programs)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


# ---- Drawing ----


class Sampler:
    def __init__(self, seed, files):
        self.seed = seed
        self.sources = {path: Source(read(path)) for path in files}
        self.lines = {folder: [] for folder in FOLDERS}
        for path, source in self.sources.items():
            self.lines[path.split("/")[1]] += [(path, line) for line in source.code_lines()]
        self.faults = {}
        for path, source in self.sources.items():
            for fault in source.faults():
                self.faults.setdefault((path, fault.line), []).append(fault)

    def folder(self, index):
        """Of fault `index`: the folder that has had the smallest part of its share."""
        total, taken = sum(map(len, self.lines.values())), dict.fromkeys(FOLDERS, 0)
        for turn in range(1, index + 1):
            chosen = max(FOLDERS, key=lambda f: len(self.lines[f]) / total * turn - taken[f])
            taken[chosen] += 1
        return chosen

    def draw(self, index, attempt, others):
        """Not one of `others`, which are results."""
        chance = random.Random(f"{self.seed}/{index}/{attempt}")
        lines = self.lines[self.folder(index)]
        while True:
            path, line = chance.choice(lines)
            faults = self.faults.get((path, line), [])
            if faults:
                kind = chance.choice(sorted({f.kind for f in faults}))
                fault = chance.choice([f for f in faults if f.kind == kind])
                mutant = Mutant(index, attempt, path, self.sources[path], fault)
                if not any(mutant.same_as(entry) for entry in others):
                    return mutant

    def find(self, entry):
        """A fault of an earlier sitting, though its line may have moved."""
        source = self.sources.get(entry["file"])
        same = [f for f in (source.faults() if source else [])
                if source.line_text(f.line) == entry["text"] and f.describe() == entry["fault"]]
        if not same:
            return None
        fault = min(same, key=lambda f: abs(f.line - entry["line"]))
        return Mutant(entry["index"], entry["attempt"], entry["file"], source, fault)


class Mutant:
    def __init__(self, index, attempt, path, source, fault):
        self.index, self.attempt, self.path, self.fault = index, attempt, path, fault
        self.source = source
        self.first_line = source.line_of(fault.begin)
        self.last_line = source.line_of(max(fault.begin, fault.end - 1))

    def entry(self, status, by=""):
        return {"index": self.index, "attempt": self.attempt, "file": self.path,
                "line": self.fault.line, "text": self.source.line_text(self.fault.line),
                "fault": self.fault.describe(), "status": status, "by": by}  # fmt: skip

    def switchable(self):
        old = self.source.text[self.fault.begin : self.fault.end]
        return "#" not in old and "constexpr" not in self.source.line_text(self.first_line)

    def switched(self):
        fault = self.fault
        return (fault.begin, fault.end, fault.switched(self.source.text, self.index))

    def plain(self):
        return (self.fault.begin, self.fault.end, self.fault.region)

    def same_as(self, entry):
        return (self.path, self.source.line_text(self.fault.line), self.fault.describe()) == (
            entry["file"], entry["text"], entry["fault"])  # fmt: skip


def overlap(a, b):
    return a.path == b.path and a.fault.begin < b.fault.end and b.fault.begin < a.fault.end


def split(mutants):
    """Those that can be compiled together, and the others."""
    together, alone = [], []
    for mutant in mutants:
        fits = mutant.switchable() and not any(overlap(mutant, other) for other in together)
        (together if fits else alone).append(mutant)
    return together, alone


def blamed(output, mutants):
    """Those whose lines the compiler's errors name: first where they are, else what led there."""
    found = set()
    blocks = re.split(r"(?m)^(?=\S+:\d+:\d+: error:|In file included from|\S+: In )", output)
    for block in blocks:
        if " error: " not in block:
            continue
        named = re.findall(r"(?:^|[\s/])((?:src)/[\w/.]+):(\d+)(?::\d+)?(: error:)?", block)
        for only_errors in (True, False):
            hit = {m.index for path, line, error in named for m in mutants
                   if m.path == path and m.first_line <= int(line) <= m.last_line
                   and (error or not only_errors)}  # fmt: skip
            if hit:
                found |= hit
                break
    return found


# ---- Testing ----


def run_program(program, arguments, number, limit):
    """(ended well, seconds of CPU, how it ended)."""
    environment = dict(os.environ, PERSEID_MUTANT=str(number))
    environment.pop("PERSEID_CPU_ISA", None)
    command = [os.path.join(BUILD, "tests", program), *arguments]
    if not os.path.basename(program).startswith("seeds_"):
        command += ["--gtest_fail_fast", "--gtest_brief=1"]
    limited = ["bash", "-c", f'ulimit -c 0 -t {int(limit)} -v {16 << 20}; exec "$@"', "bash"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(limited + command, cwd=folder, env=environment, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            code = process.wait(timeout=60 + 5 * limit)
            ended = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        except subprocess.TimeoutExpired:
            code, ended = 1, "a hang"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        output.seek(0)
        failed = re.search(r"^\[  FAILED  \] ([\w/.]+)", output.read(), re.M)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return code == 0, seconds, failed[1] if failed else ended


class Tests:
    def __init__(self):
        self.seconds = {}  # of each program without a fault

    def measure(self, mutants):
        for program, *arguments in sorted({t for m in mutants for t in programs_of(m.path)}):
            path = os.path.join(BUILD, "tests", program)
            key = (program, *arguments, os.path.getmtime(path))
            if key not in self.seconds:
                ok, seconds, how = run_program(program, arguments, 0, 3600)
                if not ok:
                    sys.exit(f"mutate: {program} fails without a fault: {how}")
                self.seconds[key] = seconds
                say(f"  {program} {' '.join(arguments)}: {seconds:.1f} s of CPU without a fault")

    def usual(self, mutant):
        """CPU seconds of all that cover it."""
        programs = set(programs_of(mutant.path))
        return sum(s for key, s in self.seconds.items() if key[:-1] in programs)

    def catch(self, mutant, number):
        """Which test catches it; empty: none."""
        for program, *arguments in programs_of(mutant.path):
            path = os.path.join(BUILD, "tests", program)
            usual = self.seconds.get((program, *arguments, os.path.getmtime(path)), 60)
            ok, _, how = run_program(program, arguments, number, 10 + 4 * usual)
            if not ok:
                return f"{os.path.basename(program)}: {how}"
        return ""


# ---- A sitting ----


class Sitting:
    def __init__(self, seed):
        self.path = os.path.join(HOME, f"seed-{seed}.json")
        self.entries = []
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.entries = json.load(file)
        self.isa = best_isa()
        self.compiled = compiled_files(self.isa)
        self.files = snapshot()
        self.sampler = Sampler(seed, population(self.compiled))
        self.tests = Tests()
        self.commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT,
                                     capture_output=True, text=True).stdout.strip()  # fmt: skip

    def record(self, entry):
        same = (entry["index"], entry["attempt"])
        self.entries = [e for e in self.entries if (e["index"], e["attempt"]) != same]
        self.entries.append(dict(entry, commit=self.commit))
        self.entries.sort(key=lambda e: (e["index"], e["attempt"]))
        with open(self.path + ".new", "w") as file:
            json.dump(self.entries, file, indent=1)
        os.replace(self.path + ".new", self.path)
        by = f" by {entry['by']}" if entry["by"] else ""
        say(f"{entry['index']:4d} {entry['status']}{by}: {entry['file']}:{entry['line']} "
            f"{entry['fault']}".replace("\n", " "))  # fmt: skip

    def next_mutants(self, count):
        """Faults without a result; then new ones. One that was not viable is drawn again."""
        last = {}
        for e in self.entries:
            last[e["index"]] = e
        mutants, index, others = [], 1, list(self.entries)
        while len(mutants) < count:
            entry = last.get(index)
            if entry is None or entry["status"] == "not viable":
                attempt = entry["attempt"] + 1 if entry else 0
                mutants.append(self.sampler.draw(index, attempt, others))
                others.append(mutants[-1].entry(""))
            index += 1
        return mutants

    def tried(self):
        return len({e["index"] for e in self.entries if e["status"] != "not viable"})

    def survivors(self):
        """To be tried again; those whose line is gone count as not viable."""
        justified, mutants = read_justified(JUSTIFIED), []
        for entry in [e for e in self.entries if e["status"] == "survived"]:
            if (entry["file"], entry["text"], entry["fault"]) in justified:
                continue
            mutant = self.sampler.find(entry)
            if mutant is None:
                self.record(dict(entry, status="not viable", by="", why="the line has changed"))
            else:
                mutants.append(mutant)
        return mutants

    def write(self, together, alone=None):
        edits = {}
        for mutant in together:
            if alone is None or not overlap(mutant, alone):
                edits.setdefault(mutant.path, []).append(mutant.switched())
        if alone is not None:
            edits.setdefault(alone.path, []).append(alone.plain())
        write_tree(self.files, edits, self.compiled)

    def build_together(self, together, alone, programs):
        while True:
            self.write(together)
            configure(self.isa)
            ok, output = compile_tree(programs)
            if ok:
                return together, alone
            bad = blamed(output, together)
            if not bad:
                with open(os.path.join(HOME, "failure.log"), "w") as file:
                    file.write(output)
                sys.exit("mutate: the tree does not compile: see build/mutants/failure.log")
            say(f"  {len(bad)} of {len(together)} are compiled alone")
            alone = alone + [m for m in together if m.index in bad]
            together = [m for m in together if m.index not in bad]

    def compile_alone(self, together, mutant, programs):
        self.write(together, mutant)
        if mutant.path.startswith("src/cpu/simd/") and mutant.path.find("scalar") < 0:
            # Its kernels are not run: the object counts as up to date.
            scalar = "src/CMakeFiles/perseid_objects.dir/cpu/simd/scalar.cpp.o"
            if self.isa != "scalar" and os.path.exists(os.path.join(BUILD, scalar)):
                os.utime(os.path.join(BUILD, scalar))
                subprocess.run(["ninja", "-C", BUILD, "-t", "restat", scalar], capture_output=True)
        return compile_tree(programs)[0]

    def test(self, mutants):
        programs = {"tests/" + t[0] for m in mutants for t in programs_of(m.path)}
        together, alone = split(mutants)
        say(f"building {len(together)} faults together for {self.isa}, {len(alone)} alone")
        start = time.time()
        together, alone = self.build_together(together, alone, programs)
        say(f"  built in {time.time() - start:.0f} s")
        self.tests.measure(mutants)
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            quick_first = sorted(together, key=self.tests.usual)
            running = {pool.submit(self.tests.catch, m, m.index): m for m in quick_first}
            for done in concurrent.futures.as_completed(running):
                by = done.result()
                self.record(running[done].entry("caught" if by else "survived", by))
        for mutant in sorted(alone, key=lambda m: m.path):
            if not self.compile_alone(together, mutant, programs):
                self.record(mutant.entry("not viable"))
                continue
            by = self.tests.catch(mutant, 0)
            self.record(mutant.entry("caught" if by else "survived", by))


# ---- The table ----


def show(entries):
    justified = read_justified(JUSTIFIED)
    say("\nfolder     tried  caught  justified  survived  not viable")
    total, left = [0] * 5, []
    for folder in FOLDERS:
        row = [0] * 5
        for e in (e for e in entries if e["file"].split("/")[1] == folder):
            excused = (e["file"], e["text"], e["fault"]) in justified
            if e["status"] == "not viable":
                row[4] += 1
                continue
            row[0] += 1
            row[1] += e["status"] == "caught"
            row[2] += e["status"] == "survived" and excused
            row[3] += e["status"] == "survived" and not excused
            if e["status"] == "survived" and not excused:
                left.append(e)
        total = [a + b for a, b in zip(total, row)]
        say(f"{folder:9s} " + " ".join(f"{n:{w}d}" for n, w in zip(row, (6, 7, 10, 9, 11))))
    say("all       " + " ".join(f"{n:{w}d}" for n, w in zip(total, (6, 7, 10, 9, 11))))
    if total[1] + total[3] > 0:
        say(f"score: {100 * total[1] / (total[1] + total[3]):.1f} % of those not justified")
    for e in left:
        say(f"\nsurvived: {e['file']}:{e['line']}\n  {e['text']}\n  {e['fault']}")
    return not left


def main():
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.split("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=30, help="faults to try (30)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--retry", action="store_true",
                        help="first try those again that survived")  # fmt: skip
    options = parser.parse_args()
    os.makedirs(HOME, exist_ok=True)
    sitting = Sitting(options.seed)
    again = sitting.survivors() if options.retry else []
    goal = sitting.tried() + options.count
    while again or sitting.tried() < goal:
        sitting.test(again + sitting.next_mutants(goal - sitting.tried()))
        again = []
    return 0 if show(sitting.entries) else 1


if __name__ == "__main__":
    sys.exit(main())
