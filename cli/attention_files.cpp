// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "attention_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "harness/problem_text.hpp"
#include "help.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

Mask mask_of(const AttentionFlags& flags) {
  Mask mask;
  if (flags.causal == "top-left") mask = causal_top_left();
  if (flags.causal == "bottom-right") mask = causal_bottom_right();
  if (!flags.window.empty()) {
    const harness::Shape window = harness::parse_list("--window", flags.window);
    if (window.size() != 2)
      bad_input(fmt::format("--window is LEFT,RIGHT, such as 128,0; got '{}'", flags.window));
    mask.left = window[0];
    mask.right = window[1];
  }
  mask.bottom_right = flags.window_bottom_right;
  return mask;
}

int64_t longest(const Tensor& cumulative) {
  const std::vector<double> ends = harness::values_of(cumulative);
  double most = 0;
  for (size_t i = 1; i < ends.size(); ++i) most = std::max(most, ends[i] - ends[i - 1]);
  return static_cast<int64_t>(std::min(most, 0x1p62));  // a difference may pass 2^63
}

void infer(const AttentionFlags& flags, const AttentionInputs& with, AttentionOptions& options) {
  const bool ragged = with.cu_seqlens_q.present();
  const int32_t dims = ragged ? 3 : 4;
  const std::pair<const char*, const Tensor*> main[] = {
      {"--query", &with.query}, {"--key", &with.key}, {"--value", &with.value}};
  for (const auto& [flag, tensor] : main) {
    if (tensor->ndim() != dims)
      bad_input(fmt::format(
          "{} must have {} dimensions, {}; got shape {}: reshape it{}", flag, dims,
          ragged
              ? (flags.layout == "bshd" ? "[total, heads, dim] with cumulative lengths"
                                        : "[heads, total, dim] with cumulative lengths")
              : (flags.layout == "bshd" ? "[batch, seq, heads, dim]" : "[batch, heads, seq, dim]"),
          harness::to_text(shape_of(*tensor)),
          tensor->ndim() == 3 ? ", or give --cu-seqlens-q and --cu-seqlens-kv" : ""));
  }
  const int32_t heads = flags.layout == "bshd" ? -2 : -3;
  const int32_t rows = flags.layout == "bshd" ? -3 : -2;
  options.layout = flags.layout == "bshd" ? bshd : bhsd;
  options.heads = with.query.size(heads);
  options.kv_heads = with.key.size(heads);
  options.head_dim = with.query.size(-1);
  options.value_dim = with.value.size(-1);
  if (ragged) {
    options.ragged = true;
    options.batch = with.cu_seqlens_q.size(0) - 1;
    options.total_q = with.query.size(rows);
    options.total_kv = with.key.size(rows);
    options.q_len = longest(with.cu_seqlens_q);
    options.kv_len = longest(with.cu_seqlens_kv);
    if (options.batch < 0)
      bad_input("--cu-seqlens-q must hold at least the 0 that the first sequence begins at");
  } else {
    options.batch = with.query.size(0);
    options.q_len = with.query.size(rows);
    options.kv_len = with.key.size(rows);
  }
}

}  // namespace

AttentionFlags AttentionFlags::of_rank(int32_t rank) const {
  AttentionFlags named = *this;
  for (std::string* file :
       {&named.query, &named.key, &named.value, &named.out, &named.lse, &named.bias, &named.visible,
        &named.cu_seqlens_q, &named.cu_seqlens_kv, &named.q_lens, &named.kv_lens, &named.grad_out,
        &named.grad_lse, &named.grad_query, &named.grad_key, &named.grad_value, &named.grad_bias})
    *file = cli::of_rank(*file, rank);
  return named;
}

void validate(const AttentionFlags& flags) {
  if (flags.out.empty() && flags.lse.empty() && !flags.any_gradient())
    bad_input("nothing to compute: give --out, --lse, or --grad-out with gradients");
  if (flags.grad_out.empty() && (flags.any_gradient() || !flags.grad_lse.empty()))
    bad_input("the gradients need --grad-out, the gradient of the output");
  if (!flags.grad_out.empty() && !flags.any_gradient())
    bad_input(
        "--grad-out is given, but no gradient asked for: add --grad-query, --grad-key, "
        "--grad-value or --grad-bias");
  if (!flags.grad_bias.empty() && flags.bias.empty())
    bad_input("--grad-bias is the gradient of --bias, which is not given");
  if (flags.cu_seqlens_q.empty() != flags.cu_seqlens_kv.empty())
    bad_input("--cu-seqlens-q and --cu-seqlens-kv go together");
  if (flags.window_bottom_right && flags.window.empty())
    bad_input("--window-bottom-right is given without --window, which it aligns; give both");
  if (flags.layout != "bshd" && flags.layout != "bhsd")
    bad_input(fmt::format("--layout must be bshd or bhsd, got '{}'", flags.layout));
  if (flags.causal != "none" && flags.causal != "top-left" && flags.causal != "bottom-right")
    bad_input(
        fmt::format("--causal must be none, top-left or bottom-right, got '{}'", flags.causal));
}

