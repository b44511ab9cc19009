# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""Seeded faults in C++ text: which there are on a line, and the text that switches one on.

The text is read as tokens, without a grammar. clang-format tells what a grammar would: a binary
operator stands between blanks, the bracket of a template does not.
"""
import bisect
import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<string>R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>\.\.\.|<=>|<<=|>>=|->|::|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE)

ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
# Between two operands, each with those that may replace it.
OPERATORS = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="),
    "==": ("!=",), "!=": ("==",), "&&": ("||",), "||": ("&&",),
    "+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "%": ("/",),
    "<<": (">>",), ">>": ("<<",), "&": ("|",), "|": ("&",), "^": ("|",),
    "+=": ("-=", "="), "-=": ("+=", "="), "*=": ("=",), "/=": ("*=",), "|=": ("=", "&="),
    "&=": ("=", "|="), ">>=": ("<<=",), "<<=": (">>=",)}  # fmt: skip
WORDS = {"min": "max", "max": "min", "add": "sub", "sub": "add", "mul": "add", "fma": "fms",
         "fms": "fma", "floor": "ceil", "true": "false", "false": "true"}  # fmt: skip
# What no operand can follow or be: the words of the grammar.
KEYWORDS = {"if", "for", "while", "switch", "return", "else", "do", "case", "using", "namespace",
            "template", "typename", "struct", "class", "enum", "static_assert", "const", "constexpr",
            "static", "inline", "auto", "sizeof", "operator", "friend", "extern", "union", "public",
            "private", "protected", "default", "goto", "throw", "delete", "new",
            "static_cast", "reinterpret_cast", "const_cast", "alignas", "noexcept"}  # fmt: skip
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    begin: int
    end: int


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new`; to the compiler, text[begin:end] becomes `region`."""

    line: int  # from 1
    kind: str
    old: str
    new: str
    begin: int
    end: int
    region: str
    statement: bool = False
    nth: int = 1  # of equal ones on the line

    def describe(self):
        nth = f" (number {self.nth} on the line)" if self.nth > 1 else ""
        return f"`{self.old}` -> `{self.new}`{nth}"

    def switched(self, text, number):
        """The text that has the fault where perseid_mutant is `number`, and else has not."""
        before = text[self.begin : self.end]
        if self.statement:
            return f"{{ if (perseid_mutant != {number}) {{ {before} }} }}"
        # On one line, so that those that follow keep their numbers.
        after = re.sub(r"\s*(//[^\n]*)?\n\s*", " ", self.region)
        return f"(perseid_mutant == {number} ? ({after}) : ({before}))"


