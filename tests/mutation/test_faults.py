# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of the seeded faults: python3 -m unittest discover tests/mutation"""
import os
import tempfile
import unittest

from cover import programs_of
from faults import Source, apply, changed_numbers
from justified import read_justified
from mutate import FOLDERS, Mutant, Sampler, blamed, compiled_files, population, split


def described(text, kind=None):
    return [f.describe() for f in Source(text).faults() if kind in (None, f.kind)]


def regions(text, kind):
    return [(text[f.begin : f.end], f.region) for f in Source(text).faults() if f.kind == kind]


class Faults(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(changed_numbers("16"), ["17", "15"])
        self.assertEqual(changed_numbers("0"), ["1"])
        self.assertEqual(changed_numbers("0x7fu"), ["0x80u", "0x7eu"])
        self.assertEqual(changed_numbers("1'000"), ["1001", "999"])
        self.assertEqual(changed_numbers("0.5f"), ["(0.5f + 1)"])
        self.assertEqual(changed_numbers("0x1p-24f"), ["(0x1p-24f + 1)"])

    def test_operators_between_blanks_only(self):
        self.assertEqual(described("x = a < b;", "operator"), ["`<` -> `<=`", "`<` -> `>`"])
        self.assertEqual(described("std::vector<int> v;\nT* p;\nf(*q, &r);", "operator"), [])

    def test_region_is_the_expression(self):
        self.assertEqual(regions("y = f(a + b < c, d);", "operator")[0],
                         ("a + b < c", "a - b < c"))  # fmt: skip
        self.assertEqual(regions("return a && b && c;", "operator"),
                         [("a && b", "a || b"), ("b && c", "b || c")])  # fmt: skip
        self.assertEqual(regions("for (int i = 0; i < n; ++i) s += x;", "operator"),
                         [("i < n", "i <= n"), ("i < n", "i > n"), ("s += x", "s -= x"),
                          ("s += x", "s = x")])  # fmt: skip
        self.assertEqual(regions("x = convert<float>(y) * z;", "operator"),
                         [("convert<float>(y) * z", "convert<float>(y) + z")])  # fmt: skip

    def test_signs_and_negations(self):
        self.assertEqual(regions("x = -a - b;", "sign"), [("-a - b", "a - b")])
        self.assertEqual(regions("if (!a) return;", "negation"), [("!a", "a")])
        self.assertEqual(regions("return -1.0f;", "sign"), [("-1.0f", "1.0f")])

    def test_conditions(self):
        self.assertEqual(regions("if (a < b) return;", "condition"), [("a < b", "!(a < b)")])
        self.assertEqual(regions("if (const T t = f(); t.ok()) g();", "condition"),
                         [("t.ok()", "!(t.ok())")])  # fmt: skip
        self.assertEqual(regions("if (T* t = f()) g();", "condition"), [])

    def test_swapped_arguments(self):
        self.assertEqual(described("x = f(a, b, c);", "swap"), ["`a, b` -> `b, a`"])
        self.assertEqual(described("x = f(a, a, c);", "swap"), ["`a, c` -> `c, a`"])
        self.assertEqual(described("void f(int a, int b);", "swap"), [])
        self.assertEqual(described("void f(const T& a, U* b);", "swap"), [])
        self.assertEqual(described("if (a, b) f(a);", "swap"), [])
        self.assertEqual(described('fail("x is ", x);', "swap"), [])

    def test_dropped_statements(self):
        self.assertEqual(described("{ f(a); }", "drop"), ["`f(a);` -> ``"])
        self.assertEqual(described("{ a.b[i] = c; }", "drop"), ["`a.b[i] = c;` -> ``"])
        self.assertEqual(described("for (;;) { if (x) continue; }", "drop"), ["`continue;` -> ``"])
        self.assertEqual(described("{ int64_t a = f(b); T* p = q; std::vector<int> v(3); }", "drop"), [])
        self.assertEqual(described("{ std::span<const A<B>> f(int); X x{f(a), {g(b), c}}; }", "drop"), [])
        self.assertEqual(described("{ for (i = 0; i < n; i = next(i)) {} }", "drop"), [])
        self.assertEqual(described("{ const auto a = f(b); return g(a); }", "drop"), [])

    def test_what_is_left_alone(self):
        self.assertEqual(described('#include <a>\n#define X 3\n// 1 + 2\n/* 3 */ "4 + 5";'), [])
        self.assertEqual(described("static_assert(a + 1 < 2);"), [])
        self.assertEqual(described("template <int N = 4>\nusing A = B<3>;"), [])
        self.assertEqual(described('R"__x__(1 + 2)__x__";'), [])

    def test_equal_faults_of_a_line_are_numbered(self):
        self.assertEqual(described("x = a + b + c;"),
                         ["`+` -> `-`", "`+` -> `-` (number 2 on the line)"])  # fmt: skip

    def test_switch(self):
        text = "x = a < b;\n"
        fault = Source(text).faults()[0]
        switched = apply(text, [(fault.begin, fault.end, fault.switched(text, 7))])
        self.assertEqual(switched, "x = (perseid_mutant == 7 ? (a <= b) : (a < b));\n")
        text = "{ f(a); }"
        fault = Source(text).faults()[0]
        switched = apply(text, [(fault.begin, fault.end, fault.switched(text, 7))])
        self.assertEqual(switched, "{ { if (perseid_mutant != 7) { f(a); } } }")
        self.assertEqual(apply(text, [(fault.begin, fault.end, fault.region)]), "{ {} }")

    def test_switch_keeps_lines(self):
        text = "x = a +  // first\n    b;\ny = c;\n"
        fault = Source(text).faults()[0]
        switched = apply(text, [(fault.begin, fault.end, fault.switched(text, 7))])
        self.assertEqual(switched, "x = (perseid_mutant == 7 ? (a - b) : (a +  // first\n    b));\ny = c;\n")

    def test_lines(self):
        source = Source("// c\n\nint f() {\n  return 1 +\n         2;\n}\n")
        self.assertEqual(source.code_lines(), [3, 4, 5])
        self.assertEqual([f.line for f in source.faults() if f.kind == "operator"], [4])
        self.assertEqual(source.line_text(4), "return 1 +")


class Sitting(unittest.TestCase):
    def mutants(self, path, text, count):
        source = Source(text)
        return [Mutant(i + 1, 0, path, source, f) for i, f in enumerate(source.faults()[:count])]

    def test_overlapping_faults_are_compiled_alone(self):
        mutants = self.mutants("src/io/x.cpp", "x = a + b - c;\ny = (d + e);\n", 3)
        mutants += self.mutants("src/io/y.cpp", "constexpr int k = 3;\n", 1)
        mutants += self.mutants("src/io/z.cpp", "x = f([] {\n#pragma GCC unroll 4\n}) + b;\n", 1)
        together, alone = split(mutants)
        self.assertEqual(together, [mutants[0], mutants[2]])
        self.assertEqual(alone, [mutants[1], mutants[3], mutants[4]])

    def test_errors_are_blamed_on_lines(self):
        mutants = self.mutants("src/io/x.cpp", "x = a + b;\n\ny = c - d;\n", 2)
        where = "/tree/src/io/x.cpp:3:5: error: call to non-constexpr"
        self.assertEqual(blamed(where, mutants), {2})
        led = "/tree/src/io/z.hpp:9:1: error: not constant\n/tree/src/io/x.cpp:1:3: note: here"
        self.assertEqual(blamed(led, mutants), {1})
        self.assertEqual(blamed("/tree/src/io/x.cpp:2:5: error: other", mutants), set())

    def test_draws_are_reproducible_and_in_proportion(self):
        files = population(compiled_files("scalar"))
        sampler = Sampler(7, files)
        lines = sum(map(len, sampler.lines.values()))
        for folder in FOLDERS:
            drawn = sum(sampler.folder(i) == folder for i in range(1, 51))
            self.assertAlmostEqual(drawn, 50 * len(sampler.lines[folder]) / lines, delta=1.01)
        first = sampler.draw(3, 0, [])
        again = Sampler(7, files).draw(3, 0, [])
        self.assertEqual(first.entry(""), again.entry(""))
        other = sampler.draw(3, 0, [first.entry("caught")])
        self.assertFalse(other.same_as(first.entry("")))
        found = sampler.find(dict(first.entry("survived"), line=1))
        self.assertTrue(found.same_as(first.entry("")))

    def test_every_file_is_covered(self):
        for path in population(compiled_files("scalar")):
            self.assertTrue(programs_of(path))

    def test_justified_faults(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mutants.txt")
            with open(path, "w") as file:
                file.write("# c\nfile: a\nline: x = 1;\nfault: `1` -> `2`\nwhy: Because.\n\n")
            self.assertEqual(read_justified(path), {("a", "x = 1;", "`1` -> `2`"): "Because."})
            with open(path, "a") as file:
                file.write("file: a\nwhy: More.\n")
            self.assertRaises(ValueError, read_justified, path)


if __name__ == "__main__":
    unittest.main()