AttentionInputs AttentionInputs::read(const Common& common, const AttentionFlags& flags,
                                      TensorFiles& files) {
  AttentionInputs with;
  const DType wanted = wanted_dtype(common);
  with.query = files.read("--query", flags.query, wanted);
  with.key = files.read("--key", flags.key, wanted);
  with.value = files.read("--value", flags.value, wanted);
  same_dtype({{"--query", with.query}, {"--key", with.key}, {"--value", with.value}});
  if (!flags.cu_seqlens_q.empty()) {
    with.cu_seqlens_q = files.read_lengths("--cu-seqlens-q", flags.cu_seqlens_q);
    with.cu_seqlens_kv = files.read_lengths("--cu-seqlens-kv", flags.cu_seqlens_kv);
  }
  if (!flags.q_lens.empty()) with.q_lens = files.read_lengths("--q-lens", flags.q_lens);
  if (!flags.kv_lens.empty()) with.kv_lens = files.read_lengths("--kv-lens", flags.kv_lens);
  AttentionOptions& options = with.options;
  options.dtype = with.query.dtype();
  infer(flags, with, options);
  options.mask = mask_of(flags);
  options.scale = flags.scale;
  options.dropout = flags.dropout;
  options.deterministic = flags.deterministic;
  options.q_lens = with.q_lens.present();
  options.kv_lens = with.kv_lens.present();
  options.num_splits = flags.num_splits;
  options.implementation = wanted_implementation(common);
  const auto at_most_four = [](const char* flag, const Tensor& tensor) {
    if (tensor.ndim() > 4)
      bad_input(
          fmt::format("{} broadcasts against [batch, heads, q_len, kv_len]: expected at most 4 "
                      "dimensions, got shape {}; reshape it",
                      flag, harness::to_text(shape_of(tensor))));
    return with_leading_ones(tensor, 4);
  };
  if (!flags.bias.empty()) {
    with.bias = at_most_four("--bias", files.read("--bias", flags.bias, wanted));
    options.bias = {with.bias.size(0), with.bias.size(1), with.bias.size(2), with.bias.size(3)};
    options.bias_dtype = with.bias.dtype();
  }
  if (!flags.visible.empty()) {
    with.visible = at_most_four("--visible", files.read_mask("--visible", flags.visible));
    options.visible = true;
  }
  const auto gradient = [&](const char* flag, const std::string& reference, DType type) {
    return reference.empty() ? Tensor() : files.read(flag, reference, type);
  };
  with.grad_out = gradient("--grad-out", flags.grad_out, options.dtype);
  with.grad_lse = gradient("--grad-lse", flags.grad_lse, options.dtype == f64 ? f64 : f32);
  const std::pair<const std::string*, uint32_t> gradients[] = {
      {&flags.grad_query, PERSEID_GRAD_QUERY},
      {&flags.grad_key, PERSEID_GRAD_KEY},
      {&flags.grad_value, PERSEID_GRAD_VALUE},
      {&flags.grad_bias, PERSEID_GRAD_BIAS}};
  for (const auto& [file, bit] : gradients) options.gradients |= file->empty() ? 0 : bit;
  return with;
}

harness::Shape AttentionInputs::out_shape() const {
  harness::Shape shape = shape_of(query);
  shape.back() = options.value_dim;
  return shape;
}

harness::Shape AttentionInputs::lse_shape() const {
  return options.ragged ? harness::Shape{options.heads, query.size(rows_dim())}
                        : harness::Shape{options.batch, options.heads, options.q_len};
}

AttentionResults AttentionResults::make(const AttentionFlags& flags, const AttentionInputs& inputs,
                                        TensorFiles& files) {
  const auto make = [&](const char* flag, const std::string& reference, DType type,
                        const harness::Shape& shape) {
    return reference.empty() ? files.scratch(type, shape)
                             : files.result(flag, reference, type, shape);
  };
  const auto gradient = [&](const char* flag, const std::string& reference, const Tensor& of,
                            const harness::Shape& shape) {
    return reference.empty() ? Tensor() : files.result(flag, reference, of.dtype(), shape);
  };
  const auto like = [&](const char* flag, const std::string& reference, const Tensor& of) {
    return gradient(flag, reference, of, shape_of(of));
  };
  const DType dtype = inputs.options.dtype;
  AttentionResults results;
  results.out = make("--out", flags.out, dtype, inputs.out_shape());
  results.lse = make("--lse", flags.lse, dtype == f64 ? f64 : f32, inputs.lse_shape());
  // In the shape of the file: broadcast dimensions that it leaves out stay out.
  if (!flags.grad_bias.empty())
    results.grad_bias = gradient("--grad-bias", flags.grad_bias, inputs.bias,
                                 shape_of(files.read("--bias", flags.bias, inputs.bias.dtype())));
  results.grad_query = like("--grad-query", flags.grad_query, inputs.query);
  results.grad_key = like("--grad-key", flags.grad_key, inputs.key);
  results.grad_value = like("--grad-value", flags.grad_value, inputs.value);
  return results;
}

