// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "explain_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "harness/launch.hpp"
#include "perseid/collective.hpp"
#include "run.hpp"

namespace perseid::cli {
namespace {

using harness::PlanHandle;

// What rank r of P has of `extent`: [r * extent / P, (r + 1) * extent / P).
int64_t share_of(const Group& group, int64_t extent) {
  const int64_t rank = group.rank(), size = group.size();
  return (rank + 1) * extent / size - rank * extent / size;
}

// Explains the plan that make(group, context) returns on every rank. Rank r uses GPU r.
template <class Make>
std::string explain_plan(const Common& common, const ExplainedRanks& ranks, const Make& make) {
  const int64_t size = ranks.sizes.ranks;
  const int64_t cpus = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t workers = common.threads > 0 ? common.threads : std::max<int64_t>(1, cpus / size);
  std::vector<Context> contexts;
  for (int32_t rank = 0; rank < size; ++rank)
    contexts.push_back(!ranks.assume.empty() ? Context::assumed(ranks.assume.c_str())
                       : on_gpu(common)      ? Context::cuda(rank)
                                             : open_cpu(workers));
  const std::vector<Group> groups = Group::threads(static_cast<int32_t>(size));
  std::vector<std::exception_ptr> failures(groups.size());
  std::string text;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto plan = make(groups[rank], contexts[rank]);
        if (rank == 0) text = explanation_of(common, plan.get());
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
  return text;
}

std::string explain_gather(const Common& common, const ExplainedRanks& ranks, DType dtype) {
  const CollectiveSizes& sizes = ranks.sizes;
  const bool along_k = dimension("--gather-dim", ranks.gather_dim.value_or(0), 2) == 1;
  return explain_plan(common, ranks, [&](const Group& group, const Context& context) {
    return AllGatherMatmul(context, group,
                           {.dtype = dtype,
                            .gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
                            .m = along_k ? sizes.m : share_of(group, sizes.m),
                            .k = along_k ? share_of(group, sizes.k) : sizes.k,
                            .products = {{.n = sizes.n, .bias = ranks.bias}},
                            .chunks = sizes.chunks,
                            .implementation = wanted_implementation(common),
                            .fusion = static_cast<Fusion>(fusion_of(sizes.fusion)),
                            .canonical = sizes.canonical});
  });
}

std::string explain_reduce(const Common& common, const ExplainedRanks& ranks, DType dtype) {
  const CollectiveSizes& sizes = ranks.sizes;
  const bool along_n = dimension("--scatter-dim", ranks.scatter_dim.value_or(0), 2) == 1;
  return explain_plan(common, ranks, [&](const Group& group, const Context& context) {
    return MatmulReduce(context, group,
                        {.dtype = dtype,
                         .scatter_dim = along_n ? ChunkDim::kN : ChunkDim::kM,
                         .reduction = reduction_of(ranks.reduce),
                         .all_reduce = ranks.op == RankOp::kAllReduce,
                         .bias = ranks.bias,
                         .m = sizes.m,
                         .n = sizes.n,
                         .k = sizes.k,
                         .implementation = wanted_implementation(common),
                         .fusion = static_cast<Fusion>(fusion_of(sizes.fusion)),
                         .canonical = sizes.canonical});
  });
}

// Lengths of a rank, out of those of whole sequences.
std::string explain_attention(const Common& common, const ExplainedRanks& ranks) {
  const CollectiveSizes& sizes = ranks.sizes;
  const Sharding placement = placement_of(ranks.placement);
  const harness::Problem whole = problems_of(ranks.attention, common, "").front();
  if (const std::string sentence = harness::unsayable(whole); !sentence.empty())
    bad_input(sentence);
  const int64_t pieces = sizes.ranks * (placement == Sharding::kZigzag ? 2 : 1);
  const auto divides = [&](const char* flag, int64_t length) {
    if (length % pieces != 0)
      bad_input(fmt::format("{} must be a multiple of {}, the pieces of a sequence; got {}", flag,
                            pieces, length));
  };
  if (placement == Sharding::kZigzag && !whole.ragged()) {
    divides("--q-len", whole.q_len);
    divides("--kv-len", whole.kv_len);
  }
  for (const int64_t end : whole.cu_seqlens_q) divides("--cu-seqlens-q", end);
  for (const int64_t end : whole.cu_seqlens_kv) divides("--cu-seqlens-kv", end);
  return explain_plan(common, ranks, [&](const Group& group, const Context& context) {
    perseid_attention_desc attention = harness::attention_desc(whole);
    if (attention.bias != 0 && attention.bias_shape[2] == attention.q_len)
      attention.bias_shape[2] = share_of(group, attention.q_len);
    for (int64_t* rows :
         {&attention.q_len, &attention.kv_len, &attention.total_q, &attention.total_kv})
      *rows = share_of(group, *rows);
    auto desc = detail::sized<perseid_context_attention_desc>();
    desc.placement = static_cast<uint32_t>(placement);
    desc.attention = &attention;
    desc.chunks = sizes.chunks;
    desc.fusion = fusion_of(sizes.fusion);
    desc.canonical = sizes.canonical;
    perseid_plan_t plan = nullptr;
    detail::check(perseid_context_attention_plan_create(context.get(), group.get(), &desc, &plan));
    return PlanHandle(plan);
  });
}

}  // namespace

std::string explanation_of(const Common& common, perseid_plan_t plan) {
  const char* text = nullptr;
  detail::check(common.json ? perseid_plan_explain_json(plan, &text)
                            : perseid_plan_explain(plan, &text));
  return text;
}

std::string explain_ranks(const Common& common, const ExplainedRanks& ranks) {
  const int64_t size = ranks.sizes.ranks;
  if (size < 1 || size > PERSEID_MAX_RANKS)
    bad_input(fmt::format("-n must be from 1 to {} ranks, got {}", PERSEID_MAX_RANKS, size));
  if (ranks.op == RankOp::kAttend) return explain_attention(common, ranks);
  const DType wanted = wanted_dtype(common), dtype = wanted == DType::kNone ? f32 : wanted;
  return ranks.op == RankOp::kGather ? explain_gather(common, ranks, dtype)
                                     : explain_reduce(common, ranks, dtype);
}

std::vector<CLI::App*> add_explained_ranks(CLI::App& command, ExplainedRanks& ranks) {
  std::vector<CLI::App*> apps;
  for (const RankOp op : {RankOp::kGather, RankOp::kReduce, RankOp::kAllReduce, RankOp::kAttend}) {
    CollectiveSizes& sizes = ranks.sizes;
    const bool attends = op == RankOp::kAttend, gathers = op == RankOp::kGather;
    CLI::App* app = command.add_subcommand(name_of(op), "a plan over ranks, as rank 0 has it");
    if (attends) {
      add_fields(*app, ranks.attention, harness::Op::kAttention);
      app->add_option("--placement", ranks.placement, "which rows of a sequence a rank has")
          ->type_name("contiguous|zigzag")
          ->capture_default_str();
    } else {
      app->add_option("--m", sizes.m, gathers ? "rows of all ranks" : "rows of each rank")
          ->capture_default_str();
      app->add_option("--n", sizes.n, "columns of each rank")->capture_default_str();
      app->add_option("--k", sizes.k,
                      gathers ? "depth of each rank; with --gather-dim 1 of all ranks"
                              : "depth of each rank")
          ->capture_default_str();
      app->add_flag("--bias", ranks.bias, "a bias is added");
    }
    if (gathers)
      app->add_option("--gather-dim", ranks.gather_dim, "the dimension of a that is gathered (0)")
          ->type_name("D");
    if (op == RankOp::kReduce)
      app->add_option("--scatter-dim", ranks.scatter_dim,
                      "the dimension of the result that is scattered (0)")
          ->type_name("D");
    if (!attends && !gathers)
      app->add_option("--reduce", ranks.reduce, "over ranks")
          ->type_name("sum|average")
          ->capture_default_str();
    if (attends || gathers)
      app->add_option("--chunks", sizes.chunks,
                      attends ? "that each piece of keys is signalled in; 0: one"
                              : "that each shard is signalled in; 0: by a model")
          ->capture_default_str();
    app->add_option("-n,--ranks", sizes.ranks, "how many ranks; on GPUs rank r has GPU r")
        ->capture_default_str()
        ->type_name("N");
    app->add_option("--fusion", sizes.fusion, "whether communicating overlaps computing")
        ->type_name("auto|fused|unfused")
        ->capture_default_str();
    app->add_flag("--canonical", sizes.canonical,
                  "an order of sums that gives the same bits for 1, 2, 4 and 8 ranks");
    app->footer(fmt::format(
        "Example:\n  perseid explain {} -n 2 {}", name_of(op),
        attends ? "--placement zigzag --heads 8 --q-len 4096 --kv-len 4096 --head-dim 64 --causal "
                  "bottom-right"
                : "--m 2048 --n 2048 --k 2048"));
    app->fallthrough()->callback([&ranks, op] {
      ranks.op = op;
      if (op == RankOp::kAttend) ranks.attention.op = harness::Op::kAttention;
    });
    apps.push_back(app);
  }
  return apps;
}

}  // namespace perseid::cli
