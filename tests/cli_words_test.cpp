// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the program says of its own flags: sentences, help, manual pages, completion.
#include <algorithm>
#include <regex>
#include <set>

#include "cli_test_tools.hpp"

namespace perseid {
namespace {

using CliWordsTest = CliTest;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- Sentences --------------------------------------------------------------------------------

TEST_F(CliWordsTest, NearNamesAreOffered) {
  expect_refused("run sofmax --input @x.npy --output @y.npy", 2,
                 "there is no 'sofmax' in perseid run; there are softmax, attention, matmul, "
                 "all-gather-matmul, matmul-reduce-scatter, matmul-all-reduce, context-attention, "
                 "dropout-mask; did "
                 "you mean 'softmax'? (perseid run --help lists its flags)");
  expect_refused("chekc", 2, "did you mean 'check'?");
  expect_refused("explain atention --q-len 4", 2, "did you mean 'attention'?");
  expect_refused("run softmax --inptu @x.npy", 2,
                 "perseid run softmax has no flag '--inptu'; did you mean '--input'?");
  expect_refused("explain attention --qlen=4", 2, "has no flag '--qlen'; did you mean '--q-len'?");
  // A common flag, read by every command.
  expect_refused("explain matmul --m 4 --dtyp bf16", 2, "did you mean '--dtype'?");
  const Ended far = run("run frobnicate");
  EXPECT_FALSE(has(far.err, "did you mean")) << far.err;
}

TEST_F(CliWordsTest, SentencesNameFlags) {
  const std::string attention = "explain attention --q-len 4 --kv-len 4 --head-dim 8 ";
  expect_refused(attention + "--heads 3 --kv-heads 2", 2,
                 "attention: --heads is 3, expected a multiple of --kv-heads, which is 2");
  expect_refused(attention + "--value-dim -1", 2, "--value-dim is -1, expected at least 1");
  expect_refused(attention + "--window 3,-2", 2, "--window is -2");
  expect_refused(attention + "--causal 7", 2,
                 "--causal is 7, expected none, top-left or bottom-right");
  expect_refused(attention + "--bias 1,1,2,4", 2, "--bias[2] is 2");
  expect_refused(attention + "--gradients bias", 2,
                 "--gradients has bias, but --bias is not given");
  expect_refused("explain softmax --shape 4,5 --dim 3", 2, "softmax: --dim is 3, expected -2 to 1");
  expect_refused("explain softmax --shape 4,-5", 2, "--shape: dimension 1 is -5");
  expect_refused("explain softmax --shape 1,1,1,1,1,1,1,1,1", 2,
                 "softmax: the number of dimensions is 9, expected 1 to 8");
  expect_refused("explain softmax --shape 4 --assume ''", 2,
                 "--assume: expected a name such as sm_80, got ''");
  expect_refused("explain --problems @.", 2, "give a file of one JSON object a line");
  expect_refused("explain matmul --m -4", 2, "matmul: --m is -4");
  expect_refused("explain matmul --m x", 2, "--m: expected a whole number, got 'x'");
  expect_refused("explain matmul --m 4 --dtype f8", 2, "--dtype: expected one of");
  // Those of a report, which begin in the middle of a line.
  expect_refused("check matmul --m -4", 2, "refused: matmul: --m is -4");
  expect_refused("check softmax --shape 4,5 --visible 3,3", 2,
                 "--visible has shape [3, 3], expected one that broadcasts against "
                 "[dimension 0 4, dimension 1 5]");
}

// Each says what to do.
TEST_F(CliWordsTest, ShapeErrorsGiveAdvice) {
  write("x.npy", {2, 3}, {1, 2, 3, 4, 5, 6});
  write("q.npy", {1, 2, 2, 4}, std::vector<double>(16, 0));
  write("k.npy", {1, 3, 2, 8}, std::vector<double>(48, 0));
  write("p.npy", {2, 2, 4}, std::vector<double>(16, 0));
  write("n.npy", {1}, {5}, i32);
  const std::string attention = "run attention --out @o.npy --query @q.npy --value @q.npy ";
  expect_refused("run matmul --a @x.npy --b @x.npy --out @o.npy", 2,
                 "--transpose-a and --transpose-b swap rows and columns");
  expect_refused("run matmul --a @q.npy --b @x.npy --out @o.npy", 2, "shape [1, 2, 2, 4]: reshape");
  expect_refused("run attention --query @p.npy --key @q.npy --value @q.npy --out @o.npy", 2,
                 "got shape [2, 2, 4]: reshape it, or give --cu-seqlens-q and --cu-seqlens-kv");
  expect_refused(
      attention + "--key @k.npy", 2,
      "--key has head_dim 8, expected 4; its shape is [1, 3, 2, 8], expected [batch 1, ");
  expect_refused(attention + "--key @k.npy", 2, "; give one of that shape");
  expect_refused(attention + "--key @q.npy --kv-lens @n.npy", 2, "; cut it");
  expect_refused(attention + "--key @q.npy --grad-out @k.npy --grad-query @g.npy", 2,
                 "attention backward: --grad-out has q_len 3, expected 2");
  expect_refused("explain softmax --shape 4,5 --dim 2", 2, "negative ones count from the last");
}

// ---- Help -------------------------------------------------------------------------------------

// What a problem's numbers cannot be, or one flag is without another.
TEST_F(CliWordsTest, ProblemsThatFitNoCallAreRefused) {
  const std::string attention = "attention --q-len 8 --kv-len 8 --head-dim 8 ";
  for (const std::string& command : {"explain " + attention, "check " + attention})
    for (const char* splits : {"-1", "9999999999", "4294967296"})
      expect_refused(command + "--num-splits=" + splits, 2,
                     std::string("--num-splits must be from 0 to 4294967295, got ") + splits);
  std::ofstream(path("p.jsonl"))
      << R"({"op":"attention","q_len":8,"kv_len":8,"head_dim":8,"num_splits":-1})"
      << "\n";
  expect_refused("explain --problems @p.jsonl --json", 2, "--num-splits must be from 0");
  EXPECT_EQ(json("explain " + attention + "--num-splits 4294967295")["problem"]["num_splits"],
            4294967295u);
  expect_refused("explain softmax --shape 2,2 --dim 4294967295", 2, "--dim must be from -8 to 7");
  for (const char* command : {"explain ", "check "}) {
    expect_refused(command + attention + "--kv-index 0", 2,
                   "--kv-index is given without --kv-batch");
    expect_refused(command + attention + "--window-bottom-right", 2,
                   "--window-bottom-right is 1 without a window, which it aligns");
    expect_refused(command + attention + "--kv-batch 2", 2, "--kv-index");
  }
  expect_refused("explain " + attention + "--kv-batch 2 --kv-index 2", 2,
                 "--kv-index has 2, expected 0 to 1, the entries of key and value");
  expect_refused("explain " + attention + "--kv-batch 2 --kv-index=-1", 2, "--kv-index has -1");
  expect_refused("explain " + attention + "--max-q-len 7", 2,
                 "--max-q-len is 7, expected at least 8, the longest of the problem");
  expect_refused("explain " + attention + "--max-kv-len 7", 2, "--max-kv-len is 7");
  expect_refused("explain " + attention + "--q-lens 9", 2,
                 "--q-lens has 9, expected 0 to 8, the most queries of a sequence");
  expect_refused("explain " + attention + "--kv-lens 9", 2, "--kv-lens has 9");
  expect_refused("explain attention --head-dim 8 --cu-seqlens-q 0,4 --cu-seqlens-kv 1,4", 2,
                 "cumulative lengths begin with 0");
  expect_ok("explain " + attention + "--kv-batch 2 --kv-index 1 --q-lens 8 --max-q-len 8");
  expect_refused("explain " + attention + "--window 1,1 --window-bottom-right --causal top-left", 2,
                 "--window-bottom-right is 1 with causal");
  expect_refused("explain attention --head-dim 8 --cu-seqlens-q 0,4 --kv-starts 0 --total-kv 4", 2,
                 "a start does not say where its sequence ends");
  expect_refused(
      "run attention --query @q.npy --key @k.npy --value @v.npy --out @o.npy "
      "--window-bottom-right",
      2, "--window-bottom-right is given without --window");
  const Ended wish = run("explain " + attention + "--impl cpu:fast");
  EXPECT_EQ(wish.code, 2);
  EXPECT_TRUE(has(wish.err, "--impl is \"cpu:fast\", expected one or several")) << wish.err;
  EXPECT_FALSE(has(wish.err, "NULL") || has(wish.err, "descriptor")) << wish.err;
  EXPECT_EQ(json("explain " + attention + "--backward --deterministic")["problem"]["deterministic"],
            "yes");
  EXPECT_FALSE(json("explain " + attention + "--backward")["problem"].contains("deterministic"));
}

// Without a GPU, or with one whose kernels refuse the problem.
TEST_F(CliWordsTest, CheckingNothingIsNoSuccess) {
  const std::string command = in_folder(
      "PERSEID_DISABLE_CUDA=1 " PERSEID_CLI
      " check attention --q-len 8 --kv-len 8 --head-dim 8 --impl cuda:portable >@stdout 2>@stderr");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3) << text_of("stdout");
  EXPECT_TRUE(has(text_of("stderr"), "nothing was checked: ")) << text_of("stderr");
}

// Of several operations, those that have the implementation.
TEST_F(CliWordsTest, AnImplementationIsThatOfItsOperation) {
  std::ofstream(path("p.jsonl"))
      << R"({"op":"softmax","shape":[3,4]})"
      << "\n"
      << R"({"op":"attention","q_len":4,"kv_len":4,"head_dim":8})"
      << "\n"
      << R"({"op":"matmul","m":3,"n":4,"k":5})"
      << "\n"
      << R"({"op":"dropout-mask","batch":1,"heads":1,"q_len":4,"kv_len":4,"dropout":0.5})"
      << "\n";
  const auto checked = [&](const char* names) {
    return json("check --device cpu --problems @p.jsonl --impl " + std::string(names))["checked"];
  };
  EXPECT_EQ(checked("cpu:tiled"), 1);
  EXPECT_EQ(checked("cpu:tiled,cpu:decode"), 1);
  EXPECT_EQ(checked("cpu:reference"), 3);
  expect_refused("check --device cpu --impl cpu:tilde", 2,
                 "--impl is \"cpu:tilde\", which no operation has");
  expect_refused("check --device cpu --fuzz 4 --impl cpu:tilde", 2, "which no operation has");
  EXPECT_EQ(json("check --device cpu --fuzz 12 --impl cpu:packed")["failed"], 0);
}

TEST_F(CliWordsTest, HelpLeavesOutTheFlagsForTests) {
  for (const char* command : {"check attention", "explain matmul", "bench softmax"}) {
    const std::string help = run(std::string(command) + " --help").out;
    const std::string all = run(std::string(command) + " --help-all").out;
    for (const char* flag : {"--fault", "--expect", "--misalign", "--strides", "--data-seed"}) {
      EXPECT_FALSE(has(help, flag)) << command << flag;
      EXPECT_TRUE(has(all, flag)) << command << flag;
    }
    EXPECT_TRUE(has(help, "--backward") || has(help, "--alpha")) << command;
    EXPECT_FALSE(has(help, "\n\n\n")) << help;
  }
  // They still work.
  expect_ok("check softmax --shape 3,5 --strides padded --misalign 4 --quiet");
  const std::string all = run("check --help-all").out;
  for (const char* flag : {"--fuzz", "--head-dim", "--transpose-a", "--fault"})
    EXPECT_TRUE(has(all, flag)) << flag;
}

TEST_F(CliWordsTest, HelpFitsTheTerminal) {
  for (const auto& [columns, width] :
       {std::pair<const char*, size_t>{"80", 80}, {"100", 100}, {"120", 100}}) {
    setenv("COLUMNS", columns, 1);
    for (const char* command :
         {"--help", "--help-all", "check --help", "check attention --help-all", "explain --help",
          "run --help-all", "run attention --help", "bench matmul --help", "info --threads 1",
          "explain attention --q-len 2048 --kv-len 2048 --heads 32 --kv-heads 8 --head-dim 128"})
      for (const std::string& line : lines_of(run(command).out))
        EXPECT_LE(line.size(), width) << command;
  }
  unsetenv("COLUMNS");
  const std::string example = run("explain --help").out;
  EXPECT_TRUE(has(example, "Example:\n  perseid explain attention --batch 4 ")) << example;
  EXPECT_TRUE(has(example, " \\\n      --")) << example;
}

TEST_F(CliWordsTest, HelpIsACommandToo) {
  EXPECT_EQ(run("help").out, run("--help").out);
  EXPECT_EQ(run("help run").out, run("run --help").out);
  EXPECT_EQ(run("help run softmax").out, run("run softmax --help").out);
  EXPECT_EQ(run("help help").out, run("help --help").out);
  expect_ok("help bench");
  expect_refused("help chekc", 2, "there is no 'chekc' in perseid; there are info, ");
  expect_refused("help chekc", 2, "did you mean 'check'?");
  expect_refused("help info now", 2, "there is no 'now' in perseid info (perseid info --help ");
}

// ---- The manual -------------------------------------------------------------------------------

const char* const kCommands[] = {"info", "explain", "check",      "bench", "tune",
                                 "run",  "help",    "completion", "man"};

std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  const std::regex flag("--[a-z][a-z-]*");
  for (std::sregex_iterator at(text.begin(), text.end(), flag), end; at != end; ++at)
    flags.insert(at->str());
  return flags;
}

