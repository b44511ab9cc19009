// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agreement.hpp"
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
  compute_attention(run, context, flags, with, AttentionResults::make(flags, with, files), calls);
  run.finish(files, attention.info().implementation);
  return kOk;
}

struct RankFlags : AttentionFlags {
  std::string placement = "contiguous", fusion = "auto", report;
  int64_t chunks = 1;
  bool canonical = false;
  std::optional<double> deadline;  // milliseconds
};

// What must be the same on all ranks, and what this one writes.
void say_terms(const RankFlags& flags, const AttentionInputs& with, RankTerms* terms) {
  for (const auto& [flag, tensor] :
       {std::pair{"--query", with.query}, std::pair{"--key", with.key},
        std::pair{"--value", with.value}, std::pair{"--bias", with.bias},
        std::pair{"--visible", with.visible}, std::pair{"--grad-out", with.grad_out},
        std::pair{"--grad-lse", with.grad_lse}})
    terms->same_kind(flag, tensor);
  for (const auto& [flag, lengths] : {std::pair{"--cu-seqlens-q holds", with.cu_seqlens_q},
                                      std::pair{"--cu-seqlens-kv holds", with.cu_seqlens_kv},
                                      std::pair{"--kv-lens holds", with.kv_lens}})
    if (lengths.present())
      terms->same(flag, fmt::format("{}", fmt::join(harness::values_of(lengths), ",")));
  terms->same("--layout is", flags.layout);
  terms->same("--seed is", std::to_string(flags.seed));
  terms->same("--offset is", std::to_string(flags.offset));
  const std::pair<const char*, const std::string&> outputs[] = {{"--out", flags.out},
                                                                {"--lse", flags.lse},
                                                                {"--grad-query", flags.grad_query},
                                                                {"--grad-key", flags.grad_key},
                                                                {"--grad-value", flags.grad_value},
                                                                {"--grad-bias", flags.grad_bias}};
  for (const auto& [flag, reference] : outputs) terms->output(flag, reference);
  terms->report(flags.report);
  terms->sizes = {with.key.size(with.rows_dim())};
}

// What a plan does not know, and an execution would refuse on this rank alone.
void check_shapes(const AttentionInputs& with, int64_t keys_of_all) {
  const auto expect = [](const char* flag, const Tensor& tensor, const harness::Shape& shape) {
    if (tensor.present() && shape_of(tensor) != shape)
      bad_input(fmt::format("{} has shape {}, expected {}", flag,
                            harness::to_text(shape_of(tensor)), harness::to_text(shape)));
  };
  const AttentionOptions& options = with.options;
  harness::Shape key = shape_of(with.key), value = key;
  if (!options.ragged) key[0] = value[0] = options.batch;
  key.back() = options.head_dim;
  value.back() = options.value_dim;
  expect("--key", with.key, key);
  expect("--value", with.value, value);
  expect("--grad-out", with.grad_out, with.out_shape());
  expect("--grad-lse", with.grad_lse, with.lse_shape());
  expect("--cu-seqlens-kv", with.cu_seqlens_kv, {options.batch + 1});
  expect("--kv-lens", with.kv_lens, {options.batch});
  if (!with.visible.present()) return;
  const int64_t whole[] = {options.batch, options.heads, options.q_len, keys_of_all};
  for (int32_t i = 0; i < 4; ++i)
    if (with.visible.size(i) != 1 && with.visible.size(i) != whole[i])
      bad_input(fmt::format("--visible has shape {}, expected one that broadcasts to {}",
                            harness::to_text(shape_of(with.visible)),
                            harness::to_text({whole[0], whole[1], whole[2], whole[3]})));
}

int run_context_attention(const Common& common, const RankFlags& of_all) {
  validate(of_all);
  const Sharding placement = placement_of(of_all.placement);
  const auto fusion = static_cast<Fusion>(fusion_of(of_all.fusion));
  Run run(common, "context-attention");
  const std::chrono::nanoseconds deadline = deadline_of(of_all.deadline);
  const Group group(GroupOptions{.deadline = deadline});
  RankFlags flags = of_all;
  static_cast<AttentionFlags&>(flags) = of_all.of_rank(group.rank());
  flags.report = of_rank(of_all.report, group.rank());
  std::optional<Context> context;
  TensorFiles files;
  AttentionInputs with;
  const Agreed agreed = agree(group, deadline, [&](RankTerms* terms) {
    context.emplace(open_context_of_rank(common, group.rank()));
    with = AttentionInputs::read(common, flags, files);
    say_terms(flags, with, terms);
  });
  AttentionResults results;
  agree(group, deadline, [&](RankTerms*) {
    check_shapes(with, agreed.total(0));
    results = AttentionResults::make(flags, with, files);
  });
  // Cumulative lengths are those of whole sequences.
  if (with.options.ragged) {
    const int64_t size = group.size();
    with.options.q_len = (with.options.q_len + size - 1) / size;
    with.options.kv_len = (with.options.kv_len + size - 1) / size;
  }
  const ContextAttention attention(*context, group,
                                   {.attention = with.options,
                                    .placement = placement,
                                    .chunks = flags.chunks,
                                    .deadline = deadline,
                                    .report = !flags.report.empty(),
                                    .canonical = flags.canonical,
                                    .fusion = fusion});
  const Memory workspace = workspace_of(*context, attention, flags);
  // Cumulative lengths stay in memory of the host.
  const auto with_lengths = [&with](auto arguments) {
    arguments.cu_seqlens_q = with.cu_seqlens_q;
    arguments.cu_seqlens_kv = with.cu_seqlens_kv;
    return arguments;
  };
  compute_attention(
      run, *context, flags, with, results,
      {.forward =
           [&](const AttentionForward& arguments) {
             attention.forward(nullptr, with_lengths(arguments), {workspace}, deadline);
             context->synchronize();
           },
       .backward =
           [&](const AttentionBackward& arguments) {
             attention.backward(nullptr, with_lengths(arguments), {workspace}, deadline);
             context->synchronize();
           }});
  if (!flags.report.empty()) write_report(flags.report, attention.overlap_report());
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
