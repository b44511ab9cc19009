// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What is bad on one rank alone ends all ranks with the same sentence and without an output file.
#include "cli_test_tools.hpp"

namespace perseid {
namespace {

class CliAgreementTest : public CliTest {
 protected:
  void fill(const std::string& name, const Shape& shape, DType dtype = f32) const {
    write(name, shape, std::vector<double>(static_cast<size_t>(harness::elements_of(shape)), 0.5),
          dtype);
  }
  // Both ranks of `operation` end with `code` and `words`, and neither leaves a file of `outputs`.
  void expect_refused_by_both(const std::string& operation, const std::string& words,
                              int code = 2) const {
    const Ended ended = run("launch -n 2 -- perseid run " + operation);
    EXPECT_EQ(ended.code, code) << operation << "\n" << ended.err;
    for (const char* rank : {"rank 0: perseid: ", "rank 1: perseid: "})
      EXPECT_NE(ended.err.find(rank + in_folder(words)), std::string::npos)
          << operation << "\nexpected: " << rank << words << "\ngot: " << ended.err;
    for (const char* output : {"c.0.npy", "c.1.npy", "g.0.npy", "g.1.npy"})
      EXPECT_FALSE(std::filesystem::exists(path(output))) << operation << ": " << output;
  }
};

TEST_F(CliAgreementTest, ProductsRefuseOneBadRankOnAll) {
  for (const char* rank : {"0", "1"}) {
    fill(std::string("a.") + rank + ".npy", {3, 4});
    fill(std::string("b.") + rank + ".npy", {4, 2});
  }
  const std::string files = " --a '@a.{rank}.npy' --b '@b.{rank}.npy' --out '@c.{rank}.npy'";
  const auto expect = [&](const std::string& words, const std::string& more = "") {
    for (const char* operation :
         {"all-gather-matmul", "matmul-reduce-scatter", "matmul-all-reduce"})
      expect_refused_by_both(operation + files + more, words);
  };
  fill("b.1.npy", {5, 2});
  expect_refused_by_both("all-gather-matmul" + files,
                         "on rank 1: --b has 5 rows, expected 4, the columns of the gathered --a");
  expect_refused_by_both("matmul-all-reduce" + files,
                         "on rank 1: the columns of --a and the rows of --b must be equal");
  fill("b.1.npy", {4});
  expect("on rank 1: --b must have 2 dimensions, or 3 with a batch first; got shape [4]");
  fill("b.1.npy", {4, 2}, i32);
  expect("on rank 1: --b @b.1.npy: expected a tensor of f16, bf16, f32 or f64, got int32");
  fill("b.1.npy", {4, 2}, f16);
  expect("on rank 1: --a is f32 and --b is f16");
  fill("a.1.npy", {3, 4}, f16);
  expect("--a is f16 on rank 1 and f32 on rank 0; give the same on all ranks");
  std::ofstream(path("b.1.npy")) << "nothing";
  expect("on rank 1: --b @b.1.npy: ");
  std::filesystem::remove(path("b.1.npy"));
  expect("on rank 1: --b @b.1.npy: ");
  fill("b.1.npy", {4, 2});
  fill("a.1.npy", {2, 3, 4});
  expect("--a has 3 dimensions on rank 1 and 2 dimensions on rank 0");
  fill("a.1.npy", {3, 4});
  fill("v.0.npy", {2});
  fill("v.1.npy", {3});
  expect("on rank 1: --bias has shape [3], expected [2], the columns of --b",
         " --bias '@v.{rank}.npy'");
  // The folder of rank 1 does not exist.
  std::filesystem::create_directory(path("d0"));
  expect("on rank 1: --report @d1/r.json cannot be written: No such file or directory",
         " --report '@d{rank}/r.json'");
  const std::string apart = " --a '@a.{rank}.npy' --b '@b.{rank}.npy' --out '@d{rank}/c.npy'";
  expect_refused_by_both("all-gather-matmul" + apart,
                         "on rank 1: --out @d1/c.npy cannot be written: No such file or directory");
  EXPECT_FALSE(std::filesystem::exists(path("d0/c.npy")));
  // What all ranks refuse names none.
  expect("--accumulation must be one of", " --accumulation slow");
}

TEST_F(CliAgreementTest, ScalesOfOneRankAreRefusedOnAll) {
  for (const char* rank : {"0", "1"}) {
    fill(std::string("a.") + rank + ".npy", {3, 4});
    fill(std::string("s.") + rank + ".npy", {1});
  }
  fill("b.npy", {4, 2});
  fill("s.1.npy", {7});
  expect_refused_by_both(
      "all-gather-matmul --dtype f8e4m3 --a '@a.{rank}.npy' --b @b.npy --out '@c.{rank}.npy' "
      "--scale-a '@s.{rank}.npy' --scale-b @s.0.npy",
      "on rank 1: --scale-a has 7 scales and --scale-b 1, expected one each");
}

TEST_F(CliAgreementTest, AttentionRefusesOneBadRankOnAll) {
  const Shape shape = {1, 4, 2, 8};
  const auto restore = [&] {
    for (const char* name : {"q", "k", "v", "o"})
      for (const char* rank : {"0", "1"}) fill(std::string(name) + "." + rank + ".npy", shape);
  };
  const std::string files =
      "context-attention --query '@q.{rank}.npy' --key '@k.{rank}.npy' --value '@v.{rank}.npy' "
      "--out '@c.{rank}.npy'";
  const auto expect = [&](const std::string& words, const std::string& more = "") {
    expect_refused_by_both(files + more, words);
    restore();
  };
  restore();
  fill("q.1.npy", {4, 2, 8});
  expect("on rank 1: --query must have 4 dimensions");
  fill("v.1.npy", {1, 3, 2, 8});
  expect("on rank 1: --value has shape [1, 3, 2, 8], expected [1, 4, 2, 8]");
  fill("k.1.npy", {1, 4, 2, 7});
  expect("on rank 1: --key has shape [1, 4, 2, 7], expected [1, 4, 2, 8]");
  fill("k.1.npy", shape, i32);
  expect("on rank 1: --key @k.1.npy: expected a tensor of");
  std::filesystem::remove(path("q.1.npy"));
  expect("on rank 1: --query @q.1.npy: ");
  const std::string backward = " --grad-out '@o.{rank}.npy' --grad-query '@g.{rank}.npy'";
  fill("o.1.npy", {1, 4, 2, 7});
  expect("on rank 1: --grad-out has shape [1, 4, 2, 7], expected [1, 4, 2, 8]", backward);
  std::filesystem::remove(path("o.1.npy"));
  expect("on rank 1: --grad-out @o.1.npy: ", backward);
  fill("m.0.npy", {4, 8}, u8);
  fill("m.1.npy", {4, 4}, u8);
  expect(
      "on rank 1: --visible has shape [1, 1, 4, 4], expected one that broadcasts to "
      "[1, 2, 4, 8]",
      " --visible '@m.{rank}.npy'");
  write("n.0.npy", {1}, {8}, i64);
  write("n.1.npy", {1}, {7}, i64);
  expect("--kv-lens holds 7 on rank 1 and 8 on rank 0", " --kv-lens '@n.{rank}.npy'");
  std::filesystem::create_directory(path("c.1.npy"));
  const Ended ended = run("launch -n 2 -- perseid run " + files);
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(
      ended.err.find(in_folder("rank 0: perseid: on rank 1: --out @c.1.npy cannot be written: "
                               "Is a directory")),
      std::string::npos)
      << ended.err;
  std::filesystem::remove(path("c.1.npy"));
  // Ranks of one operation with flags that differ.
  std::ofstream(path("rank.sh")) << in_folder("exec " PERSEID_CLI
                                              " run context-attention --query @q.0.npy --key "
                                              "@k.0.npy --value @v.0.npy --out "
                                              "@c.$PERSEID_RANK.npy --seed $PERSEID_RANK\n");
  expect_refused("launch -n 2 -- sh @rank.sh", 2,
                 "rank 0: perseid: --seed is 1 on rank 1 and 0 on rank 0");
}

TEST_F(CliAgreementTest, RanksDoNotOverwriteOneAnother) {
  fill("a.npy", {2, 4});
  fill("b.npy", {4, 2});
  fill("q.npy", {1, 4, 2, 8});
  const std::string in = " --a @a.npy --b @b.npy ";
  // The sum is the same on all ranks: rank 0 writes it.
  expect_ok("launch -n 2 -- perseid run matmul-all-reduce --out @sum.npy" + in);
  expect_file("sum.npy", {2, 2}, std::vector<double>(4, 2));
  expect_ok("launch -n 2 -- perseid run all-gather-matmul --out '@o.{rank}.npy' --gathered @w.npy" +
            in);
  expect_file("w.npy", {4, 4}, std::vector<double>(16, 0.5));
  std::filesystem::create_directory_symlink(path(""), path("link"));
  for (const std::string& operation :
       {"matmul-reduce-scatter --out @c.0.npy" + in, "all-gather-matmul --out @c.0.npy" + in,
        std::string("context-attention --query @q.npy --key @q.npy --value @q.npy --out @c.0.npy")})
    expect_refused_by_both(operation,
                           "--out of rank 0 and --out of rank 1 both write @c.0.npy; put {rank} "
                           "into the name");
  expect_refused_by_both("matmul-all-reduce --out '@c.{rank}.npy' --report @r.json" + in,
                         "--report of rank 0 and --report of rank 1 both write");
  expect_refused_by_both("all-gather-matmul --out @link/c.0.npy --gathered @g.0.npy" + in,
                         "--out of rank 0 and --out of rank 1 both write @c.0.npy");
}

TEST_F(CliAgreementTest, SeveralProductsOfOneGatheredOperand) {
  for (const char* rank : {"0", "1"}) fill(std::string("a.") + rank + ".npy", {3, 4});
  fill("b.npy", {4, 2});
  write("d.npy", {4, 1}, {1, 2, 3, 4});
  write("v.npy", {2}, {1, 2});
  write("w.npy", {1}, {3});
  const std::string in =
      "launch -n 2 -- perseid run all-gather-matmul --a '@a.{rank}.npy' --b @b.npy --b @d.npy "
      "--chunks 2 --out '@c.{rank}.npy' ";
  expect_ok(in + "--out '@e.{rank}.npy' --bias @v.npy --bias @w.npy");
  for (const char* rank : {"0", "1"}) {
    expect_file(std::string("c.") + rank + ".npy", {6, 2}, {2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3});
    expect_file(std::string("e.") + rank + ".npy", {6, 1}, std::vector<double>(6, 8));
  }
  expect_refused(in, 2, "--out is given 1 times and --b 2 times; give one for each product");
  expect_refused(in + "--out '@e.{rank}.npy' --bias @v.npy", 2, "--bias is given 1 times");
  expect_refused(in + "--out '@c.{rank}.npy'", 2, "--out and --out both write");
  expect_refused(
      "launch -n 2 -- perseid run matmul-all-reduce --a '@a.{rank}.npy' --b @b.npy --b "
      "@d.npy --out @f.npy",
      2, "--b");
}

}  // namespace
}  // namespace perseid