// Without what troff reads.
std::string plain(std::string page) {
  for (size_t at = 0; (at = page.find("\\-", at)) != std::string::npos;) page.erase(at, 1);
  return page;
}

TEST_F(CliWordsTest, EveryCommandHasAManualPage) {
  const std::string program = plain(run("man").out);
  EXPECT_TRUE(has(program, ".TH PERSEID 1")) << program;
  for (const char* command : kCommands) {
    EXPECT_TRUE(has(program, std::string("perseid-") + command + "(1)")) << command;
    const std::string page = plain(run(std::string("man ") + command).out);
    EXPECT_TRUE(has(page, ".SH NAME\nperseid-" + std::string(command) + " - ")) << page;
    EXPECT_TRUE(has(page, ".SH EXAMPLE")) << page;
  }
  // All of a command's flags, of the operations under it, too.
  const std::set<std::string> page = flags_in(plain(run("man run").out));
  for (const char* below : {"softmax", "attention", "matmul", "dropout-mask"})
    for (const std::string& flag : flags_in(run(std::string("run ") + below + " --help").out))
      EXPECT_TRUE(page.contains(flag)) << flag;
  EXPECT_FALSE(flags_in(plain(run("man check").out)).contains("--fault"));
}

TEST_F(CliWordsTest, TheManualNamesEveryVariable) {
  const std::string page = run("man").out;
  const nlohmann::json environment = json("info --threads 1")["environment"];
  EXPECT_GE(environment.size(), 7u);
  for (const auto& [name, value] : environment.items())
    EXPECT_TRUE(has(page, ".B " + name)) << name;
}

