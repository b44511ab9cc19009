// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit types over ranks: what plans and executions refuse, and a rank whose scales are
// missing.
#include "collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::Accumulation;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Context;
using perseid::MatmulReduce;
using perseid::Scaling;
using perseid::Workspace;

TEST(Float8, IsRefusedOnAllRanksWithOneSentence) {
  const Context context = Context::cpu(1);
  // make(rank) makes a plan on every rank.
  const auto expect_refused = [&](const std::string& part, perseid_status status,
                                  const std::function<void(const Group&)>& make) {
    std::vector<Ended> ends(3);
    on_threads(3, [&](const Group& group) {
      ends[static_cast<size_t>(group.rank())] = ended([&] { make(group); });
    });
    for (const Ended& end : ends) {
      EXPECT_EQ(end.status, status) << part;
      EXPECT_EQ(end.sentence, ends[0].sentence);
      EXPECT_NE(end.sentence.find(part), std::string::npos) << end.sentence << "\n" << part;
    }
  };
  const auto gather = [&](const Group& group, perseid::AllGatherMatmulOptions options) {
    options.m = options.k = 8;
    if (options.products.empty()) options.products = {{.n = 3}};
    AllGatherMatmul(context, group, options);
  };
  const auto reduce = [&](const Group& group, perseid::MatmulReduceOptions options) {
    options.m = options.n = options.k = 8;
    MatmulReduce(context, group, options);
  };
  const DType f8 = perseid::f8e4m3;
  const auto invalid = PERSEID_INVALID_ARGUMENT;
  // What ranks say differs.
  expect_refused("all-gather-matmul: scaling is tensor on rank 2 and row on rank 0", invalid,
                 [&](const Group& group) {
                   gather(group, {.dtype = f8,
                                  .scaling = group.rank() == 2 ? Scaling::kTensor : Scaling::kRow});
                 });
  expect_refused("sharded_scales is 1 on rank 1 and 0 on rank 0", invalid, [&](const Group& group) {
    gather(group, {.dtype = f8, .scaling = Scaling::kRow, .sharded_scales = group.rank() == 1});
  });
  expect_refused(
      "b_dtype is f8e5m2 on rank 1 and f8e4m3 on rank 0", invalid, [&](const Group& group) {
        gather(group, {.dtype = f8, .b_dtype = group.rank() == 1 ? perseid::f8e5m2 : DType::kNone});
      });
  expect_refused("matmul-reduce-scatter: accumulation is fast on rank 1 and promoted on rank 0",
                 invalid, [&](const Group& group) {
                   reduce(group, {.dtype = f8,
                                  .accumulation = group.rank() == 1 ? Accumulation::kFast
                                                                    : Accumulation::kPromoted});
                 });
  expect_refused("scaling is row on rank 1 and none on rank 0", invalid, [&](const Group& group) {
    reduce(group, {.dtype = f8, .scaling = group.rank() == 1 ? Scaling::kRow : Scaling::kNone});
  });
  // What no rank may say.
  expect_refused("out_dtype of product 1 is f8e5m2, expected f16, bf16 or f32", invalid,
                 [&](const Group& group) {
                   gather(group, {.dtype = f8,
                                  .products = {{.n = 3}, {.n = 3, .out_dtype = perseid::f8e5m2}}});
                 });
  expect_refused("out_dtype is f8e4m3, expected f16, bf16 or f32", invalid,
                 [&](const Group& group) { reduce(group, {.dtype = f8, .out_dtype = f8}); });
  expect_refused("out_dtype is f64, expected f16, bf16 or f32", invalid, [&](const Group& group) {
    reduce(group, {.dtype = f8, .out_dtype = perseid::f64});
  });
  for (const bool gathers : {true, false})
    expect_refused("scaling is 3, expected PERSEID_SCALE_NONE (0), PERSEID_SCALE_TENSOR (1) or",
                   invalid, [&](const Group& group) {
                     if (gathers) gather(group, {.dtype = f8, .scaling = Scaling::kBlock});
                     if (!gathers) reduce(group, {.dtype = f8, .scaling = Scaling::kBlock});
                   });
  expect_refused("sharded_scales is 1, but scaling is 1", invalid, [&](const Group& group) {
    gather(group, {.dtype = f8, .scaling = Scaling::kTensor, .sharded_scales = true});
  });
  expect_refused("sharded_scales is 1, but k is gathered", invalid, [&](const Group& group) {
    gather(group, {.dtype = f8,
                   .gather_dim = ChunkDim::kK,
                   .scaling = Scaling::kRow,
                   .sharded_scales = true});
  });
  expect_refused("scaling is 2, but a and b are f32", invalid,
                 [&](const Group& group) { reduce(group, {.scaling = Scaling::kRow}); });
  expect_refused("b_dtype is f8e4m3 and dtype f32", invalid,
                 [&](const Group& group) { gather(group, {.b_dtype = f8}); });
  for (Group& one : Group::threads(1)) {
    const Ended end =
        ended([&] { reduce(one, {.dtype = f8, .canonical = true, .scaling = Scaling::kTensor}); });
    EXPECT_EQ(end.status, invalid);
    EXPECT_NE(end.sentence.find("scaling is 1, expected PERSEID_SCALE_NONE (0) in canonical order"),
              std::string::npos)
        << end.sentence;
  }
}

