// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "arrival_flags.hpp"
#include "attention_files.hpp"
#include "commands.hpp"
#include "help.hpp"
#include "perseid/collective.hpp"
#include "streams.hpp"

namespace perseid::cli {
namespace {

struct Flags : AttentionFlags {
  ArrivalFlags arrival;
};

// The workspace of all directions that are called.
Memory workspace_of(const Context& context, const Plan& plan, const AttentionFlags& flags) {
  const size_t backward = flags.grad_out.empty() ? 0 : plan.workspace_size(Direction::kBackward);
  return Memory(context, std::max(plan.workspace_size(Direction::kForward), backward));
}

int run_attention(const Common& common, const Flags& flags) {
  validate(flags);
  TensorFiles files;
  Run run(common, "attention");
  AttentionInputs with = AttentionInputs::read(common, flags, files);
  const int32_t rows = with.rows_dim();
  const PlannedArrival planned =
      read_arrival(flags.arrival, with.options.ragged ? "total_kv" : "kv_len", with.key.size(rows));
  std::unique_ptr<ArrivingTensors> keys;
  if (planned.count > 0) {
    if (with.value.size(rows) != with.key.size(rows))
      bad_input(fmt::format("--key and --value must have the same rows; got {} and {}",
                            with.key.size(rows), with.value.size(rows)));
    keys = std::make_unique<ArrivingTensors>(
        std::vector<ArrivingTensors::Source>{{with.key, rows}, {with.value, rows}},
        Chunks::even(with.key.size(rows), planned.count));
    with.options.async_kv = keys->chunks();
  }
  const Context context = open_context(common, common.threads);
  const auto arriving = std::move(keys);  // freed before the context, whose memory it uses
  const Attention attention(context, with.options);
  const Memory workspace = workspace_of(context, attention, flags);
  const Stream stream = stream_of_thread(context);
  AttentionCalls calls = {.forward =
                              [&](AttentionForward arguments) {
                                if (arriving != nullptr)
                                  arguments.arrival_kv =
                                      arriving->arrival(planned.pivot, planned.deadline);
                                attention.forward(stream, arguments, {workspace});
                                context.synchronize(stream);
                              },
                          .backward =
                              [&](const AttentionBackward& arguments) {
                                attention.backward(nullptr, arguments, {workspace});
                                context.synchronize();
                              }};
  if (arriving != nullptr)
    calls.bring_keys = [&](AttentionInputs* inputs) {
      arriving->start(context, planned.order);
      inputs->key = arriving->tensor(0);
      inputs->value = arriving->tensor(1);
    };
  compute_attention(run, context, flags, with, files, calls);
  run.finish(files, attention.info().implementation);
  return kOk;
}

struct RankFlags : AttentionFlags {
  std::string placement = "contiguous", fusion = "auto", report;
  int64_t chunks = 1;
  bool canonical = false;
  std::optional<double> deadline;  // milliseconds
};

int run_context_attention(const Common& common, const RankFlags& of_all) {
  validate(of_all);
  const Sharding placement = placement_of(of_all.placement);
  const auto fusion = static_cast<Fusion>(fusion_of(of_all.fusion));
  Run run(common, "context-attention");
  const std::chrono::nanoseconds deadline = deadline_of(of_all.deadline);
  const Group group(GroupOptions{.deadline = deadline});
  const AttentionFlags flags = of_all.of_rank(group.rank());
  const Context context = open_context_of_rank(common, group.rank());
  TensorFiles files;
  AttentionInputs with = AttentionInputs::read(common, flags, files);
  // Cumulative lengths are those of whole sequences.
  if (with.options.ragged) {
    const int64_t size = group.size();
    with.options.q_len = (with.options.q_len + size - 1) / size;
    with.options.kv_len = (with.options.kv_len + size - 1) / size;
  }
  const ContextAttention attention(context, group,
                                   {.attention = with.options,
                                    .placement = placement,
                                    .chunks = of_all.chunks,
                                    .deadline = deadline,
                                    .report = !of_all.report.empty(),
                                    .canonical = of_all.canonical,
                                    .fusion = fusion});
  const Memory workspace = workspace_of(context, attention, flags);
  // Cumulative lengths stay in memory of the host.
  const auto with_lengths = [&with](auto arguments) {
    arguments.cu_seqlens_q = with.cu_seqlens_q;
    arguments.cu_seqlens_kv = with.cu_seqlens_kv;
    return arguments;
  };
  compute_attention(
      run, context, flags, with, files,
      {.forward =
           [&](const AttentionForward& arguments) {
             attention.forward(nullptr, with_lengths(arguments), {workspace}, deadline);
             context.synchronize();
           },
       .backward =
           [&](const AttentionBackward& arguments) {
             attention.backward(nullptr, with_lengths(arguments), {workspace}, deadline);
             context.synchronize();
           }});
  if (!of_all.report.empty())
    write_report(of_rank(of_all.report, group.rank()), attention.overlap_report());
  run.finish(files, attention.info().implementation);
  return kOk;
}

}  // namespace

void add_run_attention(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* app = run.add_subcommand("attention", "fused attention, and its gradients");
  add_attention_flags(*app, *flags);
  add_arrival_flags(*app, flags->arrival,
                    "key and value arrive in so many chunks while forward runs: chunk c of N holds "
                    "keys [c*KV/N, (c+1)*KV/N)");
  app->footer(
      "Example:\n  perseid run attention --query q.npy --key k.npy --value v.npy --causal "
      "bottom-right --out o.npy");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_attention(common, *flags); };
  });
}

void add_run_context_attention(CLI::App& run, const Common& common, Action& action) {
  auto flags = std::make_shared<RankFlags>();
  CLI::App* app = run.add_subcommand("context-attention",
                                     "attention of sequences whose rows are spread over ranks");
  add_attention_flags(*app, *flags);
  app->add_option("--placement", flags->placement,
                  "which rows of a sequence a rank has: those after the ranks before it, or of 2 P "
                  "equal pieces numbers rank and 2 P - 1 - rank")
      ->type_name("contiguous|zigzag")
      ->capture_default_str();
  app->add_option("--chunks", flags->chunks, "that each piece of keys is signalled in (1)")
      ->type_name("N");
  app->add_option("--fusion", flags->fusion,
                  "whether forward begins before all keys have arrived (auto)")
      ->type_name("auto|fused|unfused");
  app->add_flag("--canonical", flags->canonical,
                "keys from the first to the last, which gives the same bits for any number of "
                "ranks; gradients by eight leaves of queries, for 1, 2, 4 and 8 ranks");
  app->add_option("--deadline", flags->deadline,
                  "milliseconds that any rank is waited for; then the exit code is 5 (30000)");
  app->add_option("--report", flags->report,
                  "where the time of each rank went, as JSON and a Chrome trace in one")
      ->type_name(kFile);
  app->footer(
      "The files are of each rank: {rank} in a name is its number. Cumulative and key lengths are "
      "those of whole sequences, on every rank. Start the ranks with perseid launch, mpirun or "
      "torchrun.\nExample:\n  perseid launch -n 2 -- perseid run context-attention --query "
      "'q.{rank}.npy' --key 'k.{rank}.npy' --value 'v.{rank}.npy' --causal bottom-right "
      "--placement "
      "zigzag --out 'o.{rank}.npy'");
  app->fallthrough()->callback([&action, &common, flags] {
    action = [&common, flags] { return run_context_attention(common, *flags); };
  });
}

}  // namespace perseid::cli