TEST_F(CliWordsTest, ManualPagesAreGoodTroff) {
  if (std::system("groff --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no groff";
  for (const std::string command : {"", "run", "check", "man"}) {
    const std::string render = in_folder("timeout 60 " PERSEID_CLI " man " + command +
                                         " | groff -man -Tascii -ww -z 2>@warnings");
    EXPECT_EQ(std::system(render.c_str()), 0) << command;
    EXPECT_EQ(text_of("warnings"), "") << command;
  }
}

// ---- Completion -------------------------------------------------------------------------------

class CompletionTest : public CliTest {
 protected:
  // What `shell` prints of `program`, in which ./script is the completion script.
  std::vector<std::string> lines(const std::string& shell, const std::string& program) const {
    std::ofstream(path("script")) << run("completion " + shell.substr(0, shell.find(' '))).out;
    std::ofstream(path("program")) << program;
    const int status = std::system(
        in_folder("cd @ && timeout 60 " + shell + " @program >@stdout 2>@stderr").c_str());
    EXPECT_EQ(status, 0) << program << text_of("stderr");
    EXPECT_EQ(text_of("stderr"), "") << program;
    return lines_of(text_of("stdout"));
  }
  static bool there_is(const std::string& shell) {
    return std::system((shell + " -c true >/dev/null 2>&1").c_str()) == 0;
  }
};

using Lines = std::vector<std::string>;

TEST_F(CompletionTest, Bash) {
  const auto complete = [&](const Lines& words) {
    std::string line;
    for (const std::string& word : words) line += " '" + word + "'";
    return lines("bash", "source ./script\nCOMP_WORDS=(" + line +
                             ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) +
                             "\n_perseid\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  };
  EXPECT_EQ(complete({"perseid", ""}), (Lines{"info", "explain", "check", "bench", "tune", "run",
                                              "launch", "help", "completion", "man"}));
  EXPECT_EQ(complete({"perseid", "ch"}), Lines{"check"});
  EXPECT_EQ(complete({"perseid", "--json", "run", "so"}), Lines{"softmax"});
  EXPECT_EQ(complete({"perseid", "run", "matmul", "--tr"}),
            (Lines{"--transpose-a", "--transpose-b"}));
  // A flag of the program, and one of a command above.
  EXPECT_EQ(complete({"perseid", "check", "matmul", "--thr"}), Lines{"--threads"});
  EXPECT_EQ(complete({"perseid", "check", "matmul", "--fu"}), Lines{"--fuzz"});
  EXPECT_EQ(complete({"perseid", "run", "attention", "--causal", ""}),
            (Lines{"none", "top-left", "bottom-right"}));
  EXPECT_EQ(complete({"perseid", "bench", "attention", "--dtype", "=", "b"}), Lines{"bf16"});
  EXPECT_EQ(complete({"perseid", "check", "softmax", "--shape", ""}), Lines{""});
  EXPECT_EQ(complete({"perseid", "check", "softmax", "--fau"}), Lines{""});  // for tests
  std::ofstream(path("input one.npy")).close();
  EXPECT_EQ(complete({"perseid", "run", "softmax", "--input", "inp"}), Lines{"input one.npy"});
  EXPECT_EQ(complete({"perseid", "run", "attention", "--visible", "inp"}), Lines{"input one.npy"});
  EXPECT_EQ(complete({"perseid", "check", "softmax", "--visible", "inp"}), Lines{""});
}

// With the functions of zsh that show completions replaced by ones that print them.
TEST_F(CompletionTest, Zsh) {
  if (!there_is("zsh")) GTEST_SKIP() << "there is no zsh";
  const auto complete = [&](const std::string& words) {
    return lines("zsh -f",
                 "compdef() { : }\ncompset() { : }\n"
                 "compadd() { shift; print -l -- $@ }\n_files() { print files }\n"
                 "_describe() { print -l -- ${(P)@[-1]} }\nsource ./script\nwords=(" +
                     words + ")\nCURRENT=${#words}\n_perseid\n");
  };
  const Lines commands = complete("perseid ''");
  EXPECT_EQ(commands.size(), 10u);
  EXPECT_TRUE(commands[0].starts_with("info:devices, "));
  EXPECT_EQ(complete("perseid run attention --causal ''"),
            (Lines{"none", "top-left", "bottom-right"}));
  EXPECT_EQ(complete("perseid bench attention --dtype=b"),
            (Lines{"f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"}));
  EXPECT_EQ(complete("perseid run softmax --input ''"), Lines{"files"});
  EXPECT_EQ(complete("perseid check softmax --shape ''"), Lines{});
  const Lines flags = complete("perseid --json run matmul --");
  EXPECT_NE(std::find(flags.begin(), flags.end(), "--transpose-a:a lies as [k, m]"), flags.end());
  EXPECT_NE(std::find(flags.begin(), flags.end(), "--json:results as JSON"), flags.end());
}

TEST_F(CompletionTest, Fish) {
  if (!there_is("fish")) GTEST_SKIP() << "there is no fish";
  const auto complete = [&](const std::string& line) {
    Lines completions = lines("fish --no-config", "source ./script\ncomplete -C '" + line + "'\n");
    for (std::string& each : completions) each = each.substr(0, each.find('\t'));
    return completions;
  };
  EXPECT_EQ(complete("perseid ").size(), 10u);
  EXPECT_EQ(complete("perseid run so"), Lines{"softmax"});
  EXPECT_EQ(complete("perseid run matmul --transp"), (Lines{"--transpose-a", "--transpose-b"}));
  EXPECT_EQ(complete("perseid check matmul --thr"), Lines{"--threads"});
  EXPECT_EQ(complete("perseid run attention --causal top"), Lines{"top-left"});
}

}  // namespace
}  // namespace perseid