class Source:
    def __init__(self, text):
        self.text = text
        self.starts = [0] + [m.end() for m in re.finditer("\n", text)]
        self.tokens = [
            Token(m.lastgroup if m.lastgroup != "raw" else "string", m.group(), m.start(), m.end())
            for m in TOKEN.finditer(text)
            if not m.group().isspace()
        ]
        self.tokens = [t for t in self.tokens if t.kind not in ("comment", "directive")]
        self._match()

    def line_of(self, position):
        return bisect.bisect_right(self.starts, position)

    def line_text(self, line):
        end = self.text.find("\n", self.starts[line - 1])
        return self.text[self.starts[line - 1] : end if end >= 0 else len(self.text)].strip()

    def code_lines(self):
        """Lines that hold a token other than brackets."""
        return sorted({self.line_of(t.begin) for t in self.tokens if t.text not in "(){}[];,"})

    # ---- Brackets ----

    def _spaced(self, i):
        """Whether the token stands between blanks, as binary operators do."""
        t = self.tokens[i]
        return (
            self.text[t.begin - 1 : t.begin].isspace() and self.text[t.end : t.end + 1].isspace()
        )

    def _match(self):
        """partner[i]: the other bracket of token i; angles are those of templates."""
        self.partner, stack, angles = {}, [], []
        self.inside = [None] * len(self.tokens)  # the bracket that is open before the token
        for i, t in enumerate(self.tokens):
            self.inside[i] = self.tokens[stack[-1][0]].text if stack else None
            if t.kind != "mark":
                continue
            if t.text in OPEN:
                stack.append((i, len(angles)))
            elif t.text in CLOSE and stack:
                first, depth = stack.pop()
                del angles[depth:]
                self.partner[first], self.partner[i] = i, first
            elif t.text == "<" and not self._spaced(i) and i > 0:
                before = self.tokens[i - 1]
                if before.kind == "word" or before.text == "template":
                    angles.append((i, len(stack)))
            elif t.text in (">", ">>") and not self._spaced(i):
                for _ in t.text:
                    if angles and angles[-1][1] == len(stack):
                        self.partner[angles[-1][0]] = i
                        self.partner[i] = angles.pop()[0]

    def _bounds(self, i, ends):
        """The widest range of tokens around i, at its depth, that no token of `ends` is in."""
        first = min(i, self.partner.get(i, i))
        while first > 0:
            j = first - 1
            t = self.tokens[j]
            if t.kind == "mark" and (t.text in OPEN or t.text in ends or t.text == "}"):
                break
            if t.kind == "mark" and t.text in (">", ">>", ")", "]") and j in self.partner:
                j = self.partner[j]
                head = self.tokens[j - 1].text if j > 0 else ""
                if self.tokens[j].text == "(" and head in ("if", "for", "while", "switch", "constexpr"):
                    break
            elif t.text == "<" and j in self.partner:
                break
            elif t.text in ("return", "else", "do", "case", "throw"):
                break
            first = j
        last = max(i, self.partner.get(i, i))
        while last + 1 < len(self.tokens):
            j = last + 1
            t = self.tokens[j]
            if t.kind == "mark" and (t.text in CLOSE or t.text in ends):
                break
            if t.text in (">", ">>") and self.partner.get(j, j) < i:
                break
            last = self.partner[j] if self.partner.get(j, -1) > j else j
        return first, last

    # ---- Faults ----

    def _replace(self, kind, i, new, ends):
        """Token i becomes `new`, within the expression that `ends` bound."""
        first, last = self._bounds(i, ends)
        return self._fault(kind, i, self.tokens[i].text, new, first, last,
                           self.tokens[i].begin, self.tokens[i].end, new)  # fmt: skip

    def _fault(self, kind, i, old, new, first, last, begin, end, text):
        b, e = self.tokens[first].begin, self.tokens[last].end
        return Fault(self.line_of(self.tokens[i].begin), kind, old, new, b, e,
                     self.text[b:begin] + text + self.text[end:e])  # fmt: skip

    def faults(self):
        found = []
        skip = self._skipped()
        for i, t in enumerate(self.tokens):
            if not skip[i]:
                found += [f for f in self._at(i, t) if f is not None]
        counts, numbered = {}, []
        for f in found:
            key = (f.line, f.old, f.new)
            counts[key] = counts.get(key, 0) + 1
            numbered.append(Fault(**{**f.__dict__, "nth": counts[key]}))
        return numbered

    def _skipped(self):
        """Tokens of static_asserts, of heads of templates, and of using and namespace."""
        skip, i = [False] * len(self.tokens), 0
        while i < len(self.tokens):
            t, last = self.tokens[i], i
            if t.text in ("using", "namespace", "friend"):
                while last + 1 < len(self.tokens) and self.tokens[last].text not in (";", "{"):
                    last += 1
            elif t.text in ("static_assert", "template") and i + 1 < len(self.tokens):
                last = self.partner.get(i + 1, i)
            for j in range(i, last + 1):
                skip[j] = t.text in ("static_assert", "template", "using", "namespace", "friend")
            i = last + 1
        return skip

    def _at(self, i, t):
        plain_ends = {",", ";", "?", ":", "&&", "||"} | ASSIGNMENTS
        before = self.tokens[i - 1] if i > 0 else t
        if t.kind == "number":
            for new in changed_numbers(t.text):
                yield self._replace("constant", i, new, plain_ends)
        elif t.kind == "mark" and t.text in OPERATORS and self._spaced(i):
            ends = {",", ";"} if t.text in ASSIGNMENTS else plain_ends
            for new in OPERATORS[t.text]:
                yield self._replace("operator", i, new, ends)
        elif t.kind == "mark" and t.text in "!-" and not self.text[t.end].isspace():
            unary = before.kind == "mark" and before.text not in (")", "]", "}")
            if unary or before.text == "return":
                yield self._replace("sign" if t.text == "-" else "negation", i, "", plain_ends)
        elif t.kind == "word":
            if t.text in WORDS and before.text not in (".", "->"):
                called = self.tokens[min(i + 1, len(self.tokens) - 1)].text in ("(", "<")
                if (called or t.text in ("true", "false")) and before.kind != "word":
                    yield self._replace("word", i, WORDS[t.text], plain_ends)
            yield self._condition(i, t)
            yield self._swap(i, t, plain_ends)
            yield self._drop(i, before)

    def _condition(self, i, t):
        if t.text not in ("if", "while"):
            return None
        opened = i + 1
        if self.tokens[opened].text == "constexpr":
            opened += 1
        closed = self.partner.get(opened)
        if self.tokens[opened].text != "(" or closed is None:
            return None
        first, _ = self._bounds(closed - 1, {";"})
        inside = range(first, closed)
        if any(self.tokens[j].text == "=" for j in inside):
            return None
        b, e = self.tokens[first].begin, self.tokens[closed - 1].end
        return Fault(self.line_of(t.begin), "condition", self.text[b:e], f"!({self.text[b:e]})", b, e,
                     f"!({self.text[b:e]})")  # fmt: skip

    def _swap(self, i, t, ends):
        """Two neighbouring arguments of a call: the first two that differ."""
        opened = i + 1
        if t.text in KEYWORDS or opened >= len(self.tokens) or self.tokens[opened].text != "(":
            return None
        closed = self.partner.get(opened)
        if closed is None or self.tokens[opened].begin != t.end:
            return None
        parts, first, j = [], opened + 1, opened + 1
        while j < closed:
            if self.tokens[j].text == ",":
                parts.append((first, j - 1))
                first = j + 1
            j = self.partner[j] + 1 if self.partner.get(j, -1) > j else j + 1
        parts.append((first, closed - 1))
        texts = any(self.tokens[j].kind == "string" for j in range(opened, closed))
        if texts or len(parts) < 2 or any(a > b or self._declares(a, b) for a, b in parts):
            return None
        texts = [self.text[self.tokens[a].begin : self.tokens[b].end] for a, b in parts]
        for k in range(len(parts) - 1):
            if texts[k] != texts[k + 1]:
                b, e = self.tokens[parts[k][0]].begin, self.tokens[parts[k + 1][1]].end
                between = self.text[self.tokens[parts[k][1]].end : self.tokens[parts[k + 1][0]].begin]
                first, last = self._bounds(i, ends)
                new = texts[k + 1] + between + texts[k]
                return self._fault("swap", i, self.text[b:e], new, first, last, b, e, new)
        return None

    def _declares(self, first, last):
        """Whether two names stand side by side, as in a parameter, or a type's reference ends."""
        for j in range(first, last + 1):
            t, after = self.tokens[j], self.tokens[j + 1]
            if t.text in ("const", "auto", "constexpr", "static"):
                return True
            if j < last and after.kind == "word" and (
                t.kind == "word" or (t.text in ("*", "&", "&&", ">", ">>") and not self._spaced(j)
                                     and self.text[t.begin - 1] not in " (")):  # fmt: skip
                return True
        return False

    def _drop(self, i, before):
        """An assignment, a call, break or continue that is a statement."""
        t = self.tokens[i]
        begins = before.text in (";", "{", "}", "else") or (
            before.text == ")" and self._heads(self.partner.get(i - 1)))  # fmt: skip
        if not begins or t.text in KEYWORDS or self.inside[i] == "(":
            return None
        j, acts = i, t.text in ("break", "continue")
        while j < len(self.tokens) and self.tokens[j].text != ";":
            u = self.tokens[j]
            if u.text in ("delete", "default", ",") or u.text in "}{:?" and not acts:
                return None
            if not acts and j > i and u.kind == "word" and (
                self.tokens[j - 1].kind == "word" or self.tokens[j - 1].text in ("*", "&", ">", ">>")):
                return None
            if u.text == "(" or u.text in ASSIGNMENTS:
                acts = True
            j = self.partner[j] + 1 if self.partner.get(j, -1) > j else j + 1
        if not acts or j >= len(self.tokens):
            return None
        b, e = t.begin, self.tokens[j].end
        return Fault(self.line_of(b), "drop", self.text[b:e], "", b, e, "{}", statement=True)

    def _heads(self, opened):
        return opened is not None and opened > 0 and self.tokens[opened - 1].text in (
            "if", "for", "while", "constexpr")  # fmt: skip


def changed_numbers(text):
    """One more and one less; of a fraction one more, of a power of two in hex likewise."""
    whole = re.fullmatch(r"(0[xX])?([0-9a-fA-F']+)([uUlL]*)", text)
    if whole and (whole[1] or re.fullmatch(r"[\d']+", whole[2])):
        value = int(whole[2].replace("'", ""), 16 if whole[1] else 10)
        form = (lambda v: hex(v) + whole[3]) if whole[1] else (lambda v: str(v) + whole[3])
        return [form(value + 1)] + ([form(value - 1)] if value > 0 else [])
    return [f"({text} + 1)"]


def apply(text, edits):
    """edits: (begin, end, new), not overlapping. Line ends are kept, so that lines stay lines."""
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text
