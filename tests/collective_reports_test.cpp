// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What products over ranks say of themselves: whether they are fused and why, and where the time of
// an execution went.
#include "overlap_reports.hpp"

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::Context;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Workspace;

TEST(Fusions, AreChosenByTheModel) {
  const Context context = Context::cpu(1);
  on_threads(2, [&](const Group& group) {
    const auto gathering = [&](int64_t size, int64_t chunks, Fusion fusion) {
      return AllGatherMatmul(context, group,
                             {.m = size,
                              .k = size,
                              .products = {{.n = size}},
                              .chunks = chunks,
                              .fusion = fusion})
          .explain();
    };
    const auto reducing = [&](int64_t size, Fusion fusion) {
      return MatmulReduce(context, group, {.m = size, .n = size, .k = size, .fusion = fusion})
          .explain();
    };
    const auto says = [](const std::string& text, const std::string& part) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    };
    // A large product hides the transfer; of a small one chunks cost more than they hide.
    says(gathering(1024, 1, Fusion::kAuto), "begins with the own shard; fused: predicted ");
    says(gathering(4, 4, Fusion::kAuto), "when all shards have arrived; unfused: predicted ");
    says(gathering(4, 4, Fusion::kFused), "begins with the own shard; fused as asked for");
    says(gathering(1024, 1, Fusion::kUnfused), "all shards have arrived; unfused as asked for");
    says(reducing(1024, Fusion::kAuto), "; fused: predicted ");
    says(reducing(4, Fusion::kAuto), "leaves when it is complete");
    says(reducing(4, Fusion::kFused), "leaves shard by shard");
    says(reducing(1024, Fusion::kUnfused), "; unfused as asked for: predicted ");
  });
  const Group alone = std::move(Group::threads(1)[0]);
  const std::string text =
      AllGatherMatmul(context, alone, {.m = 512, .k = 512, .products = {{.n = 512}}}).explain();
  EXPECT_NE(text.find("; unfused: predicted"), std::string::npos) << text;
}

TEST(OverlapReports, AddUp) {
  for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused}) {
    on_threads(3, [&](const Group& group) {
      const Context context = Context::cpu(2);
      const int64_t m = 60, k = 40, n = 50;
      const Matrix a = Matrix::random({m, k}, perseid::f32, 1),
                   b = Matrix::random({k, n}, perseid::f32, 2);
      const Matrix c({3 * m, n}, perseid::f32), part({m / 3, n}, perseid::f32),
          all({m, n}, perseid::f32);
      Workspace workspace;
      const AllGatherMatmul gather(context, group,
                                   {.m = m,
                                    .k = k,
                                    .products = {{.n = n}, {.n = n}},
                                    .chunks = 2,
                                    .fusion = fusion,
                                    .report = true});
      EXPECT_EQ(ended([&] { (void)gather.overlap_report(); }).status, PERSEID_INVALID_ARGUMENT);
      gather.reserve(workspace);
      for (int i = 0; i < 3; ++i) {
        // A late rank is waited for.
        group.barrier();
        if (group.rank() == 2) std::this_thread::sleep_for(i == 0 ? 50ms : 5ms);
        gather.execute({.a = a.tensor(),
                        .b = {b.tensor(), b.tensor()},
                        .c = {c.tensor(), Matrix({3 * m, n}, perseid::f32).tensor()}},
                       workspace);
        expect_consistent(gather, group, 6, true);
        const auto report = nlohmann::json::parse(gather.overlap_report());
        if (group.rank() != 2 && i == 0) {
          EXPECT_GT(report["waited_seconds"], 2e-3) << report.dump(1);
        }
      }
      for (const bool all_reduce : {false, true}) {
        const MatmulReduce reduce(
            context, group,
            {.all_reduce = all_reduce, .m = m, .n = n, .k = k, .fusion = fusion, .report = true});
        reduce.reserve(workspace);
        reduce.execute(
            {.a = a.tensor(), .b = b.tensor(), .c = all_reduce ? all.tensor() : part.tensor()},
            workspace);
        expect_consistent(reduce, group, are_hosts() ? 12 : 3, false);
      }
    });
  }
  const Context context = Context::cpu(1);
  const Group alone = std::move(Group::threads(1)[0]);
  const AllGatherMatmul silent(context, alone, {.m = 2, .k = 2, .products = {{.n = 2}}});
  const Ended end = ended([&] { (void)silent.overlap_report(); });
  EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
  EXPECT_NE(end.sentence.find("set report = 1"), std::string::npos) << end.sentence;
}

}  // namespace