// Scales that are wrong or missing at execution.
TEST(Float8, RefusesScalesThatThePlanDoesNotExpect) {
  const Context context = Context::cpu(1);
  const std::vector<Group> groups = Group::threads(1);
  const Group& group = groups[0];
  const Matrix a = Matrix::random({6, 6}, perseid::f8e4m3, 1), six = random_scales({6}, 2),
               five = random_scales({5}, 2), c({6, 6}, perseid::f32);
  const auto sentence = [&](bool sharded, Scaling scaling, const Tensor& scale_a,
                            const std::vector<Tensor>& scale_b) {
    const AllGatherMatmul plan(context, group,
                               {.dtype = perseid::f8e4m3,
                                .m = 6,
                                .k = 6,
                                .products = {{.n = 6}},
                                .scaling = scaling,
                                .sharded_scales = sharded});
    Workspace workspace;
    plan.reserve(workspace);
    return ended([&] {
             plan.execute({.a = a.tensor(),
                           .b = {a.tensor()},
                           .c = {c.tensor()},
                           .scale_a = scale_a,
                           .scale_b = scale_b},
                          workspace);
           })
        .sentence;
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\n" << part;
  };
  for (const bool sharded : {false, true}) {
    has(sentence(sharded, Scaling::kRow, five.tensor(), {six.tensor()}), "scale_a");
    has(sentence(sharded, Scaling::kRow, {}, {six.tensor()}), "scale_a is NULL");
    has(sentence(sharded, Scaling::kRow, six.tensor(), {}), "scale_b is NULL");
    has(sentence(sharded, Scaling::kRow, six.tensor(), {five.tensor()}), "scale_b");
    EXPECT_EQ(sentence(sharded, Scaling::kRow, six.tensor(), {six.tensor()}), "");
  }
  has(sentence(false, Scaling::kNone, six.tensor(), {}), "scale_a");
}

TEST(Float8, NamesTheRankWhoseScalesAreMissing) {
  std::vector<Ended> ends(3);
  perseid_wait_record record{};
  const Context context = Context::cpu(1);
  on_threads(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const Matrix a = Matrix::random({6, 6}, perseid::f8e4m3, rank),
                 scales = random_scales({6}, rank), c({18, 6}, perseid::f32);
    const AllGatherMatmul plan(context, group,
                               {.dtype = perseid::f8e4m3,
                                .m = 6,
                                .k = 6,
                                .products = {{.n = 6}},
                                .scaling = Scaling::kRow,
                                .sharded_scales = true});
    Workspace workspace;
    plan.reserve(workspace);
    const auto execute = [&](std::chrono::nanoseconds deadline) {
      plan.execute({.a = a.tensor(),
                    .b = {a.tensor()},
                    .c = {c.tensor()},
                    .deadline = deadline,
                    .record = rank == 0 ? &record : nullptr,
                    .scale_a = scales.tensor(),
                    .scale_b = {scales.tensor()}},
                   workspace);
    };
    execute(10s);
    if (rank != 1) ends[rank] = ended([&] { execute(150ms); });
    if (rank == 1) std::this_thread::sleep_for(400ms);
  });
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ends[rank].status, PERSEID_TIMEOUT);
    EXPECT_NE(ends[rank].sentence.find(": rank 1 has not taken part within 150 ms"),
              std::string::npos)
        << ends[rank].sentence;
  }
  EXPECT_EQ(record.status, PERSEID_TIMEOUT);
  EXPECT_EQ(record.rank, 1);
  EXPECT_EQ(record.chunk, 1);
}

}  // namespace