void compute_attention(Run& run, const Context& context, const AttentionFlags& flags,
                       AttentionInputs with, const AttentionResults& results,
                       const AttentionCalls& calls) {
  harness::Placement placement(context);
  const Tensor out = placement.place(results.out), lse = placement.place(results.lse);
  for (Tensor* input : {&with.query, &with.key, &with.value, &with.bias, &with.visible,
                        &with.cu_seqlens_q, &with.cu_seqlens_kv, &with.q_lens, &with.kv_lens})
    if (!calls.bring_keys || (input != &with.key && input != &with.value))
      *input = placement.place(*input);
  if (calls.bring_keys) calls.bring_keys(&with);
  run.timed([&] {
    calls.forward({.query = with.query,
                   .key = with.key,
                   .value = with.value,
                   .bias = with.bias,
                   .visible = with.visible,
                   .cu_seqlens_q = with.cu_seqlens_q,
                   .cu_seqlens_kv = with.cu_seqlens_kv,
                   .q_lens = with.q_lens,
                   .kv_lens = with.kv_lens,
                   .out = out,
                   .lse = lse,
                   .seed = flags.seed,
                   .offset = flags.offset});
  });
  if (!flags.grad_out.empty()) {
    const AttentionBackward arguments = {
        .query = with.query,
        .key = with.key,
        .value = with.value,
        .bias = with.bias,
        .visible = with.visible,
        .cu_seqlens_q = with.cu_seqlens_q,
        .cu_seqlens_kv = with.cu_seqlens_kv,
        .q_lens = with.q_lens,
        .kv_lens = with.kv_lens,
        .out = out,
        .lse = lse,
        .grad_out = placement.place(with.grad_out),
        .grad_lse = placement.place(with.grad_lse),
        .grad_query = placement.place(results.grad_query),
        .grad_key = placement.place(results.grad_key),
        .grad_value = placement.place(results.grad_value),
        .grad_bias = results.grad_bias.present()
                         ? with_leading_ones(placement.place(results.grad_bias), 4)
                         : Tensor(),
        .seed = flags.seed,
        .offset = flags.offset};
    run.timed([&] { calls.backward(arguments); });
  }
  for (const Tensor& result : {results.out, results.lse, results.grad_bias, results.grad_query,
                               results.grad_key, results.grad_value})
    if (result.present()) placement.fetch(result);
}

void add_attention_flags(CLI::App& app, AttentionFlags& flags) {
  const auto file = [&](const char* flag, std::string& reference, const char* help) {
    return app.add_option(flag, reference, help)->type_name(kFile);
  };
  file("--query", flags.query, "[batch, q_len, heads, dim] in the layout")->required();
  file("--key", flags.key, "[batch, kv_len, kv_heads, dim]")->required();
  file("--value", flags.value, "[batch, kv_len, kv_heads, value_dim]")->required();
  file("--out", flags.out, "the result");
  file("--lse", flags.lse, "the logsumexp, [batch, heads, q_len]");
  app.add_option("--layout", flags.layout, "the order of batch, sequence, heads and dim")
      ->type_name("bshd|bhsd")
      ->capture_default_str();
  app.add_option("--causal", flags.causal, "which keys lie in a query's future")
      ->type_name("none|top-left|bottom-right")
      ->capture_default_str();
  app.add_option("--window", flags.window, "keys that a query sees on either side; -1: all")
      ->type_name("LEFT,RIGHT");
  app.add_flag("--window-bottom-right", flags.window_bottom_right,
               "the window's alignment, without --causal");
  app.add_option("--scale", flags.scale, "factor of the scores (0: 1 / sqrt(head_dim))");
  file("--bias", flags.bias, "added to the scores; broadcasts to [batch, heads, q_len, kv_len]");
  file("--visible", flags.visible, "bool or uint8 mask of that shape; true: may be attended");
  app.add_option("--dropout", flags.dropout, "probability of dropping, in [0, 1)");
  app.add_option("--seed", flags.seed, "seed of the dropout")->check(not_negative());
  app.add_option("--offset", flags.offset, "offset of the dropout, below 2^32")
      ->check(not_negative());
  file("--cu-seqlens-q", flags.cu_seqlens_q, "cumulative lengths: query is [total, heads, dim]");
  file("--cu-seqlens-kv", flags.cu_seqlens_kv, "the same of key and value");
  file("--q-lens", flags.q_lens, "query lengths, one for each sequence");
  file("--kv-lens", flags.kv_lens, "key lengths, one for each sequence");
  app.add_option("--num-splits", flags.num_splits, "the most splits of keys (0: any number)")
      ->check(not_negative());
  app.add_flag("--deterministic", flags.deterministic, "bitwise repeatable gradients");
  file("--grad-out", flags.grad_out, "gradient of the output");
  file("--grad-lse", flags.grad_lse, "gradient of the logsumexp");
  file("--grad-query", flags.grad_query, "the gradient of the query");
  file("--grad-key", flags.grad_key, "the gradient of the key");
  file("--grad-value", flags.grad_value, "the gradient of the value");
  file("--grad-bias", flags.grad_bias, "the gradient of the bias, in its shape");
}

}  // namespace perseid::cli
